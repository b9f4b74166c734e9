"""The page at `/`: its files, the chart library from its installed package, and the headers that keep both safe."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"
# The style sheet for maps that plotly 7 adds. The browser refuses another version's, which charts do not need.
MAPS = "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
# Scripts and requests only from and to this server. Plotly sets inline styles and draws heat maps as images.
POLICY = (
    f"default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' {MAPS}; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# The browser asks each time and gets 304 while the file is unchanged.
OWN = SAFE | {"Cache-Control": "no-cache"}
LIBRARY = SAFE | {"Cache-Control": "public, max-age=86400", "Vary": "Accept-Encoding"}


class PageFiles(StaticFiles):
    """The page's own files, with its headers."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(OWN)
        return response


@dataclass(frozen=True)
class Library:
    """The chart library as it is sent: plain, or compressed to a third."""

    plain: bytes
    compressed: bytes
    tag: str


@cache
def library() -> Library:
    """The file of plotly.js inside the Python package, without importing that package."""
    found = find_spec("plotly")
    assert found is not None
    assert found.origin is not None
    plain = (Path(found.origin).parent / "package_data" / "plotly.min.js").read_bytes()
    return Library(plain, gzip.compress(plain, 6, mtime=0), f'"{hashlib.sha256(plain).hexdigest()[:16]}"')


def plotly(request: Request) -> Response:
    """The chart library; a browser keeps it for a day."""
    file = library()
    headers = LIBRARY | {"ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    kind = "text/javascript"
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=kind)
    return Response(file.plain, headers=headers, media_type=kind)


def mount(api: FastAPI) -> None:
    """Adds the page to an application."""
    files = PageFiles(directory=STATIC)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    api.add_api_route("/", index, include_in_schema=False)
    api.add_api_route("/static/plotly.min.js", plotly, include_in_schema=False)
    api.mount("/static", files, "static")
