"""A small network of its own for each pair of fields (NIFM, PIN)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_sizes
from fieldwise.loops import gpu, running
from fieldwise.parts.initial import xavier_
from fieldwise.parts.interactions import Pairwise, by_field, mask_of
from fieldwise.parts.micro import compiled as micro_steps
from fieldwise.parts.norm.compiled import NormRelu, takes
from fieldwise.parts.norm.formula import PairNorm, activation, pair_norm
from fieldwise.parts.weights import Plain, weights

PIECE = 8  # numbers of bfloat16 in 16 bytes


class Biases(nn.ParameterList):
    """Biases in the shape of weights, one for each layer: no penalty is for them."""

    l2_group = None


class MicroNetwork(Pairwise):
    """A small network of its own for each pair (eq. 13, 19): width P * widths[-1].

    Input [v_i, v_j] and, with `product`, v_i * v_j. Each layer is affine and norm (the last one's with
    `last_norm`); an activation follows all but the last. `padded`: the GPU's kernels may leave zeros behind the
    features, up to a multiple of 16 bytes, for a DNN whose first product would else copy them to such rows.
    """

    def __init__(
        self,
        dims: Sequence[int],
        widths: Sequence[int],
        product: bool = True,
        norm: str = "fused",
        last_norm: bool = True,
        activation_name: str = "relu",
        padded: bool = False,
    ) -> None:
        super().__init__(dims, any_sizes=not product)
        if not widths:
            raise ConfigError("a sub-network needs at least one layer, found none")
        check_sizes("subnet", widths)
        self.product, self.padded = product, padded
        filled = mask_of(dims)
        mask = None if filled is None else torch.cat([filled[self.first], filled[self.second]], dim=1)[:, :, None]
        self.weights, self.biases = nn.ModuleList(), Biases()
        for fan_in, fan_out in itertools.pairwise([max(dims) * (3 if product else 2), *widths]):
            start = xavier_(torch.empty(self.pairs, fan_in, fan_out), fan_in, fan_out)
            self.weights.append(weights(start, None if mask is None else mask.expand_as(start)))
            self.biases.append(torch.zeros(self.pairs, 1, fan_out))
            mask = None
        kinds = [norm] * (len(widths) - 1) + [norm if last_norm else "none"]
        self.norms = nn.ModuleList(pair_norm(self.pairs, w, kind) for w, kind in zip(widths, kinds, strict=True))
        self.activation = activation(activation_name)
        self.width = self.pairs * widths[-1]

    def forward(self, v: Tensor) -> Tensor:
        if self._fusible and gpu.fuses(v, self._tile):
            return self._by_kernels(v)
        if self._fusible and running.worth(v):
            norm = self.norms[0]
            first, last = ((weight(), bias) for weight, bias in zip(self.weights, self.biases, strict=True))
            layers: Any = *first, norm.gain, norm.shift, *last
            found = micro_steps.two_layers(v, self.first, self.second, layers)
            normal: Tensor = self.norms[1](found.transpose(0, 1))
            return normal.transpose(0, 1).flatten(1)
        return self.plain(v)

    def plain(self, v: Tensor) -> Tensor:
        """Layer by layer, what the faster ways equal."""
        p, q = self.sides(v)
        x = torch.cat([p, q, self.both(p, q)] if self.product else [p, q], dim=2)
        for layer, (weight, bias, norm) in enumerate(zip(self.weights, self.biases, self.norms, strict=True)):
            x = torch.baddbmm(bias, x, weight())
            if layer + 1 < len(self.weights) and takes(norm, self.activation, x):
                x = NormRelu.apply(x, norm.gain, norm.shift)  # type: ignore[no-untyped-call]
            else:
                x = norm(x)
                if layer + 1 < len(self.weights):
                    x = self.activation(x)
        return x.transpose(0, 1).flatten(1)

    def both(self, p: Tensor, q: Tensor) -> Tensor:
        """The third input."""
        return p * q

    @property
    def _fusible(self) -> bool:
        """Whether the faster ways know these layers."""
        norm = self.norms[0]
        known = isinstance(norm, PairNorm) and not norm.alone and isinstance(self.activation, nn.ReLU)
        return known and len(self.weights) == 2 and isinstance(self.weights[0], Plain)

    @property
    def _tile(self) -> int:
        """What the GPU's kernels hold of a pair: its inputs by rows and units, its units by outputs."""
        inputs, units = (gpu.padded(size + 1) for size in self.weights[0]().shape[1:])
        return inputs * (units + gpu.ROWS) + units * gpu.padded(2 * self.weights[1]().shape[2], 32)

    def _by_kernels(self, v: Tensor) -> Tensor:
        """The same by the GPU's kernels."""
        from fieldwise.parts.micro.triton import micro

        norm, last = self.norms
        inputs, outputs = (by_field(v), self.weights[0](), self.biases[0]), (self.weights[1](), self.biases[1])
        # They know a last norm that is the same for all pairs.
        own = not isinstance(last, PairNorm) or last.alone or len(last.gain) > 1
        known = (None, None) if own else (last.gain, last.shift)
        given = *inputs, norm.gain, norm.shift, *outputs, *known, self.first, self.second
        wide = self.width + (-self.width % PIECE if self.padded else 0)
        x: Tensor = micro(*given, wide, torch.is_grad_enabled())[0]
        return (last(x.transpose(0, 1)).transpose(0, 1) if own else x).flatten(1)
