"""Rows that cannot be used: the first one stops the work, or they are skipped and counted, never silently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# How many places a reason is shown with, and how many reasons a file; all are counted.
SHOWN, REASONS = 5, 5


@dataclass
class Skipped:
    """The skipped rows of one file: how many for each reason, and the first few of their places."""

    rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, place: str, reason: str) -> None:
        self.rows += 1
        if reason not in self.counts and len(self.counts) >= REASONS:
            reason = "other reasons"
        self.counts[reason] = self.counts.get(reason, 0) + 1
        shown = self.places.setdefault(reason, [])
        if len(shown) < SHOWN:
            shown.append(place)


class BadRows:
    """What is skipped while files are read; without `skip` nothing is, and the reader stops at the first.

    A file may be read twice, to count and to take its rows, so each reading of it starts anew.

    >>> bad = BadRows(skip=True)
    >>> bad.add(Path("a.csv"), "line 3", "expected 2 columns, found 1")
    >>> bad.notes()
    ['skipped 1 row of a.csv: expected 2 columns, found 1 (line 3)']
    """

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.found: dict[Path, Skipped] = {}

    def start(self, path: Path) -> None:
        self.found.pop(path, None)

    def add(self, path: Path, place: str, reason: str) -> None:
        self.found.setdefault(path, Skipped()).add(place, reason)

    def taken(self, path: Path, skipped: dict[str, Any]) -> None:
        """What somebody else skipped of a file, as `dataclasses.asdict` has it."""
        self.found[path] = Skipped(**skipped)

    def notes(self) -> list[str]:
        """One line for each file with skipped rows."""
        return [f"skipped {_rows(one.rows)} of {path}: {'; '.join(_told(one))}" for path, one in self.found.items()]

    def facts(self) -> list[dict[str, Any]]:
        """The same for programs."""
        return [
            {
                "file": str(path),
                "rows": one.rows,
                "reasons": [
                    {"reason": reason, "rows": count, "first": one.places[reason]}
                    for reason, count in one.counts.items()
                ],
            }
            for path, one in self.found.items()
        ]


def _rows(count: int) -> str:
    return f"{count:,} row{'s' if count > 1 else ''}"


def _told(one: Skipped) -> Iterator[str]:
    for reason, count in one.counts.items():
        where = ", ".join(one.places[reason]) + (" ..." if count > len(one.places[reason]) else "")
        yield f"{reason} ({where})" if len(one.counts) == 1 else f"{reason} ({_rows(count)}: {where})"
