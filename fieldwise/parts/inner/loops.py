"""Inner products of all pairs of a row's vectors, and their gradients, row by row (CPU, numba).

p_ij = sum_d v_id v_jd of fields i < j; back, with the symmetric G of dp_ij and zeros on its diagonal, dv = G v.
A register holds sixteen second fields forward, and sixteen numbers of a vector backward. The formula is
`InnerProduct.forward`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.instructions import keep, pointer
from fieldwise.loops.lanes import LANES, load, spread, store


@njit(cache=True, nogil=True, error_model="numpy")
def forward(v: Any, low: Any, high: Any, out: Any) -> None:
    """Fills rows low..high of out (B, P) by vectors v (B, F, D)."""
    fields, dim = v.shape[1], v.shape[2]
    wide, pairs, zero = fields + LANES, out.shape[1], spread(v.dtype.type(0))
    # Transposed, with room after the last field, so that sixteen fields from any one on can be read.
    turned = np.zeros(dim * wide, v.dtype)
    by_number, vectors, places = pointer(turned), pointer(v), pointer(out)
    for b in range(low, high):
        for i in range(fields):
            for d in range(dim):
                turned[d * wide + i] = vectors[(b * fields + i) * dim + d]
        place = b * pairs
        for i in range(fields - 1):
            own = (b * fields + i) * dim
            for j in range(i + 1, fields, LANES):
                products = zero
                for d in range(dim):
                    products = products + load(by_number, d * wide + j, LANES) * vectors[own + d]
                store(places, place + j - i - 1, fields - j, products)
            place += fields - 1 - i
    keep((turned,))


@njit(cache=True, nogil=True, inline="always")
def weighted(grads: Any, i: Any, vectors: Any, row: Any, fields: Any, dim: Any, c: Any, count: Any, zero: Any) -> Any:
    """sum_j G_ij v_j, numbers c ..."""
    found = zero
    for j in range(fields):
        found = found + load(vectors, row + j * dim + c, count) * grads[i * fields + j]
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def backward(grad: Any, v: Any, low: Any, high: Any, out: Any) -> None:
    """Fills rows low..high of out (B, F, D) by gradients grad (B, P) and vectors v."""
    fields, dim, zero = v.shape[1], v.shape[2], spread(v.dtype.type(0))
    symmetric = np.zeros((fields, fields), v.dtype)
    grads, vectors, places = pointer(symmetric), pointer(v), pointer(out)
    for b in range(low, high):
        pair = 0
        for i in range(fields):
            for j in range(i + 1, fields):
                symmetric[i, j] = symmetric[j, i] = grad[b, pair]
                pair += 1
        row = b * fields * dim
        for i in range(fields):
            if dim >= LANES:
                # The last sixteen overlap the ones before them, and give the same numbers there.
                for c in range(0, dim, LANES):
                    c = min(c, dim - LANES)
                    found = weighted(grads, i, vectors, row, fields, dim, c, LANES, zero)
                    store(places, row + i * dim + c, LANES, found)
            else:
                found = weighted(grads, i, vectors, row, fields, dim, 0, dim, zero)
                store(places, row + i * dim, dim, found)
    keep((symmetric,))
