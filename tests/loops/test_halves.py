"""Words of two bfloat16: rounded as torch rounds, multiplied and added in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from fieldwise.loops import halves
from fieldwise.loops.instructions import pointer
from fieldwise.loops.tiles import added_product, product

pytestmark = pytest.mark.skipif(not halves.available(), reason="this processor has no avx512_bf16")


@njit
def by_rows(numbers: Any, like: Any) -> Any:
    words = halves.room(numbers, like)
    halves.pack(numbers, words)
    return words


@njit
def by_columns(numbers: Any, like: Any) -> Any:
    words = halves.room_along(numbers, like)
    halves.pack_along(numbers, words)
    return words


@njit
def multiply(a: Any, b: Any, start: Any, fresh: Any, added: Any) -> None:
    """`fresh` = start + A^T B, `added` += A^T B of words a (n, count) and b (n, width)."""
    (depth, count), width = a.shape, b.shape[1]
    of_a, of_b = (pointer(a), 0, count, 1), (pointer(b), 0, width)
    product((pointer(fresh), 0, width), (pointer(start), 0), of_a, of_b, depth, count, width)
    added_product((pointer(added), 0, width), of_a, of_b, depth, count, width)


def bits(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rounded = torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16()
    return rounded.view(torch.int16).numpy().view(np.uint16).astype(np.uint32)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 6, 7])
def test_two_rows_or_two_columns_share_a_word(rows: int) -> None:
    numbers = drawn(rows, 64)
    like = np.zeros(1, np.uint32)
    even = bits(np.concatenate([numbers, np.zeros((rows % 2, 64), np.float32)]))
    np.testing.assert_array_equal(by_rows(numbers, like), even[::2] | even[1::2] << 16)
    np.testing.assert_array_equal(by_columns(numbers, like), bits(numbers[:, ::2]) | bits(numbers[:, 1::2]) << 16)


def test_numbers_without_words_stay_where_they_are() -> None:
    numbers = drawn(3, 32)
    found = [part(numbers, np.zeros(1, np.float32)).ctypes.data for part in (by_rows, by_columns)]
    assert found == [numbers.ctypes.data] * 2


@pytest.mark.parametrize(("depth", "count", "width"), [(1, 16, 16), (40, 48, 32), (7, 32, 48)])
def test_equals_the_product_of_rounded_matrices(depth: int, count: int, width: int) -> None:
    a, b, start, before = drawn(depth, count), drawn(depth, width), drawn(count), drawn(count, width)
    like, fresh, added = np.zeros(1, np.uint32), np.zeros_like(before), before.copy()
    multiply(by_rows(a, like), by_rows(b, like), start, fresh, added)
    one, two = (torch.from_numpy(part).bfloat16().double().numpy() for part in (a, b))
    np.testing.assert_allclose(fresh, one.T @ two + start[:, None], rtol=0, atol=2e-5)
    np.testing.assert_allclose(added, one.T @ two + before, rtol=0, atol=2e-5)
