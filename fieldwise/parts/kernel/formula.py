"""Products of all pairs with a kernel between the two vectors (KFM, KPNN)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.interactions import Pairwise, array, mask_of
from fieldwise.parts.kernel.compiled import LOOPS
from fieldwise.parts.kernel.gpu import TRITON
from fieldwise.parts.kernel.sums import BY_PLACE, ONE_PRODUCT
from fieldwise.parts.ways import chosen
from fieldwise.parts.weights import weights


class KernelProduct(Pairwise):
    """Kernel products v_i^T K_ij v_j of all pairs (eq. 11): width P.

    kernel `mat`: K_ij is D x D, or k_i x k_j where sizes differ; `vec`: diagonal; `num`: one number for each pair.
    Kernels start as the identity, which makes them inner products, or, for `mat`, uniform in +-sqrt(3/D).
    """

    l2_group = "kernels"
    KERNELS = ("mat", "vec", "num")
    INITS = ("identity", "uniform")

    def __init__(self, dims: Sequence[int], kernel: str = "mat", init: str = "identity") -> None:
        for kind, found, known in (("kernel", kernel, self.KERNELS), ("kernel start", init, self.INITS)):
            if found not in known:
                raise ConfigError(unknown(kind, found, known))
        if init == "uniform" and kernel != "mat":
            raise ConfigError(f"kernel start 'uniform' is for kernel 'mat', found kernel '{kernel}'")
        super().__init__(dims, any_sizes=kernel == "mat")
        self.width, self.kind, dim = self.pairs, kernel, max(dims)
        shape = {"mat": (self.pairs, dim, dim), "vec": (self.pairs, 1, dim), "num": (self.pairs, 1, 1)}[kernel]
        start = torch.ones(shape)
        if init == "uniform":
            start.uniform_(-math.sqrt(3 / dim), math.sqrt(3 / dim))
        elif kernel == "mat":
            start = torch.eye(dim).expand(shape)
        filled = mask_of(dims)
        mask = None if filled is None else filled[self.first][:, :, None] & filled[self.second][:, None, :]
        self.kernel = weights(start, mask)

    @chosen(TRITON, LOOPS)
    def forward(self, v: Tensor) -> Tensor:
        p, q = self.sides(v)
        projected = torch.bmm(p, self.kernel()) if self.kind == "mat" else p * self.kernel()
        return (projected * q).sum(dim=2).T

    def plain_part(self) -> Part:
        return Part("kernel", {"of": self.kind}, {"kernel": array(self.kernel())})


class KernelSum(KernelProduct):
    """The sum of all pairs' kernel products, KFM's second-order part (eq. 11): width 1."""

    def __init__(self, dims: Sequence[int], kernel: str = "mat", init: str = "identity") -> None:
        super().__init__(dims, kernel, init)
        self.width = 1

    @chosen(ONE_PRODUCT, BY_PLACE)
    def forward(self, v: Tensor) -> Tensor:
        return self.products(v).sum(dim=1, keepdim=True)

    def products(self, v: Tensor) -> Tensor:
        """The summands, pair by pair: (B, P)."""
        return super().forward(v)

    def plain_part(self) -> Part:
        return Part("kernel_sum", {"of": self.kind}, {"kernel": array(self.kernel())})
