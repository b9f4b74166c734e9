"""From field vectors (B, F, D) to features (B, H): products of pairs, and what all ways to combine fields share.

Pairs (i, j), i < j, come in the order (0,1), (0,2) ... (0,F-1), (1,2) ...; P = F(F-1)/2.
Micro networks, attention and convolutions have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config import memory
from fieldwise.config.errors import ConfigError, TooLarge, unknown
from fieldwise.config.options import check_sizes
from fieldwise.loops import gpu, running
from fieldwise.parts.inner import compiled as inner_products
from fieldwise.parts.kernel.compiled import KernelProducts
from fieldwise.parts.kernel.sums import KernelSums, diagonal_sums
from fieldwise.parts.norm.formula import EPSILON
from fieldwise.parts.weights import Plain, weights


def pairs(fields: int) -> tuple[Tensor, Tensor]:
    """First and second field of every pair, each (P,).

    >>> pairs(3)
    (tensor([0, 0, 1]), tensor([1, 2, 2]))
    """
    first, second = torch.triu_indices(fields, fields, offset=1, device="cpu")
    return first, second


def check_pairs(fields: int, each: int = 32) -> None:
    """Refuses fields whose pairs, of `each` bytes, are more than memory holds: a model that is counted lists them."""
    count = fields * (fields - 1) // 2
    if each * count > memory.available():
        raise TooLarge(f"{fields:,} fields have {count:,} pairs, too many for memory; prepare fewer, or take lr or fm")


class Interaction(nn.Module):
    """Field vectors (B, F, D) -> features (B, width). `dims` are the fields' own sizes, at most D."""

    width: int

    @property
    def name(self) -> str:
        """What it is, for people."""
        return type(self).__name__

    @property
    def numbers(self) -> int:
        """How many numbers of a row it holds at least while it is computed: its features."""
        return self.width


def one_size(part: nn.Module, dims: Sequence[int]) -> int:
    """The fields' common size, for parts that need one."""
    if len(set(dims)) > 1:
        name = type(part).__name__
        raise ConfigError(f"{name} needs vectors of one size, found {min(dims)} to {max(dims)}; set model.adaptive=0")
    return dims[0]


def mask_of(dims: Sequence[int]) -> Tensor | None:
    """Which of the largest size's places each vector fills, (F, D); None where all fill all.

    On the CPU, as are pairs: on the meta device, where models are counted, no place could be looked up.
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


class Flatten(Interaction):
    """All vectors one after the other: no interaction, the DNN's plain input."""

    places: Tensor | None

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.width, filled = sum(dims), mask_of(dims)
        places = None if filled is None else filled.flatten().nonzero().squeeze(1)
        self.register_buffer("places", places, persistent=False)

    def forward(self, v: Tensor) -> Tensor:
        return v.flatten(1) if self.places is None else v.flatten(1).index_select(1, self.places)


class Concat(Interaction):
    """Several interactions side by side."""

    def __init__(self, *parts: Interaction) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.width = sum(part.width for part in parts)

    @property
    def name(self) -> str:
        return ", ".join(str(part.name) for part in self.parts)

    def forward(self, v: Tensor) -> Tensor:
        return torch.cat([part(v) for part in self.parts], dim=1)


class Normed(Interaction):
    """Layer norm on an interaction's features (section 4.4)."""

    def __init__(self, part: Interaction) -> None:
        super().__init__()
        self.part, self.width = part, part.width
        self.norm = nn.LayerNorm(part.width, eps=EPSILON)

    @property
    def name(self) -> str:
        return f"{self.part.name} with layer norm"

    def forward(self, v: Tensor) -> Tensor:
        features: Tensor = self.norm(self.part(v))
        return features


def normed(part: Interaction, wanted: bool) -> Interaction:
    """The part, with a layer norm on its features if wanted; a single feature's norm would always be 0."""
    return Normed(part) if wanted and part.width > 1 else part


class PairSum(Interaction):
    """The sum of all pairs' inner products in O(F D), FM's second-order part (eq. 3): width 1."""

    width = 1

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        one_size(self, dims)

    def forward(self, v: Tensor) -> Tensor:
        if gpu.scores(self, v):
            from fieldwise.parts.triton_scores import pair_sums

            return pair_sums(v)
        return 0.5 * (v.sum(dim=1).square() - v.square().sum(dim=1)).sum(dim=1, keepdim=True)


