"""Buckets from a tree, and numbers between anchors: slow twins, the vector that a value gets, and what is no number."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import Classifier
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError, DataError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.encode.tabular import Features
from fieldwise.data.kinds.buckets import Histogram, fine_ids, fit_anchors, fit_thresholds, spread, tree_thresholds
from fieldwise.data.read.formats import as_table
from fieldwise.data.schema import FIRST, MISSING, OTHER, PAD, Field, Layout, Schema
from fieldwise.nn.embedding import Table
from fieldwise.train.incremental import settings_of
from fieldwise.train.loop import train

STEPS = 8
PRICE = Field("price", "numeric", max_buckets=6, interpolate=STEPS)


def drawn(rows: int = 400, seed: int = 0) -> pa.Table:
    """Prices, some missing, cheap ones with more clicks; and a category."""
    rng = np.random.default_rng(seed)
    price = np.exp(rng.normal(size=rows)).round(3)
    click = rng.random(rows) < 1 / (1 + price)
    gone = rng.random(rows) < 0.1
    prices = [None if missing else value for value, missing in zip(price.tolist(), gone, strict=True)]
    return pa.table({"click": click.astype(int), "price": prices, "shop": rng.integers(0, 5, rows)})


def fitted(folder: Path, *fields: Field, table: pa.Table | None = None, **more: Any) -> Encoder:
    table = drawn() if table is None else table
    schema = Schema("click", fields)
    prepare({"train": lambda: iter([table])}, folder, "click", schema, Split((0.8, 0.1, 0.1)), **more)
    return Encoder.load(folder / "encoder", Schema.load(folder / "schema.toml"))


def histogram(values: list[float], labels: list[int]) -> Histogram:
    distinct, places, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    return Histogram(distinct, counts, np.bincount(places, weights=labels).astype(np.int64))


# Thresholds from a tree.


def loss(rows: list[tuple[float, int]]) -> float:
    total, n, p = 0.0, len(rows), sum(label for _, label in rows)
    for part in (p, n - p):
        total -= part * math.log(part / n) if part else 0
    return total


def slow_tree(rows: list[tuple[float, int]], leaves: int, least: int) -> list[float]:
    """Cuts the leaf, at the value, that gains most, until nothing gains enough."""
    cut, price = [rows], math.log(len(rows))
    found: list[float] = []
    while len(found) < leaves - 1:
        best: tuple[float, float, int] | None = None
        for number, leaf in enumerate(cut):
            for value in sorted({v for v, _ in leaf})[:-1]:
                sides = [row for row in leaf if row[0] <= value], [row for row in leaf if row[0] > value]
                gain = loss(leaf) - sum(map(loss, sides))
                if min(map(len, sides)) >= least and gain > price and (best is None or gain > best[0] + 1e-9):
                    best = gain, value, number
        if best is None:
            break
        _, value, number = best
        leaf = cut.pop(number)
        cut += [[row for row in leaf if row[0] <= value], [row for row in leaf if row[0] > value]]
        found.append(value)
    return sorted(found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("leaves", "least"), [(2, 1), (4, 1), (12, 1), (12, 30)])
def test_a_tree_cuts_where_the_slow_one_does(seed: int, leaves: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 30, 400).astype(float)
    chance = np.array([0.1, 0.8, 0.3, 0.05, 0.95, 0.5])[(values // 5).astype(int)]
    labels = (rng.random(400) < chance).astype(int)
    rows = list(zip(values.tolist(), labels.tolist(), strict=True))
    found = tree_thresholds(histogram(*map(list, zip(*rows, strict=True))), leaves, least)
    assert found.tolist() == slow_tree(rows, leaves, least)
    assert len(found) > 0


def test_a_tree_finds_no_bounds_in_noise_and_the_steps_in_a_staircase(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random(5000)
    noise = tree_thresholds(histogram(x.tolist(), rng.integers(0, 2, 5000).tolist()), 64, 20)
    assert len(noise) == 0
    steps = np.where(x < 0.3, 0.1, np.where(x < 0.7, 0.9, 0.4))
    table = pa.table({"click": (rng.random(5000) < steps).astype(int), "x": x})
    bounds = fitted(tmp_path / "data", Field("x", "numeric", buckets="tree"), table=table).codes[0].thresholds
    assert bounds == pytest.approx([0.3, 0.7], abs=0.01)


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 4.0]])
def test_a_tree_of_few_values(values: list[float]) -> None:
    seen = Histogram(np.array(values), np.full(len(values), 50), np.arange(len(values)) * 50)
    assert fit_thresholds(Field("x", "numeric", buckets="tree"), seen).tolist() == values[:-1]


# Anchors and places between them.


@given(
    st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 9)), min_size=1, max_size=40),
    st.lists(st.integers(-25, 25), max_size=6, unique=True),
)
def test_an_anchor_is_the_median_of_its_bucket(rows: list[tuple[int, int]], bounds: list[int]) -> None:
    values = sorted(float(value) for value, n in rows for _ in range(n))
    thresholds = sorted(map(float, bounds))
    edges = [-math.inf, *thresholds, math.inf]
    inside = [[v for v in values if low < v <= high] for low, high in itertools.pairwise(edges)]
    expected = [bucket[(len(bucket) - 1) // 2] for bucket in inside if bucket]
    seen = histogram(values, [0] * len(values))
    found = fit_anchors(np.array(thresholds), seen).tolist()
    assert found == expected
    assert all(low < high for low, high in itertools.pairwise(found))


def slow_ids(value: float, anchors: list[float], steps: int) -> list[int]:
    """By exact fractions: how many of the M ids are the upper anchor's."""
    if value <= anchors[0] or value >= anchors[-1]:
        return [FIRST + (0 if value <= anchors[0] else len(anchors) - 1)] * steps
    lower = max(place for place, anchor in enumerate(anchors) if anchor <= value)
    low, high, x = (Fraction(number) for number in (anchors[lower], anchors[lower + 1], value))
    upper = math.floor((x - low) / (high - low) * steps + Fraction(1, 2))
    return [FIRST + lower] * (steps - upper) + [FIRST + lower + 1] * upper


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.integers(-600, 600), min_size=1),
    st.sampled_from([1, 2, 8, 64]),
)
def test_ids_are_those_of_the_slow_twin(anchors: list[int], tenths: list[int], steps: int) -> None:
    # Powers of two and halves of them are exact in floating point, so that ties are too.
    values, points = [tenth / 8 for tenth in tenths], [float(anchor) * 2 for anchor in anchors]
    exact = all(math.log2(high - low).is_integer() for low, high in itertools.pairwise(points))
    found = spread(fine_ids(np.array(values), np.array(points), steps), steps)
    expected = np.array([slow_ids(value, points, steps) for value in values])
    if exact:
        np.testing.assert_array_equal(found, expected)
    assert np.abs(found.mean(axis=1) - expected.mean(axis=1)).max() <= 1 / steps
    rising = np.argsort(values, kind="stable")
    assert (np.diff(found[rising].sum(axis=1)) >= 0).all()


