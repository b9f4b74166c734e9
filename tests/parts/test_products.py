"""The loops over fields equal the formulas over copied pairs: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fieldwise.loops.running import ROWS_PER_THREAD
from fieldwise.parts.kernel.compiled import KernelProducts
from fieldwise.parts.kernel.formula import KernelProduct
from tests.parts.drawn import by_formula, drawn

ROWS = 2 * ROWS_PER_THREAD + 3


def vectors(rows: int = 6, fields: int = 5, dim: int = 3) -> Tensor:
    drawn_once = torch.Generator().manual_seed(1)
    return torch.randn(rows, fields, dim, dtype=torch.float64, generator=drawn_once).requires_grad_()


def same(fast: Tensor, plain: Tensor, inputs: list[Tensor]) -> None:
    weights = torch.randn(fast.shape, dtype=fast.dtype, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)
    found, expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (fast, plain))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("fields", "dim"), [(5, 3), (2, 4), (3, 1), (4, 16), (4, 21)])
def test_compiled_kernel_products(fields: int, dim: int, threads: int) -> None:
    v, part = vectors(ROWS, fields, dim), drawn(KernelProduct([dim] * fields)).double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    same(part(v), by_formula(part, v), [v, *part.parameters()])
    torch.set_num_threads(before)


def test_compiled_kernels_of_packed_sizes() -> None:
    v, part = vectors(ROWS), drawn(KernelProduct([3, 2, 1, 3, 2])).double()
    same(part(v), by_formula(part, v), [v, *part.parameters()])


def test_compiled_kernel_products_gradcheck() -> None:
    kernel = torch.randn(3, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(KernelProducts.apply, (vectors(4, 3, 5), kernel))


def test_many_rows_take_the_compiled_loops_and_few_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    part, taken = KernelProduct([3] * 5).double(), []
    monkeypatch.setattr(KernelProducts, "apply", lambda v, kernel: taken.append(len(v)) or by_formula(part, v))
    for rows in (ROWS_PER_THREAD - 1, ROWS_PER_THREAD):
        part(vectors(rows))
    assert taken == [ROWS_PER_THREAD]


def test_bf16_computes_them_in_float32() -> None:
    v, part = vectors(ROWS).detach().float().requires_grad_(), drawn(KernelProduct([3] * 5)).float()
    exact = part(v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(part(v), exact)
