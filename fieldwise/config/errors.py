"""Errors for a user's mistakes: one line with the rule, the value found, where, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

# The types of settings, in words.
TYPES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    (int, float): "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
}


class FieldwiseError(Exception):
    """A mistake that the user can correct; the command line prints its one line and exits with 2."""


class DataError(FieldwiseError):
    """A file or a table does not match its schema."""


class ArgumentError(DataError, ValueError):
    """Rows or labels that a Python program passed are no such; a ValueError too, as scikit-learn expects."""


class OddCell(DataError):
    """A cell of `column` has a `text` that the column may not have; `place` says where, as far as known."""

    def __init__(self, problem: str, place: str, column: str, text: str | None, way_out: str = "") -> None:
        super().__init__(f"{problem} ({place})" + (f"; {way_out}" if way_out else ""))
        self.problem, self.column, self.text, self.way_out = problem, column, text, way_out

    def __reduce__(self) -> tuple[Any, ...]:
        # As it was: an exception is sent to another process by what it was made of.
        return _odd_cell, (str(self), self.problem, self.column, self.text, self.way_out)

    def at(self, place: str) -> OddCell:
        """The same error with a better place."""
        return OddCell(self.problem, place, self.column, self.text, self.way_out)


def _odd_cell(said: str, problem: str, column: str, text: str | None, way_out: str) -> OddCell:
    """The error that said so."""
    found = OddCell(problem, "", column, text, way_out)
    found.args = (said,)
    return found


class ConfigError(FieldwiseError):
    """A setting is unknown or out of range."""


class TooLarge(ConfigError):
    """A run with these settings does not fit into memory."""


class BundleError(FieldwiseError):
    """A folder is not a bundle, a run or a prepared data set, or is damaged."""


class TrainingError(FieldwiseError):
    """Training cannot go on: the loss is not a number, or a run is already there."""


class WorkerLost(Exception):
    """Another worker died or stalls, which is no user's mistake. This worker exits too; the launcher restarts all."""


def first_line(error: Exception) -> str:
    """An error of another library in one line: its type and the first line of its message.

    >>> first_line(ValueError("no such file\\nin 3 places"))
    'ValueError: no such file'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


# The most characters of a stranger's name that an error repeats.
SHOWN = 100


def shown(text: str) -> str:
    """A stranger's name, safe to print in an error: shortened, and without control characters.

    >>> shown("a\\nb"), len(shown("x" * 5000))
    ('a?b', 103)
    """
    cut = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The error line for an unknown name, with the nearest known one.

    >>> unknown("model", "pnn", ["lr", "ipnn"])
    "unknown model 'pnn'; did you mean 'ipnn'? available: ipnn, lr"
    """
    names, name = sorted(known), shown(name)
    return f"unknown {kind} '{name}';{nearest(name, names)} available: {', '.join(names)}"


def missing_column(name: str, known: Iterable[str], has: str = "the file has", what: str = "column") -> str:
    """The error line for a column that is not there, with the nearest one that is.

    >>> missing_column("titel", ["title", "price"])
    "column 'titel' is missing; did you mean 'title'? the file has: title, price"
    """
    names = list(known)
    return f"{what} '{shown(name)}' is missing;{nearest(name, names)} {has}: {', '.join(names)}"


def nearest(name: str, names: Sequence[str]) -> str:
    """A question about the name that is nearest to an unknown one, if one is near."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" did you mean '{near[0]}'?" if near else ""
