"""Several networks in one (TabM): k members share tables and matrices, and each scales what goes in and out of them.

Their rows lie one after the other: member m of row b is row b * k + m of (B * k, H).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.parts.initial import OUTPUT_SCALE, xavier_


class Scales(nn.Module):
    """A factor for each feature and member: (B, H) or (B * k, H) -> (B * k, H).

    They start at 1, or with `signs` at 1 or -1, drawn: this is what makes members different at first.
    """

    l2_group = None

    def __init__(self, members: int, width: int, signs: bool = False) -> None:
        super().__init__()
        start = torch.ones(members, width)
        self.members, self.signs = members, signs
        self.factors = nn.Parameter(start * (2.0 * torch.randint(2, (members, width)) - 1) if signs else start)

    def forward(self, x: Tensor) -> Tensor:
        """Before the first layer members still have the same features (B, H); after it each has its own (B * k, H)."""
        each = x[:, None] if self.signs else x.unflatten(0, (-1, self.members))
        return (each * self.factors).flatten(0, 1)


class SharedLayer(nn.Module):
    """s * (W (r * x)) + b with one W, and r, s and b of each member: (B * k, width) -> (B * k, out)."""

    def __init__(self, shared: nn.Module, width: int, out: int, members: int, first: bool) -> None:
        super().__init__()
        self.inner, self.members = shared, members
        # What goes into the first layer is scaled before it.
        self.before = nn.Identity() if first else Scales(members, width)
        self.after, self.shift = Scales(members, out), Shifts(members, out)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.shift(self.after(self.inner(self.before(x))))
        return found


class Shifts(nn.Module):
    """A summand for each unit and member: (B * k, H) -> (B * k, H). Like biases, they have no L2 penalty."""

    l2_group = None

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.members, self.bias = members, nn.Parameter(torch.zeros(members, width))

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = x.unflatten(0, (-1, self.members)) + self.bias
        return moved.flatten(0, 1)


class Heads(nn.Module):
    """A last layer for each member: (B * k, H) -> logits (B, k)."""

    def __init__(self, width: int, members: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(xavier_(torch.empty(members, width), width, 1, OUTPUT_SCALE))
        self.bias = nn.Parameter(torch.zeros(members))

    def forward(self, x: Tensor) -> Tensor:
        weighted: Tensor = x.unflatten(0, (-1, len(self.bias))) * self.weight
        return weighted.sum(dim=2) + self.bias


def merged(logits: Tensor) -> Tensor:
    """The logits (B,) of the mean of k members' probabilities, by logarithms, which do not round to 0 or 1."""
    if logits.dim() == 1:
        return logits
    clicks, others = (torch.logsumexp(functional.logsigmoid(each), dim=1) for each in (logits, -logits))
    return clicks - others
