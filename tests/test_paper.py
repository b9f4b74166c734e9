"""What the paper states exactly: the parameter counts of Table 10, and which models are others' special cases."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fieldwise import models
from fieldwise.data.schema import Layout
from fieldwise.models import Model
from fieldwise.parts.mask.formula import FieldNorm
from fieldwise.parts.norm.norms import PairNorm
from tests.parts.drawn import drawn, numbers

MILLION = Layout.of((25_642,) * 38 + (25_604,))
DEEP = {"dim": 20, "hidden": (700,) * 5}


def weights(model: nn.Module) -> int:
    """How many weights a model has, as Table 10 counts: neither biases nor the gains and shifts of norms."""
    norms = (nn.LayerNorm, nn.BatchNorm1d, PairNorm, FieldNorm)
    owned = [(module, *item) for module in model.modules() for item in module.named_parameters(recurse=False)]
    biases = {id(parameter) for path, parameter in model.named_parameters() if "bias" in path}
    return sum(p.numel() for module, _, p in owned if not isinstance(module, norms) and id(p) not in biases)


def count(name: str, layout: Layout, **settings: Any) -> int:
    """The weights of a model, counted without making them."""
    with torch.device("meta"):
        model = models.build(name, layout, settings)
    assert all(parameter.is_meta for parameter in model.parameters())
    return weights(model)


# Table 10: N = 10^6, n = 39, k = 20, so 741 pairs; in millions, as printed.
TABLE_10 = [
    ("lr", {}, 1_000_000, "1.00"),
    ("fm", {"dim": 20}, 21_000_000, "21.00"),
    # Text and code give a category one vector for each *other* field, n - 1 of them, here of size 1. The
    # table's 40.00 counts n: the only number of it that differs.
    ("ffm", {"dim": 1}, 39_000_000, "39.00"),
    # And 16 x 20 attention weights, a score and a projection, which the two digits do not show.
    ("afm", {"dim": 20, "attention": 16}, 21_000_000 + 16 * 20 + 16 + 20, "21.00"),
    ("kfm", {"dim": 20}, 21_000_000 + 741 * 20 * 20, "21.30"),
    ("nifm", {"dim": 20, "subnet": (40, 1)}, 21_000_000 + 741 * (40 * 40 + 40), "22.22"),
    ("fnn", DEEP, 20_000_000 + 780 * 700 + 4 * 700 * 700 + 700, "22.51"),
    ("ccpm", {"dim": 20}, 20_000_000 + 7 * 20 * 256 + 3 * 256 * 256 + 256, "20.23"),
    ("deepfm", DEEP, 21_000_000 + 780 * 700 + 4 * 700 * 700 + 700, "23.51"),
    ("ipnn", DEEP, 20_000_000 + (780 + 741) * 700 + 4 * 700 * 700 + 700, "23.03"),
    ("kpnn", DEEP, 20_000_000 + 741 * 20 * 20 + (780 + 741) * 700 + 4 * 700 * 700 + 700, "23.32"),
    ("pin", DEEP, 20_000_000 + 741 * (60 * 40 + 40 * 5) + 741 * 5 * 700 + 4 * 700 * 700 + 700, "26.48"),
]
PRECISE = {"kfm": 21.296, "nifm": 22.215, "fnn": 22.507, "ccpm": 20.233, "deepfm": 23.507, "ipnn": 23.025}
PRECISE |= {"kpnn": 23.322, "pin": 26.481}


@pytest.mark.parametrize(("name", "settings", "expected", "printed"), TABLE_10)
def test_parameter_counts_of_table_10(name: str, settings: dict[str, Any], expected: int, printed: str) -> None:
    assert MILLION.rows == 1_000_000
    assert MILLION.fields == 39
    found = count(name, MILLION, **settings)
    assert found == expected
    assert found / 1e6 == pytest.approx(float(printed), abs=0.00501)
    if name in PRECISE:
        assert round(found / 1e6, 3) == PRECISE[name]


def test_parameter_counts_of_the_criteo_challenge() -> None:
    ffm = count("ffm", Layout.of((14_492,) * 68 + (14_544,)), dim=4, linear=False)
    kfm = count("kfm", Layout.of((14_644,) * 68 + (14_677,)), dim=64, kernel="vec")
    assert ffm == 272_000_000
    assert kfm == 1_010_469 * 65 + 69 * 68 // 2 * 64
    assert round(kfm / 1e6, 2) == 65.83


def test_parameter_counts_of_poly2_are_bounded_by_its_buckets() -> None:
    assert count("poly2", MILLION) == 1_000_000 + 741 * 2**18
    assert count("poly2", Layout.of((10,) * 40)) == 400 + 780 * 100
    assert count("poly2", Layout.of((10, 20, 30)), buckets=250) == 60 + 200 + 250 + 250


AVAZU = [7, 7, 3135, 3487, 24, 4002, 252, 28, 101449, 523672, 5925, 5, 4, 2417, 8, 9, 426, 4, 67, 166, 60, 10, 24, 7]


def test_parameter_counts_with_adaptive_sizes() -> None:
    layout = Layout.of(AVAZU)
    dims = [math.ceil(min(4 * math.log(n), 40)) for n in AVAZU]
    pairs = [(dims[i], dims[j]) for i in range(24) for j in range(i + 1, 24)]
    tables = sum(n * (k + 1) for n, k in zip(AVAZU, dims, strict=True))
    assert count("kfm", layout, dim=40, adaptive=4) == tables + sum(a * b for a, b in pairs)
    subnets = sum((a + b) * 80 + 80 for a, b in pairs)
    assert count("nifm", layout, dim=40, adaptive=4, subnet=(80, 1)) == tables + subnets
    assert count("kfm", layout, dim=40, adaptive=4) < count("kfm", layout, dim=40)


def test_the_counting_rule_leaves_out_biases_gains_and_shifts() -> None:
    layout = Layout.of((3, 4, 5))
    model = models.build("pin", layout, {"dim": 2, "subnet": (4, 3), "hidden": (5,)})
    left_out = {"sub-network biases": 3 * (4 + 3), "fused norms": 2 * (4 + 3), "DNN": 5 + 1 + 2 * 5}
    assert sum(p.numel() for p in model.parameters()) == weights(model) + sum(left_out.values())
    assert weights(models.build("lr", layout)) == 12


# Identities, in float64 on drawn weights.

SMALL = {"dim": 3, "hidden": (4, 3), "dropout": 0.0}
LAYOUT = Layout((3, 5, 4, 6), (1, 2, 1, 1))
IDS = torch.tensor([[0, 4, -1, 0, 5], [2, 0, 1, 3, 1], [1, 3, 1, 0, 2], [0, 4, 2, 0, 5]], dtype=torch.int32)


def made(name: str, like: Model | None = None, **settings: Any) -> Model:
    """A model with drawn weights, or with those of another wherever it has the same."""
    small = {key: value for key, value in SMALL.items() if key in models.options(name)}
    model = models.build(name, LAYOUT, small | settings).double()
    if like is None:
        return drawn(model)
    unexpected = model.load_state_dict(like.state_dict(), strict=False).unexpected_keys
    assert not unexpected
    return model


def assert_equal(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_poly2_without_pair_weights_is_lr() -> None:
    lr, poly2 = made("lr"), made("poly2")
    poly2.load_state_dict(lr.state_dict() | {"embedding.table.weight": torch.zeros(12 + 15 + 18 + 20 + 30 + 24, 1)})
    assert_equal(poly2(IDS), lr(IDS))
    with torch.no_grad():
        poly2.embedding.table.weight.fill_(1)
    assert_equal(poly2(IDS), lr(IDS) + 6)


def test_poly2_hashed_without_a_collision_is_exact() -> None:
    """Each pair of fields has more weights than buckets, and the rows' own pairs land in different ones."""
    layout = Layout((40, 50, 30), (1, 2, 1))
    ids = torch.tensor([[0, 4, -1, 0], [39, 49, 1, 29], [1, 30, 1, 0], [20, 4, 2, 13]])
    exact, hashed = (drawn(models.build("poly2", layout, {"buckets": size})) for size in (2000, 1000))
    places, buckets = (model.embedding.pair_ids(ids) for model in (exact, hashed))
    used = places >= 0
    places, buckets = (
        (found + torch.tensor(model.embedding.table.layout.column_offsets))[used]
        for found, model in ((places, exact), (buckets, hashed))
    )
    assert len(places.unique()) == len(buckets.unique())
    assert not torch.equal(places, buckets)
    hashed.linear.load_state_dict(exact.linear.state_dict())
    with torch.no_grad():
        hashed.embedding.table.weight[buckets] = exact.embedding.table.weight[places]
    assert_equal(hashed(ids), exact(ids))


