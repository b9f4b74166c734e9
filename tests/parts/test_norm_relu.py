"""The compiled layer norm with its ReLU equals the plain one, gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fieldwise.nn.classifiers import DNN, Layers
from fieldwise.parts.norm.compiled import LOOPS
from fieldwise.parts.norm.formula import activated
from fieldwise.parts.ways import formulas_alone


def test_other_norms_and_activations_go_the_plain_way() -> None:
    norm, x = nn.LayerNorm(4), torch.randn(250, 4)
    assert not LOOPS.against(x, norm, nn.ReLU())
    assert LOOPS.against(x, norm, nn.Tanh()) == "not layer norm with ReLU"
    assert LOOPS.against(x, nn.Identity(), nn.ReLU()) == "not layer norm with ReLU"
    assert LOOPS.against(x.half(), norm, nn.ReLU()) == "float16 numbers"
    assert LOOPS.against(x[:9], norm, nn.ReLU()) == "fewer than 100 rows"
    assert LOOPS.against(torch.randn(4, 250).T, norm, nn.ReLU()) == "not contiguous"


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
