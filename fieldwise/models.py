"""The models, each a choice of embedding, interaction and classifier.

    logit(x) = linear(x) + sum over branches of classifier(interaction(embedding(x)))

A model is a function of the fields' layout. Its options are its keyword arguments: validation, `fieldwise models` and
the docs read them from its signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import arguments, options_of
from fieldwise.data.schema import Layout
from fieldwise.later_models import LATER
from fieldwise.nn.classifiers import DEEP, DNN, Layers, Sum
from fieldwise.nn.crosses import PairTable
from fieldwise.nn.embedding import Embedding, Linear, Vectors
from fieldwise.nn.model import Branch, Model
from fieldwise.nn.tree_models import TREES
from fieldwise.nn.trees import Trees
from fieldwise.parts.attention.formula import AttentionPool
from fieldwise.parts.convolution.formula import Convolution
from fieldwise.parts.features.formula import Concat, Flatten, normed
from fieldwise.parts.field_aware.formula import FieldAwareProduct
from fieldwise.parts.inner.formula import InnerProduct
from fieldwise.parts.kernel.formula import KernelProduct, KernelSum
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.pair_sum.formula import PairSum
from fieldwise.parts.pair_weights.formula import PairWeights

MODELS: dict[str, Callable[..., Model]] = {}


def register(build: Callable[..., Model]) -> Callable[..., Model]:
    """Registers a model under its function's name."""
    MODELS[build.__name__] = build
    return build


def named(name: str) -> Callable[..., Model | Trees]:
    """The function that builds the model of this name: a registered network, or the trees."""
    known = registry()
    if name not in known:
        raise ConfigError(unknown("model", name, known))
    return known[name]


def registry() -> dict[str, Callable[..., Model | Trees]]:
    """All models that `fieldwise train --model` takes; MODELS has the networks alone."""
    return {**MODELS, **TREES}


def options(name: str) -> dict[str, Any]:
    """A model's options and their defaults; groups of options, such as the DNN's layers, are flattened."""
    return options_of(named(name))


def build(name: str, layout: Layout, settings: dict[str, Any] | None = None) -> Model | Trees:
    """Builds the model of this name over these fields; `settings` are its options."""
    layout = layout.without_ranks if name in MODELS else layout
    return named(name)(layout, **arguments(named(name), settings or {}))


def describe(name: str, layout: Layout | None = None) -> dict[str, Any]:
    """A model's parts, its options, and the number of its parameters over these fields (without allocating them)."""
    with torch.device("meta"):
        model = build(name, layout or Layout.of([2] * 8))
    network = model if isinstance(model, Model) else None
    return {
        "name": name,
        "description": inspect.getdoc(named(name)) or "",
        "linear": network is not None and network.linear is not None,
        "branches": network.parts if network else [],
        "options": options(name),
        "parameters": network.size if network and layout else None,
    }


@register
def lr(layout: Layout) -> Model:
    """Logistic regression: one weight for each category (section 2)."""
    return Model(None, linear=Linear(layout))


@register
def poly2(layout: Layout, *, buckets: int = 2**18) -> Model:
    """Poly-2 regression: LR and a weight for each pair of categories, hashed if over `buckets` a field pair."""
    weights = PairWeights(layout.fields)
    return Model(PairTable(layout, buckets), Branch(weights, Sum()), linear=Linear(layout))


@register
def fm(layout: Layout, *, vectors: Vectors = Vectors()) -> Model:
    """Factorisation machine: linear part and all pairs' inner products (section 3.1, eq. 3)."""
    dims = vectors.sizes(layout)
    return Model(vectors.embedding(layout), Branch(PairSum(dims), Sum()), linear=Linear(layout))


@register
def ffm(layout: Layout, *, dim: int = 4, linear: bool = True, input_norm: bool = False) -> Model:
    """Field-aware FM: a vector for each other field (section 3.1, eq. 4); input_norm is libFFM's 1/F."""
    products = FieldAwareProduct(layout.fields, dim, scale=1 / layout.fields if input_norm else 1.0)
    # A row holds vectors for the other fields, which are not the same for two fields.
    embedding = Embedding(layout.apart, ((layout.fields - 1) * dim,) * layout.fields, parts=layout.fields - 1)
    return Model(embedding, Branch(products, Sum()), linear=Linear(layout) if linear else None)


@register
def kfm(layout: Layout, *, vectors: Vectors = Vectors(), kernel: str = "mat", kernel_init: str = "identity") -> Model:
    """Kernel FM: a kernel for each pair in FM's product (section 3.1.2, eq. 11)."""
    dims = vectors.sizes(layout)
    return Model(vectors.embedding(layout), Branch(KernelSum(dims, kernel, kernel_init), Sum()), linear=Linear(layout))


