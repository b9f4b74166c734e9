"""Back through the largest of a row's windows: one window of each channel has a gradient, the others none (CPU, numba).

A window t of a row is K = width D numbers side by side, v_t ... With o_c = max_t W_c . window_t, at t = place_c:
dW_c = sum do_c window_t, and what windows overlap adds up in dv. The plain version is torch's convolution and `amax`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.instructions import pointer
from fieldwise.kernels.lanes import LANES, load, store


@njit(cache=True, nogil=True)
def backward(grad: Any, places: Any, v: Any, weight: Any, low: Any, high: Any, dv: Any, dweight: Any) -> None:
    """Rows low..high of grad and places (B, C), v (B, F, D), weight (C, K): adds to dv, and to dweight (C, K)."""
    fields, dim, (channels, size) = v.shape[1], v.shape[2], weight.shape
    room, windows = (size + LANES - 1) // LANES * LANES, fields - size // dim + 1
    # Each window has a place of its own first: overlapping ones would wait for each other.
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
