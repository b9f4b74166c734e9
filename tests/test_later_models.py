"""The models since the paper: each formula in float64, branches that reach the loss, and members of one network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fieldwise import later_models, models
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import Model
from fieldwise.nn.branch_losses import towards_the_mean, where_worse
from fieldwise.speed.bench import shape_of
from fieldwise.train.steps import Step
from tests.parts import slow, slow_later
from tests.parts.drawn import drawn
from tests.test_models import IDS, LAYOUT, Features, dense, kernels, linear, summed
from tests.test_paper import MILLION, count

SMALL = {"dim": 3, "hidden": (4, 3), "dropout": 0.0, "blocks": (4, 2), "maps": (3, 2), "attention": 4, "crosses": 2}
SMALL |= {"gate_hidden": (3,), "fm_hidden": (4,), "made": 2, "kept": 3, "fm_rank": 2, "stacked": 2}
Logits = Callable[[Model, Tensor], Tensor]


def features_of(model: Model, branch: int, features: Features, ids: Tensor) -> list[Tensor]:
    assert model.embedding is not None
    return [features(model.branches[branch].interaction, slow.embed(model.embedding, LAYOUT, row)) for row in ids]


def headed(*parts: Features, share: float = 1.0) -> Logits:
    """The branches' DNNs on these features, and the linear part."""

    def logits(model: Model, ids: Tensor) -> Tensor:
        total = torch.zeros(len(ids), dtype=torch.float64)
        for number, features in enumerate(parts):
            found = torch.stack(features_of(model, number, features, ids))
            total = total + share * slow.dnn(found, model.branches[number].classifier)
        return total if model.linear is None else total + torch.stack([linear(model, row) for row in ids])

    return logits


def two_streams(stream: Features) -> Logits:
    def features(part: Any, v: slow.Row) -> Tensor:
        return torch.cat([stream(own, v) for own in part.parts])

    def logits(model: Model, ids: Tensor) -> Tensor:
        return torch.stack(
            [slow_later.two_streams(model.branches[0].classifier, row) for row in features_of(model, 0, features, ids)]
        )

    return logits


def flat(part: Any, v: slow.Row) -> Tensor:
    return slow.flat(v)


def fwfm_by_vectors(model: Model, ids: Tensor) -> Tensor:
    found = features_of(model, 0, kernels, ids)
    plain = slow.dnn(torch.stack(features_of(model, 1, flat, ids)), model.branches[1].classifier)
    return torch.stack([row.sum() for row in found]) + plain


CROSS, MIXTURE, FACTORISED, MASKED = (
    getattr(slow_later, name) for name in ("cross", "cross_mixture", "factorised", "masked_cross")
)
REFERENCES: dict[str, tuple[dict[str, Any], Logits]] = {
    "fwfm": ({}, summed(kernels)),
    "fwfm, FiLV": ({"linear": "vectors"}, fwfm_by_vectors),
    "fmfm": ({}, summed(kernels)),
    "fmfm, vec": ({"kernel": "vec"}, summed(kernels)),
    "dcnv2": ({}, headed(CROSS, flat)),
    "dcnv2, stacked": ({"structure": "stacked", "adaptive": 1.5, "dim": 4}, headed(CROSS)),
    "dcnv2, mixture": ({"rank": 2, "experts": 3}, headed(MIXTURE, flat)),
    "gdcn": ({}, headed(CROSS)),
    "xdeepfm": ({}, headed(slow_later.compressed, flat)),
    "autoint": ({"scaled": True}, headed(slow_later.self_attention, flat)),
    "autoint, alone": ({"deep": False, "heads": 1, "attention": 3}, headed(slow_later.self_attention)),
    "fibinet": ({}, headed(slow_later.fibinet)),
    "fibinet, each": ({"bilinear": "each", "excitation": "sigmoid"}, headed(slow_later.fibinet)),
    "fibinet, all": ({"bilinear": "all", "reduction": 2}, headed(slow_later.fibinet)),
    "masknet": ({}, headed(slow_later.mask)),
    "masknet, serial": ({"structure": "serial", "reduction": 0.5}, headed(slow_later.mask)),
    "edcn": ({}, headed(slow_later.bridged)),
    "edcn, sum": ({"bridge": "sum", "norm": "none", "temperature": 0.5}, headed(slow_later.bridged)),
    "finalmlp": ({"hidden": (4, 4), "heads": 2}, two_streams(slow_later.gated)),
    "finalmlp, learned": ({"hidden": (3, 2), "gate": "learned"}, two_streams(slow_later.gated)),
    "finalnet": ({"norm": "layer"}, headed(FACTORISED, FACTORISED, share=0.5)),
    "finalnet, sum": ({"norm": "none", "residual": "sum", "gate": False}, headed(FACTORISED, FACTORISED, share=0.5)),
    "fcn": ({"dim": 4, "heads": 2, "linear": 2}, headed(MASKED, MASKED, share=0.5)),
    "wukong": ({}, headed(slow_later.wukong)),
    "wukong, as many": ({"made": 2, "kept": 2}, headed(slow_later.wukong)),
}


