from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from fieldwise.config.errors import ConfigError
from fieldwise.nn.classifiers import DNN, NORMS, Layers, Sum
from tests.parts import slow
from tests.parts.drawn import drawn, gradients_hold, numbers

B, H = 6, 5
EVERY = list(itertools.product(NORMS, ["relu", "elu", "selu", "tanh"]))


def network(width: int = H, hidden: tuple[int, ...] = (4, 3), **options: Any) -> DNN:
    return drawn(DNN(width, Layers(hidden, **options)))


def test_sum() -> None:
    assert Sum()(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [3.0, 7.0]


@pytest.mark.parametrize(("norm", "activation"), EVERY)
def test_dnn_equals_the_loop(norm: str, activation: str) -> None:
    part, x = network(norm=norm, activation=activation), numbers(B, H)
    expected = slow.dnn(x, part, norm, activation)
    assert expected.shape == (B,)
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("norm", "activation"), EVERY)
def test_dnn_gradients(norm: str, activation: str) -> None:
    assert gradients_hold(network(norm=norm, activation=activation), numbers(B, H))


@pytest.mark.parametrize("norm", NORMS)
def test_the_last_layer_has_no_norm_and_no_activation(norm: str) -> None:
    part = network(norm=norm)
    assert not nn.utils.parametrize.is_parametrized(part.layers[-1])  # nor weight norm
    bias = part.layers[-1].bias
    x, before = numbers(B, H), part(numbers(B, H))
    with torch.no_grad():
        bias += 100
    torch.testing.assert_close(part(x), before + 100)


def test_without_hidden_layers_it_is_one_affine_map() -> None:
    part, x = network(hidden=()), numbers(B, H)
    assert len(list(part.parameters())) == 2
    torch.testing.assert_close(part(x), slow.dnn(x, part), rtol=0, atol=1e-10)


def test_weights_start_in_xaviers_range_and_biases_at_zero() -> None:
    first = DNN(50, Layers((150,), norm="none")).layers[0]
    assert isinstance(first, nn.Linear)
    limit = (6 / 200) ** 0.5
    assert 0.99 * limit < first.weight.abs().max() <= limit
    assert not first.bias.any()


def test_batch_norm_in_evaluation_does_not_look_at_the_batch() -> None:
    part, x = network(norm="batch"), numbers(B, H)
    in_training = part(x)
    part.eval()
    torch.testing.assert_close(part(x[2:3]), part(x)[2:3], rtol=0, atol=1e-12)
    assert not torch.allclose(part(x), in_training)


def test_batch_norm_survives_a_last_batch_of_one_row() -> None:
    part, x = network(norm="batch"), numbers(B, H)
    part(x)
    before = {name: buffer.clone() for name, buffer in part.named_buffers()}
    alone = part(x[:1])
    assert all(torch.equal(before[name], buffer) for name, buffer in part.named_buffers())
    torch.testing.assert_close(alone, part.eval()(x[:1]))


def test_a_layer_of_one_unit_is_not_cut_by_its_norm() -> None:
    part = network(hidden=(4, 1), norm="layer", activation="tanh")
    assert part(numbers(B, H)).unique().numel() == B


@pytest.mark.parametrize("probability", [0.2, 0.7])
def test_dropout_is_the_probability_of_dropping(probability: float) -> None:
    part = DNN(H, Layers((500,), norm="none", activation="tanh", dropout=probability))
    x = torch.ones(200, H)
    torch.manual_seed(0)
    hidden = part.layers[:-1](x)
    plain = part.eval().layers[:-1](x)
    dropped = hidden == 0
    # 100,000 units: the share's deviation is 0.0015.
    assert dropped.float().mean().item() == pytest.approx(probability, abs=0.008)
    torch.testing.assert_close(hidden[~dropped], (plain / (1 - probability))[~dropped])
    assert (plain != 0).all()


def test_dropout_follows_every_hidden_layer_and_not_the_last() -> None:
    kinds = [type(layer).__name__ for layer in DNN(H, Layers((4, 3), dropout=0.5)).layers]
    assert kinds == ["Affine", "LayerNorm", "ReLU", "Dropout"] * 2 + ["Affine"]


@pytest.mark.parametrize("norm", NORMS)
def test_weights_come_back_from_a_state_dict(norm: str) -> None:
    part, other, x = network(norm=norm), DNN(H, Layers((4, 3), norm=norm)).double(), numbers(B, H)
    part(x)
    other.load_state_dict(part.state_dict())
    assert torch.equal(part.eval()(x), other.eval()(x))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"norm": "layr"}, "unknown norm 'layr'; did you mean 'layer'"),
        ({"dropout": 1.0}, r"dropout is the probability of dropping, in \[0, 1\), found 1.0"),
        ({"dropout": -0.1}, r"dropout is the probability of dropping, in \[0, 1\), found -0.1"),
        ({"hidden": (400, 0)}, r"hidden must be positive whole numbers, found \(400, 0\)"),
        ({"hidden": ("wide",)}, r"hidden must be positive whole numbers, found \('wide',\)"),
    ],
)
def test_settings_out_of_range(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Layers(**options)
