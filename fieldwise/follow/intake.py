"""The files of a folder of logs: which of them are new and written to their end, and their rows, checked.

A file is known by its name, size and digest. Its rows are kept, so it may be moved away once it was taken.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.bundle.bundle import digest_of
from fieldwise.config.errors import DataError, FieldwiseError, OddCell, missing_column
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.history.history import every_moment
from fieldwise.data.read import formats, streams
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.labels import read_labels, read_weights
from fieldwise.data.recipes.asked import Asked, plan_of
from fieldwise.follow import rows
from fieldwise.follow.journal import Taken

# How programs name what they are still writing.
UNFINISHED_NAMES = re.compile(r"[._].*|.*(~|\.(tmp|temp|part|partial|inprogress|filepart|crdownload|swp))")
BLOCK = 8 << 20


class Unfinished(Exception):
    """A file that is still being written; its next look may find it whole."""


class _NotInOrder(Exception):
    """Rows that are not in the order of their time."""


@dataclass(frozen=True)
class Reading:
    """How the rows of a file are read: by these encoders, and, where there is one, in the order of the `clock`.

    `until` is the last moment that came before; with `skip` rows that cannot be used are left out and counted.
    `contents` are the digests of what files held that were taken, and their names.
    """

    encoders: Sequence[Encoder]
    clock: str = ""
    until: float | None = None
    skip: bool = False
    contents: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The columns that are kept: what a model is trained from."""
        schemas = [encoder.schema for encoder in self.encoders]
        names = [name for own in schemas for name in (own.label, own.weight, *own.columns)]
        names += [name for own in schemas for name in own.history.columns_needed if own.history.keys]
        names += [name for encoder in self.encoders for past in encoder.pasts for name in past.settings.columns]
        return [name for name in dict.fromkeys(names) if name]


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key by which day-9 comes before day-10, and of day-09 and day-9 always the same one first.

    >>> sorted(["day-10.csv", "day-9.csv"], key=natural)
    ['day-9.csv', 'day-10.csv']
    """
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)], name


def listed(folder: Path, after: str) -> list[Path]:
    """The files of a folder in the order of their names, but for those up to `after` and unfinished ones by name."""
    if not folder.is_dir():
        raise DataError(f"expected a folder of logs, found {'a file' if folder.exists() else 'nothing'} ({folder})")
    files = [path for path in folder.iterdir() if path.is_file() and not UNFINISHED_NAMES.fullmatch(path.name)]
    late = [path for path in files if not after or natural(path.name)[0] > natural(after)[0]]
    return sorted(late, key=lambda path: natural(path.name))


def changed(folder: Path, files: Mapping[str, Taken]) -> Iterator[tuple[Path, str]]:
    """The files that are others than were taken by these names, with what to do about it."""
    for name, taken in files.items():
        path = folder / name
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        same = found.st_size == taken.size and (found.st_mtime_ns == taken.modified or digest_of(path) == taken.digest)
        if not same:
            was = f"it had {taken.size:,} bytes when it was taken, and has {found.st_size:,} others"
            way_out = "put it back as it was, or move it away (its rows are kept), and give new rows in a new file"
            yield path, f"a file that was taken must not change: {was}; {way_out} ({path})"


def unfinished(path: Path, least_age: float) -> str:
    """Why a file does not seem to be written to its end; empty where it does. Raises DataError for a damaged one."""
    age = time.time() - path.stat().st_mtime
    if least_age and age < least_age:
        ahead = f"its time is {-age:,.0f} seconds ahead of the clock here"
        return ahead if age < 0 else f"it was written less than {least_age:g} seconds ago (--min-age)"
    try:
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(max(0, path.stat().st_size - 4))
            last = file.read(4)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if start == b"PAR1":
        return "" if last == b"PAR1" and path.stat().st_size > 8 else "the end of the parquet file is not there yet"
    if not start:
        return ""
    packed = streams.packing(path)
    try:
        end = _last_byte(path) if packed else last[-1:]
    except EOFError:
        return f"the end of the {packed} file is not there yet"
    except (gzip.BadGzipFile, zlib.error, OSError) as error:
        raise streams.unreadable(path, error) from None
    return "" if end in (b"\n", b"\r", b"") else "its last line has no end; a file ends with a line break"


def _last_byte(path: Path) -> bytes:
    last = b""
    with streams.open_bytes(path) as file:
        while block := file.read(BLOCK):
            last = block[-1:]
    return last


def _digest_unpacked(path: Path) -> str:
    with streams.open_bytes(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take(path: Path, reading: Reading, target: Path) -> dict[str, Any]:
    """Keeps the rows of a file at `target`, and returns what the journal shall know of it.

    Raises DataError for a file that cannot be used, and Unfinished for one that was written to in the meantime.
    """
    before = path.stat()
    if not before.st_size:
        raise DataError("the file is empty")
    digest = digest_of(path)
    content = _digest_unpacked(path) if streams.packing(path) else digest
    if twin := reading.contents.get(content):
        raise DataError(f"it holds what {twin} held, whose rows were taken; they are not learnt twice")
    plan, files = plan_of(Asked(files=[path], known=reading.encoders[0], skip_bad_rows=reading.skip))
    source, found = plan.sources["train"], {"positives": 0}
    try:
        try:
            chunks = _in_time(_checked(source(), reading, path, found), reading, path, files.bad)
            count = rows.write(target, _noted(chunks, reading, found))
        except _NotInOrder:
            chunks = _in_time(_sorted(_checked(source(), reading, path, found), reading), reading, path, files.bad)
            count = rows.write(target, _noted(chunks, reading, found))
    except OddCell as odd:
        raise odd.at(files.locate(odd.column, odd.text)) from None
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Unfinished("it was written to while it was read")
    known = {"file": path.name, "size": before.st_size, "modified": before.st_mtime_ns}
    known |= {"digest": digest, "content": content}
    skipped = sum(one.rows for one in files.bad.found.values())
    return known | {"rows": count, **found, "skipped": skipped, "notes": files.bad.notes()}


def _checked(chunks: Iterator[pa.Table], reading: Reading, path: Path, found: dict[str, Any]) -> Iterator[pa.Table]:
    """The columns to keep of rows whose cells are all what the schema says."""
    passed, schema, wanted = 0, reading.encoders[0].schema, reading.columns
    for chunk in chunks:
        for name in wanted:
            if name not in chunk.column_names:
                raise DataError(f"{missing_column(name, chunk.column_names)} ({path})")
        read_labels(chunk[schema.label], schema.label, passed, str(path), schema.classes)
        if schema.weight:
            read_weights(chunk[schema.weight], schema.weight, passed, str(path))
        for encoder in reading.encoders:
            for code in encoder.codes:
                if code.field.column == code.field.name:
                    code.column_ids(chunk[code.field.column])
        passed += len(chunk)
        if len(chunk):
            yield chunk.select(wanted)


def _sorted(chunks: Iterable[pa.Table], reading: Reading) -> Iterator[pa.Table]:
    """All rows in the order of their time, in memory."""
    whole = pa.concat_tables(list(chunks))
    yield whole.take(np.argsort(every_moment(whole[reading.clock], reading.clock, 0), kind="stable"))


def _in_time(chunks: Iterable[pa.Table], reading: Reading, path: Path, bad: BadRows) -> Iterator[pa.Table]:
    """Rows that come no earlier than those of the files before; raises _NotInOrder where they must be sorted."""
    if not reading.clock:
        yield from chunks
        return
    last, passed = -np.inf, 0
    for chunk in chunks:
        times = every_moment(chunk[reading.clock], reading.clock, passed)
        if (np.diff(times, prepend=last) < 0).any():
            raise _NotInOrder
        last = times[-1]
        late = times < (-np.inf if reading.until is None else reading.until)
        for row in np.flatnonzero(late).tolist():
            found = f"it has come to {reading.until:g}, found {times[row]:g} in '{reading.clock}'"
            if not bad.skip:
                way_out = "leave out what the model has learnt (--after), or such rows (--on-bad-rows skip)"
                raise DataError(f"history runs forward: {found}; {way_out} ({path}, row {passed + row + 1})")
            bad.add(path, f"row {passed + row + 1}", f"history runs forward: it had come to {reading.until:g}")
        passed += len(chunk)
        if not late.all():
            yield chunk.filter(pa.array(~late)) if late.any() else chunk


def _noted(chunks: Iterable[pa.Table], reading: Reading, found: dict[str, Any]) -> Iterator[pa.Table]:
    """Counts the positive rows, and notes the last moment."""
    schema, found["positives"] = reading.encoders[0].schema, 0
    for chunk in chunks:
        found["positives"] += int(read_labels(chunk[schema.label], schema.label, 0, classes=schema.classes).sum())
        if reading.clock:
            found["until"] = float(every_moment(chunk[reading.clock], reading.clock, 0)[-1])
        yield chunk


def clock_of(encoders: Sequence[Encoder]) -> str:
    """The column that says when a row came, for histories and sequences; empty where none needs one."""
    names = [encoder.history.settings.clock for encoder in encoders if encoder.history is not None]
    names += [past.settings.clock for encoder in encoders for past in encoder.pasts]
    found = [name for name in dict.fromkeys(names) if name]
    if len(found) > 1:
        raise FieldwiseError(f"rows are followed in the order of one time column, found {', '.join(found)}")
    return found[0] if found else ""


def usable_name(path: Path, recipe: str) -> None:
    """Refuses a file whose ending no reader knows; a recipe knows its files by themselves."""
    if not recipe:
        formats.format_of(path)
