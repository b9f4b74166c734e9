"""Rows and positives in blocks of time, as `prepare` leaves them for the calibration."""

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.encode.split import Split

ROWS = 12_000


@pytest.fixture(scope="module")
def log():
    """A log of 120 hours in random order; there are more positives in later ones."""
    random = np.random.default_rng(0)
    hour = random.integers(0, 120, ROWS)
    click = (random.random(ROWS) < 0.1 + hour / 400).astype(int)
    return pa.table({"hour": hour, "place": random.integers(0, 5, ROWS).astype(str), "click": click})


def written(log, out, **more):
    split = Split(**more)
    sources = {"train": lambda: iter([log.slice(first, 700) for first in range(0, ROWS, 700)])}
    prepare(sources, out, "click", split=split, keep_rows=True)
    return Dataset.open(out)


def counted(levels, part):
    own = np.array([level[1:] for level in levels if level[0] == part])
    return own.sum(axis=0).tolist()


@pytest.mark.parametrize("by", ["hour", "row"])
def test_blocks_are_those_of_the_parts_in_the_order_of_time(log, tmp_path, by):
    data = written(log.sort_by("hour") if by == "row" else log, tmp_path / "data", by=by)
    parts = [level[0] for level in data.levels]
    assert parts == sorted(parts, key=["train", "valid", "test"].index)
    assert 30 <= len(parts) <= 45
    for name, part in data.parts.items():
        rows, positives = counted(data.levels, name)
        assert rows == pytest.approx(part.rows, abs=250 if by == "row" else 0)
        assert positives == pytest.approx(int(part.labels.sum()), abs=80 if by == "row" else 0)
    rates = np.array([positives / rows for _, rows, positives in data.levels])
    assert np.corrcoef(rates, np.arange(len(rates)))[0, 1] > 0.9


def test_rows_in_no_order_have_no_blocks(log, tmp_path):
    assert written(log, tmp_path / "data").levels == ()
    assert '"levels"' not in (tmp_path / "data" / "data.json").read_text()


def test_a_refit_has_the_test_blocks_among_those_of_training(log, tmp_path):
    data = written(log, tmp_path / "data", by="hour")
    refit = Dataset.open(made(tmp_path / "data" / "refit"))
    assert [level[1:] for level in refit.levels] == [level[1:] for level in data.levels]
    assert refit.levels[-1][0] == "train"
    assert Dataset.open(made(tmp_path / "data" / "rates")).levels == data.levels
