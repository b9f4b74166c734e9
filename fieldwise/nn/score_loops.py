"""Logits of LR, FM and FFM row by row, without gradients (CPU, numba); the plain version is `Model.forward`.

A table is passed as flat memory and the distance between its rows: a training step interleaves several tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.instructions import keep, pointer, prefetch_second
from fieldwise.loops.lanes import LANES, load, spread, total, turned

LINE = 16
AHEAD = 2  # rows to prefetch


@njit(cache=True, nogil=True, inline="always")
def ask_row(ids: Any, offsets: Any, b: Any, dim: Any, vectors: Any, apart: Any, linear: Any, far: Any) -> None:
    """Prefetches the numbers of row b."""
    for f in range(ids.shape[1]):
        row = offsets[f] + ids[b, f]
        for d in range(0, dim, LINE):
            prefetch_second(vectors, row * apart + d)
        if far:
            prefetch_second(linear, row * far)


@njit(cache=True, nogil=True, error_model="numpy")
def fm_scores(
    ids: Any, offsets: Any, low: Any, high: Any, dim: Any, parts: Any, scale: Any, bias: Any, vector: Any, apart: Any,
    weight: Any, far: Any, out: Any,
) -> None:  # fmt: skip
    """Rows low..high of LR (dim 0) and FM: out = bias + sum w_i + (|sum v_i|^2 - sum |v_i|^2) / 2."""
    fields, to = ids.shape[1], vector.dtype.type
    vectors, linear, at = pointer(vector), pointer(weight), np.zeros(fields, np.int64)
    for b in range(low, high):
        if b + AHEAD < high:
            ask_row(ids, offsets, b + AHEAD, dim, vectors, apart, linear, far)
        logit = to(bias)
        for f in range(fields):
            row = offsets[f] + ids[b, f]
            at[f] = row * apart
            if far:
                logit += linear[row * far]
        for c in range(0, dim, LANES):
            added = spread(to(0))
            squares = added
            for f in range(fields):
                x = load(vectors, at[f] + c, dim - c)
                added = added + x
                squares = squares + x * x
            logit += to(0.5) * total(added * added - squares, 0)
        out[b] = logit


@njit(cache=True, nogil=True, inline="always")
def met(vectors: Any, at: Any, s: Any, t: Any, count: Any) -> Any:
    """v_i's parts for j times v_j's for i, for i of s .. s + 3 and j of t .. t + 3, s + 3 < t; parts of four numbers.

    `count` is four times the number of j.
    """
    here, there = 4 * (t - 1), 4 * s
    w, x, y, z = turned(
        load(vectors, at[t] + there, LANES),
        load(vectors, at[t + 1] + there, LANES * (count > 4)),
        load(vectors, at[t + 2] + there, LANES * (count > 8)),
        load(vectors, at[t + 3] + there, LANES * (count > 12)),
    )
    first = load(vectors, at[s] + here, count) * w + load(vectors, at[s + 1] + here, count) * x
    return first + load(vectors, at[s + 2] + here, count) * y + load(vectors, at[s + 3] + here, count) * z


@njit(cache=True, nogil=True, inline="always")
def among(vectors: Any, at: Any, s: Any, count: Any) -> Any:
    """The same for i < j of s .. s + 3, which have three parts for each other: v_s has its first for s + 1.

    `count` is four times the number of fields after s. The caller skips the first four lanes of the second result and
    the first eight of the third.
    """
    here, behind = 4 * s, LANES - 4
    b, c = load(vectors, at[s + 1] + here, count), load(vectors, at[s + 2] + here, count * (count > 4))
    w, x, y, _ = turned(b, c, load(vectors, at[s + 3] + here, count * (count >= behind)), b)
    return load(vectors, at[s] + here, count) * w, b * x, c * y


@njit(cache=True, nogil=True, inline="always")
def fours(vectors: Any, at: Any, fields: Any, zero: Any) -> Any:
    """The sum over pairs for parts of four numbers: fields in groups of four, sixteen numbers at a time."""
    products, second, third, whole = zero, zero, zero, fields // 4 * 4
    for s in range(0, whole, 4):
        one, two, three = among(vectors, at, s, LANES - 4)
        products, second, third = products + one, second + two, third + three
        for t in range(s + 4, whole, 4):
            products = products + met(vectors, at, s, t, LANES)
        if whole < fields:
            products = products + met(vectors, at, s, whole, 4 * (fields - whole))
    if whole + 1 < fields:
        one, two, three = among(vectors, at, whole, 4 * (fields - whole - 1))
        products, second, third = products + one, second + two, third + three
    return total(products, 0) + total(second, 4) + total(third, 8)


@njit(cache=True, nogil=True, inline="always")
def pairs(vectors: Any, at: Any, fields: Any, parts: Any, products: Any) -> Any:
    """The sum over pairs, one by one: v_i's part for j times v_j's part for i, i < j."""
    for i in range(fields):
        for j in range(i + 1, fields):
            for d in range(0, parts, LANES):
                one = load(vectors, at[i] + (j - 1) * parts + d, parts - d)
                products = products + one * load(vectors, at[j] + i * parts + d, parts - d)
    return total(products, 0)


@njit(cache=True, nogil=True, error_model="numpy")
def ffm_scores(
    ids: Any, offsets: Any, low: Any, high: Any, dim: Any, parts: Any, scale: Any, bias: Any, vector: Any, apart: Any,
    weight: Any, far: Any, out: Any,
) -> None:  # fmt: skip
    """Rows low..high of FFM, `parts` numbers each: out = bias + sum w_i + scale sum_{i<j} <v_i for j, v_j for i>."""
    fields, to, zero = ids.shape[1], vector.dtype.type, spread(vector.dtype.type(0))
    # Three more, to fill up the last group of four.
    places = np.zeros(fields + 3, np.int64)
    vectors, linear, at = pointer(vector), pointer(weight), pointer(places)
    for b in range(low, high):
        if b + 1 < high:
            ask_row(ids, offsets, b + 1, dim, vectors, apart, linear, far)
        logit = to(bias)
        for f in range(fields):
            row = offsets[f] + ids[b, f]
            at[f] = row * apart
            if far:
                logit += linear[row * far]
        summed = fours(vectors, at, fields, zero) if parts == 4 else pairs(vectors, at, fields, parts, zero)
        out[b] = logit + to(scale) * summed
    keep((places,))
