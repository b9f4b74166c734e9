"""Few positives: close candidates are trained on further folds, and chosen by all of them."""

import json

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.data.dataset import Dataset, Tally
from fieldwise.data.encode import folds as makers
from fieldwise.data.encode.on_demand import made, offered
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.encode.split import Split
from fieldwise.data.encode.staged import staged_chunks
from fieldwise.experiments import entrants, folds
from fieldwise.experiments.compare import compare
from fieldwise.experiments.folds import FILE, FOLDER, Folded

ROWS = 3000


@pytest.fixture(scope="module")
def log():
    """Rows of 300 users, with a place that says something of the label, and a number that is the row's own."""
    random = np.random.default_rng(0)
    place = random.integers(0, 6, ROWS)
    click = (random.random(ROWS) < 0.03 + 0.05 * (place % 3)).astype(int)
    users = [f"u{user}" for user in random.integers(0, 300, ROWS)]
    return pa.table({"click": click, "place": place.astype(str), "user": users, "row": np.arange(ROWS) / 7})


def written(log, out, **more):
    prepare({"train": lambda: iter([log])}, out, "click", split=Split(**more), keep_rows=True)
    return out


def numbers(folder, part):
    """The rows of a part, by their own number: ids of its buckets are not enough, the kept rows are."""
    chunks = list(staged_chunks(folder / "rows" / part, ["row"]))
    return {round(value * 7) for chunk in chunks for value in chunk["row"].to_pylist()}


def test_folds_are_other_rows_of_training_with_the_same_rate(log, tmp_path):
    data = written(log, tmp_path / "data")
    first, test = numbers(data, "valid"), numbers(data, "test")
    seen = [first]
    for name in makers.FOLDERS:
        fold = made(data / name)
        rows = Dataset.open(fold)
        own = numbers(fold, "valid")
        assert not any(own & other for other in (*seen, test))
        assert own | numbers(fold, "train") == numbers(data, "train") | first
        assert len(own) == pytest.approx(len(first), abs=12)
        whole = np.mean(log["click"].to_numpy())
        assert rows.parts["valid"].labels.mean() == pytest.approx(whole, rel=0.1)
        assert "test" not in rows.parts
        assert offered(fold / "rates")
        assert not offered(fold / "refit")
        seen.append(own)


def test_groups_stay_together_in_folds(log, tmp_path):
    data = written(log, tmp_path / "data", group=("user",))
    fold = made(data / makers.FOLDERS[0])
    users = log["user"].to_pylist()
    valid, train = ({users[row] for row in numbers(fold, part)} for part in ("valid", "train"))
    assert valid
    assert not valid & train


@pytest.mark.parametrize(
    ("rows", "positives", "levels", "expected"),
    [
        ({"train": 8000, "valid": 1000}, {"train": 400, "valid": 50}, (), 2),
        ({"train": 8000, "valid": 1000}, {"train": 1600, "valid": 200}, (), 1),
        ({"train": 8000, "valid": 1000}, {"train": 4000, "valid": 500}, (), 0),
        ({"train": 8000, "valid": 1000}, {"train": 7600, "valid": 950}, (), 2),
        ({"train": 800_000, "valid": 1000}, {"train": 400, "valid": 50}, (), 0),
        ({"train": 8000, "valid": 1000}, {"train": 400, "valid": 50}, (("train", 8000, 400),), 0),
    ],
)
def test_folds_are_for_small_sets_without_an_order(rows, positives, levels, expected):
    assert makers.needed(Tally(rows, positives, levels)) == expected


def test_close_candidates_are_chosen_by_all_folds(log, tmp_path, monkeypatch):
    # So few epochs leave differences of nothing, which are many standard errors of nothing.
    monkeypatch.setattr(folds, "CLOSE", 100.0)
    data, out = written(log, tmp_path / "data"), tmp_path / "out"
    models, _ = entrants.entrants("lr,fm,lr-rates", data)
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    for name in ("lr", "fm"):
        (recipes / f"{name}.toml").write_text("[train]\nepochs = 2\n")
    names = [model.name for model in models]
    found = compare(models, data, out, seeds=1, recipes=recipes, device="cpu", members=names)
    folded = Folded.of(out)
    assert folded is not None
    assert set(folded.names) <= set(names)
    valid = Dataset.open(data).parts["valid"]
    assert folded.first == valid.rows
    assert folded.logits.shape[1] == len(folded.labels) > 2.5 * valid.rows
    losses = {name: folded.loss(name) for name in folded.names}
    report = json.loads((out / "blend" / "seed0" / "report.json").read_text())
    losses["blend"] = report["cross_fitted"]
    # One model takes the place of a blend only if it is better by more than a standard error.
    ranks = losses | {"blend": losses["blend"] - report["cross_fitted_se"]}
    assert found["best"]["model"] == min(ranks, key=ranks.get)
    assert found["best"]["valid_log_loss"] == pytest.approx(losses[found["best"]["model"]])
    # The rows of the folds cost disk, and are of no more use; a second call needs neither them nor new runs.
    assert not any((data / name).exists() for name in makers.FOLDERS)
    assert [path.name for path in (out / FOLDER).iterdir()] == [FILE]
    before = (out / FOLDER / FILE).stat().st_mtime_ns
    again = compare(models, data, out, seeds=1, recipes=recipes, device="cpu", members=names)
    assert again["best"]["model"] == found["best"]["model"]
    assert (out / FOLDER / FILE).stat().st_mtime_ns == before
