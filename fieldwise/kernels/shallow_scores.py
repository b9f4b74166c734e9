"""Logits of LR, FM and FFM row by row, without gradients (CPU, numba); the plain version is `Model.forward`.

Tables come as flat memory and how far apart their rows lie in it, since those of a training step lie between others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.instructions import pointer, prefetch
from fieldwise.kernels.lanes import LANES, load, spread, total

LINE = 16
AHEAD = 2  # rows that are asked for in advance


@njit(cache=True, nogil=True, inline="always")
def ask_row(ids: Any, offsets: Any, b: Any, dim: Any, vectors: Any, apart: Any, linear: Any, far: Any) -> None:
    """Asks for the numbers of row b."""
    for f in range(ids.shape[1]):
        row = offsets[f] + ids[b, f]
        for d in range(0, dim, LINE):
            prefetch(vectors, row * apart + d)
        if far:
            prefetch(linear, row * far)


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


@njit(cache=True, nogil=True, error_model="numpy")
def ffm_scores(
    ids: Any, offsets: Any, low: Any, high: Any, dim: Any, parts: Any, scale: Any, bias: Any, vector: Any, apart: Any,
    weight: Any, far: Any, out: Any,
) -> None:  # fmt: skip
    """Rows low..high of FFM, `parts` numbers each: out = bias + sum w_i + scale sum_{i<j} <v_i for j, v_j for i>."""
    fields, to = ids.shape[1], vector.dtype.type
    vectors, linear, at = pointer(vector), pointer(weight), np.zeros(fields, np.int64)
    for b in range(low, high):
        if b + 1 < high:
            ask_row(ids, offsets, b + 1, dim, vectors, apart, linear, far)
        logit, products = to(bias), spread(to(0))
        for f in range(fields):
            row = offsets[f] + ids[b, f]
            at[f] = row * apart
            if far:
                logit += linear[row * far]
        for i in range(fields):
            for j in range(i + 1, fields):
                for d in range(0, parts, LANES):
                    one = load(vectors, at[i] + (j - 1) * parts + d, parts - d)
                    products = products + one * load(vectors, at[j] + i * parts + d, parts - d)
        out[b] = logit + to(scale) * total(products, 0)
