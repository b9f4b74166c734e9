"""LR and FM over fields of several ids, sets and interpolated numbers: logits, and what they add to gradients (numba).

The plain version is `Model.forward`: a field's vector is the mean of its members' (nn/embedding.py). Tables are passed
as flat memory and the distance between their rows, as in score_loops.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fieldwise.data.schema import Layout


class Fields(NamedTuple):
    """Where the fields of a layout lie, an entry for each."""

    columns: NDArray[np.int64]  # the first of its id columns
    widths: NDArray[np.int64]
    interpolated: NDArray[np.bool_]
    offsets: NDArray[np.int64]  # its first row in the table


def fields_of(layout: Layout) -> Fields:
    widths = np.array(layout.widths, dtype=np.int64)
    ordered = np.isin(np.arange(layout.fields), layout.ordered)
    return Fields(np.cumsum(widths) - widths, widths, ordered & (widths > 1), np.array(layout.offsets, dtype=np.int64))


@njit(cache=True, nogil=True)
def members(ids: Any, b: Any, f: Any, fields: Fields, rows: Any, shares: Any) -> Any:
    """Writes the rows of the table that field f of row b has, and their shares in its mean; returns how many."""
    column, width, offset = fields.columns[f], fields.widths[f], fields.offsets[f]
    rows[0], shares[0] = offset + ids[b, column], 1.0
    if width == 1:
        return 1
    if fields.interpolated[f]:
        above = 0
        for place in range(1, width):
            above += ids[b, column + place] > ids[b, column]
        if not above:
            return 1
        rows[1], shares[1] = offset + ids[b, column + width - 1], above / width
        shares[0] = 1.0 - shares[1]
        return 2
    count = 0
    for place in range(width):
        if ids[b, column + place] >= 0:
            rows[count] = offset + ids[b, column + place]
            count += 1
    shares[:count] = 1.0 / count
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def wide_scores(
    ids: Any, fields: Fields, low: Any, high: Any, dim: Any, bias: Any, vector: Any, apart: Any, weight: Any, far: Any,
    sums: Any, out: Any,
) -> None:  # fmt: skip
    """Rows low..high of LR (dim 0) and FM: out = bias + sum w_f + (|s|^2 - sum |v_f|^2) / 2, and s = sum v_f into
    `sums` (B, dim), or (1, dim) where the caller needs none of them."""
    to, most = vector.dtype.type, fields.widths.max()
    rows, shares, own = np.empty(most, np.int64), np.empty(most, vector.dtype), np.empty(dim, vector.dtype)
    for b in range(low, high):
        logit, squares, s = to(bias), to(0), sums[b % len(sums)]
        s[:] = 0
        for f in range(len(fields.widths)):
            count = members(ids, b, f, fields, rows, shares)
            own[:] = 0
            for k in range(count):
                for d in range(dim):
                    own[d] += shares[k] * vector[rows[k] * apart + d]
                if far:
                    logit += shares[k] * weight[rows[k] * far]
            for d in range(dim):
                s[d] += own[d]
                squares += own[d] * own[d]
        for d in range(dim):
            squares -= s[d] * s[d]
        out[b] = logit - to(0.5) * squares
