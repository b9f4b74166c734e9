"""LR as numbers alone: a weight for each id and a bias, without torch, which takes longer to load than a small set to
score. Its file is that of the network `lr`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import BundleError
from fieldwise.data.schema import PAD, Layout

# The network's names of its weights.
WEIGHTS, BIAS = "linear.weights.weight", "linear.bias"
Floats = NDArray[np.float32]


class Lines:
    """The weights (rows,) of all fields' ids, one field after the other, and a bias."""

    file = "weights.safetensors"

    def __init__(self, layout: Layout) -> None:
        self.layout = layout.without_ranks.apart
        self.weights, self.bias = np.zeros(self.layout.rows, dtype=np.float32), np.float32(0)

    def put(self, weights: Sequence[NDArray[np.floating[Any]]], bias: float) -> None:
        """Takes the weights of each field's ids."""
        for first, own in zip(self.layout.offsets, weights, strict=True):
            self.weights[first : first + len(own)] = own
        self.bias = np.float32(bias)

    def logits(self, ids: NDArray[np.int32]) -> Floats:
        """Encoded rows (n, C) -> logits (n,); a field of several ids adds the mean of their weights.

        In float32 and in the order of the network's loops (nn/wide_loops.py): with the same bits.
        """
        found = np.full(len(ids), self.bias)
        columns = np.split(ids, np.cumsum(self.layout.widths)[:-1], axis=1)
        for field, (own, first, size) in enumerate(zip(columns, self.layout.offsets, self.layout.sizes, strict=True)):
            if own.size and (own[:, 0].min() < 0 or own.min() < PAD or own.max() >= size):
                raise IndexError(f"an id is out of range: field {field} has {size}")
            for place, shares in _shares(own, field in self.layout.ordered):
                used = np.flatnonzero(shares)
                found[used] += shares[used] * self.weights[first + own[used, place]]
        return found

    @property
    def size(self) -> int:
        """How many numbers were learnt."""
        return len(self.weights) + 1

    def to(self, device: Any) -> Self:
        """They stay on the CPU."""
        return self

    def save(self, path: Path) -> None:
        from safetensors.numpy import save

        path.write_bytes(save({BIAS: np.array(self.bias), WEIGHTS: self.weights[:, None]}))

    def load(self, path: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            held = load(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise BundleError(f"the weights are damaged: {str(error).splitlines()[0][:300]} ({path})") from None
        for name, shape in ((BIAS, ()), (WEIGHTS, (len(self.weights), 1))):
            found = held.pop(name, None)
            if found is None or found.shape != shape or found.dtype != np.float32:
                other = "none" if found is None else f"{found.shape} {found.dtype}"
                expected = f"'{name}' must be {shape} float32, found {other}"
                raise BundleError(f"the weights are not the model's: {expected} ({path})")
            if not np.isfinite(found).all():
                raise BundleError(f"weights must be finite numbers, found others in '{name}' ({path})")
            if name == BIAS:
                self.bias = np.float32(found)
            else:
                self.weights = np.ascontiguousarray(found[:, 0])
        if held:
            raise BundleError(f"the weights are not the model's: it has no '{next(iter(held))[:100]}' ({path})")


def _shares(ids: NDArray[np.int32], interpolated: bool) -> Iterator[tuple[int, Floats]]:
    """The places of a field's ids (n, width) that count, and what share of the mean each row (n,) has there."""
    width = ids.shape[1]
    if width == 1:
        yield 0, np.ones(len(ids), dtype=np.float32)
    elif interpolated:
        upper = ((ids > ids[:, :1]).sum(axis=1) / width).astype(np.float32)
        yield 0, (1 - upper.astype(np.float64)).astype(np.float32)
        yield width - 1, upper
    else:
        used = ids != PAD
        shares = (1 / used.sum(axis=1)).astype(np.float32)
        yield from ((place, np.where(used[:, place], shares, np.float32(0))) for place in range(width))
