"""Adam's tables on a GPU: tables looked up by the same ids move together, and a row's state is contiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fieldwise.optim.rows import Group

if TYPE_CHECKING:
    from fieldwise.optim.adam import Adam

TOGETHER = 2  # tables that the kernels take at a time
PIECE = 4  # numbers of 16 bytes


class GpuRows:
    """Moves Adam's tables on a GPU, and keeps the memory that this takes."""

    def __init__(self) -> None:
        self.scratch: dict[tuple[int, ...], Any] = {}

    def move(self, adam: Adam, group: Group, weights: list[Tensor]) -> None:
        """Moves the touched rows of these tables, which have sparse gradients."""
        for together in by_ids(weights):
            self._move(adam, group, together)

    def _move(self, adam: Adam, group: Group, weights: list[Tensor]) -> None:
        from fieldwise.optim import triton_adam

        side_by_side(adam, group, weights)
        states = [adam.state[weight] for weight in weights]
        tables = [
            triton_adam.Table(weight, state["mean"], state["square"], state["last"] if adam.decays else None)
            for weight, state in zip(weights, states, strict=True)
        ]
        grads: list[Any] = [weight.grad for weight in weights]
        ids, values = grads[0]._indices()[0], [grad._values() for grad in grads]
        key = *(id(weight) for weight in weights), len(ids)
        if key not in self.scratch:
            self.scratch[key] = triton_adam.Scratch.of(tables, len(ids), group["betas"])
        numbers = adam.captured_of(group)
        if numbers is None:
            numbers = torch.tensor(adam.numbers(group, group["step"], group["lr"]), device=weights[0].device)
        triton_adam.adam_rows(tables, ids, values, numbers, group["betas"], self.scratch[key])


def by_ids(weights: list[Tensor]) -> list[list[Tensor]]:
    """Groups tables whose gradients have the same ids, the widest first."""
    groups: dict[tuple[int, ...], list[Tensor]] = {}
    for weight in sorted(weights, key=lambda table: -table.shape[1]):
        assert weight.grad is not None
        ids = weight.grad._indices()
        groups.setdefault((ids.data_ptr(), ids.shape[1], len(weight)), []).append(weight)
    return [
        found[start : start + TOGETHER] for found in groups.values() for start in range(0, len(found), TOGETHER)
    ]  # fmt: skip


def side_by_side(adam: Adam, group: Group, weights: list[Tensor]) -> None:
    """Moves the state of each row of these tables into one piece of memory: their moments, then their last steps.

    A touched row of a large table is in no cache; so a step has fewer places in memory to go to. The state's tensors
    become views of the pieces and keep their shapes.
    """
    if all(_lies(adam.state[weight], weights[0]) for weight in weights):
        return
    sizes = [2 * weight.shape[1] for weight in weights]
    width = sum(sizes) + (len(weights) if adam.decays else 0)
    pieces = weights[0].new_zeros(len(weights[0]), -(-width // PIECE) * PIECE)
    lasts, start = pieces.view(torch.int32), 0
    for number, (weight, size) in enumerate(zip(weights, sizes, strict=True)):
        mean, square = pieces[:, start : start + size].split(size // 2, dim=1)
        views = {"mean": mean, "square": square}
        if adam.decays:
            views["last"] = lasts[:, sum(sizes) + number]
        if adam.state[weight]:
            for name, value in adam._state(group, weight, last=adam.decays).items():
                views[name].copy_(value)
        adam.state[weight] = views
        start += size


def _lies(state: dict[str, Tensor], table: Tensor) -> bool:
    """Whether `side_by_side` made this state."""
    return "mean" in state and state["mean"].stride(0) > state["mean"].shape[1] and len(state["mean"]) == len(table)
