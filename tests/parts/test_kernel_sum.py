"""The sum of kernel products by one large matrix product equals the sum of the plain ones: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fieldwise.loops.running import ROWS_PER_THREAD
from fieldwise.parts.kernel.formula import KernelSum
from fieldwise.parts.kernel.sums import KernelSums
from tests.parts.drawn import by_formula, drawn

ROWS = 2 * ROWS_PER_THREAD + 3


def vectors(rows: int, fields: int, dim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, fields, dim, dtype=dtype, generator=torch.Generator().manual_seed(1)).requires_grad_()


def plain(part: KernelSum, v: Tensor) -> Tensor:
    return by_formula(part, v)


def gradients(found: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    weights = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad((found * weights).sum(), inputs)


KINDS = [([3, 3], "mat"), ([4] * 5, "mat"), ([5] * 11, "mat"), ([3, 2, 1, 3, 2, 4], "mat"), ([1] * 6, "mat")]


@pytest.mark.parametrize("rows", [6, ROWS])
@pytest.mark.parametrize(("sizes", "kernel"), [*KINDS, ([4] * 7, "vec"), ([4] * 7, "num"), ([1] * 2, "vec")])
def test_values_and_gradients_are_those_of_the_plain_products(sizes: list[int], kernel: str, rows: int) -> None:
    v, part = vectors(rows, len(sizes), max(sizes)), drawn(KernelSum(sizes, kernel)).double()
    fast, slow = part(v), plain(part, v)
    assert fast.shape == (rows, 1)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    inputs = [v, *part.parameters()]
    for one, two in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    with torch.inference_mode():
        torch.testing.assert_close(part(v), slow, rtol=1e-12, atol=1e-12)


def test_gradcheck() -> None:
    kernel = torch.randn(10, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(KernelSums.apply, (vectors(4, 5, 3), kernel))


def test_many_rows_that_are_learnt_from_take_the_large_product(monkeypatch: pytest.MonkeyPatch) -> None:
    part, taken = KernelSum([3] * 5).double(), []
    monkeypatch.setattr(KernelSums, "apply", lambda v, kernel: taken.append(len(v)) or plain(part, v))
    for rows in (ROWS_PER_THREAD - 1, ROWS_PER_THREAD):
        part(vectors(rows, 5, 3))
    with torch.inference_mode():
        part(vectors(ROWS, 5, 3))
    assert taken == [ROWS_PER_THREAD]


def test_many_rows_of_float32_take_the_other_library() -> None:
    v, part = vectors(300, 7, 4, torch.float32), drawn(KernelSum([4] * 7)).float()
    exact, wide = drawn(KernelSum([4] * 7)).double(), v.detach().double().requires_grad_()
    fast, slow = part(v), plain(exact, wide)
    torch.testing.assert_close(fast.double(), slow, rtol=1e-4, atol=1e-4)
    found, expected = gradients(fast, [v, *part.parameters()]), gradients(slow.float(), [wide, *exact.parameters()])
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-3)
    with torch.inference_mode():
        torch.testing.assert_close(part(v).double(), slow, rtol=1e-4, atol=1e-4)


def test_bf16_multiplies_and_float32_adds() -> None:
    v, part = vectors(300, 7, 4, torch.float32), drawn(KernelSum([4] * 7)).float()
    exact = part(v)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = part(v)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        scored = part(v)
    assert narrow.dtype == scored.dtype == torch.float32
    torch.testing.assert_close(narrow, exact, rtol=0.05, atol=0.2)
    torch.testing.assert_close(scored, exact, rtol=0.05, atol=0.2)
    inputs = [v, *part.parameters()]
    for one, two in zip(gradients(narrow, inputs), gradients(exact, inputs), strict=True):
        assert one.dtype == torch.float32
        assert (one - two).norm() < 0.01 * two.norm()
