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
from fieldwise.data.kinds.buckets import Histogram, fit_thresholds
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
