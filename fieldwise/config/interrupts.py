"""Ctrl-C and SIGTERM, even where their exception is lost or becomes another.

A block notes a signal as its exception is raised. Python drops what is raised in a destructor or in the callback of a
weak reference, and every import has such callbacks; a library may make another exception of it. So a loop that takes
long calls `check` each time, and so does code that takes any exception for a failure and goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """A SIGTERM: what a Ctrl-C leaves whole it leaves whole too."""


class _Block:
    """A block of code in which a signal is noted."""

    noted: type[KeyboardInterrupt] | None = None


# The blocks that go on, the outermost first.
_blocks: list[_Block] = []


def check() -> None:
    """Raises the exception of a signal that a block around this has noted, in case it was lost."""
    for block in _blocks:
        if block.noted:
            raise block.noted


def answered() -> None:
    """Says that the signal was heard and the program goes on all the same."""
    for block in _blocks:
        block.noted = None


@contextmanager
def _noting(number: int, action: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Notes what `action` raises at a signal in the block; raises it in place of another exception that followed."""
    check()
    block = _Block()

    def press(number: int, frame: FrameType | None) -> None:
        try:
            action(number, frame)
        except KeyboardInterrupt as error:
            block.noted = type(error)
            raise

    before = signal.signal(number, press)
    _blocks.append(block)
    try:
        yield
    except Exception:
        check()
        raise
    finally:
        _blocks.remove(block)
        signal.signal(number, before)


@contextmanager
def terminations() -> Iterator[None]:
    """Raises Terminated in the block at a SIGTERM, also where some other exception followed."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _noting(signal.SIGTERM, terminate):
        yield


@contextmanager
def interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt if the block was interrupted and some other exception followed.

    DuckDB and Arrow turn an interrupt into their own exceptions, which would look like damaged data or a bug.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    with _noting(signal.SIGINT, before):
        yield