def test_the_vector_of_a_value_lies_between_those_of_its_neighbours(tmp_path: Path) -> None:
    encoder = fitted(tmp_path / "data", PRICE, Field("shop"))
    anchors = encoder.codes[0].anchors
    assert encoder.layout.widths == (STEPS, 1)
    assert encoder.layout.sizes[0] == FIRST + len(anchors) == FIRST + 6
    table = Table(encoder.layout.without_ranks, 3).double()
    torch.nn.init.normal_(table.weight)
    values = np.concatenate([np.linspace(anchors[0], anchors[-1], 200), anchors])
    ids = encoder.transform(as_table({"price": values, "shop": np.ones(len(values), dtype=int)}))[:, : STEPS + 1]
    vectors = table(torch.from_numpy(ids))[:, 0].detach().numpy()
    rows = table.weight.detach().numpy()[FIRST:]
    for value, vector in zip(values, vectors, strict=True):
        lower = min(int(np.searchsorted(anchors, value, side="right")) - 1, len(anchors) - 2)
        share = (value - anchors[lower]) / (anchors[lower + 1] - anchors[lower])
        share = math.floor(share * STEPS + 0.5) / STEPS
        np.testing.assert_allclose(vector, (1 - share) * rows[lower] + share * rows[lower + 1], atol=1e-12)
    # A linear function of the anchors is one of the values, up to half a step.
    table.weight.data[FIRST : FIRST + 6, 0] = torch.from_numpy(anchors)
    places = table(torch.from_numpy(ids))[:, 0, 0].detach().numpy()
    assert (np.abs(places - values) <= np.diff(anchors).max() / STEPS / 2 + 1e-12).all()
    assert (np.diff(places[:200]) >= 0).all()


