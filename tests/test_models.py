from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fieldwise import models
from fieldwise.config.errors import ConfigError
from fieldwise.data.schema import Layout
from fieldwise.models import Model
from fieldwise.nn.classifiers import DNN, Layers
from fieldwise.nn.crosses import PairTable
from fieldwise.nn.embedding import Table, Vectors
from tests.parts import slow
from tests.parts.drawn import drawn, gradients_hold

LAYOUT = Layout((3, 5, 4, 6), (1, 3, 1, 1))
IDS = torch.tensor(
    [[0, 4, -1, -1, 0, 5], [2, 0, 1, 2, 3, 1], [1, 3, 1, -1, 0, 2], [0, 4, 2, -1, 0, 5], [2, 4, -1, -1, 1, 0]],
    dtype=torch.int32,
)
SMALL = {"dim": 3, "hidden": (4, 3), "dropout": 0.0}
Features = Callable[[Any, slow.Row], Tensor]


def linear(model: Model, ids: Tensor) -> Tensor:
    """The linear part of one row, with its bias if there is one."""
    assert model.linear is not None
    total = slow.add(slow.lookup(model.linear.weights, LAYOUT, ids))
    return total if model.linear.bias is None else total + model.linear.bias


def summed(features: Features) -> Callable[[Model, Tensor], Tensor]:
    """Linear part and the sum of these features of the first branch."""

    def logits(model: Model, ids: Tensor) -> Tensor:
        assert model.embedding is not None
        rows = []
        for row in ids:
            v = slow.embed(model.embedding, LAYOUT, row)
            rows.append(linear(model, row) + features(model.branches[0].interaction, v).sum())
        return torch.stack(rows)

    return logits


def deep(features: Features, norm: str = "layer", branch: int = 0) -> Callable[[Model, Tensor], Tensor]:
    """These features of a branch into its DNN."""

    def logits(model: Model, ids: Tensor) -> Tensor:
        assert model.embedding is not None
        one, embedding = model.branches[branch], model.embedding
        rows = [features(one.interaction, slow.embed(embedding, LAYOUT, row)) for row in ids]
        return slow.dnn(torch.stack(rows), one.classifier, norm)

    return logits


def flat_and(products: Features) -> Features:
    """Concat(Flatten, Normed(products))."""

    def features(part: Any, v: slow.Row) -> Tensor:
        inside = part.parts[1]
        found = products(inside.part, v)
        return torch.cat([slow.flat(v), slow.norm(found, found, inside.norm.weight, inside.norm.bias)])

    return features


def kernels(part: Any, v: slow.Row) -> Tensor:
    return slow.kernel_products(v, slow.kernels_of(part, [len(one) for one in v]))


def micro(*widths: int, **options: Any) -> Features:
    return lambda part, v: slow.micro_networks(v, part, widths, **options)


def poly2(buckets: int) -> Callable[[Model, Tensor], Tensor]:
    def logits(model: Model, ids: Tensor) -> Tensor:
        assert isinstance(model.embedding, PairTable)
        table = model.embedding.table.weight
        return torch.stack([linear(model, x) + slow.pair_weights(table, LAYOUT, x, buckets).sum() for x in ids])

    return logits


