"""Limits on connections: how many may be open, how large headers may be, and how long they may take to arrive.

These hold before the token is checked, so a client without one cannot exhaust memory or file handles. The guard limits
the body; the rest of a body that comes after the answer has the time limit of headers.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fieldwise.serving.application import Limits

# A refused connection stays open this long, so the client can read why; at most MOST_PARTING do so at a time.
PARTING_SECONDS = 1.0
MOST_PARTING = 64


class Door(HttpToolsProtocol):
    """uvicorn's protocol with limits. All doors of a server share `parting`, the refused connections still open."""

    def __init__(self, *given: Any, limits: Limits, parting: set[Door], **named: Any) -> None:
        super().__init__(*given, **named)
        self.limits, self.parting = limits, parting
        # Whether headers come next, how many bytes of them are left, whether some have come; requests received so far.
        self._in_head, self._left, self._begun, self._received = True, limits.max_headers, False, 0
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._turn_away()
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.parting.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        step = self.limits.max_headers
        for first in range(0, len(data), step):
            self._feed(data[first : first + step] if len(data) > step else data)

    def _feed(self, piece: bytes) -> None:
        """Parses a piece that is no longer than headers may be."""
        if self._refused:
            # A client that was turned away has now sent its request and read the answer; other bytes are dropped.
            if self in self.parting:
                self.transport.close()
            return
        if self.transport.is_closing():
            return
        rest, before = b"", self._received
        if self._in_head and len(piece) > self._left:
            piece, rest = piece[: self._left], piece[self._left :]
        super().data_received(piece)
        if self._in_head and self._received == before:
            self._left -= len(piece)
            if not self._left:
                self._refuse(431, f"headers have at most {self.limits.max_headers:,} bytes")
                return
        if self._in_head and self._timer is None and (self._begun or self._left < self.limits.max_headers):
            self._start_timer()
        if rest:
            self._feed(rest)

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = self._begun = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._left = True, self.limits.max_headers
        self._received += 1
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head and self._timer is None and not self.transport.is_closing():
            # The answer did not wait for the body; the rest of the body is read and dropped.
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_timeout, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._begun:
            self._refuse(408, f"headers must arrive within {self.limits.header_timeout:g} seconds")
        else:
            self.transport.close()

    def _turn_away(self) -> None:
        """Answers why and gives the client a moment to read it; if too many are reading already, closes at once."""
        # Refused connections do not count as open ones.
        self.connections.discard(self)
        self._refused = True
        if len(self.parting) >= MOST_PARTING:
            self.transport.abort()
            return
        self.parting.add(self)
        self._part(503, f"{self.limits.connections} connections are open already; come back in a second")

    def _refuse(self, status: int, text: str) -> None:
        """Answers and closes; if an earlier request is still being answered, only closes."""
        self._refused = True
        if self.cycle is None or self.cycle.response_complete:
            self._part(status, text)
        else:
            self.transport.close()

    def _part(self, status: int, text: str) -> None:
        """Answers and closes a moment later: closing at once, while bytes come in, would discard the answer."""
        self._say(status, text)
        self._stop_timer()
        self._timer = self.loop.call_later(PARTING_SECONDS, self.transport.close)

    def _say(self, status: int, text: str) -> None:
        body = json.dumps({"detail": text}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += "retry-after: 1\r\n" if status == 503 else ""
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)


def door(limits: Limits) -> Any:
    """The factory of a server's doors, which uvicorn takes instead of a protocol class."""
    return partial(Door, limits=limits, parting=set())