def test_ends_missing_values_and_what_is_no_number(tmp_path: Path) -> None:
    encoder = fitted(tmp_path / "data", PRICE)
    first, last = encoder.codes[0].anchors[[0, -1]]
    low, high = [FIRST] * STEPS, [FIRST + 5] * STEPS
    alone = [PAD] * (STEPS - 1)
    texts = ["-inf", "-1e300", str(first), str(last), "1e300", "inf", "", "NA", "cheap", None]
    expected = [low, low, low, high, high, high, [MISSING, *alone], [MISSING, *alone], [OTHER, *alone]]
    expected.append([MISSING, *alone])
    assert encoder.transform(as_table({"price": texts}))[:, :STEPS].tolist() == expected
    numbers = [-math.inf, -1e300, first, last, 1e300, math.inf, math.nan, None]
    assert encoder.transform(as_table({"price": numbers}))[:, :STEPS].tolist() == [*expected[:8]]
    assert [encoder.value_of(0, number) for number in (MISSING, OTHER)] == ["(missing)", "(other)"]
    assert encoder.value_of(0, FIRST) == f"{first:g}"


def test_a_column_without_numbers_has_one_anchor(tmp_path: Path) -> None:
    table = drawn().set_column(1, "price", pa.array([None] * 400, pa.float64()))
    encoder = fitted(tmp_path / "data", PRICE, Field("shop"), table=table)
    assert encoder.layout.sizes[0] == FIRST + 1
    assert encoder.transform(as_table({"price": [5.0], "shop": [1]}))[0, :STEPS].tolist() == [FIRST] * STEPS


def test_explicit_buckets_that_no_row_falls_into_have_no_anchor(tmp_path: Path) -> None:
    field = Field("price", "numeric", buckets="explicit", thresholds=(-5.0, -4.0, 1.0, 1e9), interpolate=4)
    encoder = fitted(tmp_path / "data", field)
    assert len(encoder.codes[0].anchors) == 2
    assert encoder.layout.sizes == (FIRST + 2,)


@pytest.mark.parametrize("buckets", ["quantile", "count", "tree"])
def test_a_saved_encoder_places_values_where_it_did(tmp_path: Path, buckets: str) -> None:
    table = drawn()
    encoder = fitted(tmp_path / "data", Field("price", "numeric", buckets=buckets, interpolate=5), Field("shop"))
    encoder.save(tmp_path / "again")
    again = Encoder.load(tmp_path / "again", encoder.schema)
    assert again.layout == encoder.layout == Dataset.open(tmp_path / "data").with_ranks.layout
    np.testing.assert_array_equal(again.transform(table), encoder.transform(table))


def test_one_step_is_the_nearest_anchor(tmp_path: Path) -> None:
    encoder = fitted(tmp_path / "data", Field("price", "numeric", max_buckets=6, interpolate=1))
    anchors = encoder.codes[0].anchors
    values = np.linspace(anchors[0], anchors[-1], 77)
    nearest = np.abs(values[:, None] - anchors).argmin(axis=1)
    assert encoder.transform(as_table({"price": values}))[:, 0].tolist() == (FIRST + nearest).tolist()


# The rest of the house.


def test_a_model_learns_a_smooth_curve_from_few_anchors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random(20000)
    table = pa.table({"click": (rng.random(20000) < 1 / (1 + np.exp(8 * x - 4))).astype(int), "x": x})
    chosen = ["model.name=lr", "train.lr=0.02", "train.l2=0", "train.epochs=4", "device=cpu"]
    worst = {}
    for steps in (0, 8):
        field = Field("x", "numeric", max_buckets=4, interpolate=steps)
        fitted(tmp_path / f"data{steps}", field, table=table)
        train(load_config(overrides=chosen), tmp_path / f"data{steps}", tmp_path / f"run{steps}")
        asked = np.linspace(0.15, 0.85, 60)
        found = Predictor.load(tmp_path / f"run{steps}").predict({"x": asked})
        worst[steps] = np.abs(found - 1 / (1 + np.exp(8 * asked - 4))).max()
    assert worst[8] < 0.05 < 0.1 < worst[0]


