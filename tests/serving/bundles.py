"""A prepared log with every kind of field, and bundles of any model over it, without the time of training them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fieldwise import models
from fieldwise.bundle import bundle
from fieldwise.bundle.calibration import Calibration
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.schema import Field, HistorySettings, Schema
from fieldwise.nn.trees import Trees

SMALL = {"dim": 4, "hidden": [8, 6], "subnet": [6, 3], "channels": [5], "buckets": 500, "rounds": 4}
SMALL |= {"blocks": [8, 6], "maps": [4, 3], "attention": 6, "crosses": 1, "gate_hidden": [4], "fm_hidden": [6]}
SMALL |= {"made": 3, "kept": 2, "fm_rank": 2, "stacked": 2}
CALIBRATION = Calibration("platt", 1.2, -0.3, offset=-0.5)
HISTORY = HistorySettings(keys=("user", "user*item", "price"), time="when", delay=2.0)
FIELDS = (
    Field("user"),
    Field("item", hash_buckets=11),
    Field("price", "numeric", max_buckets=6),
    Field("age", "numeric", max_buckets=5, interpolate=4),
    Field("size", "numeric", buckets="log-square"),
    Field("tags", "set", max_values=3),
)


def log(rows: int = 500, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with a time that rises, some values missing."""
    random = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for number in range(rows):
        row = {
            "user": f"u{random.integers(12)}",
            "item": int(random.integers(30)),
            "price": round(float(random.random()), 3),
            "age": float(random.integers(10, 80)),
            "size": int(random.integers(1, 500)),
            "tags": "|".join(random.choice(["a", "b", "c", "d"], size=random.integers(4), replace=False)),
        }
        gone = [name for name in row if random.random() < 0.08]
        found.append({"click": int(random.random() < 0.4), **row, **dict.fromkeys(gone), "when": float(number // 2)})
    return found


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({name: [row[name] for row in rows] for name in rows[0]})


@dataclass(frozen=True)
class Prepared:
    """A prepared folder, and what makes bundles over it."""

    data: Path
    bundle: Callable[..., Path]


def prepared(folder: Path, schema: Schema, leaves: int = 0) -> Prepared:
    data = folder / "data"
    prepare({"train": lambda: iter([table(log())])}, data, "click", schema, gbdt_leaves=leaves)

    def written(name: str, out: str = "", seed: int = 0, **options: Any) -> Path:
        """The bundle of a model with drawn weights, or of trees that were grown on the rows."""
        known = models.options(name)
        chosen = {key: value for key, value in {**SMALL, **options}.items() if key in known}
        texts = {k: str(v).lower() if isinstance(v, bool) else v for k, v in chosen.items()}
        config = load_config(overrides=[f"model.name={name}", *(f"model.{k}={v}" for k, v in texts.items())])
        dataset = Dataset.open(data)
        torch.manual_seed(seed)
        model = bundle.build_model(config, dataset.layout)
        if isinstance(model, Trees):
            list(model.boost(dataset.parts["train"], dataset.parts["valid"], seed))
        else:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
        path = folder / (out or f"{name}-{seed}")
        sources = {"schema.toml": data / "schema.toml", "encoder": data / "encoder"}
        bundle.write(path, config, sources, model, CALIBRATION, {"test": {"auc": 0.5}})
        return path

    return Prepared(data, written)


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Categories, hashed ones, numbers in buckets, between anchors and in words, sets, and history with time."""
    return prepared(tmp_path_factory.mktemp("online"), Schema("click", FIELDS, history=HISTORY))
