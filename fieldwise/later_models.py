"""The models since the paper, as models.py has the paper's: choices of parts. docs/models.md has their formulas.

`LATER` lists them, and models.py registers them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.data.schema import Layout
from fieldwise.nn.branch_losses import towards_the_mean, where_worse
from fieldwise.nn.classifiers import DEEP, DNN, LINEAR, Layers, Sum, TwoStreams
from fieldwise.nn.embedding import Linear, Vectors
from fieldwise.nn.model import Branch, Model
from fieldwise.parts.bilinear.formula import Bilinear, Squeezed
from fieldwise.parts.bridge.formula import Bridged
from fieldwise.parts.compressed.formula import Compressed
from fieldwise.parts.cross.formula import Cross, crossing
from fieldwise.parts.factorised.formula import Factorised
from fieldwise.parts.features.formula import Concat, Flatten
from fieldwise.parts.gate.formula import Gated
from fieldwise.parts.interactions import Interaction
from fieldwise.parts.kernel.formula import KernelSum
from fieldwise.parts.mask.formula import MaskBlocks
from fieldwise.parts.masked_cross.formula import MaskedCross
from fieldwise.parts.self_attention.formula import SelfAttention
from fieldwise.parts.wukong.formula import Wukong

BESIDE = ("parallel", "stacked")


def _headed(features: Interaction, layers: Layers = LINEAR) -> Branch:
    """Features and a DNN on them; by default its last layer alone."""
    return Branch(features, DNN(features.width, layers))


def _halves(*parts: Interaction) -> list[Branch]:
    """Branches whose mean is the logit, each a part and a last layer."""
    return [Branch(part, DNN(part.width, LINEAR), share=1 / len(parts)) for part in parts]


def _crossed(layout: Layout, vectors: Vectors, cross: Interaction, structure: str, layers: Layers) -> Model:
    """Crosses beside a DNN on the same vectors, or before it."""
    if structure not in BESIDE:
        raise ConfigError(unknown("structure", structure, BESIDE))
    beside = _headed(cross), _headed(Flatten(vectors.sizes(layout)), layers)
    branches = [_headed(cross, layers)] if structure == "stacked" else beside
    return Model(vectors.embedding(layout), *branches)


def fwfm(layout: Layout, *, vectors: Vectors = Vectors(), linear: str = "weights") -> Model:
    """Field-weighted FM: a number for each pair of fields in FM's product; `linear` "vectors" is its FiLV."""
    if linear not in ("weights", "vectors"):
        raise ConfigError(unknown("linear part", linear, ("weights", "vectors")))
    dims = vectors.sizes(layout)
    pairs = Branch(KernelSum(dims, "num"), Sum())
    if linear == "vectors":
        return Model(vectors.embedding(layout), pairs, _headed(Flatten(dims)))
    return Model(vectors.embedding(layout), pairs, linear=Linear(layout))


def fmfm(layout: Layout, *, vectors: Vectors = Vectors(), kernel: str = "mat") -> Model:
    """Field-matrixed FM: KFM under its later name; `kernel` "vec" is its FvFM."""
    dims = vectors.sizes(layout)
    return Model(vectors.embedding(layout), Branch(KernelSum(dims, kernel), Sum()), linear=Linear(layout))


def dcnv2(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    crosses: int = 3,
    structure: str = "parallel",
    rank: int = 0,
    experts: int = 4,
    layers: Layers = DEEP,
) -> Model:
    """Deep and cross network 2: x <- x0 * (W x + b) + x beside a DNN or before it; `rank` > 0: a low-rank mixture."""
    dims = vectors.sizes(layout)
    return _crossed(layout, vectors, crossing(dims, crosses, rank, experts), structure, layers)


def gdcn(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    crosses: int = 3,
    structure: str = "stacked",
    layers: Layers = DEEP,
) -> Model:
    """Gated deep and cross network: DCNv2's crosses, each behind a gate by the whole row."""
    dims = vectors.sizes(layout)
    return _crossed(layout, vectors, Cross(dims, crosses, gate=True), structure, layers)


def xdeepfm(
    layout: Layout, *, vectors: Vectors = Vectors(), maps: Sequence[int] = (32, 32), layers: Layers = DEEP
) -> Model:
    """xDeepFM: linear part, compressed interactions of vectors (CIN) and a DNN, added."""
    dims = vectors.sizes(layout)
    branches = _headed(Compressed(dims, maps)), _headed(Flatten(dims), layers)
    return Model(vectors.embedding(layout), *branches, linear=Linear(layout, bias=False))


