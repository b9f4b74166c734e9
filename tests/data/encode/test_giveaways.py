"""Columns that tell the label by themselves are named; those that only seem to are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.data.encode.prepare import prepare

ROWS = 4000
RNG = np.random.default_rng(8)
LABELS = (RNG.random(ROWS) < 0.1).astype(int)


def named(out: Path, labels: Any = LABELS, **columns: Any) -> list[str]:
    table = pa.table({"click": labels, "other": RNG.integers(0, 9, len(labels)).astype(str), **columns})
    facts = prepare({"train": lambda: iter([table])}, out, "click", force=True)
    warned = [note for note in facts["notes"] if "alone tells the label" in note]
    assert len(warned) == len(facts["giveaways"])
    return [giveaway["column"] for giveaway in facts["giveaways"]]


def test_columns_written_after_the_event(tmp_path: Path) -> None:
    found = named(
        tmp_path / "data",
        status=np.where(LABELS, "paid", "open"),
        # An amount of what was bought; an order that only buyers have; a score that was made of the label.
        amount=np.where(LABELS, RNG.random(ROWS) + 0.5, 0.0),
        order=[f"o{row // 50}" if label else None for row, label in enumerate(LABELS)],
        score=LABELS + RNG.normal(0, 0.1, ROWS),
    )
    assert found == ["status", "amount", "order", "score"]


def test_a_strong_column_is_none(tmp_path: Path) -> None:
    strong = np.where(RNG.random(ROWS) < 0.02, 1 - LABELS, LABELS)
    assert named(tmp_path / "data", strong=np.where(strong, "a", "b")) == []


def test_an_id_of_each_row_is_none(tmp_path: Path) -> None:
    """Fitted and read on the same rows it would tell all of them."""
    users = [f"u{row // 2}" for row in range(ROWS)]
    assert named(tmp_path / "data", user=users, labels=RNG.integers(0, 2, ROWS)) == []


def test_few_positives_prove_nothing(tmp_path: Path) -> None:
    labels = np.zeros(60, dtype=int)
    labels[:15] = 1
    assert named(tmp_path / "data", labels, same=np.where(labels, "a", "b")) == []
