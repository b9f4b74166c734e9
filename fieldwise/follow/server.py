"""Tells a running server that its bundle was replaced."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from fieldwise.config.errors import FieldwiseError

# A server that exports a large network first answers after minutes.
SECONDS = 960.0


def reload(server: str, token: str, wanted: str) -> dict[str, Any]:
    """Makes a server load its bundles again; returns its answer, in which one of its models has the id `wanted`."""
    address = f"{server.rstrip('/')}/reload"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    # A proxy would be asked for an address that only this network knows.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(address, data=b"", headers=headers, method="POST")
        with opener.open(request, timeout=SECONDS) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise FieldwiseError(f"the server answers {error.code}: {_detail(error)} ({address})") from None
    except (OSError, ValueError, HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", None) or error).split())
        raise FieldwiseError(f"the server does not answer: {reason} ({address})") from None
    models = found.get("models") if isinstance(found, dict) else None
    if not isinstance(models, dict):
        raise FieldwiseError(f"expected the answer of `fieldwise serve`, found {str(found)[:100]} ({address})")
    if wanted not in models.values():
        served = ", ".join(f"{name} {model}" for name, model in models.items()) or "nothing"
        rule = f"the server was asked to serve {wanted}, found {served}"
        raise FieldwiseError(f"{rule}; start it with the path that is followed ({address})")
    return dict(found)


def _detail(error: urllib.error.HTTPError) -> str:
    """What a refusal says of itself, in one line."""
    try:
        found = json.loads(error.read()).get("detail", "")
    except (OSError, ValueError, AttributeError, HTTPException):
        found = ""
    return " ".join(str(found or error.reason).split())[:300]