def autoint(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    attention_layers: int = 2,
    heads: int = 2,
    attention: int = 32,
    scaled: bool = False,
    deep: bool = True,
    layers: Layers = DEEP,
) -> Model:
    """AutoInt: fields attend to each other in heads, with residuals; with `deep` AutoInt+, a DNN beside it."""
    dims = vectors.sizes(layout)
    attended = _headed(SelfAttention(dims, attention_layers, heads, attention, scaled, layers.dropout))
    return Model(vectors.embedding(layout), attended, *([_headed(Flatten(dims), layers)] if deep else []))


def fibinet(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(8),
    bilinear: str = "pair",
    reduction: int = 3,
    excitation: str = "relu",
    layers: Layers = DEEP,
) -> Model:
    """FiBiNET: bilinear products of all pairs, of the vectors and of those a gate by the whole row has scaled."""
    dims = vectors.sizes(layout)
    squeezed = Squeezed(Bilinear(dims, bilinear), len(dims), reduction, excitation)
    deep = _headed(Concat(Bilinear(dims, bilinear), squeezed), layers)
    return Model(vectors.embedding(layout), deep, linear=Linear(layout, bias=False))


def masknet(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    structure: str = "parallel",
    blocks: Sequence[int] = (64, 64, 64),
    reduction: float = 1.0,
    layers: Layers = DEEP,
) -> Model:
    """MaskNet: blocks behind masks by the whole row, side by side (`parallel`) or in a row (`serial`), and a DNN."""
    if structure not in ("parallel", "serial"):
        raise ConfigError(unknown("structure", structure, ("parallel", "serial")))
    dims = vectors.sizes(layout)
    masked = MaskBlocks(dims, blocks, structure == "serial", reduction, layers.dropout)
    return Model(vectors.embedding(layout), _headed(masked, layers))


def edcn(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    crosses: int = 3,
    bridge: str = "product",
    temperature: float = 1.0,
    norm: str = "layer",
) -> Model:
    """Enhanced DCN: crosses and layers side by side that meet in a bridge after each, behind gates of fields."""
    dims = vectors.sizes(layout)
    return Model(vectors.embedding(layout), _headed(Bridged(dims, crosses, bridge, temperature, norm)))


def finalmlp(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    gate: str = "row",
    gate_hidden: Sequence[int] = (64,),
    heads: int = 1,
    layers: Layers = DEEP,
) -> Model:
    """FinalMLP: two DNNs on the vectors, each behind a gate of its own, and the products of their units by heads."""
    dims = vectors.sizes(layout)
    streams = [Flatten(dims) if gate == "none" else Gated(dims, gate, gate_hidden) for _ in range(2)]
    return Model(vectors.embedding(layout), Branch(Concat(*streams), TwoStreams(sum(dims), layers, heads)))


def finalnet(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    blocks: Sequence[int] = (400, 400),
    residual: str = "concat",
    norm: str = "batch",
    dropout: float = 0.2,
    gate: bool = True,
) -> Model:
    """FinalNet: two stacks of factorised layers, the first behind a gate of fields; the mean teaches each of them."""
    dims = vectors.sizes(layout)
    stacks = [Factorised(dims, blocks, residual, norm, dropout, gate and first) for first in (True, False)]
    return Model(vectors.embedding(layout), *_halves(*stacks), branch_loss=towards_the_mean)


def fcn(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    exponential: int = 3,
    linear: int = 3,
    heads: int = 1,
    dropout: float = 0.2,
) -> Model:
    """FCN (DCNv3): crosses that double the order and crosses that add to it, their mean; each is in the loss."""
    dims = vectors.sizes(layout)
    both = MaskedCross(dims, exponential, True, heads, dropout), MaskedCross(dims, linear, False, heads, dropout)
    return Model(vectors.embedding(layout), *_halves(*both), branch_loss=where_worse)


def wukong(
    layout: Layout,
    *,
    vectors: Vectors = Vectors(),
    stacked: int = 3,
    made: int = 16,
    kept: int = 16,
    fm_rank: int = 8,
    fm_hidden: Sequence[int] = (128,),
    layers: Layers = DEEP,
) -> Model:
    """Wukong: stacked layers of an FM beside compressed vectors, so that each layer doubles the order, and a DNN."""
    dims = vectors.sizes(layout)
    return Model(
        vectors.embedding(layout),
        _headed(Wukong(dims, stacked, made, kept, fm_rank, fm_hidden, layers.dropout), layers),
    )


LATER: tuple[Callable[..., Model], ...] = (
    *(fwfm, fmfm, xdeepfm, autoint, fibinet),
    *(dcnv2, gdcn, masknet, edcn, finalmlp, finalnet, fcn, wukong),
)
