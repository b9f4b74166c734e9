"""The models, each a choice of embedding, interaction and classifier.

    logit(x) = linear(x) + sum over branches of classifier(interaction(embedding(x)))

A model is a function from the fields' layout and its options to a Model; its options are its keyword
arguments, which is where validation, `fieldwise models` and the docs read them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from fieldwise.config import coerce
from fieldwise.data.schema import Layout
from fieldwise.errors import ConfigError, unknown
from fieldwise.nn.classifiers import DNN, Layers, Sum
from fieldwise.nn.embedding import Embedding, Linear, Vectors
from fieldwise.nn.interactions import (
    AttentionPool,
    Concat,
    Convolution,
    FieldAwareProduct,
    Flatten,
    InnerProduct,
    Interaction,
    KernelProduct,
    MicroNetwork,
    PairSum,
    normed,
)


class Branch(nn.Module):
    """An interaction and the classifier of its features: field vectors (B, F, D) -> logits (B,)."""

    def __init__(self, interaction: Interaction, classifier: nn.Module) -> None:
        super().__init__()
        self.interaction, self.classifier = interaction, classifier

    def forward(self, v: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.interaction(v))
        return logits


class Model(nn.Module):
    """ids (B, C) -> logits (B,), in two steps: look the rows up, then combine them."""

    def __init__(self, embedding: Embedding | None, *branches: Branch, linear: Linear | None = None) -> None:
        super().__init__()
        self.embedding, self.linear = embedding, linear
        self.branches = nn.ModuleList(branches)

    @property
    def bias(self) -> Tensor | None:
        """The output's bias: the linear part's, or else the last layer's of a DNN."""
        parts = (self.linear, *(branch.classifier for branch in self.branches))
        own: list[Tensor | None] = [getattr(part, "bias", None) for part in parts]
        return next((bias for bias in own if bias is not None), None)

    def lookup(self, ids: Tensor) -> dict[str, Tensor]:
        """The rows' linear weights (B, F, 1) and vectors (B, F, D), whichever the model has."""
        found = {}
        if self.linear is not None:
            found["linear"] = self.linear.weights(ids)
        if self.embedding is not None:
            found["vectors"] = self.embedding(ids)
        return found

    def combine(self, found: dict[str, Tensor]) -> Tensor:
        """What `lookup` found -> logits (B,)."""
        parts = [branch(found["vectors"]) for branch in self.branches]
        if self.linear is not None:
            parts.append(self.linear(found["linear"]))
        total: Tensor = sum(parts[1:], parts[0])
        return total

    def forward(self, ids: Tensor) -> Tensor:
        return self.combine(self.lookup(ids))


OPTION_GROUPS = (Vectors, Layers)
MODELS: dict[str, Callable[..., Model]] = {}


def register(build: Callable[..., Model]) -> Callable[..., Model]:
    """Makes a model known under its function's name."""
    MODELS[build.__name__] = build
    return build


def options(name: str) -> dict[str, Any]:
    """A model's options and their defaults; groups of options, such as the DNN's layers, are spread out."""
    spread: dict[str, Any] = {}
    for option, default in _arguments(name).items():
        spread |= dataclasses.asdict(default) if isinstance(default, OPTION_GROUPS) else {option: default}
    return spread


def build(name: str, layout: Layout, settings: dict[str, Any] | None = None) -> Model:
    """The model of that name over these fields; `settings` are its options."""
    left, known, arguments = dict(settings or {}), options(name), {}
    for key, value in left.items():
        if key not in known:
            raise ConfigError(f"model {name}: {unknown('option', key, known)}")
        left[key] = coerce(value, type(known[key]), f"model.{key}", f"model {name}")
    for option, default in _arguments(name).items():
        if isinstance(default, OPTION_GROUPS):
            own = {f.name: left[f.name] for f in dataclasses.fields(default) if f.name in left}
            arguments[option] = dataclasses.replace(default, **own)
        elif option in left:
            arguments[option] = left[option]
    return MODELS[name](layout, **arguments)


def _arguments(name: str) -> dict[str, Any]:
    if name not in MODELS:
        raise ConfigError(unknown("model", name, MODELS))
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@register
def lr(sizes: Layout) -> Model:
    """Logistic regression: one weight for each category (section 2)."""
    return Model(None, linear=Linear(sizes))


@register
def fm(sizes: Layout, *, vectors: Vectors = Vectors()) -> Model:
    """Factorisation machine: linear part and all pairs' inner products (section 3.1, eq. 3)."""
    dims = vectors.sizes(sizes)
    return Model(Embedding(sizes, dims), Branch(PairSum(dims), Sum()), linear=Linear(sizes))


