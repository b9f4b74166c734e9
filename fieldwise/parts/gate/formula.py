"""The gate by the whole row: a row as a whole scales each of its features (GDCN, MaskNet, FinalMLP, FiBiNET)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.features.formula import Flatten
from fieldwise.parts.interactions import Interaction, array

ENDS: dict[str, type[nn.Module]] = {"none": nn.Identity, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}


class Gate(nn.Module):
    """All numbers of a row (B, width) -> a factor for each feature (B, out): layers with ReLU, a last one, its `end`.

    `open`: the last weights start positive, so that a ReLU at the end shuts no feature before training.
    """

    def __init__(
        self,
        width: int,
        out: int,
        hidden: Sequence[int] = (),
        end: str = "sigmoid",
        scale: float = 1.0,
        bias: bool = True,
        open: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("units of a gate", hidden)
        sizes = [width, *hidden, out]
        self.layers = nn.ModuleList(affine(*pair, bias=bias) for pair in itertools.pairwise(sizes))
        self.end, self.kind, self.scale = ENDS[end](), end, scale
        if open:
            with torch.no_grad():
                next(self.layers[-1].parameters()).abs_()

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.relu(layer(x))
        found: Tensor = self.end(last(x))
        return found if self.scale == 1 else self.scale * found

    def plain_part(self) -> Part:
        """As an interaction's."""
        settings = {"end": self.kind, "scale": float(self.scale)}
        return Part("gate", settings, parts=tuple(plain_layer(layer) for layer in self.layers))


class Gated(Interaction):
    """All vectors side by side, each number times 2 sigmoid(MLP(context)) (FinalMLP): width sum(dims).

    The context is the whole `row`, or a `learned` vector, the same for all rows.
    """

    CONTEXTS = ("row", "learned")

    def __init__(self, dims: Sequence[int], context: str = "row", hidden: Sequence[int] = ()) -> None:
        super().__init__()
        if context not in self.CONTEXTS:
            raise ConfigError(unknown("gate", context, (*self.CONTEXTS, "none")))
        self.flat = Flatten(dims)
        self.width = self.flat.width
        self.context = None if context == "row" else nn.Parameter(torch.randn(1, max(dims)))
        self.gate = Gate(self.width if self.context is None else max(dims), self.width, hidden, scale=2.0)

    @property
    def numbers(self) -> int:
        return 2 * self.width

    def forward(self, v: Tensor) -> Tensor:
        x: Tensor = self.flat(v)
        factors: Tensor = self.gate(x if self.context is None else self.context)
        return x * factors

    def plain_part(self) -> Part:
        arrays = self.flat.plain_part().arrays | ({} if self.context is None else {"context": array(self.context)})
        return Part("gated", {"width": self.width}, arrays, (self.gate.plain_part(),))
