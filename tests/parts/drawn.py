"""Numbers and parts whose every parameter is drawn: a formula that holds for them holds not only at the start."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call

from fieldwise.parts.ways import formulas_alone

Part = TypeVar("Part", bound=nn.Module)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(part: Part) -> Part:
    """The part in float64, all its parameters drawn anew."""
    part.double()
    with torch.no_grad():
        for seed, parameter in enumerate(part.parameters(), start=5):
            parameter.copy_(numbers(*parameter.shape, seed=seed))
    return part


def gradients_hold(part: nn.Module, x: Tensor, fast: bool = False) -> bool:
    """Whether autograd agrees with finite differences, for x and for every parameter."""
    names = [name for name, _ in part.named_parameters()]
    inputs = (x.detach().clone().requires_grad_(), *part.parameters())
    holds: bool = gradcheck(
        lambda x, *values: functional_call(part, dict(zip(names, values, strict=True)), (x,)), inputs, fast_mode=fast
    )
    return holds


def by_formula(part: nn.Module, *inputs: Tensor) -> Tensor:
    """What the part's formula gives, whichever faster ways it has."""
    with formulas_alone():
        found: Tensor = part(*inputs)
    return found