def test_poly2_with_factorised_weights_is_fm() -> None:
    """W_ij = V_i V_j^T; without sets: the mean of products is no product of means."""
    layout = Layout.of((3, 5, 4))
    fm, poly2 = (drawn(models.build(name, layout)) for name in ("fm", "poly2"))
    v = fm.embedding.tables[0].weight.detach().split(layout.sizes)
    with torch.no_grad():
        poly2.embedding.table.weight.copy_(
            torch.cat([(v[i] @ v[j].T).view(-1, 1) for i, j in ((0, 1), (0, 2), (1, 2))])
        )
    poly2.linear.load_state_dict(fm.linear.state_dict())
    ids = torch.cartesian_prod(*(torch.arange(size) for size in layout.sizes))
    assert_equal(poly2(ids), fm(ids))


@pytest.mark.parametrize("kernel", ["mat", "vec", "num"])
def test_kfm_with_identity_kernels_is_fm(kernel: str) -> None:
    fm = made("fm")
    kfm = made("kfm", fm, kernel=kernel)
    assert_equal(kfm(IDS), fm(IDS))
    with torch.no_grad():
        kfm.branches[0].interaction.kernel.entries.mul_(2)
    assert not torch.allclose(kfm(IDS), fm(IDS))


def test_ffm_with_tied_vectors_is_fm() -> None:
    fm, ffm = made("fm"), made("ffm")
    tied = {key: value.repeat(1, 3) if key.startswith("embedding") else value for key, value in fm.state_dict().items()}
    ffm.load_state_dict(tied)
    assert_equal(ffm(IDS), fm(IDS))


