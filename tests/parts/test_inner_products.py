"""The compiled inner products equal the plain ones, gradients too."""

from __future__ import annotations

import pytest
import torch

from fieldwise.parts.inner.compiled import InnerProducts
from fieldwise.parts.inner.formula import InnerProduct
from fieldwise.parts.ways import no_loops_of_rows
from tests.parts.drawn import by_formula


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dim", [1, 5, 16, 20, 35])
@pytest.mark.parametrize("fields", [2, 17, 39])
def test_equals_the_square_of_products(fields: int, dim: int, threads: int) -> None:
    torch.manual_seed(0)
    part, v = InnerProduct([dim] * fields), torch.randn(210, fields, dim, dtype=torch.float64, requires_grad=True)
    by = torch.randn(210, part.width, dtype=torch.float64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert not no_loops_of_rows(v)
    fast = part(v)
    found = fast, *torch.autograd.grad(fast, v, by)
    torch.set_num_threads(before)
    plain = by_formula(part, v)
    for one, two in zip((plain, *torch.autograd.grad(plain, v, by)), found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)


def test_few_rows_and_other_types_go_the_plain_way() -> None:
    assert no_loops_of_rows(torch.zeros(3, 4, 5)) == "fewer than 100 rows"
    assert no_loops_of_rows(torch.zeros(300, 4, 5).bfloat16()) == "bfloat16 numbers"


def test_vectors_may_lie_in_any_order() -> None:
    v = torch.randn(4, 210, 5, dtype=torch.float64).transpose(0, 1).requires_grad_()
    part = InnerProduct([5] * 4)
    slow, fast = by_formula(part, v), part(v)
    along = torch.cos(slow.detach())
    for one, two in zip(*([found, *torch.autograd.grad(found, v, along)] for found in (slow, fast)), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)


def test_vectors_stay_float32_where_products_are_narrow() -> None:
    v = torch.randn(210, 4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert InnerProduct([5] * 4)(v).equal(InnerProducts.apply(v))  # type: ignore[no-untyped-call]
