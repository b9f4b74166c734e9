"""What all interactions share: they turn field vectors (B, F, D) into features (B, H). Each has its own folder.

Pairs (i, j), i < j, come in the order (0,1), (0,2) ... (0,F-1), (1,2) ...; P = F(F-1)/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fieldwise.config import memory
from fieldwise.config.errors import ConfigError, TooLarge
from fieldwise.graphs.plain_parts import Part


def pairs(fields: int) -> tuple[Tensor, Tensor]:
    """First and second field of every pair, each (P,).

    >>> pairs(3)
    (tensor([0, 0, 1]), tensor([1, 2, 2]))
    """
    first, second = torch.triu_indices(fields, fields, offset=1, device="cpu")
    return first, second


def check_pairs(fields: int, each: int = 32) -> None:
    """Refuses fields whose pairs, `each` bytes a pair, do not fit in memory."""
    count = fields * (fields - 1) // 2
    if each * count > memory.available():
        raise TooLarge(f"{fields:,} fields have {count:,} pairs, too many for memory; prepare fewer, or take lr or fm")


class Interaction(nn.Module):
    """Field vectors (B, F, D) -> features (B, width). `dims` are the fields' own sizes, at most D."""

    width: int

    @property
    def name(self) -> str:
        """Its name in reports."""
        return type(self).__name__

    @property
    def numbers(self) -> int:
        """The least numbers a row that computing it holds in memory: its features."""
        return self.width

    def plain_part(self) -> Part | None:
        """Its weights for the ONNX form in its folder, None if there is no form. Call `plain_part_of` instead."""
        return None


def one_size(part: nn.Module, dims: Sequence[int]) -> int:
    """The size of all fields' vectors, for parts that need a common one."""
    if len(set(dims)) > 1:
        name = type(part).__name__
        raise ConfigError(f"{name} needs vectors of one size, found {min(dims)} to {max(dims)}; set model.adaptive=0")
    return dims[0]


def mask_of(dims: Sequence[int]) -> Tensor | None:
    """Which of the D places each field's vector fills, (F, D), D being the largest size; None if all are of that size.

    Masks and pairs are on the CPU even when a model is built on the meta device to count its parameters.
    """
    if len(set(dims)) == 1:
        return None
    return torch.arange(max(dims), device="cpu")[None, :] < torch.tensor(dims, device="cpu")[:, None]


class Pairwise(Interaction):
    """An interaction that looks at all pairs of fields."""

    first: Tensor
    second: Tensor

    def __init__(self, dims: Sequence[int], any_sizes: bool = False) -> None:
        super().__init__()
        if len(dims) < 2:
            raise ConfigError(f"{type(self).__name__} needs at least two fields, found {len(dims)}")
        if not any_sizes:
            one_size(self, dims)
        check_pairs(len(dims))
        first, second = pairs(len(dims))
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.pairs = len(first)

    def sides(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The two vectors of each pair, each (P, B, D): pairs lead, so that each can have its own matrix."""
        by_field = v.transpose(0, 1)
        return by_field.index_select(0, self.first), by_field.index_select(0, self.second)


def plain_part_of(part: nn.Module) -> Part | None:
    """The plain part of an interaction or classifier; None where a subclass changed `forward` and not `plain_part`."""
    formula, plain = (
        next((each for each in type(part).__mro__ if name in vars(each)), None) for name in ("forward", "plain_part")
    )
    return part.plain_part() if formula is plain else None  # type: ignore[operator]


def array(tensor: Tensor) -> NDArray[Any]:
    """A weight as a numpy array, for its plain part."""
    found: NDArray[Any] = tensor.detach().cpu().numpy()
    return found
