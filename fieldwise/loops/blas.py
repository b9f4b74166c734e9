"""The threads of the BLAS that numpy brings, which wait by running."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

Threads = tuple[Callable[[], int], Callable[[int], None]]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within, numpy multiplies matrices with one thread, where it brings its OpenBLAS.

    On busy cores the threads of products of a few thousand rows take five to eight times the processor time of one
    thread, and longer by the clock too: each waits for the other, and waits by running.
    """
    found = _threads()
    if found is None:
        yield
        return
    known, choose = found
    before = known()
    choose(1)
    try:
        yield
    finally:
        choose(before)


@cache
def _threads() -> Threads | None:
    """How many threads numpy's OpenBLAS has, and what sets them; None where numpy has another BLAS."""
    # Beside the package on Linux and Windows, inside of it on macOS.
    home = Path(np.__file__).parent
    for file in [*home.with_name("numpy.libs").glob("*openblas*"), *(home / ".dylibs").glob("*openblas*")]:
        library = ctypes.CDLL(str(file))
        for ending in ("64_", ""):
            known = getattr(library, f"scipy_openblas_get_num_threads{ending}", None)
            choose = getattr(library, f"scipy_openblas_set_num_threads{ending}", None)
            if known is not None and choose is not None:
                return known, choose
    return None
