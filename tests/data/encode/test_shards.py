"""Prepared in shards: the folder is that of one machine, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldwise.data.encode import fit_shards, pieces, time_shards
from fieldwise.data.read import line_blocks
from fieldwise.data.recipes.asked import Asked
from fieldwise.data.recipes.prepared import prepare_asked
from fieldwise.data.schema import history_settings


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK", 9000)
    monkeypatch.setattr(pieces, "PIECE_BLOCKS", 1)
    monkeypatch.setattr(fit_shards, "SHARD_ROWS", 600)
    monkeypatch.setattr(time_shards, "RANGE_ROWS", 900)


class Reversed(nullcontext["Reversed"]):
    """An engine that works on the last shard first, each with a copy of its own of what it works with."""

    def __enter__(self) -> Reversed:
        return self

    def check(self, paths: Sequence[Path]) -> None:
        assert all(path.exists() for path in paths)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        import cloudpickle

        packed = cloudpickle.dumps(function)
        return iter([cloudpickle.loads(packed)(item) for item in reversed(list(items))][::-1])


def write_log(path: Path, rows: int, seed: int, ending: str = "\t") -> Path:
    """Clicks with a category, a rare one, numbers, a set, a time that rises with gaps, and missing values of each."""
    random = np.random.default_rng(seed)
    lines = [ending.join(["click", "user", "rare", "price", "count", "tags", "when"])]
    for row in range(rows):
        user, price, count = random.integers(30), random.gamma(2), random.integers(0, 300)
        tags = "|".join(f"t{tag}" for tag in random.integers(0, 8, random.integers(0, 4)))
        when = 1_700_000_000 + 40_000 * seed + 100 * row - int(random.integers(0, 300))
        rare = "" if random.random() < 0.1 else f"r{int(random.pareto(0.5)) % 900}"
        cells = [int(random.random() < 0.3 + 0.02 * (user % 10)), f"u{user}", rare, f"{price:.3f}", count, tags, when]
        lines.append(ending.join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    return [write_log(folder / f"day{day}.tsv", rows, day) for day, rows in enumerate((900, 7, 500, 260))]


def content(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


SETTINGS: dict[str, dict[str, Any]] = {
    "at random": {},
    "at random, by other shares, with kept rows": {"shares": (0.63, 0.2, 0.17), "seed": 5, "keep_rows": True},
    "in the order of a time": {"split_by": "when"},
    "in the order of rows, with kept rows": {"split_by": "row", "keep_rows": True},
    "in the order of rows, fewer negatives": {"split_by": "row", "keep_negatives": 0.4},
    "fewer negatives at random": {"keep_negatives": 0.3, "split_by": "none"},
    "by value": {"split_by": "user"},
    "by group": {"split_group": ("user",)},
    "weights": {"weight": "price"},
    "history in folds": {"history": history_settings("user,user*rare", []), "any_order": False},
    "history in folds of groups, fewer negatives": {
        "history": history_settings("user*price", ["group=user,when", "interpolate=3"]),
        "keep_negatives": 0.4,
        "any_order": False,
    },
    "history that is proposed": {"history": history_settings("auto:2", [])},
    "history in time": {"history": history_settings("user,rare*user,price", ["time=when", "parts=rate,count"])},
    "rolling history in time": {
        "history": history_settings("user,rare", ["time=when", "delay=500", "view=rolling"]),
        "split_by": "when",
    },
    "history in time, parts in one another": {
        "history": history_settings("user", ["time=when", "half_life=3000"]),
        "split_by": "none",
    },
    "history that fades": {"history": history_settings("user", ["time=when", "half_life=3000"]), "split_by": "when"},
    "history in a window": {
        "history": history_settings("user,rare", ["time=when", "window=9000", "delay=100"]),
        "split_by": "when",
    },
    "history in the order of rows, fewer negatives": {
        "history": history_settings("user,rare", ["time=row", "delay=30"]),
        "keep_negatives": 0.5,
        "split_by": "row",
    },
    "leaves": {"gbdt_leaves": 3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_shards_make_the_folder_of_one_machine(tmp_path: Path, logs: list[Path], name: str) -> None:
    asked = Asked(files=logs, label="click", **SETTINGS[name])
    facts, _ = prepare_asked(asked, tmp_path / "one")
    found, _ = prepare_asked(asked, tmp_path / "shards", engine=Reversed)
    assert content(tmp_path / "shards") == content(tmp_path / "one")
    assert found | {"data": ""} == facts | {"data": ""}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "shards"]
