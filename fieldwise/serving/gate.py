"""Scoring in a thread beside the event loop, with limits on how many requests wait and for how long."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from fieldwise.config.errors import FieldwiseError

# Shorter work is done on the event loop when no request waits: waking the thread would take longer.
IN_PLACE_SECONDS = 0.005
P = ParamSpec("P")
T = TypeVar("T")


class FullError(FieldwiseError):
    """The queue is full."""


class LateError(FieldwiseError):
    """A request timed out; `begun` says whether scoring had started."""

    def __init__(self, text: str, begun: bool) -> None:
        super().__init__(text)
        self.begun = begun


class Gate:
    """One scoring thread, and at most `most` requests that are being scored or wait."""

    def __init__(self, most: int, timeout: float, gauge: Any) -> None:
        self.most, self.timeout, self.gauge = most, timeout, gauge
        self.inside = 0
        # Seconds to score one row, a moving average.
        self.seconds = math.inf
        self.pool = ThreadPoolExecutor(1, "scoring")

    async def score(self, rows: int, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Like `run`, for work on `rows` rows. A few rows are scored on the event loop if no other request waits."""

        def timed() -> T:
            began = time.perf_counter()
            found = work(*given, **named)
            each = (time.perf_counter() - began) / max(1, rows)
            self.seconds = each if self.seconds == math.inf else 0.8 * self.seconds + 0.2 * each
            return found

        if self.inside == 0 and rows * self.seconds < IN_PLACE_SECONDS:
            self._enter()
            try:
                # Lets requests that came at the same moment enter before the check.
                await asyncio.sleep(0)
                if self.inside == 1:
                    return timed()
            finally:
                self._leave()
        return await self.run(timed)

    async def run(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """The result of `work`; raises FullError at once if too many wait, LateError after the timeout."""
        self._enter()
        task = self.pool.submit(work, *given, **named)
        try:
            async with asyncio.timeout(self.timeout):
                return await asyncio.wrap_future(task)
        except TimeoutError:
            begun = not task.cancel()
            raise LateError(
                f"no answer within {self.timeout:g} seconds; send fewer rows, or come back", begun
            ) from None
        finally:
            # Scoring whose client is gone goes on and keeps its place until it ends.
            if task.cancel() or task.done():
                self._leave()
            else:
                loop = asyncio.get_running_loop()
                task.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._leave))

    def _enter(self) -> None:
        if self.inside >= self.most:
            raise FullError(f"{self.most} requests are waiting already; come back in a second")
        self.inside += 1
        self.gauge.inc()

    def _leave(self) -> None:
        self.inside -= 1
        self.gauge.dec()

    def close(self) -> None:
        self.pool.shutdown()
