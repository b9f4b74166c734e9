"""Crosses of all numbers of a row with its first ones, layer after layer (DCNv2, GDCN)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.features.formula import Flatten
from fieldwise.parts.gate.formula import Gate
from fieldwise.parts.initial import xavier_
from fieldwise.parts.interactions import Interaction, array


class Cross(Interaction):
    """x <- x0 * (W x + b) + x, `times` times, x0 being all vectors side by side (DCNv2): width of x0.

    With `gate`, x <- x0 * (W x + b) * sigmoid(Wg x) + x (GDCN).
    """

    def __init__(self, dims: Sequence[int], times: int, gate: bool = False) -> None:
        super().__init__()
        check_sizes("crosses", [times])
        self.flat = Flatten(dims)
        self.width = width = self.flat.width
        self.layers = nn.ModuleList(affine(width, width) for _ in range(times))
        self.gates = nn.ModuleList(Gate(width, width, bias=False) for _ in range(times if gate else 0))

    @property
    def numbers(self) -> int:
        return self.width * (len(self.layers) + len(self.gates))

    def forward(self, v: Tensor) -> Tensor:
        x: Tensor = self.flat(v)
        first = x
        for number, layer in enumerate(self.layers):
            crossed = first * layer(x)
            x = (crossed * self.gates[number](x) if len(self.gates) else crossed) + x
        return x

    def plain_part(self) -> Part:
        gates = [gate.plain_part() for gate in self.gates if isinstance(gate, Gate)]
        layers = [plain_layer(layer) for layer in self.layers]
        settings = {"width": self.width, "times": len(layers)}
        return Part("cross", settings, self.flat.plain_part().arrays, (*layers, *gates))


class CrossMixture(Interaction):
    """DCNv2's cross in E subspaces of `rank` r: width of x0.

    x <- sum_e p_e(x) x0 * (U_e tanh(C_e tanh(V_e^T x)) + b) + x, p(x) the softmax over E scores of x. Each layer has
    matrices of its own; all share the scores, as in the authors' formula.
    """

    def __init__(self, dims: Sequence[int], times: int, rank: int, experts: int) -> None:
        super().__init__()
        check_sizes("crosses, rank and experts", [times, rank, experts])
        self.flat = Flatten(dims)
        self.width = width = self.flat.width
        self.down, self.inside, self.up = (
            nn.ParameterList(xavier_(torch.empty(experts, *fans), *fans) for _ in range(times))
            for fans in ((width, rank), (rank, rank), (rank, width))
        )
        self.biases = nn.ParameterList(torch.zeros(width) for _ in range(times))
        self.scores = affine(width, experts, bias=False)

    @property
    def numbers(self) -> int:
        return self.width * (len(self.biases) + len(self.up[0]))

    def forward(self, v: Tensor) -> Tensor:
        x: Tensor = self.flat(v)
        first = x
        for down, inside, up, bias in zip(self.down, self.inside, self.up, self.biases, strict=True):
            low = torch.tanh(torch.tanh(x @ down) @ inside)  # (E, B, r)
            shares = torch.softmax(self.scores(x), dim=1)
            mixed = ((low * shares.T[:, :, None]) @ up).sum(dim=0)
            x = first * (mixed + bias) + x
        return x

    def plain_part(self) -> Part:
        layers = zip(self.down, self.inside, self.up, self.biases, strict=True)
        names = ("down", "inside", "up", "bias")
        parts = [Part("layer", arrays=dict(zip(names, map(array, layer), strict=True))) for layer in layers]
        arrays = self.flat.plain_part().arrays
        return Part("cross_mixture", {"width": self.width}, arrays, (plain_layer(self.scores), *parts))


def crossing(dims: Sequence[int], times: int, rank: int, experts: int) -> Interaction:
    """The full cross, or for a `rank` above 0 the mixture of crosses in subspaces."""
    if rank < 0:
        raise ConfigError(f"rank must be 0, for full matrices, or positive, found {rank}")
    return CrossMixture(dims, times, rank, experts) if rank else Cross(dims, times)
