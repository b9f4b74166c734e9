"""Pair strengths against a slow loop, and on functions whose pairs are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fieldwise import models
from fieldwise.data.schema import Layout
from fieldwise.evaluation import explain
from fieldwise.evaluation.explain import pair_strength, strongest

LAYOUT = Layout((5, 4, 7, 3), (1, 3, 1, 1))


def some_ids(rows: int = 60, seed: int = 3) -> NDArray[np.int32]:
    """Rows of LAYOUT: field 1 is a set of one to three members, unused places -1."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, LAYOUT.sizes[f], rows) for f in LAYOUT.column_fields], axis=1)
    used = rng.integers(1, 4, rows)
    ids[:, 1:4] = np.where(np.arange(3) < used[:, None], ids[:, 1:4], -1)
    return ids.astype(np.int32)


def wild(ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """A function of all columns without any additive structure."""
    weights = np.arange(1, ids.shape[1] + 1) / 7
    return np.sin(ids @ weights) + np.tanh(ids[:, 0] * ids[:, 4] - 3.0)


def brute_force(ids: NDArray[np.int32], rows: int, seed: int) -> NDArray[np.float64]:
    x, partner = explain._sample(ids, rows, seed)
    columns = [np.flatnonzero(np.array(LAYOUT.column_fields) == f) for f in range(LAYOUT.fields)]

    def f(row: int, *fields: int) -> float:
        changed = x[row].copy()
        for field in fields:
            changed[columns[field]] = partner[row, columns[field]]
        return float(wild(changed[None])[0])

    strength = np.zeros((LAYOUT.fields, LAYOUT.fields))
    for i, j in itertools.permutations(range(LAYOUT.fields), 2):
        mixed = [f(row) - f(row, i) - f(row, j) + f(row, i, j) for row in range(len(x))]
        strength[i, j] = np.sqrt(np.mean(np.square(mixed)))
    return strength


@pytest.mark.parametrize("rows", [10, 60, 512])
def test_equals_the_slow_loop(rows: int) -> None:
    ids = some_ids()
    np.testing.assert_allclose(pair_strength(wild, ids, LAYOUT, rows, seed=4), brute_force(ids, rows, 4), atol=1e-12)


def test_parts_of_any_size_give_the_same_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pair_strength(wild, some_ids(), LAYOUT)
    sizes: list[int] = []

    def watched(ids: NDArray[np.int32]) -> NDArray[np.float64]:
        sizes.append(len(ids))
        return wild(ids)

    monkeypatch.setattr(explain, "CALL_ROWS", 64)
    np.testing.assert_array_equal(pair_strength(watched, some_ids(), LAYOUT), whole)
    assert max(sizes) <= 64


def test_one_active_pair_is_the_only_one_found() -> None:
    def acts(ids: NDArray[np.int32]) -> NDArray[np.float64]:
        return 0.5 * ids[:, 0] + np.maximum(ids[:, 1], 0) * ids[:, 4] + ids[:, 5] ** 2.0

    strength = pair_strength(acts, some_ids(), LAYOUT)
    assert strength[1, 2] == strength[2, 1] > 0.5
    strength[1, 2] = strength[2, 1] = 0
    assert strength.max() < 1e-12


def test_partners_are_other_rows() -> None:
    ids = np.arange(200, dtype=np.int32)[:, None]
    x, partner = explain._sample(ids, 200, seed=0)
    assert (x != partner).all()
    assert sorted(x[:, 0]) == list(range(200))


def test_models_that_add_have_no_pairs_and_others_do() -> None:
    torch.manual_seed(0)
    ids = some_ids()
    found = {}
    for name in ("lr", "fm"):
        model = models.build(name, LAYOUT)
        found[name] = pair_strength(lambda ids, m=model: m(torch.from_numpy(ids)).detach().numpy(), ids, LAYOUT)
    assert found["lr"].max() < 1e-6
    assert found["fm"][~np.eye(4, dtype=bool)].min() > 1e-3


def test_a_seed_decides_the_sample() -> None:
    ids = some_ids(500)
    first, again, other = (pair_strength(wild, ids, LAYOUT, 50, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_nothing_to_compare_gives_zeros() -> None:
    assert not pair_strength(wild, some_ids(1), LAYOUT).any()
    assert pair_strength(wild, some_ids(5)[:, :1], Layout.of((5,))).shape == (1, 1)


def test_pairs_among_some_fields_are_those_of_all() -> None:
    whole = pair_strength(wild, some_ids(), LAYOUT)
    np.testing.assert_allclose(pair_strength(wild, some_ids(), LAYOUT, among=[1, 3]), whole[np.ix_([1, 3], [1, 3])])


def test_the_strongest_fields_are_those_that_move_the_logit() -> None:
    def acts(ids: NDArray[np.int32]) -> NDArray[np.float64]:
        return 0.1 * ids[:, 0] + 5.0 * ids[:, 4] + np.maximum(ids[:, 1:4], 0).sum(axis=1)

    assert strongest(acts, some_ids(), LAYOUT, 2) == [1, 2]
    assert strongest(acts, some_ids(), LAYOUT, 3) == [0, 1, 2]
    assert strongest(acts, some_ids(1), LAYOUT, 3) == [0, 1, 2]


def test_calls_are_bounded_by_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 3,000 fields: neither a mask for each pair nor all swapped rows at once."""
    layout = Layout.of([4] * 3000)
    ids = np.random.default_rng(0).integers(0, 4, (50, 3000)).astype(np.int32)
    sizes: list[int] = []

    def watched(ids: NDArray[np.int32]) -> NDArray[np.float64]:
        sizes.append(ids.size)
        return np.asarray(ids[:, 7] * ids[:, 9] + 0.1 * ids[:, 11])

    monkeypatch.setattr(explain, "CALL_CELLS", 300_000)
    monkeypatch.setattr(explain, "SCREEN_CELLS", 50_000_000)
    assert strongest(watched, ids, layout, 3) == [7, 9, 11]
    strength = pair_strength(watched, ids, layout, rows=20, among=[7, 9, 11])
    assert strength[0, 1] > 1
    assert strength[:, 2].max() < 1e-12
    assert max(sizes) <= 300_000
    assert sum(sizes) < 60_000_000
