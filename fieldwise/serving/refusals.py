"""Errors -> an HTTP status and one line of JSON."""

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
# The longest line of an error: "unknown field" lists all known ones.
LONGEST = 4000
# Errors of the client or of its request; any other is a fault of this server.
KINDS: tuple[type[Exception], ...] = (*STATUSES, LateError, ValidationError, RequestValidationError, HTTPException)


def refuse(error: Exception) -> Response:
    """The answer to one of KINDS."""
    if isinstance(error, ValidationError):
        return _refused(*_first_error(error.errors(include_input=False, include_url=False)[0]))
    if isinstance(error, RequestValidationError):
        return _refused(*_first_error(error.errors()[0]))
    if isinstance(error, HTTPException):
        return _refused(error.status_code, error.detail, error.headers)
    if isinstance(error, LateError):
        return _refused(504 if error.begun else 503, str(error))
    return _refused(next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), str(error))


def one_line(text: str) -> str:
    """The text on one line, cut to the longest: a library's message may repeat the whole request."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= LONGEST else line[:LONGEST] + "..."


def _first_error(first: Any) -> tuple[int, str]:
    """The first error in a body, without the body."""
    where = shown(".".join(str(part) for part in first["loc"]))
    return 400 if first["type"] == "json_invalid" else 422, f"{first['msg']} ({where})"


def _refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    more = dict(headers or {})
    if status in (429, 503):
        more["Retry-After"] = "1"
    detail = one_line(text).encode("utf-8", "replace").decode()
    return Response(orjson.dumps({"detail": detail}), status, more, "application/json")