REFERENCES: dict[str, tuple[dict[str, Any], Callable[[Model, Tensor], Tensor]]] = {
    "lr": ({}, lambda model, ids: torch.stack([linear(model, row) for row in ids])),
    "poly2": ({}, poly2(2**18)),
    "poly2, hashed": ({"buckets": 17}, poly2(17)),
    "fm": ({}, summed(lambda part, v: slow.pair_sum(v))),
    "ffm": ({}, summed(lambda part, v: slow.field_aware_products(v, 3))),
    "ffm, normed": ({"input_norm": True}, summed(lambda part, v: slow.field_aware_products(v, 3, 1 / 4))),
    "kfm": ({}, summed(kernels)),
    "kfm, vec": ({"kernel": "vec"}, summed(kernels)),
    "kfm, num": ({"kernel": "num"}, summed(kernels)),
    "kfm, adaptive": ({"adaptive": 1.5, "dim": 4}, summed(kernels)),
    "nifm": ({"subnet": (4, 1)}, summed(micro(4, 1, product=False, last_norm=False))),
    "nifm, adaptive": (
        {"subnet": (4, 1), "adaptive": 1.5, "dim": 4},
        summed(micro(4, 1, product=False, last_norm=False)),
    ),
    "afm": ({"attention": 4}, summed(lambda part, v: slow.attention_pool(v, part))),
    "fnn": ({}, deep(lambda part, v: slow.flat(v))),
    "fnn, batch": ({"norm": "batch"}, deep(lambda part, v: slow.flat(v), "batch")),
    "fnn, weight": ({"norm": "weight"}, deep(lambda part, v: slow.flat(v), "weight")),
    "fnn, adaptive": ({"adaptive": 1.5, "dim": 4}, deep(lambda part, v: slow.flat(v))),
    "ccpm": ({"channels": (5,), "widths": (2,)}, deep(lambda part, v: slow.convolution(v, part), "none")),
    "deepfm": (
        {},
        lambda model, ids: (
            summed(lambda part, v: slow.pair_sum(v))(model, ids)
            + deep(lambda part, v: slow.flat(v), branch=1)(model, ids)
        ),
    ),
    "ipnn": ({}, deep(flat_and(lambda part, v: slow.inner_products(v)))),
    "kpnn": ({}, deep(flat_and(kernels))),
    "kpnn, adaptive": ({"adaptive": 1.5, "dim": 4}, deep(flat_and(kernels))),
    "pin": ({"subnet": (4, 2)}, deep(micro(4, 2))),
}


def small(case: str) -> Model:
    name = case.split(",")[0]
    settings = {key: value for key, value in SMALL.items() if key in models.options(name)}
    return drawn(models.build(name, LAYOUT, settings | REFERENCES[case][0]))


def dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


@pytest.mark.parametrize("case", REFERENCES)
def test_logits_and_gradients_equal_the_loop(case: str) -> None:
    model, reference = small(case), REFERENCES[case][1]
    logits, expected = model(IDS), reference(model, IDS)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    parameters = list(model.parameters())
    fast = [dense(grad) for grad in torch.autograd.grad(logits.square().sum(), parameters)]
    loop = torch.autograd.grad(expected.square().sum(), parameters)
    torch.testing.assert_close(fast, list(loop), rtol=1e-10, atol=1e-10)


class Combine(nn.Module):
    """What comes after the lookup, as a map of one tensor: linear weights and vectors side by side (B, F + F D)."""

    def __init__(self, model: Model, found: dict[str, Tensor]) -> None:
        super().__init__()
        self.model, self.shapes = model, {name: part.shape[1:] for name, part in found.items()}

    def forward(self, values: Tensor) -> Tensor:
        parts = values.split([shape.numel() for shape in self.shapes.values()], dim=1)
        shaped = [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes.values(), strict=True)]
        return self.model.combine(dict(zip(self.shapes, shaped, strict=True)))


@pytest.mark.parametrize("case", [case for case in REFERENCES if case != "lr"])
def test_gradients_behind_the_lookup_equal_finite_differences(case: str) -> None:
    model = small(case)
    found = model.lookup(IDS)
    for table in [module for module in model.modules() if isinstance(module, Table)]:
        table.requires_grad_(False)
    values = torch.cat([part.flatten(1) for part in found.values()], dim=1)
    assert gradients_hold(Combine(model, found), values, fast=True)


def test_lookup_then_combine_is_forward() -> None:
    model = small("deepfm")
    found = model.lookup(IDS)
    assert found["linear"].shape == (5, 4, 1)
    assert found["vectors"].shape == (5, 4, 3)
    assert torch.equal(model.combine(found), model(IDS))
    assert set(small("lr").lookup(IDS)) == {"linear"}
    assert set(small("fnn").lookup(IDS)) == {"vectors"}


def test_option_groups_are_spread_out() -> None:
    assert models.options("fnn") == {
        "dim": 32,
        "adaptive": 0.0,
        "sequence": "mean",
        "sequence_units": (36,),
        "sequence_softmax": True,
        "sequence_places": True,
        "sequence_heads": 2,
        "hidden": (400, 400),
        "norm": "layer",
        "activation": "relu",
        "dropout": 0.5,
        "members": 1,
    }
    assert models.options("ffm") == {"dim": 4, "linear": True, "input_norm": False}
    assert models.options("lr") == {}
    assert models.options("poly2") == {"buckets": 2**18}


