"""The connection before there is a request: how many there may be, how large its headers are, how long they take.

All of it comes before any token is looked at, so that a stranger can hold neither memory nor file handles. Once the
headers are there the guard sees to the body; what is left of a body after the answer has as long as headers have.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fieldwise.serving.application import Limits

# Who is refused for the number of connections has so long to read it, where not too many read at the same time.
PARTING_SECONDS = 1.0
MOST_PARTING = 64


class Door(HttpToolsProtocol):
    """uvicorn's protocol with limits. `parting` are the connections of all doors that were refused and may read so."""

    def __init__(self, *given: Any, limits: Limits, parting: set[Door], **named: Any) -> None:
        super().__init__(*given, **named)
        self.limits, self.parting = limits, parting
        # Whether the next bytes are those of a request's headers, how many of them may still come, and whether the
        # first have; how many requests have come as a whole.
        self._in_head, self._left, self._begun, self._whole = True, limits.max_headers, False, 0
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
        """At most as many bytes as headers may have."""
        if self._refused:
            # Who was turned away has sent its request and so can read; of others the rest is thrown away.
            if self in self.parting:
                self.transport.close()
            return
        if self.transport.is_closing():
            return
        rest, before = b"", self._whole
        if self._in_head and len(piece) > self._left:
            piece, rest = piece[: self._left], piece[self._left :]
        super().data_received(piece)
        if self._in_head and self._whole == before:
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
        self._whole += 1
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head and self._timer is None and not self.transport.is_closing():
            # The answer did not wait for the body; the rest of it is read and thrown away.
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
        """Says why, and leaves the client a moment to read it; where too many have one already, there is none."""
        # Those who are being turned away are no connections that others must wait for.
        self.connections.discard(self)
        self._refused = True
        if len(self.parting) >= MOST_PARTING:
            self.transport.abort()
            return
        self.parting.add(self)
        self._part(503, f"{self.limits.connections} connections are open already; come back in a second")

    def _refuse(self, status: int, text: str) -> None:
        """Answers and closes; where an earlier request is still being answered it only closes."""
        self._refused = True
        if self.cycle is None or self.cycle.response_complete:
            self._part(status, text)
        else:
            self.transport.close()

    def _part(self, status: int, text: str) -> None:
        """The last words. A socket that is closed while bytes come in would take them back: there is a moment more."""
        self._say(status, text)
        self._stop_timer()
        self._timer = self.loop.call_later(PARTING_SECONDS, self.transport.close)

    def _say(self, status: int, text: str) -> None:
        body = json.dumps({"detail": text}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += "retry-after: 1\r\n" if status == 503 else ""
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)


def door(limits: Limits) -> Any:
    """What makes the doors of one server, in place of a protocol's class."""
    return partial(Door, limits=limits, parting=set())
