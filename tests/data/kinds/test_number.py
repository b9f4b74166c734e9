"""Numbers: buckets by hand, against slow walks, and what is no number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.buckets import Histogram, fit_thresholds, heavy_values
from fieldwise.data.kinds.kind import MISSING, OTHER
from fieldwise.data.kinds.number import NumberField, log_square
from fieldwise.data.read.formats import as_table
from tests.data.fitted import fitted


def numbers(values: list[Any], folder: Path, **settings: Any) -> Encoder:
    return fitted({"x": values}, folder, NumberField("x", **settings))


def buckets(encoder: Encoder, values: list[Any]) -> list[int]:
    return encoder.transform(as_table({"x": values}))[:, 0].tolist()


def test_quantiles(tmp_path: Path) -> None:
    encoder = numbers(list(range(100)), tmp_path / "data", max_buckets=4)
    assert encoder.codes[0].thresholds.tolist() == [24, 49, 74]
    assert encoder.layout.sizes == (6,)
    assert buckets(encoder, [-5, 0, 24, 24.5, 49, 74, 75, 1e9]) == [2, 2, 2, 3, 3, 4, 5, 5]
    assert encoder.value_of(0, 3) == "(24, 49]"
    assert encoder.value_of(0, 2) == "(-inf, 24]"


def test_few_distinct_values_have_a_bucket_each(tmp_path: Path) -> None:
    encoder = numbers([5, 1, 1, 9, 9, 9], tmp_path / "data")
    assert buckets(encoder, [1, 5, 9]) == [2, 3, 4]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(2, 9))
def test_quantile_buckets_hold_no_more_than_their_share(values: list[float], most: int) -> None:
    distinct, counts = np.unique(values, return_counts=True)
    bounds = fit_thresholds(NumberField("x", max_buckets=most), Histogram(distinct, counts, 0 * counts))
    assert len(bounds) < most
    held = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    assert (held > 0).all()
    assert (held <= len(values) / most + counts.max() + 1).all()


def test_a_value_of_most_rows_leaves_the_others_their_buckets() -> None:
    """Nine of ten rows are 0: the rest has all buckets but one, in equal shares, and heavy values one each."""
    rest = np.repeat(np.arange(1.0, 401.0), 5)
    values = np.concatenate([np.zeros(18_000), rest, np.full(300, 77.0)])
    distinct, counts = np.unique(values, return_counts=True)
    bounds = fit_thresholds(NumberField("x", max_buckets=32), Histogram(distinct, counts, 0 * counts))
    held = np.bincount(np.searchsorted(bounds, values))
    assert len(held) == 32
    assert held[0] == 18_000
    assert {0.0, 77.0} <= set(bounds.tolist())
    others = np.delete(held, [0, np.searchsorted(bounds, 77.0)])
    assert others.max() <= 2 * others.min()


@given(st.lists(st.integers(0, 40), min_size=1), st.integers(2, 9))
def test_a_heavy_value_shares_its_bucket_with_few(values: list[int], most: int) -> None:
    distinct, counts = np.unique(np.array(values, dtype=np.float64), return_counts=True)
    heavy = heavy_values(counts, most)
    bounds = fit_thresholds(NumberField("x", max_buckets=most), Histogram(distinct, counts, 0 * counts))
    places = np.searchsorted(bounds, distinct)
    light = np.bincount(places, np.where(heavy, 0, counts), minlength=len(bounds) + 1)
    # Before the last bucket, which takes what is left.
    for value in np.flatnonzero(heavy & (places < len(bounds))):
        assert light[places[value]] <= counts[~heavy].sum() / 2


def test_a_heavy_value_mixes_with_no_other(tmp_path: Path) -> None:
    """Between anchors 0 and 50 stand alone; what lies beside them is mixed across them, and ids rise with values."""
    rng = np.random.default_rng(0)
    values = [*np.zeros(4000), *np.full(300, 50.0), *rng.integers(1, 100, 1000).astype(float)]
    encoder = numbers(values, tmp_path / "data", max_buckets=16, interpolate=8)
    code = encoder.codes[0]
    assert code.alone.tolist() == [0, 50]
    assert not {0.0, 50.0} & set(code.anchors.tolist())
    zero, fifty, below, above = code.ids(["0", "50", "49.9", "50.1"]).tolist()
    assert len(set(zero)) == len(set(fifty)) == 1
    assert set(below) == set(above) == {fifty[0] - 1, fifty[0] + 1}
    rising = code.ids([str(value) for value in np.linspace(-5, 120, 300).tolist()]).mean(axis=1)
    assert (np.diff(rising) >= 0).all()
    assert code.value_of(fifty[0]) == "50"
    again = Encoder.load(tmp_path / "data" / "encoder", encoder.schema).codes[0]
    asked = [0, 50, 49.9, 7, -3, 1e9, None, "cheap"]
    expected = code.ids([None if value is None else str(value) for value in asked])
    np.testing.assert_array_equal(np.array(again.coder()(asked)).T, expected)


def test_numbers_that_all_are_heavy_are_anchors(tmp_path: Path) -> None:
    code = numbers([1, 1, 2, 2, 3, 3], tmp_path / "data", max_buckets=16, interpolate=4).codes[0]
    assert (code.anchors.tolist(), code.alone.tolist()) == ([1, 2, 3], [])
    assert code.ids(["1.5"]).tolist() == [[2, 2, 3, 3]]


def test_count_thresholds_by_hand() -> None:
    """A threshold whenever more than T rows have passed since the last, as for the paper's Criteo data."""
    field = NumberField("x", buckets="count", bucket_count=3)
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    counts = np.array([2, 1, 1, 4, 1, 9])
    assert fit_thresholds(field, Histogram(values, counts, 0 * counts)).tolist() == [2, 3]


