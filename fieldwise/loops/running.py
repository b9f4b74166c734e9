"""Passes tensors to compiled loops, and runs these on threads (CPU, numba).

One thread writes each row, in a fixed order, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Rows that are worth a thread. For fewer than this, the formula is done before the loops are loaded.
ROWS_PER_THREAD = 100
# A step of no more rows and fewer products is not worth a second thread: OpenMP's threads mostly wait for each other
# then, and they wait by running, which on a busy machine takes ten times the processor time of the step.
SMALL_STEP, SMALL_PRODUCTS = 256, 50_000_000
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as an array; bfloat16 becomes uint16, and words of two bfloat16 uint32."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.int32:
        return tensor.numpy().view(np.uint32)
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def threads_for(count: int) -> int:
    """How many threads to use for `count` rows of a batch."""
    return max(1, min(torch.get_num_threads(), count // ROWS_PER_THREAD))


@contextmanager
def threads_worth(rows: int, weights: int) -> Iterator[None]:
    """Within, torch has one thread if steps of this many rows, each times this many weights, are small."""
    before = torch.get_num_threads()
    small = rows <= SMALL_STEP and rows * weights < SMALL_PRODUCTS
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def on_threads(action: Callable[[int, int, int], Any], size: int, threads: int) -> list[Any]:
    """Calls action(low, high, thread) on equal parts of a range, each in a thread; returns the results in order."""
    cuts = [size * part // threads for part in range(threads + 1)]
    if threads == 1:
        return [action(0, size, 0)]
    found: list[Any] = [None] * threads
    failed: list[BaseException] = []
    left = list(range(threads))

    def take(_: object) -> None:
        # OpenMP may start fewer threads than requested: those that run take all parts.
        with suppress(IndexError):
            while True:
                part = left.pop()
                try:
                    found[part] = action(cuts[part], cuts[part + 1], part)
                except BaseException as error:  # OpenMP would lose it
                    failed.append(error)

    _at_once(take, threads)
    if failed:
        raise failed[0]
    return found


def over_rows(
    loop: Any, count: int, inputs: Sequence[Tensor | float], outputs: Sequence[Tensor], sums: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Runs loop(*inputs, low, high, *outputs, *sums) over `count` rows of a batch, on threads; the totals of the sums.

    Each thread has its own sums, zeros in shape and type like those given. They are added in a fixed order, so that
    the result does not depend on which thread ends first.
    """
    threads = threads_for(count)
    given = [array(part) if isinstance(part, Tensor) else part for part in inputs]
    filled = [array(part) for part in outputs]
    own = [like.new_zeros(threads, *like.shape) for like in sums]
    added = [array(part) for part in own]

    def part(low: int, high: int, thread: int) -> None:
        loop(*given, low, high, *filled, *(each[thread] for each in added))

    on_threads(part, count, threads)
    return [each.sum(0) for each in own]


def _at_once(action: Callable[[None], None], threads: int) -> None:
    """Runs an action in each of `threads` of torch's own threads, which spin on their cores between operations.

    Other threads would share a core with a spinning one: a loop of half a millisecond took twice as long.
    """
    parallel = _openmp()
    if parallel is None:
        jobs = [pool(threads).submit(action, None) for _ in range(threads)]
        for job in jobs:
            job.result()
        return
    parallel(BODY(action), None, threads, 0)


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


@cache
def _openmp() -> Any:
    """GOMP_parallel(function, data, threads, 0) from the OpenMP that torch uses; None if that is not GNU's."""
    found = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    parallel = getattr(ctypes.CDLL(str(found)), "GOMP_parallel", None) if found.exists() else None
    if parallel is not None:
        parallel.argtypes, parallel.restype = [BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return parallel
