"""Work on chunks by several threads, results in the order of the chunks.

Arrow, numpy and compiled loops let go of Python's lock, so that threads are enough; the result does not depend on how
many there are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# How many threads the work at hand may use: readers deep inside of other iterators ask for it here.
_THREADS: ContextVar[int] = ContextVar("threads", default=1)


def cores() -> int:
    """How many threads the machine has room for."""
    return os.cpu_count() or 1


def threads() -> int:
    """How many threads what runs here may use."""
    return _THREADS.get()


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Lets what runs inside the block use `threads` threads."""
    before = _THREADS.set(threads)
    try:
        yield
    finally:
        _THREADS.reset(before)


def in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map` by several threads: a few items are under way at a time, so that memory stays bounded."""
    threads = _THREADS.get()
    if threads < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
