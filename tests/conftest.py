"""A small click log and a small trained run, made once for all tests that need one."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from fieldwise import cli
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.train.loop import train
from tests.serving.bundles import everything
from tests.serving.served import server

__all__ = ["everything", "server"]  # fixtures of more than one room

# Times depend on the machine, and the same examples must run everywhere.
settings.register_profile("fieldwise", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("fieldwise")

ROWS = 400


@dataclass(frozen=True)
class Trained:
    """Where things are: the raw log, the prepared folder and the run."""

    log: Path
    data: Path
    run: Path


@pytest.fixture(scope="session")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A csv of 400 rows: click (0/1), user (categorical), price (numeric, some empty) and tags (a set)."""
    rng = np.random.default_rng(7)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["click", "user", "price", "tags"])
        for _ in range(ROWS):
            user, price = int(rng.integers(20)), round(float(rng.random()), 4)
            tags = rng.choice(["a", "b", "c", "d"], size=rng.integers(4), replace=False)
            logit = (user % 5) - 2 + 3 * (price - 0.5) + ("a" in tags)
            click = int(rng.random() < 1 / (1 + np.exp(-logit)))
            rows.writerow([click, f"u{user}", "" if rng.random() < 0.1 else price, "|".join(tags)])
    return path


@pytest.fixture(scope="session")
def trained(small_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A small FM trained for two epochs on `small_log`. Do not write into its folders: copy them."""
    folder = tmp_path_factory.mktemp("trained")
    data, run = folder / "data", folder / "run"
    prepare({"train": lambda: formats.read([small_log])}, data, "click")
    chosen = ["model.name=fm", "model.dim=4", "train.epochs=2", "train.batch_size=50", "train.lr=0.01", "device=cpu"]
    train(load_config(overrides=chosen), data, run)
    return Trained(small_log, data, run)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """A command that must end well; gives its JSON."""

    def call(*arguments: object) -> dict[str, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([*map(str, arguments), "--json"])
        printed = capsys.readouterr()
        assert end.value.code == 0, printed.err
        found: dict[str, Any] = json.loads(printed.out)
        return found

    return call
