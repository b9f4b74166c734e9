"""Ctrl-C and SIGTERM, even if a library turns them into another exception."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """A SIGTERM: what a Ctrl-C leaves whole it leaves whole too."""


@contextmanager
def terminations() -> Iterator[None]:
    """Raises Terminated in the block at a SIGTERM, also where some other exception followed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise Terminated

    before = signal.signal(signal.SIGTERM, press)
    try:
        yield
    except Exception as error:
        if pressed:
            raise Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt if the block was interrupted and some other exception followed.

    DuckDB and Arrow turn an interrupt into their own exceptions, which would look like damaged data or a bug.
    """
    before, pressed = signal.getsignal(signal.SIGINT), False
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        before(number, frame)

    signal.signal(signal.SIGINT, press)
    try:
        yield
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
