"""The journal of a model that is followed: a line for each step that is done, and what all lines together say.

Nothing else says how far the work is: a step leaves its files whole first and its line then, so a step without a line
is done again, with the same outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fieldwise.config.documents import add_to_journal, read_journal

FILE = "journal.jsonl"
Entry = dict[str, Any]


@dataclass(frozen=True)
class Taken:
    """A file that was taken in: its rows are number `first` and up of all rows that ever were."""

    file: str
    number: int
    size: int
    modified: int
    digest: str
    rows: int
    first: int
    content: str  # the digest of what it held, unpacked

    @property
    def end(self) -> int:
        return self.first + self.rows


@dataclass(frozen=True)
class Version:
    """A bundle that is, was or will be served.

    `run` holds its weights, which have learnt the rows before `learnt`; its history has seen those before `seen`.
    `learns` says whether its weights can go on with new rows.
    """

    number: int
    run: int
    learnt: int
    seen: int
    id: str
    learns: bool


@dataclass
class State:
    """What the lines of a journal say."""

    files: dict[str, Taken] = field(default_factory=dict)
    # Files that cannot be used, as they were then: size and time.
    refused: dict[str, tuple[int, int]] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    current: int = -1
    target: int = -1  # the version that shall be served
    rounds: int = 0  # begun so far; a bundle from outside has a number too
    open: dict[str, Entry] = field(default_factory=dict)  # the steps of the round that goes on
    judged: int = 0  # rows that were there when the last round began
    rejected: int = 0  # in a row
    failed: int = 0  # in a row
    until: float | None = None  # the moment of the last row
    after: str = ""
    waits: str = ""
    told: dict[str, int] = field(default_factory=dict)  # the version that a server has answered for
    silent: dict[str, str] = field(default_factory=dict)  # why a server has not

    @property
    def rows(self) -> int:
        return max((taken.end for taken in self.files.values()), default=0)

    @property
    def version(self) -> Version:
        return self.versions[self.current]

    def hear(self, entry: Entry) -> None:
        """Takes a line in."""
        step = entry["step"]
        heard: Callable[[Entry], None] | None = getattr(self, f"_{step.replace(' ', '_')}", None)
        if heard is not None:
            heard(entry)
        if "round" in entry and step != "done":
            self.open[step] = entry
        if step not in ("waits", "told", "not told"):
            self.waits = ""

    def _adopted(self, entry: Entry) -> None:
        self._published(entry)
        self.rounds, self.current = entry["version"], entry["version"]
        self.judged, self.rejected, self.failed = entry["seen"], 0, 0
        self.after = entry.get("after", self.after)

    def _taken(self, entry: Entry) -> None:
        own = {name: entry[name] for name in ("file", "number", "size", "modified", "digest", "rows")}
        self.files[entry["file"]] = Taken(**own, first=self.rows, content=str(entry.get("content", entry["digest"])))
        self.refused.pop(entry["file"], None)
        self.until = entry.get("until", self.until)

    def _refused(self, entry: Entry) -> None:
        self.refused[entry["file"]] = (entry["size"], entry["modified"])

    def _waits(self, entry: Entry) -> None:
        self.waits = entry["why"]

    def _began(self, entry: Entry) -> None:
        self.rounds, self.judged = entry["round"], entry["end"]

    def _published(self, entry: Entry) -> None:
        number = entry["version"]
        own = {name: entry[name] for name in ("run", "learnt", "seen", "id", "learns")}
        self.versions[number] = Version(number, **own)
        self.target = number

    def _going_back(self, entry: Entry) -> None:
        self.target = entry["version"]
        self.rejected = 0

    def _swapped(self, entry: Entry) -> None:
        self.current = self.target = entry["version"]
        self.silent = {}

    def _told(self, entry: Entry) -> None:
        self.told[entry["server"]] = entry["version"]
        self.silent.pop(entry["server"], None)

    def _not_told(self, entry: Entry) -> None:
        self.silent[entry["server"]] = entry["why"]

    def _done(self, entry: Entry) -> None:
        self.open = {}
        self.rejected = {"rejected": self.rejected + 1, "swapped": 0}.get(entry["decision"], self.rejected)
        self.failed = self.failed + 1 if entry["decision"] == "failed" else 0


class Journal:
    """The journal in a folder; `state` is what it says so far. Who only looks does not repair it: it is not `mine`."""

    def __init__(self, folder: Path, mine: bool = True) -> None:
        self.path, self.state = folder / FILE, State()
        self.entries = read_journal(self.path, mine)
        for entry in self.entries:
            self.state.hear(entry)

    def write(self, step: str, **facts: Any) -> Entry:
        """Adds a line, which is on the disk when this returns."""
        known = {"step": step, **facts, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        entry: Entry = json.loads(json.dumps(known, allow_nan=False))  # as it will be read
        add_to_journal(self.path, entry)
        self.entries.append(entry)
        self.state.hear(entry)
        return entry
