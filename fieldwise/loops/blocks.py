"""Transposes BLOCK rows of the batch into the lanes of registers, and back (CPU, numba)."""

from __future__ import annotations

from typing import Any

from numba import njit

# Two vectors of sixteen, the width of a tile in `tiles`.
BLOCK = 32


@njit(cache=True, nogil=True)
def turn_in(rows: Any, block: Any, out: Any) -> None:
    """A block's rows of (B, n) -> out (n, BLOCK)."""
    start = block * BLOCK
    for b in range(BLOCK):
        if start + b < len(rows):
            for n in range(rows.shape[1]):
                out[n, b] = rows[start + b, n]
        else:
            out[:, b] = 0


@njit(cache=True, nogil=True)
def turn_out(numbers: Any, block: Any, rows: Any) -> None:
    """(n, BLOCK) -> a block's rows of (B, n)."""
    start = block * BLOCK
    for b in range(min(BLOCK, len(rows) - start)):
        for n in range(rows.shape[1]):
            rows[start + b, n] = numbers[n, b]
