"""Checks before every request: origin, token, size of the body, time it takes to arrive; and its meters."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.responses import Response

from fieldwise.config.errors import ConfigError
from fieldwise.serving.meters import Meters
from fieldwise.serving.refusals import KINDS, refuse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# The answer to a POST: the type of its body as the client gives it, and the body.
Posted = Callable[[str, bytes], Awaitable[Response]]
# Paths that need no token: health, the page and the description of the interface.
OPEN = frozenset(("/", "/health", "/ready", "/docs", "/openapi.json", "/redoc"))
OPEN_FOLDERS = ("/static/", "/static-offline-docs/")
SHORTEST_TOKEN = 16
JSON = b"application/json"
# Methods that change nothing.
SAFE = frozenset(("GET", "HEAD"))
# A name or an address with a port or without, as in Host, and behind http:// in Origin.
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
OTHER_SITE = "pages of other sites may not send requests that change something"
LOOPBACK = "without --token-file the server answers only to 127.0.0.1, ::1 and localhost"


class Guard:
    """ASGI middleware that refuses bad requests. A POST to a path of `posted` goes straight to its handler, which saves
    the search for a route and the other middleware."""

    def __init__(
        self,
        app: Any,
        token: str,
        max_body: int,
        timeout: float,
        meters: Meters,
        posted: Mapping[str, Posted],
    ) -> None:
        self.app, self.max_body, self.timeout, self.meters, self.posted = app, max_body, timeout, meters, posted
        self.token = token.encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._handle(scope, receive, send_and_note)
        finally:
            self.meters.request(scope["path"], status, time.perf_counter() - began)

    async def _handle(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        refused = self._refuse_other_sites(scope["method"], scope["headers"], headers)
        refused = refused or self._refuse_without_token(scope["path"], headers)
        if refused:
            await answer(send, *refused)
            return
        try:
            async with asyncio.timeout(self.timeout):
                body = await self._body(headers, receive)
        except TimeoutError:
            await answer(send, 408, f"the body must arrive within {self.timeout:g} seconds")
            return
        if body is None:
            await answer(send, 413, f"a body has at most {self.max_body:,} bytes; send fewer rows at a time")
            return
        posted = self.posted.get(scope["path"]) if scope["method"] == "POST" else None
        if posted is None:
            await self.app(scope, _replay(body, receive), send)
            return
        try:
            found = await posted(headers.get(b"content-type", b"").decode("latin-1"), body)
        except KINDS as error:
            found = refuse(error)
        await found(scope, receive, send)

    def _refuse_other_sites(
        self, method: str, all_headers: list[tuple[bytes, bytes]], headers: dict[bytes, bytes]
    ) -> tuple[int, str] | None:
        """Refuses what a page of another site sends through a browser.

        Without a token only this machine may ask, by one of its own names. With a token, a page without an origin,
        such as a file, may not change anything."""
        if len(headers) < len(all_headers) and any(_repeated(all_headers, name) for name in (b"host", b"origin")):
            return 400, "a request has one Host and one Origin at most"
        if not self.token and not _is_own(headers.get(b"host", b"")):
            return 403, LOOPBACK
        if self.token and method in SAFE:
            return None
        origin = headers.get(b"origin")
        if origin is not None:
            host = origin_host(origin.decode("latin-1"))
            if not host or not (self.token or is_loopback(host)):
                return 403, OTHER_SITE if self.token else LOOPBACK
        if method not in SAFE and headers.get(b"sec-fetch-site") == b"cross-site":
            return 403, OTHER_SITE
        return None

    def _refuse_without_token(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """Refuses a request without the token, where one is needed."""
        if not self.token or path in OPEN or path.startswith(OPEN_FOLDERS):
            return None
        if hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self.token):
            return None
        return 401, "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`"

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The complete body; None if it is too large."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_body:
            return None
        pieces, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return b""
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
            if size > self.max_body:
                return None
        return b"".join(pieces)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was read, then the connection's next messages."""
    sent = False

    async def next_message() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


async def answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    """Sends a refusal as JSON."""
    body = json.dumps({"detail": text}).encode()
    more = [(b"content-type", JSON), (b"content-length", str(len(body)).encode()), *headers]
    if status == 401:
        more.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": more})
    await send({"type": "http.response.body", "body": body})


def _repeated(headers: list[tuple[bytes, bytes]], name: bytes) -> bool:
    return sum(own == name for own, _ in headers) > 1


@lru_cache(64)
def _is_own(host: bytes) -> bool:
    """Whether a Host header is a loopback name or address."""
    return is_loopback(_host(host.decode("latin-1")))


def _host(text: str) -> str:
    """The name in a Host header, without its port; empty if the header is malformed.

    >>> _host("localhost:8400"), _host("[::1]:80"), _host("[::1"), _host("a@b")
    ('localhost', '::1', '', '')
    """
    found = HOST.fullmatch(text)
    return (found[1] or found[2]) if found else ""


def origin_host(origin: str) -> str:
    """The host of an Origin header; empty if it has none, such as `null` and `file://`, or is malformed.

    >>> origin_host("http://localhost:8400"), origin_host("null"), origin_host("file://")
    ('localhost', '', '')
    """
    scheme, separator, host = origin.partition("://")
    return _host(host) if separator and scheme in ("http", "https") else ""


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None, host: str) -> str:
    """The token that requests must carry; it may be empty only if no other machine can reach the server."""
    if file is None:
        if not is_loopback(host):
            raise ConfigError(f"a server that others can reach needs --token-file FILE, found --host {host} without it")
        return ""
    token = file.read_text(encoding="utf-8").strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        rule = f"a token is one word of {SHORTEST_TOKEN} or more ASCII characters"
        raise ConfigError(f"{rule}, found {len(token)} characters; try `openssl rand -hex 32` ({file})")
    return token
