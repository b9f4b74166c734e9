"""Networks learn from the first step: warm-up, and starts near the base rate (docs/lab/2026-11-start.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fieldwise.config.progress import Progress
from fieldwise.config.settings import TrainSettings, load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.schema import Field, Layout, Schema
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.optim import Adam, learning_rate
from fieldwise.train.loop import train
from fieldwise.train.network import warmup

FIELDS, ROWS = 16, 6000


def network(name: str, **options: Any) -> Model:
    torch.manual_seed(0)
    model = build(name, Layout.of([20] * FIELDS), {"dim": 8, **options})
    assert isinstance(model, Model)
    return model


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of uneven frequency, and labels that a weight for each id decides."""
    rng = np.random.default_rng(0)
    ids = (rng.zipf(1.5, (ROWS, FIELDS)) % 20).astype(np.int32)
    logits = 0.5 * rng.normal(size=(FIELDS, 20))[np.arange(FIELDS), ids].sum(axis=1)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(logits.mean() - logits))
    return torch.from_numpy(ids), torch.from_numpy(labels.astype(np.float32))


def spread(model: Model, lr: float, warm: int, steps: int = 60) -> float:
    """The logits' standard deviation after some steps of Adam."""
    ids, labels = rows()
    optimizer = Adam(model.parameters(), lr=lr)
    for step in range(steps):
        batch = slice(100 * step, 100 * step + 100)
        optimizer.param_groups[0]["lr"] = learning_rate(lr, step, steps, warmup=warm)
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(ids[batch]), labels[batch]).backward()
        optimizer.step()
    return float(model(ids[:1000]).detach().std())


def test_a_wide_pin_learns_at_a_high_rate_with_the_default_warmup_and_answers_a_constant_without() -> None:
    shape = {"hidden": (400,) * 4, "subnet": (20, 5), "dropout": 0.0}
    warm = warmup(TrainSettings(lr=1e-2), steps=1000, deep=True)
    assert spread(network("pin", **shape), 1e-2, warm) > 0.3
    assert spread(network("pin", **shape), 1e-2, 0) < 0.01


@pytest.mark.parametrize(
    ("settings", "steps", "deep", "expected"),
    [
        ({}, 1000, True, 100),
        ({"lr": 1e-2}, 2000, True, 500),
        ({}, 60, True, 30),
        ({}, 1, True, 0),
        ({}, 1000, False, 0),
        ({"warmup": 7}, 1000, False, 7),
        ({"warmup": 0}, 1000, True, 0),
        ({"optimizer": "ftrl"}, 1000, True, 0),
        ({"continue_from": "run"}, 1000, True, 0),
    ],
)
def test_the_warmup_that_is_left_open(settings: dict[str, Any], steps: int, deep: bool, expected: int) -> None:
    assert warmup(TrainSettings(**settings), steps, deep) == expected


@pytest.mark.parametrize("name", ["fnn", "ccpm", "ipnn", "kpnn", "pin", "nifm"])
@pytest.mark.parametrize("start", [0.01, 0.3])
def test_first_logits_are_near_the_base_rate(name: str, start: float) -> None:
    model = network(name)
    model.embedding.tables[0].start("normal", start)
    if model.linear is not None:
        model.linear.weights.start("normal", 0.01)
    assert float(model(rows()[0]).detach().std()) < 0.25


class Heard(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def say(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ids, labels = rows()
    names = {f"f{place}": ids[:, place].numpy() for place in range(FIELDS)}
    table = pa.table({"click": labels.numpy().astype(np.int8), **{n: pa.array(v) for n, v in names.items()}})
    table = pa.concat_tables([table] * 12)
    folder = tmp_path_factory.mktemp("drawn") / "data"
    schema = Schema("click", tuple(Field(name) for name in names))
    prepare({"train": lambda: iter([table])}, folder, "click", schema)
    return folder


def test_a_run_that_sits_on_the_base_rate_says_so(drawn: Path, tmp_path: Path) -> None:
    shape = ["model.name=pin", "model.dim=8", "model.hidden=400,400,400,400", "model.subnet=20,5", "model.dropout=0.0"]
    training = ["train.batch_size=500", "train.epochs=1", "train.lr=0.03"]
    runs = {"constant": ["train.warmup=0"], "learns": ["train.warmup=15", "train.lr=1e-3"]}
    for name, more in runs.items():
        stuck = name == "constant"
        heard = Heard()
        train(load_config(overrides=[*shape, *training, *more]), drawn, tmp_path / name, progress=heard)
        assert any("nothing is learnt so far; if it stays so, lower train.lr" in note for note in heard.notes) == stuck
        events = [json.loads(line)["event"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        assert ("base rate" in events) == stuck
