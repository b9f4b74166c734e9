"""Adam on the touched rows of a table, in one pass over memory (CPU, numba).

The plain version is optim.Adam.update on gathered rows; this one equals it to rounding. Every row is written by
one thread, in one order, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

AHEAD = 32


def available(*tensors: Tensor) -> bool:
    """Whether the compiled kernel can take these tensors."""
    kinds = {tensor.dtype for tensor in tensors}
    plain = all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)
    return plain and len(kinds) == 1 and kinds <= {torch.float32, torch.float64} and _adam_rows() is not None


def computes(tensor: Tensor) -> bool:
    """Whether compiled loops can take this tensor: as `available`, or bfloat16."""
    return available(tensor.view(-1)[:1].float() if tensor.dtype == torch.bfloat16 else tensor)


def array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory for compiled loops; numba knows bfloat16, and words of two of them, by their bits."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.int32:
        return tensor.numpy().view(np.uint32)
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def adam_rows(
    weight: Tensor,
    mean: Tensor,
    square: Tensor,
    last: Tensor | None,
    order: tuple[Tensor, Tensor, Tensor],
    values: Tensor,
    *,
    step: int,
    betas: tuple[float, float],
    rate: float,
    eps: float,
) -> None:
    """Sums the gradients `values` (M, D) of each distinct row and moves that row: tables (N, D).

    `order` holds the distinct row ids (U,), the positions of `values` sorted by id (M,), and where each id
    starts there (U,). With `last` (N,), moments first decay by the steps since the row was touched.
    """
    unique, places, starts = (part.numpy() for part in order)
    gaps = last if last is not None else torch.empty(0, dtype=torch.int32)
    tables = [tensor.detach().numpy() for tensor in (weight, mean, square, gaps)]
    numbers = (values.numpy(), powers(*betas), step, *betas, rate, eps)
    kernel, threads = _adam_rows(), min(torch.get_num_threads(), max(1, len(unique) // 1000))
    cuts = [len(unique) * part // threads for part in range(threads + 1)]
    jobs = [(unique, places, starts, cuts[t], cuts[t + 1], *tables, *numbers) for t in range(threads)]
    if threads == 1:
        kernel(*jobs[0])
        return
    for done in [pool(threads).submit(kernel, *job) for job in jobs]:
        done.result()


@cache
def powers(beta1: float, beta2: float) -> Any:
    """beta^gap for the gaps that most rows have; taking powers would cost more than all else."""
    return np.power([[beta1, beta2]], np.arange(4096)[:, None])


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def on_threads(action: Callable[[int, int, int], Any], size: int, threads: int) -> list[Any]:
    """action(low, high, thread) on equal parts of a range, each in a thread of its own."""
    cuts = [size * part // threads for part in range(threads + 1)]
    if threads == 1:
        return [action(0, size, 0)]
    jobs = [pool(threads).submit(action, cuts[t], cuts[t + 1], t) for t in range(threads)]
    return [job.result() for job in jobs]


@cache
def _adam_rows() -> Any:
    """The compiled kernel, or None where numba is missing or switched off (FIELDWISE_NUMBA=0)."""
    if os.environ.get("FIELDWISE_NUMBA") == "0":
        return None
    try:
        from numba import njit
    except ImportError:
        return None

    @njit(nogil=True, fastmath=False, error_model="numpy")  # type: ignore[untyped-decorator, unused-ignore]
    def kernel(  # type: ignore[no-untyped-def]
        unique, places, starts, low, high, weight, mean, square, last, values, powers, step, beta1, beta2, rate, eps
    ):
        dim = weight.shape[1]
        rest1, rest2 = weight.dtype.type(1 - beta1), weight.dtype.type(1 - beta2)
        rate_, eps_ = weight.dtype.type(rate), weight.dtype.type(eps)
        total = weight[0].copy()
        seen = total[0]
        for u in range(low, high):
            if (u - low) % AHEAD == 0:
                # Rows lie far apart: asking for many at once lets the memory answer in parallel.
                for ahead in range(u, min(u + AHEAD, high)):
                    r = unique[ahead]
                    seen += weight[r, 0] + mean[r, 0] + square[r, 0]
                    seen += weight[r, dim - 1] + mean[r, dim - 1] + square[r, dim - 1]
                    if len(last):
                        seen += last[r]
            row = unique[u]
            end = starts[u + 1] if u + 1 < len(unique) else len(places)
            for d in range(dim):
                total[d] = values[places[starts[u]], d]
            for k in range(starts[u] + 1, end):
                for d in range(dim):
                    total[d] += values[places[k], d]
            gap = step - last[row] if len(last) else 1
            near = gap < len(powers)
            decay1 = powers[gap, 0] if near else beta1**gap
            decay2 = powers[gap, 1] if near else beta2**gap
            decay1, decay2 = weight.dtype.type(decay1), weight.dtype.type(decay2)
            for d in range(dim):
                g = total[d]
                m = mean[row, d] * decay1 + rest1 * g
                s = square[row, d] * decay2 + rest2 * g * g
                mean[row, d] = m
                square[row, d] = s
                weight[row, d] -= rate_ * m / (math.sqrt(s) + eps_)
            if len(last):
                last[row] = step
        return seen

    return kernel