@register
def ffm(sizes: Layout, *, dim: int = 4, linear: bool = True, input_norm: bool = False) -> Model:
    """Field-aware FM: a vector for each other field (section 3.1, eq. 4); input_norm is libFFM's 1/F."""
    products = FieldAwareProduct(sizes.fields, dim, scale=1 / sizes.fields if input_norm else 1.0)
    embedding = Embedding(sizes, ((sizes.fields - 1) * dim,) * sizes.fields, parts=sizes.fields - 1)
    return Model(embedding, Branch(products, Sum()), linear=Linear(sizes) if linear else None)


@register
def kfm(sizes: Layout, *, vectors: Vectors = Vectors(), kernel: str = "mat", kernel_init: str = "identity") -> Model:
    """Kernel FM: a kernel for each pair in FM's product (section 3.1.2, eq. 11)."""
    dims = vectors.sizes(sizes)
    return Model(Embedding(sizes, dims), Branch(KernelProduct(dims, kernel, kernel_init), Sum()), linear=Linear(sizes))


@register
def nifm(sizes: Layout, *, vectors: Vectors = Vectors(), subnet: Sequence[int] = (32, 1), norm: str = "fused") -> Model:
    """Network-in-FM: a micro network for each pair in FM's product (section 3.1.3, eq. 13)."""
    dims = vectors.sizes(sizes)
    subnets = MicroNetwork(dims, subnet, product=False, norm=norm, last_norm=False)
    return Model(Embedding(sizes, dims), Branch(subnets, Sum()), linear=Linear(sizes))


@register
def afm(
    sizes: Layout,
    *,
    vectors: Vectors = Vectors(),
    attention: int = 16,
    temperature: float = 1.0,
    project: bool = True,
    dropout: float = 0.0,
) -> Model:
    """Attentional FM: FM's pairs weighted by an attention network (section 3.1)."""
    dims = vectors.sizes(sizes)
    pool = AttentionPool(dims, attention, temperature, project, dropout)
    return Model(Embedding(sizes, dims), Branch(pool, Sum()), linear=Linear(sizes))


@register
def fnn(sizes: Layout, *, vectors: Vectors = Vectors(), layers: Layers = Layers()) -> Model:
    """Factorisation-machine supported network: the field vectors into a DNN (section 3.2)."""
    dims = vectors.sizes(sizes)
    features = Flatten(dims)
    return Model(Embedding(sizes, dims), Branch(features, DNN(features.width, layers)))


@register
def ccpm(
    sizes: Layout,
    *,
    vectors: Vectors = Vectors(),
    channels: Sequence[int] = (256,),
    widths: Sequence[int] = (7,),
    keep: Sequence[int] = (1,),
    layers: Layers = Layers((256, 256, 256), norm="none"),
) -> Model:
    """Convolutional click prediction: convolutions along the fields, pooled, into a DNN (section 3.2)."""
    dims = vectors.sizes(sizes)
    features = Convolution(dims, channels, widths, keep)
    return Model(Embedding(sizes, dims), Branch(features, DNN(features.width, layers)))


@register
def deepfm(sizes: Layout, *, vectors: Vectors = Vectors(), layers: Layers = Layers()) -> Model:
    """DeepFM: FM and FNN on the same vectors, added (section 3.2)."""
    dims = vectors.sizes(sizes)
    features = Flatten(dims)
    deep = Branch(features, DNN(features.width, layers))
    return Model(Embedding(sizes, dims), Branch(PairSum(dims), Sum()), deep, linear=Linear(sizes, bias=False))


@register
def ipnn(sizes: Layout, *, vectors: Vectors = Vectors(), product_norm: bool = True, layers: Layers = Layers()) -> Model:
    """Inner-product network: field vectors and all pairwise inner products into a DNN (section 3.3.2)."""
    dims = vectors.sizes(sizes)
    features = Concat(Flatten(dims), normed(InnerProduct(dims), product_norm))
    return Model(Embedding(sizes, dims), Branch(features, DNN(features.width, layers)))


@register
def kpnn(
    sizes: Layout,
    *,
    vectors: Vectors = Vectors(),
    kernel: str = "mat",
    kernel_init: str = "identity",
    product_norm: bool = True,
    layers: Layers = Layers(),
) -> Model:
    """Kernel-product network: field vectors and all pairwise kernel products into a DNN (section 3.3.3)."""
    dims = vectors.sizes(sizes)
    features = Concat(Flatten(dims), normed(KernelProduct(dims, kernel, kernel_init), product_norm))
    return Model(Embedding(sizes, dims), Branch(features, DNN(features.width, layers)))


@register
def pin(
    sizes: Layout,
    *,
    vectors: Vectors = Vectors(),
    subnet: Sequence[int] = (40, 5),
    product: bool = True,
    subnet_norm: str = "fused",
    layers: Layers = Layers(),
) -> Model:
    """Product-network in network: a micro network for each pair, their outputs into a DNN (section 3.3.4)."""
    dims = vectors.sizes(sizes)
    features = MicroNetwork(dims, subnet, product, subnet_norm)
    return Model(Embedding(sizes, dims), Branch(features, DNN(features.width, layers)))
