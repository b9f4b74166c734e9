"""Whether compiled loops can run, tensors as their arrays, and the threads that they run on (CPU, numba).

Every row is written by one thread, in one order, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Rows that are worth a thread of their own; fewer are done before the loops are loaded.
ROWS_PER_THREAD = 100
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_switched_off: list[bool] = []


def available(*tensors: Tensor) -> bool:
    """Whether the compiled kernel can take these tensors."""
    kinds = {tensor.dtype for tensor in tensors}
    plain = all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)
    return plain and len(kinds) == 1 and kinds <= {torch.float32, torch.float64} and _compiles() and not _switched_off


@contextmanager
def switched_off() -> Iterator[None]:
    """Within, no compiled loop is taken: all goes the plain way, as what the loops are compared with must."""
    _switched_off.append(True)
    try:
        yield
    finally:
        _switched_off.pop()


def computes(tensor: Tensor) -> bool:
    """Whether compiled loops can take this tensor: as `available`, or bfloat16."""
    return available(tensor.view(-1)[:1].float() if tensor.dtype == torch.bfloat16 else tensor)


def worth(v: Tensor) -> bool:
    """Whether a batch (B, ...) is for compiled loops: many rows, and nobody who traces the model to write it down."""
    # Asked first: a look at the number of rows would bind an exported model to it.
    if torch.compiler.is_compiling():
        return False
    return v.shape[0] >= ROWS_PER_THREAD and available(v.detach()[:1].contiguous())


def array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory for compiled loops; numba knows bfloat16, and words of two of them, by their bits."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.int32:
        return tensor.numpy().view(np.uint32)
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def threads_for(count: int) -> int:
    """How many threads so many rows of a batch are worth."""
    return max(1, min(torch.get_num_threads(), count // ROWS_PER_THREAD))


def on_threads(action: Callable[[int, int, int], Any], size: int, threads: int) -> list[Any]:
    """action(low, high, thread) on equal parts of a range, each in a thread of its own; what they return, in order."""
    cuts = [size * part // threads for part in range(threads + 1)]
    if threads == 1:
        return [action(0, size, 0)]
    found: list[Any] = [None] * threads
    failed: list[BaseException] = []
    left = list(range(threads))

    def take(_: object) -> None:
        # OpenMP may give fewer threads than were asked for: whoever is there takes what is left.
        with suppress(IndexError):
            while True:
                part = left.pop()
                try:
                    found[part] = action(cuts[part], cuts[part + 1], part)
                except BaseException as error:  # would be lost on its way through OpenMP
                    failed.append(error)

    _at_once(take, threads)
    if failed:
        raise failed[0]
    return found


def by_rows(action: Callable[[int, int, int], Any], count: int) -> None:
    """`on_threads` over so many rows of a batch, with as many threads as they are worth."""
    on_threads(action, count, threads_for(count))


def _at_once(action: Callable[[None], None], threads: int) -> None:
    """Runs an action in each of so many threads: torch's own, which wait on the cores for its next operation.

    Threads beside them would have to share a core with one that waits: a loop of half a millisecond took twice that.
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
    """GOMP_parallel(function, data, threads, 0) of the OpenMP that torch runs on; None where torch has another."""
    found = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    parallel = getattr(ctypes.CDLL(str(found)), "GOMP_parallel", None) if found.exists() else None
    if parallel is not None:
        parallel.argtypes, parallel.restype = [BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return parallel


@cache
def _compiles() -> bool:
    """Whether numba is there and not switched off (FIELDWISE_NUMBA=0)."""
    return os.environ.get("FIELDWISE_NUMBA") != "0" and find_spec("numba") is not None