def test_trees_read_a_place_as_one_number() -> None:
    features = Features(Layout((6, 8, 5), (1, 4, 1), (1,)))
    rows = [[2, 3, 3, 3, 4, 2], [3, 5, 5, 5, 5, 2], [4, 0, -1, -1, -1, 2], [5, 1, -1, -1, -1, 2]]
    found = features(np.array(rows, dtype=np.int32))
    np.testing.assert_array_equal(found, [[2, 3.25, 2], [3, 5, 2], [4, np.nan, 2], [5, 1, 2]])
    assert features.kinds == ["c", "q", "c"]


@pytest.mark.parametrize("model", ["gbdt", "fm", "pin"])
def test_a_row_alone_scores_as_in_the_prepared_file(tmp_path: Path, model: str) -> None:
    if model == "gbdt":
        pytest.importorskip("xgboost")
    table = drawn(800)
    leaves = {"gbdt_leaves": 2} if model == "gbdt" else {}
    fitted(tmp_path / "data", PRICE, Field("shop"), table=table, **leaves)
    small = ["model.rounds=5"] if model == "gbdt" else ["model.dim=4", "train.epochs=1"]
    train(load_config(overrides=[f"model.name={model}", *small, "device=cpu"]), tmp_path / "data", tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run")
    rows = table.to_pylist()[:20]
    together = predictor.predict(table)[:20]
    np.testing.assert_allclose([predictor.predict([row])[0] for row in rows], together, rtol=1e-5)
    # Text as in a csv file gives the same.
    texts = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    np.testing.assert_allclose(predictor.predict(texts), together, rtol=1e-5)
    with pytest.raises(DataError, match="a field of one value, found the interpolated number 'price'"):
        predictor.evaluate_prepared(tmp_path / "data", by="price")


def test_the_estimator_takes_interpolated_numbers() -> None:
    table = drawn(800)
    schema = Schema("click", (PRICE, Field("shop")))
    settings = {"model.dim": 2, "train.epochs": 3, "train.lr": 0.01}
    found = Classifier("fm", settings, schema, device="cpu").fit(
        table.drop_columns(["click"]), np.array(table["click"])
    )
    cheap, dear, unknown = found.predict_proba([{"price": 0.1}, {"price": 9.0}, {}])[:, 1]
    assert cheap > unknown > dear


def test_a_new_day_keeps_the_anchors(tmp_path: Path) -> None:
    known = fitted(tmp_path / "one", PRICE, Field("shop"))
    chosen = load_config(overrides=["model.name=fm", "model.dim=2", "train.epochs=1", "device=cpu"])
    train(chosen, tmp_path / "one", tmp_path / "run1")
    later = drawn(seed=5)
    prepare({"train": lambda: iter([later])}, tmp_path / "two", "click", known=known)
    grown = Encoder.load(tmp_path / "two" / "encoder", known.schema)
    np.testing.assert_array_equal(grown.codes[0].anchors, known.codes[0].anchors)
    train(load_config(start=settings_of(tmp_path / "run1")), tmp_path / "two", tmp_path / "run2")
    other = fitted(tmp_path / "other", PRICE, Field("shop"), table=later)
    assert not np.array_equal(other.codes[0].anchors, known.codes[0].anchors)
    with pytest.raises(ConfigError, match="field 'price' has other ids there"):
        train(load_config(start=settings_of(tmp_path / "run1")), tmp_path / "other", tmp_path / "run3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "numeric", "interpolate": 65}, "field 'x': interpolate takes 1 to 64 steps, or 0 for none, found 65"),
        ({"kind": "numeric", "interpolate": -1}, "field 'x': interpolate takes 1 to 64 steps, or 0 for none, found -1"),
        ({"kind": "numeric", "buckets": "log-square", "interpolate": 4}, "ordered buckets, found log-square buckets"),
        ({"interpolate": 4}, "interpolate needs a number in ordered buckets, found a categorical field"),
        ({"kind": "set", "interpolate": 4}, "interpolate needs a number in ordered buckets, found a set field"),
    ],
)
def test_what_cannot_be_interpolated_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Field("x", **settings)
