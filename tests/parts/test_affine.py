"""A fully connected layer by the faster library is that of PyTorch: values and gradients, near the float64 ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.parts.affine.compiled import ROWS, AffineProduct, available
from fieldwise.parts.affine.formula import Affine, affine
from tests.parts.drawn import numbers

needed = pytest.mark.skipif(not available(), reason="this torch has no oneDNN")


@needed
@pytest.mark.parametrize("out", [1, 5, 64])
@pytest.mark.parametrize("width", [7, 1030])
def test_values_and_gradients_are_those_of_float64(width: int, out: int) -> None:
    x, weight, bias, along = (
        numbers(ROWS, width),
        numbers(out, width, seed=1),
        numbers(out, seed=2),
        numbers(ROWS, out, seed=3),
    )
    exact = [part.requires_grad_() for part in (x, weight, bias)]
    single = [part.detach().float().requires_grad_() for part in exact]
    expected, found = functional.linear(*exact), AffineProduct.apply(*single)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    (expected * along).sum().backward()
    (found * along.float()).sum().backward()
    for one, two in zip(single, exact, strict=True):
        assert one.grad is not None
        assert two.grad is not None
        torch.testing.assert_close(one.grad.double(), two.grad, rtol=1e-5, atol=1e-4)


@needed
def test_columns_of_a_wider_matrix_go_to_onednn_as_a_matrix_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN would take a thousand times as long for the gradient of the weights."""
    called, given = torch.ops.mkldnn._linear_pointwise, list[Tensor]()

    def noted(*inputs: Any) -> Tensor:
        given.append(inputs[1])
        found: Tensor = called(*inputs)
        return found

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", noted)
    wide, weight = numbers(ROWS, 14).float(), numbers(3, 7, seed=1).float().requires_grad_()
    AffineProduct.apply(wide[:, :7], weight, None).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, wide[:, :7].sum(dim=0).expand(3, 7))
    assert all(one.is_contiguous() or one.T.is_contiguous() for one in given)
    assert len(given) == 2


@needed
def test_many_rows_go_the_fast_way_and_others_the_plain_one() -> None:
    layer = affine(6, 3)
    kinds = {}
    for rows in (ROWS, ROWS - 1):
        found = layer(torch.randn(rows, 6))
        assert found.grad_fn is not None
        kinds[rows] = found.grad_fn.name()
    assert "AffineProduct" in kinds[ROWS]
    assert "Addmm" in kinds[ROWS - 1]
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(ROWS, 6)).dtype == torch.bfloat16


@needed
def test_an_input_that_nobody_learns_gets_no_gradient() -> None:
    x, layer = torch.randn(ROWS, 4), Affine(4, 2)
    layer(x).sum().backward()
    assert x.grad is None
    assert layer.weight.grad is not None


def test_weight_norm_stays_one() -> None:
    layer = affine(4, 2, weight_norm=True)
    assert nn.utils.parametrize.is_parametrized(layer)
    torch.testing.assert_close(layer(torch.ones(ROWS, 4))[:3], layer(torch.ones(3, 4)))