class InnerProduct(Pairwise):
    """Inner products of all pairs: width P."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__(dims)
        self.width = self.pairs

    def forward(self, v: Tensor) -> Tensor:
        if running.worth(v):
            fast: Tensor = inner_products.InnerProducts.apply(v)  # type: ignore[no-untyped-call]
            return fast
        return self.plain(v)

    def plain(self, v: Tensor) -> Tensor:
        """By the whole square of products, what the faster way equals."""
        places = self.first * v.shape[1] + self.second
        return torch.bmm(v, v.transpose(1, 2)).flatten(1).index_select(1, places)


class KernelProduct(Pairwise):
    """Kernel products v_i^T K_ij v_j of all pairs (eq. 11): width P.

    kernel `mat`: K_ij is D x D, or k_i x k_j where sizes differ; `vec`: diagonal; `num`: one number for each
    pair. They start as the identity, so that the model starts as its inner-product relative, or, `mat` alone,
    uniform in +-sqrt(3/D).
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

    def forward(self, v: Tensor) -> Tensor:
        if self.kind == "mat" and isinstance(self.kernel, Plain) and gpu.fuses(v, self._tile):
            from fieldwise.parts.kernel.triton import kernel_products

            products: Tensor = kernel_products(by_field(v), gpu.computed(self.kernel()), self.first, self.second)
            return products.T
        kernel = self.kernel()
        if self.compiles(v):
            fast: Tensor = KernelProducts.apply(v, kernel)  # type: ignore[no-untyped-call]
            return fast
        return self.plain(v, kernel)

    def compiles(self, v: Tensor) -> bool:
        """Whether compiled loops are for these vectors."""
        return self.kind == "mat" and running.worth(v) and v.dtype == self.kernel.entries.dtype

    @property
    def _tile(self) -> int:
        wide = gpu.padded(self.kernel().shape[2])
        return wide * (wide + gpu.ROWS)

    def plain(self, v: Tensor, kernel: Tensor) -> Tensor:
        """Pair by pair, what the faster way equals."""
        p, q = self.sides(v)
        projected = torch.bmm(p, kernel) if self.kind == "mat" else p * kernel
        return (projected * q).sum(dim=2).T


class KernelSum(KernelProduct):
    """The sum of all pairs' kernel products, KFM's second-order part (eq. 11): width 1."""

    def __init__(self, dims: Sequence[int], kernel: str = "mat", init: str = "identity") -> None:
        super().__init__(dims, kernel, init)
        self.width = 1

    def forward(self, v: Tensor) -> Tensor:
        # Without gradients the products themselves, half of what the large matrix multiplies, are faster.
        if torch.is_grad_enabled() and self.compiles(v):
            found: Tensor = KernelSums.apply(v, self.kernel())  # type: ignore[no-untyped-call]
            return found
        if self.kind != "mat" and running.worth(v):
            with torch.autocast("cpu", enabled=False):
                return diagonal_sums(v, self.kernel())
        return self.products(v).sum(dim=1, keepdim=True)

    def products(self, v: Tensor) -> Tensor:
        """The summands, pair by pair: (B, P)."""
        return super().forward(v)


def by_field(v: Tensor) -> Tensor:
    """v (B, F, D) -> (F, B, D), as the GPU's kernels over pairs take it."""
    return gpu.computed(v).transpose(0, 1).contiguous()


class FieldAwareProduct(Pairwise):
    """FFM's products (eq. 4): each vector (F-1)*k holds one part for each other field: width P.

    The part of field i for field j is number j-1 if j > i, else j: a field has no part for itself.
    """

    def __init__(self, fields: int, dim: int, scale: float = 1.0) -> None:
        check_sizes("dim", [dim])
        super().__init__([dim] * fields)
        self.width, self.fields, self.dim, self.scale = self.pairs, fields, dim, scale

    def forward(self, v: Tensor) -> Tensor:
        if gpu.scores(self, v):
            from fieldwise.parts.triton_scores import field_products

            return field_products(v, self.first, self.second, self.scale)
        parts = v.unflatten(2, (self.fields - 1, self.dim))
        products: Tensor = parts[:, self.first, self.second - 1] * parts[:, self.second, self.first]
        return products.sum(dim=2) * self.scale


class PairWeights(Pairwise):
    """The explicit weights of a row's pairs (B, P, 1), as they are: width P."""

    def __init__(self, fields: int) -> None:
        super().__init__([1] * fields)
        self.width = self.pairs

    def forward(self, weights: Tensor) -> Tensor:
        return weights.flatten(1)