def test_settings_reach_the_parts() -> None:
    model = models.build("fnn", LAYOUT, {"hidden": [7], "dropout": 0.5, "norm": "none", "dim": 2.0})
    kinds = [type(layer).__name__ for layer in model.branches[0].classifier.layers]
    assert kinds == ["Affine", "ReLU", "Dropout", "Affine"]
    assert model.branches[0].interaction.width == 8


def test_a_groups_other_defaults_stay_the_models_own() -> None:
    model = models.build("ccpm", LAYOUT, {"dropout": 0.2})
    kinds = [type(layer).__name__ for layer in model.branches[0].classifier.layers]
    assert kinds == ["Affine", "ReLU", "Dropout"] * 3 + ["Affine"]


def test_ffm_without_a_linear_part_is_libffms() -> None:
    model = models.build("ffm", LAYOUT, {"linear": False, "dim": 3})
    assert model.linear is None
    assert [tuple(p.shape) for p in model.parameters()] == [(18, 9)]


def test_ffms_start_follows_the_size_of_one_vector() -> None:
    model = models.build("ffm", Layout.of((500, 400, 300)), {"linear": False, "dim": 4})
    assert model.embedding is not None
    (table,) = model.embedding.tables
    assert table.weight.max().item() == pytest.approx((1 / (3 * 4)) ** 0.5, rel=0.01)
    table.start("libffm")
    assert table.weight.max().item() == pytest.approx(1 / 4**0.5, rel=0.01)


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    for ask in (lambda: models.build("pnn", LAYOUT), lambda: models.options("pnn")):
        with pytest.raises(ConfigError, match=r"unknown model 'pnn'; did you mean '.*pnn'. available: afm, autoint"):
            ask()


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("fnn", {"hiden": [4]}, "model fnn: unknown option 'hiden'; did you mean 'hidden'"),
        ("fnn", {"dim": "ten"}, r"model.dim must be a whole number, found 'ten' \(model fnn\)"),
        ("fnn", {"dim": 2.5}, "model.dim must be a whole number, found 2.5"),
        ("fnn", {"dim": True}, "model.dim must be a whole number, found True"),
        ("fnn", {"hidden": 400}, "model.hidden must be a list, found 400"),
        ("poly2", {"buckets": 0}, r"buckets must be positive whole numbers, found \[0\]"),
        ("ffm", {"linear": 1}, "model.linear must be true or false, found 1"),
        ("fm", {"adaptive": 2.0}, "PairSum needs vectors of one size, found 2 to 4"),
        ("deepfm", {"adaptive": 2.0}, "PairSum needs vectors of one size, found 2 to 4"),
        ("ipnn", {"adaptive": 2.0}, "InnerProduct needs vectors of one size"),
        ("afm", {"adaptive": 2.0}, "AttentionPool needs vectors of one size"),
        ("ccpm", {"adaptive": 2.0}, "Convolution needs vectors of one size"),
        ("pin", {"adaptive": 2.0}, "MicroNetwork needs vectors of one size"),
        ("kfm", {"adaptive": 2.0, "kernel": "vec"}, "KernelSum needs vectors of one size"),
    ],
)
def test_wrong_settings_are_refused(name: str, settings: dict[str, Any], line: str) -> None:
    if "adaptive" in settings:
        settings = {"dim": 4, **settings}
    with pytest.raises(ConfigError, match=line):
        models.build(name, Layout.of((2, 5, 50)), settings)


def test_a_model_of_ones_own_needs_a_function_and_nothing_else() -> None:
    def wide(sizes: Layout, *, vectors: Vectors = Vectors(2), layers: Layers = Layers((3,))) -> Model:
        dims = vectors.sizes(sizes)
        features = models.Flatten(dims)
        return Model(models.Embedding(sizes, dims), models.Branch(features, DNN(features.width, layers)))

    models.register(wide)
    try:
        assert models.options("wide")["dim"] == 2
        assert models.build("wide", LAYOUT, {"dim": 5})(IDS).shape == (5,)
    finally:
        del models.MODELS["wide"]
