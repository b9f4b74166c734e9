"""libsvm and libffm lines -> chunks of text columns, a column for each field."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa

from fieldwise.config.errors import DataError
from fieldwise.data.read import streams
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.delimited import text_table

FORMS = {"libsvm": "feature:value", "libffm": "field:feature:value"}
KINDS = tuple(FORMS)


def _lines(path: Path) -> Iterator[tuple[int, str, list[list[str]]]]:
    """Line number, label and the colon-separated entries of libsvm and libffm lines."""
    try:
        with streams.open_text(path) as file:
            for number, line in enumerate(file, 1):
                words = line.split()
                if words:
                    # Rows to predict may come without a label: what has a colon is an entry.
                    label = "" if ":" in words[0] else words.pop(0)
                    yield number, label, [entry.split(":") for entry in words]
    except streams.UNREADABLE as error:
        raise streams.unreadable(path, error) from None


def fields_of(path: Path, kind: str, bad: BadRows | None = None) -> dict[str, bool]:
    """The fields of a libsvm or libffm file, and whether each is a number.

    libffm names its fields; a libsvm line has one category for each field, in order. A field with a single
    feature and a value other than 1 is a number; the others are categories, whose value is 1, or, in libsvm files
    whose rows were scaled to unit length, the same for all of a line.
    """
    features: dict[str, set[str]] = {}
    numbers: set[str] = set()
    width, first, mixed = None, "", ""
    scaled = kind == "libsvm"
    for number, label, entries in _lines(path):
        width, first = (len(entries), f"'{label[:40]}' ({path}, line {number})") if width is None else (width, first)
        fault = _fault(kind, entries, width)
        if fault and bad is not None and bad.skip:
            continue
        if fault:
            raise DataError(f"{fault} ({path}, line {number})")
        scaled = scaled and len({entry[-1] for entry in entries}) == 1 < len(entries)
        for place, entry in enumerate(entries):
            field = entry[0] if kind == "libffm" else str(place)
            some = features.setdefault(field, set())
            if len(some) < 2:
                some.add(entry[-2])
            if not _is_one(entry[-1]):
                numbers.add(field)
            if len(some) > 1 and field in numbers:
                way_out = "a category has value 1, a number has one feature"
                mixed = mixed or f"{way_out}, found '{':'.join(entry)}' ({path}, line {number})"
    if not features:
        form = f"expected {FORMS[kind]} after the label, found only {first}"
        raise DataError(form if first else f"the file is empty ({path})")
    if mixed and not scaled:
        raise DataError(mixed)
    numbers = set() if scaled else numbers
    order = sorted(features, key=lambda text: (len(text), text))
    return {field: field in numbers for field in order}


def _fault(kind: str, entries: list[list[str]], width: int) -> str:
    """What is wrong with a line, or nothing."""
    if kind == "libsvm" and len(entries) != width:
        way_out = "libffm, where entries name their field, takes lines of any length"
        return f"expected {width} features, one for each field, found {len(entries)}; {way_out}"
    for entry in entries:
        if len(entry) != (3 if kind == "libffm" else 2):
            return f"expected {FORMS[kind]}, found '{':'.join(entry)}'"
    return ""


def read(path: Path, kind: str, columns: list[str], numbers: Collection[str], bad: BadRows) -> Iterator[pa.Table]:
    """Chunks of columns `label`, `f0`, `f1` ...; several features of one field stand in a cell as a|b."""
    is_number = {field: f"f{field}" in numbers for field in fields_of(path, kind, bad)}
    names = ["label", *(f"f{field}" for field in is_number)]
    names += [name for name in columns if name not in names]
    positions = {field: position for position, field in enumerate(is_number, 1)}
    rows: list[list[str | None]] = []
    width = None
    for number, label, entries in _lines(path):
        width = len(entries) if width is None else width
        fault = _fault(kind, entries, width)
        if fault:
            bad.add(path, f"line {number}", fault)
            continue
        row: list[str | None] = [_binary(label), *[None] * (len(names) - 1)]
        for place, entry in enumerate(entries):
            field = entry[0] if kind == "libffm" else str(place)
            cell = entry[-1] if is_number[field] else entry[-2]
            before = row[positions[field]]
            row[positions[field]] = cell if before is None else f"{before}|{cell}"
        rows.append(row)
        if len(rows) == streams.chunk_rows(len(names)):
            yield text_table(names, rows).select(columns)
            rows = []
    if rows:
        yield text_table(names, rows).select(columns)


def _binary(label: str) -> str | None:
    """libsvm writes the negative class as -1 or 0."""
    return {"-1": "0", "+1": "1", "1.0": "1", "0.0": "0", "-1.0": "0"}.get(label, label) or None


def _is_one(text: str) -> bool:
    try:
        return float(text) == 1.0
    except ValueError:
        return False