def small(case: str, **settings: Any) -> Model:
    name = case.split(",")[0]
    own = {key: value for key, value in SMALL.items() if key in models.options(name)}
    return drawn(models.build(name, LAYOUT, own | REFERENCES[case][0] | settings))


def test_every_later_model_has_a_formula_here() -> None:
    assert {build.__name__ for build in later_models.LATER} == {case.split(",")[0] for case in REFERENCES}


@pytest.mark.parametrize("case", REFERENCES)
def test_logits_and_gradients_equal_the_loop(case: str) -> None:
    model, reference = small(case), REFERENCES[case][1]
    logits, expected = model(IDS), reference(model, IDS)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    parameters = list(model.parameters())
    fast = [dense(grad) for grad in torch.autograd.grad(logits.square().sum(), parameters)]
    loop = torch.autograd.grad(expected.square().sum(), parameters)
    torch.testing.assert_close(fast, list(loop), rtol=1e-9, atol=1e-9)


def test_a_gate_that_ends_in_relu_starts_open() -> None:
    model = models.build("fibinet", Layout.of([9] * 12), {"dim": 4})
    squeezed = model.branches[0].interaction.parts[1]
    with torch.no_grad():
        factors = squeezed.gate(torch.randn(400, 12))
    assert (factors > 0).any(dim=0).all()


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("dcnv2", {"structure": "beside"}, "unknown structure 'beside'"),
        ("dcnv2", {"rank": -1}, "rank must be 0, for full matrices, or positive, found -1"),
        ("autoint", {"heads": 3}, "attention must be a multiple of heads, found 32 for 3 heads"),
        (
            "finalmlp",
            {"hidden": (4, 3), "heads": 2},
            r"the last of hidden must be a multiple of heads, found \(4, 3\) for 2 heads",
        ),
        ("finalmlp", {"gate": "user"}, "unknown gate 'user'.* available: learned, none, row"),
        ("finalnet", {"blocks": (4, 3)}, r"blocks needs an even number of units in each block, found \[4, 3\]"),
        ("masknet", {"blocks": (1,)}, r"blocks needs two units or more in each block, found \[1\]"),
        ("fcn", {"dim": 6, "heads": 2}, r"dim must be a multiple of 2 \* heads, found 6 for 2 heads"),
        ("xdeepfm", {"adaptive": 2.0}, "Compressed needs vectors of one size"),
        ("fnn", {"members": 0}, r"members must be positive whole numbers, found \[0\]"),
    ],
)
def test_wrong_settings_are_refused(name: str, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        models.build(name, Layout.of((2, 5, 50)), settings)


# At the shape of Table 10 (docs/models.md): W = 780 numbers a row, 741 pairs, a DNN of five layers of 700.
W, P, TABLE = 780, 741, 20_000_000


def deep(width: int) -> int:
    return width * 700 + 4 * 700 * 700 + 700


COUNTS: dict[str, int] = {
    "fwfm": TABLE + 1_000_000 + P,
    "fmfm": TABLE + 1_000_000 + P * 20 * 20,
    "xdeepfm": TABLE + 1_000_000 + 39 * 39 * 32 + 39 * 32 * 32 + 64 + deep(W),
    "autoint": TABLE + 4 * 20 * 16 + 3 * 16 * 16 + 39 * 16 + deep(W),
    "fibinet": TABLE + 1_000_000 + 2 * P * 20 * 20 + 2 * 39 * 13 + deep(2 * P * 20),
    "dcnv2": TABLE + 3 * W * W + W + deep(W),
    "gdcn": TABLE + 6 * W * W + deep(W),
    "masknet": TABLE + 3 * (2 * W * W + W * 64) + deep(3 * 64),
    "edcn": TABLE + 3 * (W * W + W + 2 * 39) + 3 * W,
    "finalmlp": TABLE + 2 * (2 * W * 64 + deep(W)) + 700 * 700,
    "finalnet": TABLE + 39 * 39 + (2 * W + 400) * 400 + (W + 400) * 400 + 2 * 400,
    "fcn": TABLE + 6 * W * W // 2 + 2 * W,
    "wukong": TABLE + 39 * (8 + 48) + 39 * 8 * 128 + 2 * (32 * (8 + 16) + 32 * 8 * 128) + 3 * 128 * 320 + deep(32 * 20),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_at_the_shape_of_table_10(name: str) -> None:
    assert count(name, MILLION, **shape_of(name)[1]) == COUNTS[name]


# Branches' own logits in the loss.

LABELS, WEIGHTS = (torch.tensor(rows, dtype=torch.float64) for rows in ([1, 0, 0, 1, 0], [1, 2, 0.5, 1, 3]))


def slow_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    p = slow_later.sigmoid(logits)
    return -(weights * (targets * p.log() + (1 - targets) * (1 - p).log())).sum() / len(logits)


def objective(model: Model, name: str, weights: Tensor) -> tuple[Tensor, Tensor]:
    step = Step(model, Config(name, {}, TrainSettings(l2=0.0)), 10)
    return step.objective(model.lookup(IDS), LABELS, weights)


@pytest.mark.parametrize("case", ["finalnet", "fcn"])
def test_branches_reach_the_loss(case: str) -> None:
    model = small(case)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.4)
    own = [branch(model.lookup(IDS)["vectors"]) for branch in model.branches]
    logits = (own[0] + own[1]) / 2
    loss, total = objective(model, case, WEIGHTS)
    expected = slow_loss(logits, LABELS, WEIGHTS)
    torch.testing.assert_close(loss, expected)
    for each in own:
        if case == "finalnet":
            expected = expected + slow_loss(each, slow_later.sigmoid(logits).detach(), WEIGHTS)
        else:
            alone = slow_loss(each, LABELS, WEIGHTS)
            expected = expected + max(0.0, (alone - loss).item()) * alone
    assert expected > loss
    torch.testing.assert_close(total, expected)
    both = [
        torch.autograd.grad(value, list(model.branches.parameters()), retain_graph=True) for value in (total, expected)
    ]
    torch.testing.assert_close(*both)


def test_only_a_model_that_asks_has_a_loss_of_branches() -> None:
    asking = {build.__name__: models.build(build.__name__, LAYOUT).branch_loss for build in later_models.LATER}
    assert {name: found for name, found in asking.items() if found} == {
        "finalnet": towards_the_mean,
        "fcn": where_worse,
    }


def test_a_mean_of_branches_starts_and_moves_as_a_whole() -> None:
    model = small("finalnet").eval()
    before = model(IDS)
    with torch.no_grad():
        for bias in model.biases:
            bias.add_(0.7)
    torch.testing.assert_close(model(IDS), before + 0.7)
    assert len(models.build("deepfm", LAYOUT).biases) == 1


# Members of one network.


def with_members(name: str, **settings: Any) -> Model:
    given = {"dim": 3, "hidden": (4, 3), "dropout": 0.0, "members": 3}
    return drawn(models.build(name, LAYOUT, given | settings))


def test_each_member_is_its_own_formula() -> None:
    model = with_members("deepfm")
    logits, own = model.scored(model.lookup(IDS))
    assert logits.shape == (5, 3)
    rows = features_of(model, 1, flat, IDS)
    deep = [[slow_later.member(model.branches[1].classifier, row, m) for m in range(3)] for row in rows]
    expected = torch.stack([torch.stack(row) for row in deep])
    torch.testing.assert_close(own[1], expected, rtol=1e-10, atol=1e-10)
    others = own[0] + torch.stack([linear(model, row) for row in IDS])
    torch.testing.assert_close(logits, expected + others[:, None], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "scale"), [("ipnn", 1.0), ("finalmlp", 1.0), ("dcnv2", 0.5)])