def test_deepfm_with_a_zeroed_dnn_is_fm() -> None:
    """Up to FM's bias, whose place the DNN's last one takes."""
    deepfm = made("deepfm")
    with torch.no_grad():
        for parameter in deepfm.branches[1].parameters():
            parameter.zero_()
    fm = made("fm")
    own = {key: value for key, value in deepfm.state_dict().items() if not key.startswith("branches")}
    fm.load_state_dict(own | {"linear.bias": torch.zeros(())})
    assert_equal(deepfm(IDS), fm(IDS))
    with torch.no_grad():
        deepfm.branches[1].classifier.layers[-1].bias.fill_(2)
    assert_equal(deepfm(IDS), fm(IDS) + 2)


def test_deepfm_is_fm_and_fnn_on_the_same_vectors() -> None:
    deepfm, fm, fnn = made("deepfm"), made("fm"), made("fnn")
    state = deepfm.state_dict()
    shared = {key: value for key, value in state.items() if not key.startswith("branches")}
    fm.load_state_dict(shared | {"linear.bias": torch.zeros(())})
    deep = {key.replace("branches.1", "branches.0"): value for key, value in state.items() if "branches.1" in key}
    fnn.load_state_dict(deep | {key: value for key, value in shared.items() if key.startswith("embedding")})
    assert_equal(deepfm(IDS), fm(IDS) + fnn(IDS))


