"""Kernel products of all pairs, sixteen rows at a time in registers, without writing projected vectors (CPU, numba).

y_p = v_i^T K_p v_j for pair p = (i, j). Back, with g = dy_p: dv_j = sum g K_p^T v_i, dv_i = sum g K_p v_j, and dK_p is
the sum over rows of v_i (g v_j)^T. Vectors are transposed, so that a register holds one number of sixteen rows and
each number of a kernel multiplies all sixteen. Functions handle rows low..high. The formula is `KernelProduct.forward`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.instructions import keep, pointer
from fieldwise.loops.lanes import LANES, load, spread, store

# Rows whose part of the kernels' gradients is summed together: their vectors stay in the second-level cache.
BLOCK = 64


@njit(cache=True, nogil=True, inline="always")
def four_sums(x: Any, at: Any, step: Any, k: Any, where: Any, along: Any, across: Any, count: Any, zero: Any) -> Any:
    """Sums over n < count of sixteen numbers x[at + n step ...] times k[where + n along + c across], for c < 4."""
    one, two, three, last = zero, zero, zero, zero
    for n in range(count):
        lanes, number = load(x, at + n * step, LANES), where + n * along
        one = one + lanes * k[number]
        two = two + lanes * k[number + across]
        three = three + lanes * k[number + 2 * across]
        last = last + lanes * k[number + 3 * across]
    return one, two, three, last


@njit(cache=True, nogil=True, inline="always")
def one_sum(x: Any, at: Any, step: Any, k: Any, where: Any, along: Any, count: Any, zero: Any) -> Any:
    """The first of the four sums."""
    found = zero
    for n in range(count):
        found = found + load(x, at + n * step, LANES) * k[where + n * along]
    return found


@njit(cache=True, nogil=True, inline="always")
def turn(values: Any, first: Any, count: Any, width: Any, turned: Any) -> None:
    """Rows first ... of (B, width) -> (width, 16)."""
    for row in range(count):
        for n in range(width):
            turned[n * LANES + row] = values[(first + row) * width + n]


@njit(cache=True, nogil=True, inline="always")
def turn_back(turned: Any, first: Any, count: Any, width: Any, values: Any) -> None:
    """(width, 16) -> rows first ... of (B, width)."""
    for row in range(count):
        for n in range(width):
            values[(first + row) * width + n] = turned[n * LANES + row]


@njit(cache=True, nogil=True, inline="always")
def add(values: Any, at: Any, lanes: Any) -> None:
    store(values, at, LANES, load(values, at, LANES) + lanes)


@njit(cache=True, nogil=True)
def forward(v: Any, kernel: Any, low: Any, high: Any, products: Any) -> None:
    """Fills products (B, P) of v (B, F, D) and kernel (P, D, D)."""
    fields, dim, zero = v.shape[1], v.shape[2], spread(v.dtype.type(0))
    sides, found = np.zeros((fields * dim, LANES), v.dtype), np.zeros((len(kernel), LANES), v.dtype)
    vs, k, x, y, out, even = (
        pointer(v),
        pointer(kernel),
        pointer(sides),
        pointer(found),
        pointer(products),
        dim - dim % 4,
    )
    for b in range(low, high, LANES):
        count = min(LANES, high - b)
        turn(vs, b, count, fields * dim, x)
        pair = 0
        for i in range(fields - 1):
            one = i * dim * LANES
            for j in range(i + 1, fields):
                two, own, y_p = j * dim * LANES, pair * dim * dim, zero
                for d in range(0, even, 4):
                    p, q, r, s = four_sums(x, one, LANES, k, own + d, dim, 1, dim, zero)
                    at = two + d * LANES
                    y_p = y_p + p * load(x, at, LANES) + q * load(x, at + LANES, LANES)
                    y_p = y_p + r * load(x, at + 2 * LANES, LANES) + s * load(x, at + 3 * LANES, LANES)
                for d in range(even, dim):
                    y_p = y_p + one_sum(x, one, LANES, k, own + d, dim, dim, zero) * load(x, two + d * LANES, LANES)
                store(y, pair * LANES, LANES, y_p)
                pair += 1
        turn_back(y, b, count, len(kernel), out)
    keep((sides, found))


@njit(cache=True, nogil=True)
def by_vectors(grad: Any, v: Any, kernel: Any, low: Any, high: Any, dv: Any) -> None:
    """Fills dv (B, F, D)."""
    fields, dim, zero = v.shape[1], v.shape[2], spread(v.dtype.type(0))
    sides, pulls = np.zeros((fields * dim, LANES), v.dtype), np.zeros((len(kernel), LANES), v.dtype)
    found, slopes, even = np.zeros((fields * dim, LANES), v.dtype), np.zeros((dim, LANES), v.dtype), dim - dim % 4
    vs, gs, dvs, k = pointer(v), pointer(grad), pointer(dv), pointer(kernel)
    x, y, dx, slope = pointer(sides), pointer(pulls), pointer(found), pointer(slopes)
    for b in range(low, high, LANES):
        count = min(LANES, high - b)
        turn(vs, b, count, fields * dim, x)
        turn(gs, b, count, len(kernel), y)
        found[:] = 0
        pair = 0
        for i in range(fields - 1):
            one = i * dim * LANES
            for j in range(i + 1, fields):
                two, own, g = j * dim * LANES, pair * dim * dim, load(y, pair * LANES, LANES)
                pair += 1
                for d in range(dim):
                    store(slope, d * LANES, LANES, load(x, two + d * LANES, LANES) * g)
                for d in range(0, even, 4):
                    p, q, r, s = four_sums(x, one, LANES, k, own + d, dim, 1, dim, zero)
                    at = two + d * LANES
                    add(dx, at, p * g)
                    add(dx, at + LANES, q * g)
                    add(dx, at + 2 * LANES, r * g)
                    add(dx, at + 3 * LANES, s * g)
                    p, q, r, s = four_sums(slope, 0, LANES, k, own + d * dim, 1, dim, dim, zero)
                    at = one + d * LANES
                    add(dx, at, p)
                    add(dx, at + LANES, q)
                    add(dx, at + 2 * LANES, r)
                    add(dx, at + 3 * LANES, s)
                for d in range(even, dim):
                    add(dx, two + d * LANES, one_sum(x, one, LANES, k, own + d, dim, dim, zero) * g)
                    add(dx, one + d * LANES, one_sum(slope, 0, LANES, k, own + d * dim, 1, dim, zero))
        turn_back(dx, b, count, fields * dim, dvs)
    keep((sides, pulls, found, slopes))


@njit(cache=True, nogil=True)
def by_kernels(grad: Any, v: Any, low: Any, high: Any, dkernel: Any) -> None:
    """Adds to dkernel, which holds for each first field the gradients of its n kernels side by side, (D, n D).

    grad is (B, P), or (B, 1) if all pairs of a row share a gradient, as the terms of a sum do.
    """
    fields, dim, shared = v.shape[1], v.shape[2], grad.shape[1] == 1
    weighted = np.zeros((BLOCK, fields * dim + LANES), v.dtype)
    for start in range(low, high, BLOCK):
        end, pair = min(start + BLOCK, high), 0
        for i in range(fields - 1):
            if i == 0 or not shared:
                weigh(grad, v, start, end, i, pair, weighted)
            add_kernels(weighted, v, start, end, i, pair * dim * dim, dkernel)
            pair += fields - 1 - i


@njit(cache=True, nogil=True)
def weigh(grad: Any, v: Any, low: Any, high: Any, i: Any, pair: Any, weighted: Any) -> None:
    """Fills `weighted` with g v_j for all j > i, each at the places of field j."""
    fields, dim, apart = v.shape[1], v.shape[2], int(grad.shape[1] > 1)
    vs, w = pointer(v), pointer(weighted)
    for b in range(low, high):
        into, own = (b - low) * weighted.shape[1], b * fields * dim
        for j in range(i + 1, fields):
            g = grad[b, apart * (pair + j - i - 1)]
            for d in range(j * dim, (j + 1) * dim, LANES):
                store(w, into + d, LANES, load(vs, own + d, (j + 1) * dim - d) * g)


@njit(cache=True, nogil=True)
def add_kernels(weighted: Any, v: Any, low: Any, high: Any, i: Any, own: Any, dkernel: Any) -> None:
    """Adds v_i (g v_j)^T of rows low..high to the gradients of first field i's kernels, (D, n D) from `own` on."""
    fields, dim, zero = v.shape[1], v.shape[2], spread(v.dtype.type(0))
    step, even, gap, rows, width = fields * dim, dim - dim % 4, weighted.shape[1], high - low, (fields - 1 - i) * dim
    vs, w, found, mine = pointer(v), pointer(weighted), pointer(dkernel), low * step + i * dim
    for c in range(0, width, LANES):
        left, column = width - c, (i + 1) * dim + c
        for a in range(0, even, 4):
            p, q, r, s = four_sums(w, column, gap, vs, mine + a, step, 1, rows, zero)
            at = own + a * width + c
            store(found, at, left, load(found, at, left) + p)
            store(found, at + width, left, load(found, at + width, left) + q)
            store(found, at + 2 * width, left, load(found, at + 2 * width, left) + r)
            store(found, at + 3 * width, left, load(found, at + 3 * width, left) + s)
        for a in range(even, dim):
            at = own + a * width + c
            store(found, at, left, load(found, at, left) + one_sum(w, column, gap, vs, mine + a, step, rows, zero))