def test_the_mean_of_losses_is_learnt_and_the_mean_of_probabilities_answered(name: str, scale: float) -> None:
    model = with_members(name, hidden=(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    logits, _ = model.scored(model.lookup(IDS))
    assert (logits[:, 0] - logits[:, 1]).abs().min() > 1e-3
    loss, _ = objective(model, name, WEIGHTS)
    torch.testing.assert_close(loss, sum(slow_loss(each, LABELS, WEIGHTS) for each in logits.T) / 3)
    torch.testing.assert_close(torch.special.expit(model(IDS)), torch.special.expit(logits).mean(dim=1))
    extreme = model.double()
    with torch.no_grad():
        for bias in extreme.biases:
            bias.fill_(900.0)
    assert extreme(IDS).isfinite().all()


def test_members_share_their_matrices_and_scales_have_no_penalty() -> None:
    one, three = (models.build("fnn", LAYOUT, {"members": k, "dim": 3, "hidden": (5, 4)}) for k in (1, 3))
    apart = 3 * (12 + 5 + 5 + 4) + 3 * (5 + 4) + 3 * (4 + 1)  # scales, shifts, last layers
    assert three.size - one.size == apart - (5 + 4) - (4 + 1)
    assert [tuple(weight.shape) for weight in three.dense_weights["weights"]] == [(5, 12), (4, 5), (3, 4)]
    first = three.branches[0].classifier.layers[0].factors
    assert set(first.unique().tolist()) == {-1.0, 1.0}


def test_one_member_is_the_network_as_it_was() -> None:
    names = list(models.build("fnn", LAYOUT, {"hidden": (5,)}).state_dict())
    layers = "branches.0.classifier.layers."
    assert names[1:] == [layers + end for end in ("0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias")]
