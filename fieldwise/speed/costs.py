"""The least work of a training step: its arithmetic, counted as PyTorch does it, and the bytes of its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fieldwise.data.schema import Layout
from fieldwise.nn.model import Model
from fieldwise.optim import RowOptimizer


class Arithmetic(TorchDispatchMode):
    """Counts floating-point operations: those of matrix products, and one for each number in other operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = self.others = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        counter = flop_registry.get(func.overloadpacket)
        if counter is not None:
            self.products += counter(*args, **(kwargs or {}), out_val=out)
        elif torch.Tag.pointwise in func.tags or "sum" in str(func):
            inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            self.others += max((leaf.numel() for leaf in inputs), default=0)
        return out


def flops_per_row(model: Model, layout: Layout, rows: int = 32) -> dict[str, float]:
    """Floating-point operations of one row, forward and backward, in matrix products and in all else.

    `model` may have fewer categories, which changes nothing. It runs its formulas on the meta device, where only shapes
    are computed.
    """
    model = model.to("meta")
    found = {}
    if model.linear is not None:
        found["linear"] = torch.zeros(rows, layout.fields, 1, device="meta", requires_grad=True)
    if model.embedding is not None:
        ids = torch.zeros(rows, sum(layout.widths), dtype=torch.int32, device="meta")
        found["vectors"] = model.embedding(ids).detach().requires_grad_()
    with Arithmetic() as count:
        model.combine(found).sum().backward()
    return {"products": count.products / rows, "others": count.others / rows}


def bytes_per_row(model: Model, optimizer: RowOptimizer, ids: NDArray[np.int32], layout: Layout) -> float:
    """The least memory traffic of one row in a batch `ids` (B, C), in bytes.

    The ids are read once; each table row of the batch and each dense weight is read and written once with its state.
    """
    distinct = len(np.unique(ids + np.array(layout.column_offsets, dtype=np.int64)))
    passes = 2 * (1 + len(optimizer.names))
    moved = 4 * ids.size
    for weight in model.parameters():
        is_table = weight.dim() == 2 and len(weight) in (layout.rows, layout.apart.rows)
        numbers = distinct * weight.shape[1] if is_table else weight.numel()
        moved += passes * 4 * numbers
    return moved / len(ids)
