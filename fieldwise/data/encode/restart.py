"""Whether a `prepare` that was killed may be gone on with: the same files, unchanged, and the same settings."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwise import __version__
from fieldwise.data.encode.encoder import Encoder

# What is left behind is only for those who would leave the same: raised with the layout of staged or encoded
# files, and with the draw of the parts.
FORMAT = 2


@dataclass(frozen=True)
class Inputs:
    """The files that rows come from, and how they are read where that is a choice."""

    files: Sequence[Path]
    reading: str = ""


def stamp_of(inputs: Inputs, settings: Sequence[object], known: Encoder | None) -> str:
    """Names, sizes and times of the files, and all that decides what becomes of their rows."""
    files: list[Any] = []
    for path in inputs.files:
        found = path.stat()
        files.append([str(path.absolute()), found.st_size, found.st_mtime_ns])
    said = [FORMAT, __version__, files, inputs.reading, [repr(setting) for setting in settings]]
    return json.dumps([*said, _digest(known) if known else ""])


def _digest(encoder: Encoder) -> str:
    """What tells one encoder from another: the files that it is saved in."""
    digest = hashlib.blake2b(digest_size=16)
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        for file in sorted(Path(folder).iterdir()):
            digest.update(file.read_bytes())
    return digest.hexdigest()
