"""Micro networks of two layers with the fused norm, by compiled loops around one batched matrix product (CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.kernels import rows
from fieldwise.nn.norms import EPSILON

# Rows that are worth a thread of their own; fewer are done before the loops are loaded.
ROWS_PER_THREAD = 100


def pays(v: Tensor) -> bool:
    """Whether to go this way with vectors (B, F, D)."""
    # Asked first: a look at the number of rows would bind an exported model to it.
    if torch.compiler.is_compiling():
        return False
    return v.shape[0] >= ROWS_PER_THREAD and rows.available(v.detach()[:1].contiguous())


def two_layers(v: Tensor, first: Tensor, second: Tensor, product: bool, layers: tuple[Tensor, ...]) -> Tensor:
    """(B, F, D) -> (B, P, U): affine, fused norm, ReLU, affine, of v_i, v_j and, with `product`, v_i * v_j.

    `layers`: weight (P, 2 D or 3 D, H) and bias (P, 1, H), gain and shift (1 or P, 1, H), weight (P, H, U) and bias
    (P, 1, U). Under autocast the first product is in its type; the small second one never is.
    """
    narrow = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else v.dtype
    with torch.autocast("cpu", enabled=False):
        x = PairInputs.apply(v, first, second, product, narrow)  # type: ignore[no-untyped-call]
        x = PairAffine.apply(x, layers[0].to(narrow), layers[1].to(narrow))  # type: ignore[no-untyped-call]
        found: Tensor = NormReluAffine.apply(x, *layers[2:])  # type: ignore[no-untyped-call]
    return found


class PairInputs(torch.autograd.Function):
    """v_i, v_j and, with `product`, v_i * v_j of all pairs side by side: (B, F, D) -> (P, B, 2 D or 3 D)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, first: Tensor, second: Tensor, product: bool, dtype: torch.dtype) -> Tensor:
        from fieldwise.kernels import micro

        fields, fill = v.transpose(0, 1).contiguous(), _any(micro.inputs)
        ctx.save_for_backward(fields, first, second)
        out = torch.empty(len(first), v.shape[0], v.shape[2] * (3 if product else 2), dtype=dtype)
        arrays = [rows.array(part) for part in (fields, first, second, out)]
        _on_threads(lambda low, high, _: fill(*arrays[:3], low, high, arrays[3]), len(v))
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override, unused-ignore]
        from fieldwise.kernels import micro

        found, add = torch.zeros_like(ctx.saved_tensors[0]), _any(micro.inputs_back)
        arrays = [rows.array(part) for part in (grad.contiguous(), *ctx.saved_tensors, found)]
        _on_threads(lambda low, high, _: add(*arrays[:4], low, high, arrays[4]), grad.shape[1])
        return found.transpose(0, 1), None, None, None, None


class PairAffine(torch.autograd.Function):
    """x_p W_p + b_p of all pairs: (P, B, K), (P, K, H), (P, 1, H) -> (P, B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias, x, weight)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        x, weight = ctx.saved_tensors
        # Of a matrix that is only seen as transposed, the product in float32 takes twice as long.
        by_x = torch.bmm(grad, weight.transpose(1, 2).contiguous())
        return by_x, torch.bmm(x.transpose(1, 2), grad), grad.sum(dim=1, keepdim=True)


class NormReluAffine(torch.autograd.Function):
    """The fused norm, ReLU and a small affine map: (P, B, H) -> (B, P, U); the others are as in `two_layers`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from fieldwise.kernels import micro

        compute = _any(micro.forward)
        turned, stats = weight.transpose(1, 2).contiguous(), torch.empty(x.shape[1], 2, dtype=torch.float64)
        out = gain.new_empty(x.shape[1], x.shape[0], weight.shape[2])
        arrays = [
            rows.array(part) for part in (x, gain.squeeze(1), shift.squeeze(1), turned, bias.squeeze(1), stats, out)
        ]
        _on_threads(lambda low, high, _: compute(*arrays[:5], EPSILON, low, high, *arrays[5:]), x.shape[1])
        ctx.save_for_backward(x, gain.squeeze(1), shift.squeeze(1), turned, stats)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override, unused-ignore]
        from fieldwise.kernels import micro

        compute = _any(micro.backward)
        x, gain, _, turned, _ = saved = ctx.saved_tensors
        threads, by_x = threads_for(x.shape[1]), torch.empty_like(x)
        # Each thread has sums of its own: one after the other, the result does not depend on which is first.
        by_gain, by_shift = gain.new_zeros(2, threads, x.shape[0], x.shape[2])
        by_weight = turned.new_zeros(threads, *turned.shape)
        arrays = [rows.array(part) for part in (grad.contiguous(), *saved)]
        sums = [rows.array(part) for part in (by_gain, by_shift, by_weight)]

        def part(low: int, high: int, thread: int) -> None:
            compute(*arrays, low, high, *(found[thread] for found in sums), rows.array(by_x))

        rows.on_threads(part, x.shape[1], threads)
        shared = [found.sum(0).view(len(gain), -1, 1, x.shape[2]).sum(1) for found in (by_gain, by_shift)]
        return by_x, *shared, by_weight.sum(0).transpose(1, 2), grad.sum(dim=0)[:, None]


def _any(compiled: Any) -> Any:
    """A compiled function, whose arguments numba's own types do not tell."""
    return compiled


def threads_for(count: int) -> int:
    return max(1, min(torch.get_num_threads(), count // ROWS_PER_THREAD))


def _on_threads(action: Any, count: int) -> None:
    rows.on_threads(action, count, threads_for(count))
