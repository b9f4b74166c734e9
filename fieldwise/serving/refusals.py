"""What goes wrong -> a status and one line of JSON, the same on every way to an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fieldwise.abtest.event_log import BusyError, UnknownRequestError
from fieldwise.config.errors import BundleError, ConfigError, DataError, FieldwiseError, shown
from fieldwise.serving.gate import FullError, LateError

STATUSES: dict[type[Exception], int] = {
    UnknownRequestError: 404,
    FullError: 429,
    BusyError: 503,
    DataError: 422,
    ConfigError: 422,
    BundleError: 409,
    FieldwiseError: 409,
}
# How long a line may be: that of an unknown field names all known ones.
LONGEST = 4000
# All that is a refusal; anything else is a fault of this server.
KINDS: tuple[type[Exception], ...] = (*STATUSES, LateError, ValidationError, RequestValidationError, HTTPException)


def refuse(error: Exception) -> Response:
    """The answer to one of KINDS."""
    if isinstance(error, ValidationError):
        return _refused(*_form(error.errors(include_input=False, include_url=False)[0]))
    if isinstance(error, RequestValidationError):
        return _refused(*_form(error.errors()[0]))
    if isinstance(error, HTTPException):
        return _refused(error.status_code, error.detail, error.headers)
    if isinstance(error, LateError):
        return _refused(504 if error.begun else 503, str(error))
    return _refused(next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), str(error))


def one_line(text: str) -> str:
    """A refusal repeats little of what a client sent, whichever library wrote it."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= LONGEST else line[:LONGEST] + "..."


def _form(first: Any) -> tuple[int, str]:
    """The first thing that is wrong with a body, without repeating the body."""
    where = shown(".".join(str(part) for part in first["loc"]))
    return 400 if first["type"] == "json_invalid" else 422, f"{first['msg']} ({where})"


def _refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    more = dict(headers or {})
    if status in (429, 503):
        more["Retry-After"] = "1"
    detail = one_line(text).encode("utf-8", "replace").decode()
    return Response(orjson.dumps({"detail": detail}), status, more, "application/json")