@given(st.lists(st.integers(-20, 20), min_size=2), st.integers(1, 10))
def test_count_buckets_are_the_number_of_thresholds_below(values: list[int], most: int) -> None:
    """Against the published walk; it puts a threshold at the largest value too, which no training row exceeds."""
    slow: list[int] = []
    running = 0
    for value in sorted(set(values)):
        running += values.count(value)
        if running > most:
            slow.append(value)
            running = 0
    distinct, counts = np.unique(np.array(values, dtype=np.float64), return_counts=True)
    bounds = fit_thresholds(
        NumberField("x", buckets="count", bucket_count=most), Histogram(distinct, counts, 0 * counts)
    )
    for value in values:
        assert np.searchsorted(bounds, value) == sum(threshold < value for threshold in slow)


def test_explicit_thresholds(tmp_path: Path) -> None:
    encoder = numbers([7, 7], tmp_path / "data", buckets="explicit", thresholds=(0.0, 10.0, 50.0))
    assert buckets(encoder, [-1, 0, 0.5, 10, 50, 51]) == [2, 2, 3, 3, 4, 5]
    assert encoder.layout.sizes == (6,)


def test_log_square(tmp_path: Path) -> None:
    assert [log_square(v) for v in (-3.0, 0.0, 1.0, 2.0, 3.0, 1000.0)] == ["SP-3", "SP0", "SP1", "SP2", "1", "47"]
    encoder = numbers([3, 1000, 1000, 1001, 1], tmp_path / "data", buckets="log-square")
    assert buckets(encoder, [1000, 1001, 3, 7, math.inf, None]) == [2, 2, OTHER, OTHER, OTHER, MISSING]


@pytest.mark.parametrize(
    "settings", [{}, {"buckets": "count", "bucket_count": 1}, {"buckets": "explicit", "thresholds": (0.0,)}]
)
def test_missing_numbers_and_infinities(tmp_path: Path, settings: dict[str, Any]) -> None:
    encoder = numbers([1.0, 2.0, math.nan, None, math.inf, -math.inf, 3.0, 3.0], tmp_path / "data", **settings)
    assert np.isfinite(encoder.codes[0].thresholds).all()
    assert buckets(encoder, [None, math.nan]) == [MISSING, MISSING]
    assert buckets(encoder, ["", "nan", "NaN"]) == [MISSING] * 3
    low, high = buckets(encoder, [-math.inf, math.inf])
    assert (low, high) == (2, encoder.layout.sizes[0] - 1)
    assert buckets(encoder, ["-inf", "inf"]) == [low, high]


@pytest.mark.parametrize("values", [[None, None], [4.0, 4.0]])
def test_a_constant_number_has_one_bucket(tmp_path: Path, values: list[Any]) -> None:
    encoder = numbers(values, tmp_path / "data")
    assert encoder.layout.sizes == (3,)
    assert buckets(encoder, [4.0, 5.0, None]) == [2, 2, MISSING]


@pytest.mark.parametrize("text", ["abc", "1_000", "1,5", "0x10"])
def test_text_in_a_numeric_field(tmp_path: Path, text: str) -> None:
    encoder = numbers([1, 2], tmp_path / "data")
    assert buckets(encoder, [text, "1", "NA"]) == [OTHER, 2, MISSING]
