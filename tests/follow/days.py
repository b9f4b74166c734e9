"""A small world of days, and a model that was trained on the first of them."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file

from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import HistorySettings
from fieldwise.follow.desk import Wanted
from fieldwise.follow.follower import Follower
from fieldwise.follow.journal import Journal
from fieldwise.train.loop import train

HISTORY = HistorySettings(("user",), time="moment", view="rolling", parts=("rate",))
SETTINGS = ["model.name=lr", "train.epochs=2", "train.lr=0.05", "train.batch_size=32", "device=cpu"]


def day(number: int, rows: int = 300, shift: float = 0.0) -> pa.Table:
    """The rows of a day: clicks depend on the user, users come and go; `shift` moves what users like."""
    random = np.random.default_rng(number)
    users = random.integers(3 * number, 3 * number + 25, rows)
    likes = np.where(users % 2 == (shift > 0), 1.5, -1.5)
    return pa.table(
        {
            "click": (random.random(rows) < 1 / (1 + np.exp(-likes))).astype(int),
            "user": [f"u{user}" for user in users],
            "device": random.choice(["phone", "desk"], rows),
            "moment": number * 1000 + np.sort(random.integers(0, 1000, rows)),
        }
    )


def write_day(folder: Path, number: int, rows: int = 300, **more: Any) -> Path:
    """A file of a day, as a log."""
    folder.mkdir(exist_ok=True)
    path = folder / f"day-{number}.csv"
    path.write_text(text_of(day(number, rows, **more)), encoding="utf-8")
    return path


def text_of(table: pa.Table) -> str:
    lines = [",".join(map(str, row.values())) for row in table.to_pylist()]
    return "\n".join([",".join(table.column_names), *lines]) + "\n"


def write_gz(path: Path, text: str) -> bytes:
    path.write_bytes(gzip.compress(text.encode()))
    return path.read_bytes()


def trained(folder: Path, history: HistorySettings | None, settings: list[str] = SETTINGS, **more: Any) -> Path:
    """A run on the days 0 to 2."""
    log = pa.concat_tables([day(number) for number in range(3)])
    drop = ("moment",)
    split = Split((0.7, 0.15, 0.15), by="row")
    prepare({"train": lambda: iter([log])}, folder / "data", "click", split=split, drop=drop, history=history, **more)
    train(load_config(overrides=settings), folder / "data", folder / "run", pairs=False)
    return folder / "run"


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run without a history, one with a history in time, and one with a history in folds. Do not write into them."""
    folder = tmp_path_factory.mktemp("follow")
    histories = {"plain": None, "history": HISTORY, "folds": replace(HISTORY, time="", view="frozen")}
    for name in histories:
        (folder / name).mkdir()
    return {name: trained(folder / name, history) for name, history in histories.items()}


def wanted(folder: Path, run: Path, **more: Any) -> Wanted:
    """How a run is followed: by a link, so that its folder stays."""
    link = folder / "live"
    if not link.exists() and not (folder / "work").exists():
        link.symlink_to(run)
    (folder / "logs").mkdir(exist_ok=True)
    given: dict[str, Any] = {"min_age": 0.0, "min_rows": 100, "margin": 100.0, "settings": ("train.epochs=1",)}
    return Wanted(folder / "logs", link, folder / "work", **(given | more))


def follow(folder: Path, run: Path, **more: Any) -> Journal:
    """Rounds until there is nothing to do."""
    follower = Follower(wanted(folder, run, **more))
    while follower.cycle():
        pass
    return follower.journal


def lines(journal: Journal, *steps: str) -> list[dict[str, Any]]:
    """The lines of these steps, or of all, without what a clock says, and without ids, which are of the clock too."""
    clocks = {"time", "seconds", "id"}
    return [
        {name: value for name, value in entry.items() if name not in clocks}
        for entry in journal.entries
        if not steps or entry["step"] in steps
    ]


def said(journal: Journal, step: str) -> list[str]:
    return [entry["why"] for entry in journal.entries if entry["step"] == step]


def outcome(bundle: Path) -> dict[str, Any]:
    """What a bundle predicts by: weights, encoder with its history, calibration, byte for byte."""
    kept = [*(bundle / "encoder").iterdir(), bundle / "calibration.json", bundle / "schema.toml"]
    files: dict[str, Any] = {path.name: path.read_bytes() for path in kept}
    weights = load_file(bundle / "weights.safetensors")
    return files | {name: value.numpy().tobytes() for name, value in weights.items()}
