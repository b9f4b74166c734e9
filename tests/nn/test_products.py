"""The loops over first fields equal the formulas over copied pairs: values and gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from fieldwise.nn.attention import AttentionPool
from fieldwise.nn.interactions import KernelProduct, pairs
from fieldwise.nn.products import KernelProducts, PairProducts
from tests.nn.drawn import drawn


def vectors() -> Tensor:
    return torch.randn(6, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def same(fast: Tensor, plain: Tensor, inputs: list[Tensor]) -> None:
    weights = torch.randn(fast.shape, dtype=fast.dtype, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)
    found, expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (fast, plain))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_pair_products() -> None:
    v, (first, second) = vectors(), pairs(5)
    same(PairProducts.apply(v), v[:, first] * v[:, second], [v])


def test_kernel_products() -> None:
    v, part = vectors(), drawn(KernelProduct([3] * 5))
    kernel = part.kernel().detach().double().requires_grad_()
    same(KernelProducts.apply(v, kernel), part.plain(v, kernel), [v, kernel])


def test_kernels_of_packed_sizes() -> None:
    v, part = vectors(), drawn(KernelProduct([3, 2, 1, 3, 2])).double()
    same(part(v), part.plain(v, part.kernel()), [v, *part.parameters()])


def test_bf16_is_near_and_its_gradients_are_those_of_float32_weights() -> None:
    v, part = vectors().detach().float().requires_grad_(), drawn(KernelProduct([3] * 5)).float()
    exact = part(v)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = part(v)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), exact, rtol=0.05, atol=0.1)
    narrow.float().sum().backward()
    assert v.grad is not None
    assert v.grad.dtype == torch.float32


def test_attention_takes_the_products() -> None:
    v, part = vectors(), drawn(AttentionPool([3] * 5)).double()
    assert torch.equal(part.products(v), PairProducts.apply(v))
