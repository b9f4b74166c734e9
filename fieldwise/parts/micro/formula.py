"""One small network for each pair of fields (NIFM, PIN)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.initial import OUTPUT_SCALE, xavier_
from fieldwise.parts.interactions import Pairwise, array, mask_of
from fieldwise.parts.micro.compiled import LOOPS
from fieldwise.parts.micro.gpu import TRITON
from fieldwise.parts.norm.norms import EPSILON, PairNorm, activation, pair_norm
from fieldwise.parts.ways import chosen
from fieldwise.parts.weights import weights


class Biases(nn.ParameterList):
    """The layers' biases. They have the dimensions of weights, but no L2 penalty."""

    l2_group = None


class MicroNetwork(Pairwise):
    """One small network for each pair (eq. 13, 19): width P * widths[-1].

    The input is [v_i, v_j] and, with `product`, v_i * v_j. Each layer is affine and norm (the last one only with
    `last_norm`), and an activation follows all but the last. `padded`: the GPU's kernels may pad the features with
    zeros to a multiple of 16 bytes, which saves the DNN's first matrix product a copy.
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
            scale = OUTPUT_SCALE if not last_norm and len(self.weights) == len(widths) - 1 else 1.0
            start = xavier_(torch.empty(self.pairs, fan_in, fan_out), fan_in, fan_out, scale)
            self.weights.append(weights(start, None if mask is None else mask.expand_as(start)))
            self.biases.append(torch.zeros(self.pairs, 1, fan_out))
            mask = None
        kinds = [norm] * (len(widths) - 1) + [norm if last_norm else "none"]
        # Without a last norm the outputs are added to the logit as they are: gains of 1 would start it at +-30, and a
        # step of Adam, which moves every weight alike, would move it by 10.
        gain = 1.0 if last_norm else self.pairs**-0.5
        self.norms = nn.ModuleList(pair_norm(self.pairs, w, kind, gain) for w, kind in zip(widths, kinds, strict=True))
        self.activation = activation(activation_name)
        self.width = self.pairs * widths[-1]

    @chosen(TRITON, LOOPS)
    def forward(self, v: Tensor) -> Tensor:
        p, q = self.sides(v)
        x = torch.cat([p, q, self.both(p, q)] if self.product else [p, q], dim=2)
        *hidden, last = zip(self.weights, self.biases, self.norms, strict=True)
        for weight, bias, norm in hidden:
            x = self.activation(norm(torch.baddbmm(bias, x, weight())))
        weight, bias, norm = last
        return norm(torch.baddbmm(bias, x, weight())).transpose(0, 1).flatten(1)  # type: ignore[no-any-return]

    def both(self, p: Tensor, q: Tensor) -> Tensor:
        """The third input, v_i * v_j."""
        return p * q

    def plain_part(self) -> Part | None:
        if not isinstance(self.activation, nn.ReLU):
            return None
        layers = []
        for weight, bias, norm in zip(self.weights, self.biases, self.norms, strict=True):
            arrays, kind = {"weight": array(weight()), "bias": array(bias)}, "none"
            if isinstance(norm, PairNorm):
                kind = "layer" if norm.alone else "fused"
                arrays |= {"gain": array(norm.gain), "shift": array(norm.shift)}
            layers.append(Part("layer", {"norm": kind}, arrays))
        return Part("micro", {"product": self.product, "epsilon": EPSILON}, parts=tuple(layers))
