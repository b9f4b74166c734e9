"""Recipes on real samples of the public files, where they lie beside the repository; skipped where they do not.

Nothing of them is in the repository. Set FIELDWISE_DATA to their folder if it is not ../shared/data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("FIELDWISE_DATA", Path(__file__).parents[2] / "shared" / "data"))
# Recipe, file or folder, what it must find: rows of the parts together, positives in percent, fields.
SAMPLES = [
    ("criteo", "criteo80k/criteo80k.tsv", 80_000, 22.4, 39),
    ("avazu", "avazu20k/avazu20k.csv", 20_000, 16.6, 24),
    ("frappe", "frappe", 288_609, 33.3, 10),
    ("amazon", "amazon/amazon.csv", 32_769, 94.2, 9),
]
Run = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("recipe", "name", "rows", "positive", "fields"), SAMPLES, ids=[s[0] for s in SAMPLES])
def test_recipe_on_a_real_sample(
    recipe: str, name: str, rows: int, positive: float, fields: int, tmp_path: Path, run: Run
) -> None:
    source = FOLDER / name
    if not source.exists():
        pytest.skip(f"no real sample of {recipe}: {source} is absent")
    facts = run("prepare", source, "--recipe", recipe, "--out", tmp_path / "data")
    assert sum(facts["rows"].values()) == rows
    assert set(facts["rows"]) == {"train", "valid", "test"}
    positives = sum(facts["rows"][part] * facts["positive_rate"][part] for part in facts["rows"])
    assert 100 * positives / rows == pytest.approx(positive, abs=0.1)
    assert len(facts["fields"]) == fields
    # Whole files pass without a word, samples do not.
    assert any("is this a sample" in note for note in facts["notes"]) == (recipe in ("criteo", "avazu"))


def test_a_model_of_raw_rows_predicts_raw_rows(tmp_path: Path, run: Run) -> None:
    source = FOLDER / "avazu20k" / "avazu20k.csv"
    if not source.exists():
        pytest.skip(f"no real sample of avazu: {source} is absent")
    run("prepare", source, "--recipe", "avazu", "--out", tmp_path / "data")
    run("train", tmp_path / "data", "--model", "lr", "--set", "train.epochs=3", "--out", tmp_path / "run")
    assert run("evaluate", tmp_path / "run", source)["auc"] > 0.7
    assert run("predict", tmp_path / "run", source, "-o", tmp_path / "p.csv")["rows"] == 20_000
