"""Micro networks by compiled loops equal the plain ones, gradients too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from fieldwise.loops.instructions import pointer
from fieldwise.loops.lanes import load, store
from fieldwise.loops.running import ROWS_PER_THREAD
from fieldwise.parts.micro.compiled import LOOPS, two_layers
from fieldwise.parts.micro.formula import MicroNetwork
from tests.parts.drawn import by_formula, drawn, numbers

ROWS = 2 * ROWS_PER_THREAD + 3


def gradients(net: MicroNetwork, v: Tensor, features: Tensor) -> list[Tensor]:
    along = torch.randn(features.shape, generator=torch.Generator().manual_seed(3)).to(features.dtype)
    return [features, *torch.autograd.grad(features, [v, *net.parameters()], along)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("dim", "widths", "options"),
    [
        (4, (7, 2), {}),
        (17, (21, 3), {"norm": "fused-per-pair"}),
        (16, (16, 1), {"product": False, "last_norm": False}),
    ],
)
def test_equals_the_plain_layers(dim: int, widths: tuple[int, int], options: dict[str, Any], threads: int) -> None:
    net, v = drawn(MicroNetwork([dim] * 9, widths, **options)), (numbers(ROWS, 9, dim) + 2).requires_grad_()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    features = net(v)
    fast = gradients(net, v, features)
    torch.set_num_threads(before)
    for one, two in zip(gradients(net, v, by_formula(net, v)), fast, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


def test_vectors_of_several_sizes_take_the_loops() -> None:
    net, v = drawn(MicroNetwork([3, 1, 4, 2], (7, 1), product=False)), numbers(ROWS, 4, 4).requires_grad_()
    assert not LOOPS.against(net, v)
    for one, two in zip(gradients(net, v, by_formula(net, v)), gradients(net, v, net(v)), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


def test_few_rows_and_other_layers_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(
        "fieldwise.parts.micro.compiled.two_layers", lambda *given: taken.append(1) or two_layers(*given)
    )
    v = numbers(ROWS, 3, 2)
    for options in ({"norm": "layer"}, {"norm": "none"}, {"activation_name": "tanh"}):
        MicroNetwork([2] * 3, (4, 2), **options).double()(v)  # type: ignore[arg-type]
    MicroNetwork([2] * 3, (4, 3, 2)).double()(v)
    MicroNetwork([2] * 3, (4, 2)).double()(v[: ROWS_PER_THREAD - 1])
    assert not taken
    MicroNetwork([2] * 3, (4, 2)).double()(v)
    assert taken


@pytest.mark.parametrize(("dim", "units"), [(6, 20), (5, 21)])
def test_bf16_is_as_near_as_the_plain_layers_are(dim: int, units: int) -> None:
    """Gradients are float32, and further off than rounding is: a ReLU near zero opens for one and not for the other."""
    torch.manual_seed(0)
    net, v = MicroNetwork([dim] * 5, (units, 3)), torch.randn(ROWS, 5, dim, requires_grad=True)
    exact = gradients(net, v, by_formula(net, v))
    with torch.autocast("cpu", torch.bfloat16):
        features, plain = net(v), by_formula(net, v).float()
    for right, fast, slow in zip(exact, gradients(net, v, features), gradients(net, v, plain), strict=True):
        assert fast.dtype == torch.float32
        assert (fast - right).norm() < 1.1 * (slow - right).norm() + 1e-3 * right.norm() < 0.06 * right.norm()


def test_lanes_of_bfloat16_round_as_torch_does() -> None:
    exact = torch.cat([torch.randn(48), torch.tensor([0.0, -0.0, 1.00390625, 1.01171875, float("inf"), float("nan")])])
    found = np.zeros(len(exact), np.uint16)

    @njit
    def rounded(source: Any, target: Any) -> None:
        for c in range(0, len(source), 16):
            store(pointer(target), c, len(source) - c, load(pointer(source), c, len(source) - c))

    rounded(exact.numpy(), found)
    expected = exact.bfloat16()
    torch.testing.assert_close(torch.from_numpy(found.view(np.int16)).view(torch.bfloat16), expected, equal_nan=True)
    back = np.zeros(len(exact), np.float32)
    rounded(found, back)
    np.testing.assert_array_equal(back, expected.float().numpy())
