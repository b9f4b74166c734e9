"""Reads JSON and TOML files of a bundle, whose errors are one line; and journals, to which lines of JSON are added."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldwise.config.errors import BundleError, FieldwiseError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises BundleError if there is none."""
    return _read(path, json.loads)


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; raises BundleError if it is none."""
    return _read(path, tomllib.loads)


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        return parsed(path, parse)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BundleError(f"cannot read {path.name}: {reason.splitlines()[0][:200]} ({path.parent})") from None


def parsed(path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """The object in a file; raises ValueError if there is none, or if it is nested too deeply."""
    try:
        values = parse(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected an object, found a {type(values).__name__}")
    return values


def read_journal(path: Path, mine: bool = True) -> list[dict[str, Any]]:
    """The entries of a journal; a last line that a kill cut off is dropped, from the file too where it is `mine`."""
    if not path.exists():
        return []
    found = path.read_bytes()
    whole = found[: found.rfind(b"\n") + 1]
    if mine and len(whole) < len(found):
        os.truncate(path, len(whole))
    entries = []
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            raise FieldwiseError(f"the journal is damaged: line {number} is no JSON ({path})") from None
    return entries


def add_to_journal(path: Path, entry: dict[str, Any]) -> None:
    """Adds a line that is on the disk when this returns; where the disk is full the journal stays as it was."""
    line = json.dumps(entry).encode() + b"\n"
    with path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except OSError:
            os.truncate(path, size)
            raise


def number(values: dict[str, Any], name: str) -> float:
    """A finite number of an object; raises ValueError if it is none.

    >>> number({"slope": 2}, "slope")
    2.0
    """
    return _finite(values[name], name)


def numbers(values: dict[str, Any], name: str) -> list[float]:
    """A list of finite numbers of an object; raises ValueError if it is none."""
    if not isinstance(values[name], (list, tuple)):
        raise ValueError(f"{name} must be a list, found a {type(values[name]).__name__}")
    return [_finite(value, name) for value in values[name]]


def _finite(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise ValueError(f"{name} must hold finite numbers, found {str(value)[:40]!r}")
    return float(value)
