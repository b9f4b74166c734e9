"""Small products with rows in lanes equal numpy's; arrays of a loop live as long as pointers to them are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from fieldwise.loops.instructions import keep, pointer
from fieldwise.loops.tiles import added_product, product


@njit
def multiply(a: Any, a_steps: Any, b: Any, start: Any, depth: Any, count: Any, fresh: Any, added: Any) -> None:
    """`fresh` = start + A^T B; `added` += A^T B; a's numbers lie where its two steps say."""
    width = b.shape[1]
    of_a, of_b = (pointer(a), 0, a_steps[0], a_steps[1]), (pointer(b), 0, width)
    product((pointer(fresh), 0, width), (pointer(start), 0), of_a, of_b, depth, count, width)
    added_product((pointer(added), 0, width), of_a, of_b, depth, count, width)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("depth", "count", "width"), [(1, 1, 16), (5, 15, 32), (20, 40, 48), (7, 22, 80), (3, 8, 64)])
@pytest.mark.parametrize("turned", [False, True])
def test_equals_the_product_of_matrices(depth: int, count: int, width: int, turned: bool, dtype: Any) -> None:
    rng = np.random.default_rng(count)
    a, b = rng.standard_normal((depth, count)).astype(dtype), rng.standard_normal((depth, width)).astype(dtype)
    start, before = rng.standard_normal(count).astype(dtype), rng.standard_normal((count, width)).astype(dtype)
    fresh, added = np.full((count + 1, width), 7, dtype), np.concatenate([before, np.full((1, width), 7, dtype)])
    steps = (1, depth) if turned else (count, 1)
    multiply(np.ascontiguousarray(a.T) if turned else a, steps, b, start, depth, count, fresh, added)
    expected = a.T.astype(np.float64) @ b
    near = {"rtol": 0, "atol": 1e-13 if dtype == np.float64 else 1e-5}
    np.testing.assert_allclose(fresh[:count], expected + start[:, None], **near)
    np.testing.assert_allclose(added[:count], expected + before, **near)
    assert (fresh[count] == 7).all()
    assert (added[count] == 7).all()


def test_without_a_start_it_is_zero() -> None:
    @njit
    def times(a: Any, b: Any, fresh: Any) -> None:
        (depth, count), width = a.shape, b.shape[1]
        of_a, of_b = (pointer(a), 0, count, 1), (pointer(b), 0, width)
        product((pointer(fresh), 0, width), None, of_a, of_b, depth, count, width)

    rng = np.random.default_rng(0)
    a, b, fresh = rng.standard_normal((5, 15)), rng.standard_normal((5, 48)), np.full((15, 48), 7.0)
    times(a, b, fresh)
    np.testing.assert_allclose(fresh, a.T @ b, rtol=0, atol=1e-13)


def test_kept_arrays_are_not_given_to_others() -> None:
    @njit
    def overlap(size: Any) -> Any:
        one = np.zeros(size)
        numbers = pointer(one)
        for _ in range(3):
            other = np.ones(size)
            numbers[0] += other[0]
        keep((one,))
        return numbers[0]

    assert overlap(64) == 3
