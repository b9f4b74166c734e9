"""Random sparse steps: duplicates, rows with long gaps, rows never touched."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.optim import Optimizer

N, D = 30, 4


def table(seed: int = 0, dtype: torch.dtype = torch.float64, rows: int = N) -> torch.nn.Parameter:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.Parameter(torch.randn(rows, D, generator=generator, dtype=torch.float64).to(dtype))


def batches(steps: int, seed: int = 1, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, value of their gradients): 9 ids a step, skewed, so that some repeat and some are rare."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        ids = ((N - 2) * torch.rand(9, generator=generator) ** 3).long()
        values = torch.randn(9, D, generator=generator, dtype=torch.float64)
        if step >= start:
            yield ids, values


def backward(weight: torch.nn.Parameter, ids: Tensor, values: Tensor) -> None:
    """Leave the gradient that training leaves: sparse, uncoalesced, with duplicates."""
    (embedding(ids.to(weight.device), weight, sparse=True) * values.to(weight)).sum().backward()


def sparse(ids: Tensor, values: Tensor, rows: int = N) -> Tensor:
    """The gradient of a table of zeros, however many rows it has."""
    weight = values.new_zeros(1, values.shape[1]).expand(rows, -1).requires_grad_()
    return torch.autograd.grad(embedding(ids, weight, sparse=True), weight, values)[0]


def dense(ids: Tensor, values: Tensor, rows: int = N) -> tuple[Tensor, Tensor]:
    """The gradient (N, D) with duplicates summed, and the mask (N, 1) of the touched rows."""
    grad = torch.zeros(rows, D, dtype=torch.float64)
    for row, value in zip(ids.tolist(), values, strict=True):
        grad[row] += value
    mask = torch.zeros(rows, 1, dtype=torch.bool)
    mask[ids] = True
    return grad, mask


def distance_on_dense_gradients(optimizer: Optimizer, reference: Optimizer, steps: int = 50) -> float:
    """How far two optimisers end from each other, given the same dense gradients for one table each."""
    (ours,), (theirs,) = (each.param_groups[0]["params"] for each in (optimizer, reference))
    for ids, values in batches(steps):
        ours.grad, _ = dense(ids, values)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    return (ours - theirs).detach().abs().max().item()
