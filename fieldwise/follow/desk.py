"""What all parts of following share: what is wanted, the journal, and the encoders of the version in service."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwise.bundle import bundle
from fieldwise.bundle.members import Blend
from fieldwise.config.errors import ConfigError
from fieldwise.config.interrupts import check
from fieldwise.config.settings import load_config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.split import Split
from fieldwise.follow import versions
from fieldwise.follow.journal import FILE, Entry, Journal, State


@dataclass(frozen=True)
class Wanted:
    """What is followed, and how. `split` are the shares of rows to train on, to stop by and to judge by."""

    logs: Path
    bundle: Path
    work: Path
    split: tuple[float, float, float] = (0.7, 0.15, 0.15)
    margin: float = 0.0
    min_rows: int = 1000
    min_age: float = 60.0
    files: int = 0
    keep: int = 5
    settings: tuple[str, ...] = ()
    device: str = ""
    skip_bad_rows: bool = False
    servers: tuple[str, ...] = ()
    token: str = ""
    onnx: bool = False
    after: str = ""

    def __post_init__(self) -> None:
        Split(self.split)
        load_config(overrides=self.settings)
        if not min(self.split) > 0:
            found = ",".join(f"{share:g}" for share in self.split)
            raise ConfigError(f"--split needs rows to train on, to stop by and to judge by, found {found}")
        for name, least in (("margin", 0), ("min_rows", 1), ("min_age", 0), ("files", 0), ("keep", 1)):
            if not least <= getattr(self, name) < math.inf:
                found = f"found {getattr(self, name):g}"
                raise ConfigError(f"--{name.replace('_', '-')} takes {least} or more, {found}")


class Desk:
    """The work folder with its journal; `tell` hears of each line."""

    def __init__(self, wanted: Wanted, tell: Callable[[Entry], None] = lambda entry: None) -> None:
        self.wanted, self.tell, self.work = wanted, tell, wanted.work
        self.work.mkdir(parents=True, exist_ok=True)
        refuse_foreign(self.work)
        self.journal = Journal(self.work)
        # The encoders of a version, which are read once.
        self._known: tuple[int, list[Encoder]] = (-1, [])

    def claim(self) -> None:
        """Makes the folder one of ours, before anything else is written into it."""
        self.journal.path.touch()

    @property
    def state(self) -> State:
        return self.journal.state

    def write(self, step: str, **facts: Any) -> None:
        """Adds a line to the journal, but none after a signal: that may have made the error it would tell of."""
        check()
        self.tell(self.journal.write(step, **facts))

    def end(self, decision: str, why: str) -> None:
        """Ends the round that goes on."""
        self.write("done", round=self.state.open["began"]["round"], decision=decision, why=why)

    @property
    def encoders(self) -> list[Encoder]:
        """The encoders of the bundle in service, without its models; nobody changes them."""
        current = self.state.current
        if self._known[0] != current:
            folder = versions.bundle_of(self.work, current)
            members = bundle.member_folders(folder) if (folder / Blend.file).is_file() else [folder]
            self._known = current, [bundle.load_encoder(member) for member in members]
        return self._known[1]

    @property
    def counts(self) -> bool:
        """Whether the bundle in service has a history."""
        return any(encoder.counts_rows for encoder in self.encoders)


def refuse_foreign(work: Path) -> None:
    """Refuses a folder of other things: what we do not know in a work folder is removed in time."""
    others = sorted(path.name for path in work.iterdir() if not path.name.startswith("."))
    if others and FILE not in others:
        rule = f"expected an empty folder to work in, or one with our {FILE}, found {', '.join(others[:3])}"
        raise ConfigError(f"{rule}; name another one (--work) ({work})")
