"""From field vectors (B, F, D) to features (B, H): every way the paper combines fields.

Pairs (i, j), i < j, come in the order (0,1), (0,2) ... (0,F-1), (1,2) ...; P = F(F-1)/2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError, unknown
from fieldwise.kernels import gpu
from fieldwise.nn.affine import affine
from fieldwise.nn.classifiers import check_dropout, check_sizes
from fieldwise.nn.embedding import Packed
from fieldwise.nn.initial import xavier_
from fieldwise.nn.norm_relu import NormRelu, takes
from fieldwise.nn.norms import EPSILON, PairNorm, activation, pair_norm
from fieldwise.nn.products import KernelProducts, PairProducts, narrowed, pays


def pairs(fields: int) -> tuple[Tensor, Tensor]:
    """First and second field of every pair, each (P,).

    >>> pairs(3)
    (tensor([0, 0, 1]), tensor([1, 2, 2]))
    """
    first, second = torch.triu_indices(fields, fields, offset=1, device="cpu")
    return first, second


class Interaction(nn.Module):
    """Field vectors (B, F, D) -> features (B, width). `dims` are the fields' own sizes, at most D."""

    width: int

    @property
    def name(self) -> str:
        """What it is, for people."""
        return type(self).__name__


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
        return 0.5 * (v.sum(dim=1).square() - v.square().sum(dim=1)).sum(dim=1, keepdim=True)


class InnerProduct(Pairwise):
    """Inner products of all pairs: width P."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__(dims)
        self.width = self.pairs

    def forward(self, v: Tensor) -> Tensor:
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
        if self.kind == "mat" and gpu.fuses(v) and isinstance(self.kernel, Plain):
            from fieldwise.kernels.triton_kernels import kernel_products

            products: Tensor = kernel_products(*map(gpu.computed, (v, self.kernel())), self.first, self.second)
            return products.T
        kernel = self.kernel()
        if self.kind == "mat" and pays(v):
            fast: Tensor = KernelProducts.apply(*narrowed(v, kernel))  # type: ignore[no-untyped-call]
            return fast
        return self.plain(v, kernel)

    def plain(self, v: Tensor, kernel: Tensor) -> Tensor:
        """Pair by pair, what the faster way equals."""
        p, q = self.sides(v)
        projected = torch.bmm(p, kernel) if self.kind == "mat" else p * kernel
        return (projected * q).sum(dim=2).T


class Plain(nn.Module):
    """A parameter that answers as Packed does."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.entries = nn.Parameter(start.clone())

    def forward(self) -> Tensor:
        return self.entries


def weights(start: Tensor, mask: Tensor | None = None) -> Plain | Packed:
    """Weights with these starting values; where `mask` is false there is nothing to learn."""
    return Plain(start) if mask is None else Packed(start, mask)


class FieldAwareProduct(Pairwise):
    """FFM's products (eq. 4): each vector (F-1)*k holds one part for each other field: width P.

    The part of field i for field j is number j-1 if j > i, else j: a field has no part for itself.
    """

    def __init__(self, fields: int, dim: int, scale: float = 1.0) -> None:
        check_sizes("dim", [dim])
        super().__init__([dim] * fields)
        self.width, self.fields, self.dim, self.scale = self.pairs, fields, dim, scale

    def forward(self, v: Tensor) -> Tensor:
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


class Biases(nn.ParameterList):
    """Biases in the shape of weights, one for each layer: no penalty is for them."""

    l2_group = None


class MicroNetwork(Pairwise):
    """A small network of its own for each pair (eq. 13, 19): width P * widths[-1].

    Input [v_i, v_j] and, with `product`, v_i * v_j. Each layer is affine and norm (the last one's with
    `last_norm`); an activation follows all but the last.
    """

    def __init__(
        self,
        dims: Sequence[int],
        widths: Sequence[int],
        product: bool = True,
        norm: str = "fused",
        last_norm: bool = True,
        activation_name: str = "relu",
    ) -> None:
        super().__init__(dims, any_sizes=not product)
        if not widths:
            raise ConfigError("a sub-network needs at least one layer, found none")
        check_sizes("subnet", widths)
        self.product = product
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
        if self._fusible and gpu.fuses(v):
            normal: Tensor = self.norms[1](self._two_layers(v))
            return normal.transpose(0, 1).flatten(1)
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
        """Whether a GPU's kernel knows these layers."""
        norm = self.norms[0]
        known = isinstance(norm, PairNorm) and not norm.alone and isinstance(self.activation, nn.ReLU)
        return known and len(self.weights) == 2 and isinstance(self.weights[0], Plain)

    def _two_layers(self, v: Tensor) -> Tensor:
        """As `forward` up to the last norm: (P, B, widths[-1])."""
        from fieldwise.kernels.triton_micro import micro

        norm = self.norms[0]
        inputs = gpu.computed(v), gpu.computed(self.weights[0]()), gpu.computed(self.biases[0])
        outputs = gpu.computed(self.weights[1]()), gpu.computed(self.biases[1])
        x: Tensor = micro(*inputs, norm.gain, norm.shift, *outputs, self.first, self.second)[0]
        return x.transpose(0, 1)


