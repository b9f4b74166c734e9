"""Ctrl-C, whatever a library makes of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts() -> Iterator[None]:
    """Ends the block with KeyboardInterrupt where an interrupt came and some other exception followed from it.

    DuckDB and Arrow turn an interrupt into exceptions of their own, which would pass for damaged data or our fault.
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
