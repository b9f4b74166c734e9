"""The largest product of a channel with a row's windows. Only that window gets a gradient (CPU, numba).

Window t of a row is K = width D adjacent numbers, v_t ... With o_c = max_t W_c . window_t, reached at t = place_c:
dW_c = sum do_c window_t, and where windows overlap their gradients add up in dv. The plain version is torch's
convolution and `amax`. With BLOCK rows in lanes the windows are slices of one array, and only the largest products
are written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.blocks import BLOCK, turn_in, turn_out
from fieldwise.loops.instructions import keep, pointer
from fieldwise.loops.lanes import LANES, larger, load, spread, store, where_zero
from fieldwise.loops.tiles import product


@njit(cache=True, nogil=True)
def forward(v: Any, weight: Any, low: Any, high: Any, found: Any, places: Any) -> None:
    """Fills found and places (B, C) of blocks low..high from v (B, F, D) and weight (C, K); ties go to the first."""
    fields, dim, (channels, size) = v.shape[1], v.shape[2], weight.shape
    rows = v.reshape(len(v), -1)
    turned, here = np.empty((rows.shape[1], BLOCK), v.dtype), np.empty((channels, BLOCK), v.dtype)
    most, where = np.empty((channels, BLOCK), v.dtype), np.empty((channels, BLOCK), v.dtype)
    zero, to = spread(v.dtype.type(0)), v.dtype.type
    ws, vs, by_channel, tops, numbers = pointer(weight), pointer(turned), pointer(here), pointer(most), pointer(where)
    for block in range(low, high):
        turn_in(rows, block, turned)
        for t in range(fields - size // dim + 1):
            window = (vs, t * dim * BLOCK, BLOCK)
            product((by_channel, 0, BLOCK), None, (ws, 0, 1, size), window, size, channels, BLOCK)
            for n in range(0, channels * BLOCK, LANES):
                new, top = load(by_channel, n, LANES), load(tops, n, LANES)
                if t == 0:
                    store(tops, n, LANES, new)
                    store(numbers, n, LANES, zero)
                else:
                    store(
                        numbers, n, LANES, where_zero(larger(new - top, zero), load(numbers, n, LANES), spread(to(t)))
                    )
                    store(tops, n, LANES, larger(new, top))
        turn_out(most, block, found)
        turn_out(where, block, places)
    keep((here,))


@njit(cache=True, nogil=True)
def backward(grad: Any, places: Any, v: Any, weight: Any, low: Any, high: Any, dv: Any, dweight: Any) -> None:
    """Adds to dv and dweight (C, K), from rows low..high of grad and places (B, C), v (B, F, D), and weight (C, K)."""
    fields, dim, (channels, size) = v.shape[1], v.shape[2], weight.shape
    room, windows = (size + LANES - 1) // LANES * LANES, fields - size // dim + 1
    # Each window is summed in its own row first: overlapping ones would wait for each other's stores.
    own = np.zeros((windows, room), v.dtype)
    vs, dvs, mine, weights, by_weight = pointer(v), pointer(dv), pointer(own), pointer(weight), pointer(dweight)
    for b in range(low, high):
        own[:] = 0
        for c in range(channels):
            g, t = grad[b, c], places[b, c]
            if g == 0:
                continue
            for k in range(0, size, LANES):
                left, here, at = size - k, t * room + k, c * size + k
                store(by_weight, at, left, load(by_weight, at, left) + load(vs, (b * fields + t) * dim + k, left) * g)
                store(mine, here, LANES, load(mine, here, LANES) + load(weights, at, left) * g)
        for t in range(windows):
            for k in range(0, size, LANES):
                at = (b * fields + t) * dim + k
                store(dvs, at, size - k, load(dvs, at, size - k) + load(mine, t * room + k, LANES))