class AttentionPool(Pairwise):
    """AFM's pairs, weighted by attention (section 3.1): width 1.

    score_ij = h^T ReLU(W (v_i * v_j) + b), a = softmax(score / temperature) over pairs, and the features are
    p^T sum a_ij (v_i * v_j); p is ones, or trained from ones with `project`. The paper's t most plausibly
    multiplies the score, so that its t is our 1/temperature.
    """

    width = 1
    l2_group = "attention"

    def __init__(
        self,
        dims: Sequence[int],
        hidden: int = 16,
        temperature: float = 1.0,
        project: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dims)
        if not temperature > 0:
            raise ConfigError(f"temperature must be positive, found {temperature}")
        check_sizes("attention", [hidden])
        check_dropout(dropout)
        self.temperature = temperature
        dim = dims[0]
        self.attend = affine(dim, hidden)
        self.score = nn.Parameter(torch.randn(hidden))
        self.projection = nn.Parameter(torch.ones(dim)) if project else None
        self.dropout = nn.Dropout(dropout)

    def products(self, v: Tensor) -> Tensor:
        """v_i * v_j of all pairs: (B, P, D)."""
        if pays(v):
            fast: Tensor = PairProducts.apply(v)  # type: ignore[no-untyped-call]
            return fast
        return v.index_select(1, self.first) * v.index_select(1, self.second)

    def attention(self, products: Tensor) -> Tensor:
        """The weight of each pair: (B, P, D) -> (B, P), summing to 1."""
        hidden = torch.relu(self.attend(products))
        # On a GPU a sum that its compiler fuses, instead of a product of matrices of one column; so too below.
        scores = (hidden * self.score).sum(dim=2) if hidden.is_cuda else hidden @ self.score
        return torch.softmax(scores / self.temperature, dim=1)

    def forward(self, v: Tensor) -> Tensor:
        products = self.products(v)
        weights: Tensor = self.dropout(self.attention(products))
        if products.is_cuda:
            pooled = (weights[:, :, None] * products).sum(dim=1)
        else:
            pooled = torch.bmm(weights[:, None, :], products).squeeze(1)
        if self.projection is not None:
            pooled = pooled * self.projection
        return pooled.sum(dim=1, keepdim=True)


class Convolution(Interaction):
    """CCPM: convolutions along the fields, ReLU, the largest values of each channel kept (section 3.2).

    `channels` and `widths` have one entry for each stage. One stage with `keep` 1 (global max-pooling) is what
    Table 10's parameter count fixes; `keep` > 1 keeps the k largest in field order.
    """

    def __init__(
        self, dims: Sequence[int], channels: Sequence[int], widths: Sequence[int], keep: Sequence[int]
    ) -> None:
        super().__init__()
        if not len(channels) == len(widths) == len(keep) > 0:
            raise ConfigError(f"channels, widths and keep need one length, found {channels}, {widths}, {keep}")
        check_sizes("channels, widths and keep", [*channels, *widths, *keep])
        self.convolutions, self.keep, length, inputs = nn.ModuleList(), list(keep), len(dims), one_size(self, dims)
        for out, width, kept in zip(channels, widths, keep, strict=True):
            width = min(width, length)
            convolution = nn.Conv1d(inputs, out, width, bias=False)
            xavier_(convolution.weight, inputs * width, out)
            self.convolutions.append(convolution)
            length, inputs = min(kept, length - width + 1), out
        self.width = inputs * length

    def forward(self, v: Tensor) -> Tensor:
        x = v.transpose(1, 2)
        for convolution, kept in zip(self.convolutions, self.keep, strict=True):
            # Pooled before the ReLU, which changes no value: behind it, which of several zeros is kept is chance.
            x = _as_product(convolution, x) if x.is_cuda else convolution(x)
            if kept == 1:
                x = x.amax(dim=2, keepdim=True)
            elif kept < x.shape[2]:
                x = x.gather(2, x.topk(kept, dim=2).indices.sort(dim=2).values)
            x = torch.relu(x)
        return x.flatten(1)


def _as_product(convolution: nn.Module, x: Tensor) -> Tensor:
    """convolution(x), (B, C, L) -> (B, C', L'), as one product of matrices: a GPU's convolutions first move x about."""
    weight: Tensor = convolution.weight  # type: ignore[assignment]
    out, _, width = weight.shape
    steps = x.shape[2] - width + 1
    windows = torch.cat([x[:, :, t : t + steps] for t in range(width)], dim=1)
    return (windows.transpose(1, 2) @ weight.transpose(1, 2).reshape(out, -1).T).transpose(1, 2)