@register
def nifm(
    layout: Layout, *, vectors: Vectors = Vectors(), subnet: Sequence[int] = (32, 1), norm: str = "fused"
) -> Model:
    """Network-in-FM: a micro network for each pair in FM's product (section 3.1.3, eq. 13)."""
    dims = vectors.sizes(layout)
    subnets = MicroNetwork(dims, subnet, product=False, norm=norm, last_norm=False)
    return Model(vectors.embedding(layout), Branch(subnets, Sum()), linear=Linear(layout))


@register
def afm(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    attention: int = 16,
    temperature: float = 1.0,
    project: bool = True,
    dropout: float = 0.0,
) -> Model:
    """Attentional FM: FM's pairs weighted by attention (section 3.1); `project` is of AFM's authors, not the paper."""
    dims = vectors.sizes(layout)
    pool = AttentionPool(dims, attention, temperature, project, dropout)
    return Model(vectors.embedding(layout), Branch(pool, Sum()), linear=Linear(layout))


@register
def fnn(layout: Layout, *, vectors: Vectors = Vectors(), layers: Layers = DEEP) -> Model:
    """Factorisation-machine supported network: the field vectors into a DNN (section 3.2)."""
    dims = vectors.sizes(layout)
    features = Flatten(dims)
    return Model(vectors.embedding(layout), Branch(features, DNN(features.width, layers)))


@register
def ccpm(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    channels: Sequence[int] = (256,),
    widths: Sequence[int] = (7,),
    keep: Sequence[int] = (1,),
    layers: Layers = Layers((256, 256, 256), norm="none", dropout=0.5),
) -> Model:
    """Convolutional click prediction: convolutions along the fields, pooled, into a DNN (section 3.2)."""
    dims = vectors.sizes(layout)
    features = Convolution(dims, channels, widths, keep)
    return Model(vectors.embedding(layout), Branch(features, DNN(features.width, layers)))


@register
def deepfm(layout: Layout, *, vectors: Vectors = Vectors(), layers: Layers = DEEP) -> Model:
    """DeepFM: FM and FNN on the same vectors, added (section 3.2)."""
    dims = vectors.sizes(layout)
    features = Flatten(dims)
    deep = Branch(features, DNN(features.width, layers))
    return Model(vectors.embedding(layout), Branch(PairSum(dims), Sum()), deep, linear=Linear(layout, bias=False))


@register
def ipnn(layout: Layout, *, vectors: Vectors = Vectors(), product_norm: bool = True, layers: Layers = DEEP) -> Model:
    """Inner-product network: field vectors and all pairwise inner products into a DNN (section 3.3.2)."""
    dims = vectors.sizes(layout)
    features = Concat(Flatten(dims), normed(InnerProduct(dims), product_norm))
    return Model(vectors.embedding(layout), Branch(features, DNN(features.width, layers)))


@register
def kpnn(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    kernel: str = "mat",
    kernel_init: str = "identity",
    product_norm: bool = True,
    layers: Layers = DEEP,
) -> Model:
    """Kernel-product network: field vectors and all pairwise kernel products into a DNN (section 3.3.3)."""
    dims = vectors.sizes(layout)
    features = Concat(Flatten(dims), normed(KernelProduct(dims, kernel, kernel_init), product_norm))
    return Model(vectors.embedding(layout), Branch(features, DNN(features.width, layers)))


@register
def pin(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    subnet: Sequence[int] = (40, 5),
    product: bool = True,
    subnet_norm: str = "fused",
    layers: Layers = DEEP,
) -> Model:
    """Product-network in network: a micro network for each pair, their outputs into a DNN (section 3.3.4)."""
    dims = vectors.sizes(layout)
    # Members scale the features themselves.
    features = MicroNetwork(dims, subnet, product, subnet_norm, padded=layers.members == 1)
    return Model(vectors.embedding(layout), Branch(features, DNN(features.width, layers)))


@register
def din(
    layout: Layout, *, vectors: Vectors = Vectors(sequence="attention", sequence_softmax=False), layers: Layers = DEEP
) -> Model:
    """Deep interest network: what of the past is like the candidate, with the other vectors, into a DNN (Zhou 2018)."""
    features = Flatten(vectors.sizes(layout))
    return Model(vectors.embedding(layout), Branch(features, DNN(features.width, layers)))


@register
def bst(layout: Layout, *, vectors: Vectors = Vectors(sequence="encoder"), layers: Layers = DEEP) -> Model:
    """Behaviour sequence transformer: self-attention over the past and the candidate, into a DNN (Chen 2019)."""
    features = Flatten(vectors.sizes(layout))
    return Model(vectors.embedding(layout), Branch(features, DNN(features.width, layers)))


for later in LATER:
    register(later)
