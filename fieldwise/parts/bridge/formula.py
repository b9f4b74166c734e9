"""Crosses and layers side by side that meet in a bridge after each (EDCN)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.features.formula import Flatten
from fieldwise.parts.interactions import Interaction, array
from fieldwise.parts.norm.norms import norm_of, plain_norm


class Bridged(Interaction):
    """`times` times c <- x0 (w^T c) + b + c, d <- relu(W d + b') and their bridge m = c * d or c + d (EDCN).

    Before each, every field of x, and later of m, has a factor in c and another one in d: a softmax over fields with
    a `temperature`, and a norm after it, without which products of products would vanish. x0 is the first c. The
    features are the last c, d and m: width 3 sum(dims).
    """

    of: Tensor
    BRIDGES = ("product", "sum")

    def __init__(
        self, dims: Sequence[int], times: int, bridge: str = "product", temperature: float = 1.0, norm: str = "layer"
    ) -> None:
        super().__init__()
        if bridge not in self.BRIDGES:
            raise ConfigError(unknown("bridge", bridge, self.BRIDGES))
        if not temperature > 0:
            raise ConfigError(f"temperature must be positive, found {temperature}")
        check_sizes("crosses", [times])
        self.flat, self.bridge, self.temperature = Flatten(dims), bridge, temperature
        width, fields = self.flat.width, len(dims)
        self.width = 3 * width
        self.factors = nn.ParameterList(torch.ones(2, fields) for _ in range(times))
        self.norms = nn.ModuleList(norm_of(norm, width) for _ in range(2 * times))
        self.crosses = nn.ModuleList(affine(width, 1, bias=False) for _ in range(times))
        self.biases = nn.ParameterList(torch.zeros(width) for _ in range(times))
        self.layers = nn.ModuleList(affine(width, width) for _ in range(times))
        # The field of each number of x.
        of = torch.repeat_interleave(torch.arange(fields, device="cpu"), torch.tensor(dims, device="cpu"))
        self.register_buffer("of", of, persistent=False)

    def forward(self, v: Tensor) -> Tensor:
        m, first = self.flat(v), None
        blocks = zip(self.factors, *self._norms, self.crosses, self.biases, self.layers, strict=True)
        for factors, norm_c, norm_d, cross, bias, layer in blocks:
            into_c, into_d = torch.softmax(factors / self.temperature, dim=1).index_select(1, self.of)
            c, d = norm_c(m * into_c), norm_d(m * into_d)
            first = c if first is None else first
            c, d = first * cross(c) + bias + c, torch.relu(layer(d))
            m = c * d if self.bridge == "product" else c + d
        return torch.cat([c, d, m], dim=1)

    @property
    def _norms(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """The norms of c and those of d."""
        return list(self.norms)[::2], list(self.norms)[1::2]

    def plain_part(self) -> Part:
        layers = zip(*(map(plain_layer, own) for own in (self.crosses, self.layers)), strict=True)
        norms = zip(*(map(plain_norm, own) for own in self._norms), strict=True)
        blocks = []
        for factors, bias, own, normed in zip(self.factors, self.biases, layers, norms, strict=True):
            shares = torch.softmax(factors / self.temperature, dim=1)[:, self.of]
            blocks.append(Part("block", arrays={"shares": array(shares), "bias": array(bias)}, parts=(*own, *normed)))
        settings = {"width": self.width, "bridge": self.bridge}
        return Part("bridge", settings, self.flat.plain_part().arrays, tuple(blocks))
