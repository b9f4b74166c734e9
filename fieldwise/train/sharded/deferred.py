"""Tables that no worker holds whole: each worker draws them piece by piece and keeps only its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Rows drawn at a time. Torch draws normal numbers in blocks of 16, so a piece is a multiple of 16 rows.
PIECE_ROWS = 2**16
DRAWS = (Tensor.normal_, Tensor.uniform_)


class WithoutMemory(TorchFunctionMode):
    """Within, tables of these shapes have no memory. Drawing into one still advances the random numbers, so that the
    rest of the model starts with the values that it has in one process."""

    def __init__(self, shapes: Iterable[tuple[int, ...]]) -> None:
        super().__init__()
        self.shapes = set(shapes)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and not kwargs and args in self.shapes:
            return torch.empty(*args, device="meta")
        if func in DRAWS and args[0].is_meta:
            for _ in drawn(func, args[0], *args[1:]):
                pass
            return args[0]
        return func(*args, **kwargs)


class IntoOwnRows(TorchFunctionMode):
    """Within, drawing into a table without memory fills `own` (n, D), the table's rows from `first` on."""

    def __init__(self, own: Tensor, first: int) -> None:
        super().__init__()
        self.own, self.first = own, first

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in DRAWS or not args[0].is_meta:
            return func(*args, **(kwargs or {}))
        for start, piece in drawn(func, args[0], *args[1:]):
            low, high = max(start, self.first), min(start + len(piece), self.first + len(self.own))
            if low < high:
                self.own[low - self.first : high - self.first].copy_(piece[low - start : high - start])
        return args[0]


def drawn(draw: Callable[..., Any], table: Tensor, *numbers: float) -> Iterator[tuple[int, Tensor]]:
    """The rows that one call of `draw` would fill the table with, in pieces: the first row's number, the rows."""
    rows, dim = table.shape
    starts = range(0, max(1, rows - PIECE_ROWS + 1), PIECE_ROWS)  # the last piece includes the remainder
    for start in starts:
        end = rows if start == starts[-1] else start + PIECE_ROWS
        piece = torch.empty(end - start, dim, dtype=table.dtype)
        draw(piece, *numbers)
        yield start, piece
