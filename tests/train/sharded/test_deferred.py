"""A table drawn in pieces has the numbers of one that is drawn at once, and needs no memory for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fieldwise.parts.initial import EMBEDDING, embedding_
from fieldwise.train.sharded import deferred
from fieldwise.train.sharded.deferred import IntoOwnRows, WithoutMemory


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "PIECE_ROWS", 32)


@pytest.mark.parametrize("init", EMBEDDING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (5, 3), (32, 1), (47, 1), (63, 5), (64, 1), (200, 7)])
def test_every_row_is_that_of_the_whole_table(rows: int, dim: int, dtype: Any, init: str) -> None:
    whole = torch.empty(rows, dim, dtype=dtype)
    torch.manual_seed(3)
    embedding_(whole, 4, rows, dim, init)
    after = torch.rand(3)
    for first, count in ((0, rows), (0, rows // 2), (rows // 2, rows - rows // 2), (rows, 0)):
        own = torch.empty(count, dim, dtype=dtype)
        torch.manual_seed(3)
        with IntoOwnRows(own, first):
            embedding_(torch.empty(rows, dim, dtype=dtype, device="meta"), 4, rows, dim, init)
        assert own.equal(whole[first : first + count])
        assert torch.rand(3).equal(after)


class Part(nn.Module):
    """A table, and weights that are drawn behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(100, 3))
        with torch.no_grad():
            self.table.uniform_(-1, 1)
        self.layer = nn.Linear(3, 3)


def test_what_is_drawn_behind_a_table_without_memory_is_the_same() -> None:
    torch.manual_seed(5)
    plain = Part()
    torch.manual_seed(5)
    with WithoutMemory([(100, 3)]):
        without = Part()
    assert without.table.is_meta
    weights: tuple[Tensor, Tensor] = plain.layer.weight, without.layer.weight
    assert weights[0].equal(weights[1])