@pytest.mark.parametrize("kernel", ["mat", "vec", "num"])
@pytest.mark.parametrize("product_norm", [True, False])
def test_kpnn_with_identity_kernels_is_ipnn(kernel: str, product_norm: bool) -> None:
    ipnn = made("ipnn", product_norm=product_norm)
    kpnn = made("kpnn", product_norm=product_norm, kernel=kernel)
    kernels = {key: value for key, value in kpnn.state_dict().items() if "kernel" in key}
    kpnn.load_state_dict(ipnn.state_dict() | kernels)
    assert not torch.allclose(kpnn(IDS), ipnn(IDS))
    assert_equal(made("kpnn", ipnn, product_norm=product_norm, kernel=kernel)(IDS), ipnn(IDS))


def test_afm_with_even_attention_is_fm_by_the_number_of_pairs_and_its_projection_starts_at_that() -> None:
    fm = made("fm")
    for settings, pairs in (({"temperature": math.inf}, 1), ({"temperature": 1e15, "project": False}, 6)):
        afm = made("afm", fm, **settings)
        found = afm.lookup(IDS)
        assert_equal(afm.branches[0](found["vectors"]), fm.branches[0](found["vectors"]) / pairs)
        assert_equal(afm(IDS) - afm.linear(found["linear"]), (fm(IDS) - fm.linear(found["linear"])) / pairs)


def test_afm_attends_unevenly() -> None:
    """Its published code takes the softmax over one number: every weight is 1."""
    afm = made("afm")
    v = afm.lookup(IDS)["vectors"]
    pool = afm.branches[0].interaction
    attention = pool.attention(v[:, pool.first] * v[:, pool.second])
    assert_equal(attention.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert attention.std(dim=1).min() > 0.01


@pytest.mark.parametrize(("name", "option"), [("nifm", "norm"), ("pin", "subnet_norm")])
def test_a_pairs_network_depends_only_on_its_two_fields(name: str, option: str) -> None:
    """Without the fused norm, whose statistics are those of all pairs."""
    model = made(name, subnet=(4, 3), **{option: "none"})
    v = model.lookup(IDS)["vectors"].detach().requires_grad_()
    features = model.branches[0].interaction(v).unflatten(1, (6, 3))
    for pair, fields in enumerate([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]):
        (grad,) = torch.autograd.grad(features[:, pair].sum(), v, retain_graph=True)
        assert tuple(grad.abs().sum(dim=(0, 2)).nonzero().flatten().tolist()) == fields


@pytest.mark.parametrize("name", ["nifm", "pin"])
def test_rows_in_another_order_give_the_same_logits_in_that_order(name: str) -> None:
    model = made(name)
    order = torch.tensor([2, 0, 3, 1])
    assert_equal(model(IDS[order]), model(IDS)[order])


def test_nifm_adds_its_pairs_and_pin_weighs_them() -> None:
    """With one linear output layer of ones, PIN is NIFM's second-order part."""
    nifm = made("nifm", norm="none", subnet=(4, 1))
    pin = made("pin", subnet_norm="none", subnet=(4, 1), product=False, hidden=())
    state = {key: value for key, value in nifm.state_dict().items() if not key.startswith("linear")}
    last = "branches.0.classifier.layers.0."
    ones = {last + "weight": torch.ones(1, 6), last + "bias": torch.zeros(1)}
    pin.load_state_dict(state | ones)
    v = nifm.lookup(IDS)
    assert_equal(pin(IDS), nifm(IDS) - nifm.linear(v["linear"]))


@pytest.mark.parametrize("kernel", ["mat", "vec", "num"])
def test_a_pairs_kernel_touches_only_its_pair(kernel: str) -> None:
    """The coupled gradient of section 3.1.1 is gone: a kernel's gradient comes from its pair alone."""
    kfm = made("kfm", kernel=kernel)
    part = kfm.branches[0].interaction
    products = part.products(numbers(5, 4, 3))
    for pair in range(6):
        (grad,) = torch.autograd.grad(products[:, pair].sum(), part.kernel.entries, retain_graph=True)
        assert grad.flatten(1).any(dim=1).tolist() == [p == pair for p in range(6)]
