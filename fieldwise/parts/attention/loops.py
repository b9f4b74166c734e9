"""The scores of AFM's attention, pair by pair in registers, without an array of all pairs' products (CPU, numba).

score_ij = h^T y with y = max(0, W^T (v_i * v_j) + b). Back, with g = dscore_ij h where y > 0, else 0: dh = sum of
dscore_ij y, db = sum g, dW = sum (v_i * v_j) g^T, and with p = W g: dv_i = sum_j p * v_j. Each function handles rows
low..high. The formula is `AttentionPool.forward`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.instructions import keep, pointer
from fieldwise.loops.lanes import LANES, larger, load, spread, store, total, where_zero


@njit(cache=True, nogil=True, inline="always")
def hidden(product: Any, dim: Any, weights: Any, biases: Any, units: Any, c: Any) -> Any:
    """W^T product + b of units c ... c + 15, before the ReLU."""
    found = load(biases, c, units - c)
    for d in range(dim):
        found = found + load(weights, d * units + c, units - c) * product[d]
    return found


@njit(cache=True, nogil=True)
def forward(v: Any, weight: Any, bias: Any, last: Any, low: Any, high: Any, scores: Any) -> None:
    """Fills scores (B, P) of v (B, F, D), weight (D, U), bias (U,) and last, which is h (U,)."""
    fields, dim, units, zero = v.shape[1], v.shape[2], len(bias), spread(v.dtype.type(0))
    both = np.zeros(dim + LANES, v.dtype)
    vs, product, weights, biases, lasts = pointer(v), pointer(both), pointer(weight), pointer(bias), pointer(last)
    for b in range(low, high):
        pair = 0
        for i in range(fields - 1):
            for j in range(i + 1, fields):
                one, two = (b * fields + i) * dim, (b * fields + j) * dim
                for d in range(0, dim, LANES):
                    store(product, d, LANES, load(vs, one + d, dim - d) * load(vs, two + d, dim - d))
                score = zero
                for c in range(0, units, LANES):
                    y = larger(hidden(product, dim, weights, biases, units, c), zero)
                    score = score + y * load(lasts, c, units - c)
                scores[b, pair] = total(score, 0)
                pair += 1
    keep((both,))


@njit(cache=True, nogil=True)
def backward(
    grad: Any, v: Any, weight: Any, turned: Any, bias: Any, last: Any, low: Any, high: Any, dv: Any, dweight: Any,
    dbias: Any, dlast: Any,
) -> None:  # fmt: skip
    """Adds to dv (B, F, D), and to dweight (D, U), dbias (U,) and dlast (U,) in float64; `turned` (U, D) is W^T."""
    fields, dim, units, zero = v.shape[1], v.shape[2], len(bias), spread(v.dtype.type(0))
    both, slopes = np.zeros(dim + LANES, v.dtype), np.zeros(units + LANES, v.dtype)
    own = np.zeros((dim + 2, units), v.dtype)
    vs, dvs, product, slope, mine = pointer(v), pointer(dv), pointer(both), pointer(slopes), pointer(own)
    weights, turns, biases, lasts = pointer(weight), pointer(turned), pointer(bias), pointer(last)
    for b in range(low, high):
        pair = 0
        own[:] = 0
        for i in range(fields - 1):
            for j in range(i + 1, fields):
                one, two, g = (b * fields + i) * dim, (b * fields + j) * dim, grad[b, pair]
                pair += 1
                for d in range(0, dim, LANES):
                    store(product, d, LANES, load(vs, one + d, dim - d) * load(vs, two + d, dim - d))
                for c in range(0, units, LANES):
                    left = units - c
                    y = larger(hidden(product, dim, weights, biases, units, c), zero)
                    by = where_zero(y, zero, load(lasts, c, left) * g)
                    store(slope, c, LANES, by)
                    for d in range(dim):
                        store(mine, d * units + c, left, load(mine, d * units + c, left) + by * product[d])
                    store(mine, dim * units + c, left, load(mine, dim * units + c, left) + by)
                    store(mine, (dim + 1) * units + c, left, load(mine, (dim + 1) * units + c, left) + y * g)
                for d in range(0, dim, LANES):
                    left, p = dim - d, zero
                    for u in range(units):
                        p = p + load(turns, u * dim + d, left) * slope[u]
                    store(dvs, one + d, left, load(dvs, one + d, left) + p * load(vs, two + d, left))
                    store(dvs, two + d, left, load(dvs, two + d, left) + p * load(vs, one + d, left))
        # Sums over a row are in the type of v, sums over rows in float64.
        for u in range(units):
            for d in range(dim):
                dweight[d, u] += own[d, u]
            dbias[u] += own[dim, u]
            dlast[u] += own[dim + 1, u]
    keep((both, slopes))
