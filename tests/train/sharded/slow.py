"""FBGEMM's table in float64 and plain PyTorch, which FBGEMM itself has not: the slow twin of what moves the rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.config.settings import TrainSettings
from fieldwise.train.sharded.sharded_model import Cut


class SlowRows(nn.Module):
    """Rows by their numbers; when their gradients arrive, the touched rows move by AdaGrad."""

    def __init__(self, kernel: Any, settings: TrainSettings) -> None:
        super().__init__()
        (like,) = kernel.split_embedding_weights()
        # FBGEMM itself rounds the rate to float32.
        self.groups, self.eps = kernel.fused_optimizer.param_groups, settings.eps
        self.weight = torch.zeros_like(like, dtype=torch.float64)
        self.total = torch.full_like(self.weight, settings.initial_accumulator)
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        found: Tensor = Rows.apply(indices, self.anchor, self)  # type: ignore[no-untyped-call]
        return found


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Tensor, anchor: Tensor, own: SlowRows) -> Tensor:
        ctx.indices, ctx.own = indices, own
        return own.weight[indices]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:  # type: ignore[override]
        own = ctx.own
        whole = torch.zeros_like(own.weight).index_add_(0, ctx.indices, grad)
        own.total += whole.square()
        own.weight -= own.groups[0]["lr"] * whole / (own.total.sqrt() + own.eps)
        return None, torch.zeros(()), None


def doubled(cut: Cut, settings: TrainSettings) -> Cut:
    """The same model in float64, its rows with the twin; how they are cut and sent stays TorchRec's."""
    for name in ("permute_1D_sparse_data", "permute_2D_sparse_data"):
        _take_doubles(name)
    for weight in cut.dense.values():
        weight.data = weight.data.double()
    for table in cut.tables.values():
        (lookup,) = table.rows._lookups
        (kernel,) = lookup._emb_modules
        kernel._emb_module = SlowRows(kernel, settings)
        table.padded = kernel._emb_module.weight
        dim = table.weight.shape[1]
        table.own, table.weight = table.padded[:, :dim], table.weight.double()
    return cut


def _take_doubles(name: str) -> None:
    """FBGEMM puts numbers of 64 bits in order as whole ones only; their bits are the same."""
    original = getattr(torch.ops.fbgemm, name)
    if getattr(original, "takes_doubles", False):
        return

    def moved(order: Tensor, lengths: Tensor, values: Tensor, *rest: Any) -> tuple[Any, Tensor, Any]:
        if values.dtype != torch.float64:
            found: tuple[Any, Tensor, Any] = original(order, lengths, values, *rest)
            return found
        lengths, values, weights = original(order, lengths, values.view(torch.int64), *rest)
        return lengths, values.view(torch.float64), weights

    moved.takes_doubles = True  # type: ignore[attr-defined]
    setattr(torch.ops.fbgemm, name, moved)
