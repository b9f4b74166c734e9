"""The compiled norms with their ReLU equal the plain ones, gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fieldwise.nn.classifiers import DNN, Layers
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.norm.compiled import LAYER_LOOPS, PAIR_LOOPS, NormRelu
from fieldwise.parts.norm.formula import activated
from fieldwise.parts.norm.norms import PairNorm
from fieldwise.parts.ways import formulas_alone, told
from tests.parts.drawn import by_formula


def made(kind: str, units: int) -> tuple[PairNorm, Tensor, Tensor]:
    """A norm of 6 pairs, its input far from zero, and the gradient of its output."""
    torch.manual_seed(0)
    norm = PairNorm(6, units, kind).double()
    nn.init.normal_(norm.gain)
    nn.init.normal_(norm.shift)
    x = torch.randn(6, 250, units, dtype=torch.float64) * 3 + 40
    return norm, x.requires_grad_(), torch.randn(6, 250, units, dtype=torch.float64)


def gradients(y: Tensor, by: Tensor, x: Tensor, norm: PairNorm) -> list[Tensor]:
    return [y, *torch.autograd.grad(y, [x, norm.gain, norm.shift], by)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("units", [3, 16, 21])
@pytest.mark.parametrize("kind", ["fused", "fused-per-pair"])
def test_equals_norm_and_relu(kind: str, units: int, threads: int) -> None:
    norm, x, by = made(kind, units)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert not PAIR_LOOPS.against(x, norm, nn.ReLU())
    fast = gradients(NormRelu.apply(x, norm.gain, norm.shift), by, x, norm)  # type: ignore[no-untyped-call]
    torch.set_num_threads(before)
    plain = gradients(torch.relu(norm(x)), by, x, norm)
    for one, two in zip(plain, fast, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-10)


def test_other_norms_and_activations_go_the_plain_way() -> None:
    norm, x, _ = made("fused", 4)
    assert PAIR_LOOPS.against(x, norm, nn.Tanh()) == "no ReLU"
    assert PAIR_LOOPS.against(x, PairNorm(6, 4, "layer"), nn.ReLU()) == "no norm over all pairs"
    assert LAYER_LOOPS.against(x, nn.Identity(), nn.ReLU()) == "no layer norm"
    assert PAIR_LOOPS.against(x.half(), norm, nn.ReLU()) == "float16 numbers"
    assert PAIR_LOOPS.against(x[:, :9].contiguous(), norm, nn.ReLU()) == "fewer than 100 rows"


def test_sub_networks_take_it() -> None:
    torch.manual_seed(0)
    net, v = MicroNetwork([4] * 5, (7, 3, 2)).double(), torch.randn(120, 5, 4, dtype=torch.float64)
    taken: list[str] = []
    with told(lambda choice: taken.append(choice.way)):
        fast = net(v)
    assert taken == ["formula", PAIR_LOOPS.name, PAIR_LOOPS.name]
    torch.testing.assert_close(fast, by_formula(net, v), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [3, 40])
def test_a_dnn_takes_it(width: int) -> None:
    torch.manual_seed(0)
    net, x = DNN(5, Layers((width, 17))).double(), torch.randn(250, 5, dtype=torch.float64, requires_grad=True) + 9

    def found() -> list[Tensor]:
        logits = net(x)
        return [logits, *torch.autograd.grad(logits.square().sum(), [*net.parameters()])]

    fast = found()
    with formulas_alone():
        plain = found()
    for one, two in zip(plain, fast, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


def test_bf16_is_within_a_rounding() -> None:
    norm, x, by = made("fused", 21)
    norm.float()
    narrow, grad = x.detach().bfloat16().requires_grad_(), by.bfloat16()
    fast = gradients(NormRelu.apply(narrow, norm.gain, norm.shift), grad, narrow, norm)  # type: ignore[no-untyped-call]
    assert [part.dtype for part in fast] == [torch.bfloat16] * 2 + [torch.float32] * 2
    wide = narrow.detach().float().requires_grad_()
    plain = gradients(torch.relu(norm(wide)), grad.float(), wide, norm)
    for one, two in zip(plain, fast, strict=True):
        torch.testing.assert_close(two.float(), one, rtol=2**-8, atol=2e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("units", [3, 16, 37, 48])
def test_a_layer_equals_norm_and_relu(units: int, threads: int) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(units, eps=1e-8).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = (torch.randn(250, units, dtype=torch.float64) * 3 + 40).requires_grad_()
    by, weights = torch.randn(250, units, dtype=torch.float64), [x, norm.weight, norm.bias]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    y = activated(x, norm, nn.ReLU())
    fast = [y, *torch.autograd.grad(y, weights, by)]
    torch.set_num_threads(before)
    y = torch.relu(norm(x))
    for one, two in zip([y, *torch.autograd.grad(y, weights, by)], fast, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-10)


def test_a_layer_in_bf16_is_within_a_rounding() -> None:
    torch.manual_seed(0)
    norm, x, by = nn.LayerNorm(37), torch.randn(250, 37).bfloat16(), torch.randn(250, 37).bfloat16()
    narrow, wide = x.clone().requires_grad_(), x.float().requires_grad_()
    y = activated(narrow, norm, nn.ReLU())
    fast = [y, *torch.autograd.grad(y, [narrow, norm.weight, norm.bias], by)]
    assert [part.dtype for part in fast] == [torch.bfloat16] * 2 + [torch.float32] * 2
    y = torch.relu(norm(wide))
    for one, two in zip([y, *torch.autograd.grad(y, [wide, norm.weight, norm.bias], by.float())], fast, strict=True):
        torch.testing.assert_close(two.float(), one, rtol=2**-8, atol=2e-4)
