"""Raw rows -> a prepared folder: stage the parts, fit the encoder on training rows, encode all of them.

Rows pass in chunks. Staged parts are parquet files, so that the text is parsed once; DuckDB counts values
there, out of memory where it must.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from fieldwise.data.buckets import Histogram, fit_anchors, fit_thresholds
from fieldwise.data.dataset import PARTS, array_file, write_facts
from fieldwise.data.encoder import (
    Encoder,
    FieldCode,
    as_number,
    fit_vocabulary,
    grow,
    log_square,
)
from fieldwise.data.formats import is_list, quoted, text_of
from fieldwise.data.history import ROW_ORDER, History, column_hashes, mixed
from fieldwise.data.infer import SAMPLE_ROWS, infer_schema
from fieldwise.data.leaks import find_leak
from fieldwise.data.leaves import MOST_ROWS, Leaves
from fieldwise.data.propose import propose
from fieldwise.data.schema import Field, HistorySettings, Schema, check_names
from fieldwise.data.staged import LABEL, ROW, WEIGHT, staged_chunks
from fieldwise.data.texts import texts_of
from fieldwise.data.timeline import past_file, tell
from fieldwise.errors import ConfigError, DataError
from fieldwise.files import whole_folder

Rows = Callable[[], Iterator[pa.Table]]
Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Split:
    """Which part a row goes to: at random by `shares`, or in the order of a column `by` (`row`: file order).

    With `group`, rows that have the same values in these columns go to the same part.
    """

    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    by: str = ""
    seed: int = 0
    group: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (min(self.shares) >= 0 and abs(sum(self.shares) - 1) <= 1e-6 and self.shares[0] > 0):
            raise ConfigError(f"--split needs three shares that sum to 1, training first, found {self.shares}")
        if self.seed < 0:
            raise ConfigError(f"--seed must be 0 or more, found {self.seed}")
        if self.by and self.group:
            raise ConfigError("--split-by and --split-group exclude each other: by order, or by group at random")

    def divides(self, sources: Collection[str]) -> bool:
        """Whether training rows are split: none are given apart, or test rows are and `shares` leave them none."""
        return set(sources) == {"train"} or (set(sources) == {"train", "test"} and not self.shares[2])


def prepare(
    sources: Mapping[str, Rows],
    out: Path,
    label: str,
    schema: Schema | None = None,
    split: Split | None = None,
    weight: str = "",
    drop: Collection[str] = (),
    force: bool = False,
    progress: Progress = lambda step, rows: None,
    names: Mapping[str, str] | None = None,
    keep_negatives: float = 1.0,
    gbdt_leaves: int = 0,
    history: HistorySettings | None = None,
    known: Encoder | None = None,
    recipe: str = "",
) -> dict[str, Any]:
    """Writes the prepared folder `out` and returns its facts.

    `sources` holds rows for `train` and, where they are given apart, `valid` and `test`; without them the
    training rows are split. Without a schema all columns but those to `drop` may become fields. `names` say
    where the rows of a source come from, for errors. `keep_negatives` is the share of negatives that training
    rows keep, drawn by the split's seed; probabilities are corrected for it. `gbdt_leaves` trees add a field each,
    `history` those of what came before; without it the schema's own stands, and `auto` in it gives way to the keys that
    are proposed. With a `known` encoder its schema and
    ids stay, and its history goes on; the training rows only add ids behind the old ones. `recipe` is the name of how
    the raw files were read, for those that will read more of them.
    """
    schema = known.schema if known else schema
    split = split or Split()
    if not 0 < keep_negatives <= 1:
        raise ConfigError(f"--keep-negatives takes a share above 0 and at most 1, found {keep_negatives}")
    if (split.by or split.group) and not split.divides(sources):
        raise ConfigError("--split-by splits the training rows; leave it out where --valid or --test are given")
    history = history or (schema.history if schema else HistorySettings())
    if schema:
        schema = replace(schema, history=history)
    names = {source: f"the {source} rows" for source in sources} | dict(names or {})
    notes: list[str] = []
    with whole_folder(out, "data.json", force) as folder:
        stage = folder / "stage"
        stage.mkdir()
        columns = [*schema.columns, *history.group] if schema else None
        keep = partial(_kept, np.random.default_rng([split.seed, 1]), keep_negatives)
        rows, positives = _stage(
            sources, stage, label, weight, columns, history, drop, split, keep, progress, names, notes
        )
        if schema is None:
            schema, left_out = _infer(stage, label, weight, {split.by, history.time, *drop})
            schema = replace(schema, history=history)
            notes += left_out
        schema = replace(schema, label=label, weight=weight, gbdt_leaves=gbdt_leaves or schema.gbdt_leaves)
        schema = replace(schema, recipe=recipe or schema.recipe)
        encoder = fit_encoder(schema, stage / "train.parquet", progress, known)
        proposals = propose(encoder, stage / "train.parquet", history, progress) if history.proposals else []
        if history.proposals and not proposals:
            notes.append("history auto: no key adds to what the fields say by more than chance, so none is proposed")
        history = replace(history, keys=(*history.named, *(proposal.key for proposal in proposals)))
        encoder.schema = schema = replace(schema, history=history)
        (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
        if history.keys:
            encoder.history = copy.deepcopy(known.history) if known else History(history)
            tell(encoder, stage, rows, progress)
        rows.pop("dropped", 0)
        if schema.gbdt_leaves:
            encoder.leaves = known.leaves if known else _fit_leaves(encoder, stage / "train.parquet", rows["train"])
        check_names(encoder.names)
        encoder.save(folder / "encoder")
        digest = _encode_parts(encoder, stage, folder, rows, bool(weight), progress)
        held_out = next((part for part in ("valid", "test") if part in rows), "")
        leak = find_leak(stage, rows, held_out, schema.names) if held_out else None
        if leak:
            notes.append(leak.warning(held_out, held_out in sources, bool(history.keys) and not history.time))
        write_facts(folder, encoder.names, encoder.layout, rows, positives, keep_negatives, digest)
        shutil.rmtree(stage)
    kinds = [field.kind for field in schema.fields] + ["history"] * (len(history.keys) * len(history.parts))
    kinds += ["leaf"] * schema.gbdt_leaves
    fields = zip(encoder.names, kinds, encoder.layout.sizes, strict=True)
    return {
        "data": str(out),
        "rows": rows,
        "positive_rate": {part: positives[part] / rows[part] for part in rows},
        "negatives_kept": keep_negatives,
        "fields": {name: {"kind": kind, "size": size} for name, kind, size in fields},
        "new_ids": {} if known is None else _new_ids(encoder, known),
        "proposals": [asdict(proposal) for proposal in proposals],
        "leak": asdict(leak) if leak else None,
        "notes": notes,
    }


def _new_ids(encoder: Encoder, known: Encoder) -> dict[str, int]:
    """How many ids each field has that the known encoder does not."""
    return {
        code.field.name: code.size - old.size
        for code, old in zip(encoder.codes, known.codes, strict=True)
        if code.size > old.size
    }


def _stage(
    sources: Mapping[str, Rows],
    stage: Path,
    label: str,
    weight: str,
    columns: list[str] | None,
    history: HistorySettings,
    drop: Collection[str],
    split: Split,
    keep: Callable[[pa.Table], NDArray[np.bool_]],
    progress: Progress,
    names: Mapping[str, str],
    notes: list[str],
) -> tuple[dict[str, int], dict[str, int]]:
    """Writes the parts as parquet, label checked; returns their rows and positives."""
    assign = _assigner(sources, split, notes) if split.divides(sources) else None
    by_row = history.time == ROW_ORDER
    needed = [*history.columns, *history.group, *([history.time] if history.time and not by_row else ())]
    before = 0
    rows: dict[str, int] = dict.fromkeys((*PARTS, "dropped"), 0)
    positives = dict(rows)
    with ExitStack() as stack:
        writers: dict[str, parquet.ParquetWriter] = {}
        for source, read in sources.items():
            passed = 0
            for chunk in read():
                wanted = columns or [n for n in chunk.column_names if n not in (label, weight, *drop)]
                wanted = list(dict.fromkeys([*wanted, *needed]))
                staged = _labelled(chunk, label, weight, wanted, passed, names[source])
                parts = np.full(len(staged), PARTS.index(source))
                if assign is not None and source == "train":
                    parts = assign(chunk, passed)
                if by_row:
                    numbers = np.arange(before + passed, before + passed + len(staged))
                    staged = staged.append_column(ROW, pa.array(numbers))
                passed += len(staged)
                for part, own in _parted(staged, parts, keep):
                    if not len(own) or (part == "dropped" and not history.keys):
                        continue
                    if part not in writers:
                        writer = parquet.ParquetWriter(stage / f"{part}.parquet", own.schema, compression="snappy")
                        writers[part] = stack.enter_context(writer)
                    writers[part].write_table(_cast(own, writers[part].schema, names[source]))
                    rows[part] += len(own)
                    positives[part] += int(own[LABEL].to_numpy().sum())
                progress("reading", passed)
            before += passed
    if not rows["train"]:
        raise DataError(f"there are no training rows: the file has none, or the split leaves none ({names['train']})")
    if positives["train"] in (0, rows["train"]):
        only = 1 if positives["train"] else 0
        raise DataError(
            f"label '{label}' is always {only} in the {rows['train']} training rows; a model needs both 0 and 1 "
            f"({names['train']})"
        )
    return {p: n for p, n in rows.items() if n}, {p: positives[p] for p, n in rows.items() if n}


def _parted(
    staged: pa.Table, parts: NDArray[np.int64], keep: Callable[[pa.Table], NDArray[np.bool_]]
) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each part; training rows that are not kept are `dropped`: only a history counts them."""
    for number, part in enumerate(PARTS):
        own = staged if (parts == number).all() else staged.filter(pa.array(parts == number))
        if part != "train":
            yield part, own
            continue
        kept = keep(own)
        yield part, own if kept.all() else own.filter(pa.array(kept))
        yield "dropped", own.filter(pa.array(~kept))


def _kept(random: np.random.Generator, share: float, rows: pa.Table) -> NDArray[np.bool_]:
    """Which training rows stay: positives, and a share of the negatives. One stream, so that chunks do not matter."""
    if share == 1:
        return np.ones(len(rows), dtype=bool)
    return np.asarray((rows[LABEL].to_numpy() > 0) | (random.random(len(rows)) < share))


def _labelled(chunk: pa.Table, label: str, weight: str, names: list[str], passed: int, source: str) -> pa.Table:
    for name in (label, *([weight] if weight else ()), *names):
        if name not in chunk.column_names:
            known = ", ".join(chunk.column_names)
            raise DataError(f"column '{name}' is missing; there are: {known} ({source})")
    if not names:
        raise DataError(f"there is no column beside '{label}' to predict it from ({source})")
    for name in names:
        if name in (LABEL, WEIGHT, ROW):
            raise DataError(f"the name '{name}' is taken by fieldwise itself; rename that column ({source})")
    kept = pa.table([_plain(chunk[name]) for name in names], names=names)
    kept = kept.append_column(LABEL, pa.array(read_labels(chunk[label], label, passed, source)))
    if weight:
        kept = kept.append_column(WEIGHT, pa.array(read_weights(chunk[weight], weight, passed, source)))
    return kept


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as parquet and DuckDB hold it without a change: numbers, booleans, texts, lists; the rest as text."""
    kind = column.type
    if is_list(kind):
        cells = column.to_pylist()
        lists = [None if cell is None else [text_of(member) for member in cell] for cell in cells]
        return pa.chunked_array([lists], pa.list_(pa.string()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
        return column
    if pa.types.is_integer(kind):
        return column.cast(pa.int64()) if kind != pa.uint64() else column
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    texts, places = texts_of(column)
    return pa.chunked_array([pa.array(texts, pa.string()).take(pa.array(places))])


def _cast(rows: pa.Table, schema: pa.Schema, source: str) -> pa.Table:
    """Rows of a later chunk in the types of the first."""
    try:
        return rows.cast(schema)
    except pa.ArrowException:
        odd = next(one for one, other in zip(schema, rows.schema, strict=True) if one.type != other.type)
        other = rows.schema.field(odd.name).type
        raise DataError(
            f"column '{odd.name}' must have one type in all files, found {odd.type} and {other} ({source})"
        ) from None


def read_weights(column: pa.ChunkedArray, name: str, passed: int = 0, source: str = "the rows") -> NDArray[np.float32]:
    """Weights of 0 or more; anything else is refused with its row."""
    texts, places = texts_of(column)
    weights = np.array([_weight(text) for text in texts])[places]
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        found = texts[places[wrong[0]]]
        shown = "nothing" if found is None else repr(found[:40])
        raise DataError(
            f"weights must be numbers of 0 or more, found {shown} in '{name}' ({source}, row {passed + wrong[0] + 1})"
        )
    return weights.astype(np.float32)


def _weight(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def read_labels(
    column: pa.ChunkedArray, name: str = "label", passed: int = 0, source: str = "the rows"
) -> NDArray[np.uint8]:
    """0/1 of a label column, whatever its type; anything else is refused with its row."""
    texts, places = texts_of(column)
    codes = np.array([_label(text) for text in texts], dtype=np.int8)[places]
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        found = texts[places[row]]
        shown = "nothing" if found is None else repr(found[:40])
        raise DataError(f"label '{name}' must be 0 or 1, found {shown} ({source}, row {passed + row + 1})")
    return codes.astype(np.uint8)


def _label(text: str | None) -> int:
    return {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "False": 0, "True": 1}.get(text or "", -1)


def _assigner(
    sources: Mapping[str, Rows], split: Split, notes: list[str]
) -> Callable[[pa.Table, int], NDArray[np.int64]]:
    """A function from a chunk and the rows before it to the part number of each of its rows."""
    edges = np.cumsum(split.shares)[:2]
    if split.group:
        return partial(_by_group, split, edges)
    if not split.by:
        # One stream of random numbers over the whole file, so that chunks do not matter.
        random = np.random.default_rng(split.seed)
        return lambda chunk, passed: np.searchsorted(edges, random.random(len(chunk)), side="right")
    counts: dict[str, int] = {}
    total = 0
    for chunk in sources["train"]():
        if split.by in chunk.column_names:
            texts, places = texts_of(chunk[split.by])
            for place, n in enumerate(np.bincount(places, minlength=len(texts)).tolist()):
                if n:
                    counts[texts[place] or ""] = counts.get(texts[place] or "", 0) + n
        elif split.by != "row":
            known = ", ".join(chunk.column_names)
            raise DataError(
                f"--split-by column '{split.by}' is missing; the file has: {known} (or `row`, the file's order)"
            )
        total += len(chunk)
    if not counts:
        bounds = np.floor(edges * total + 1e-9)
        return lambda chunk, passed: np.searchsorted(bounds, np.arange(passed, passed + len(chunk)), side="right")
    part_of = _parts_by_value(counts, edges, split.by, notes)

    def by_value(chunk: pa.Table, passed: int) -> NDArray[np.int64]:
        texts, places = texts_of(chunk[split.by])
        return np.array([part_of.get(text or "", 0) for text in texts])[places]

    return by_value


def _by_group(split: Split, edges: NDArray[np.float64], chunk: pa.Table, passed: int) -> NDArray[np.int64]:
    """The part of each row by a hash of its group, so that no list of groups is kept."""
    for name in split.group:
        if name not in chunk.column_names:
            raise DataError(f"--split-group column '{name}' is missing; the file has: {', '.join(chunk.column_names)}")
    numbers = mixed([column_hashes(chunk[name]) for name in split.group], split.seed)
    return np.searchsorted(edges, numbers / 2.0**64, side="right")


def _parts_by_value(counts: dict[str, int], edges: NDArray[np.float64], by: str, notes: list[str]) -> dict[str, int]:
    """Values named after the parts name them; others are put in order and cut where the shares say."""
    if set(counts) <= set(PARTS):
        return {value: PARTS.index(value) for value in counts}
    try:
        ordered = sorted(counts, key=lambda value: float(value or "-inf"))
    except ValueError:
        ordered = sorted(counts)
        notes.append(
            f"--split-by {by}: put in order as text, from '{ordered[0]}' to '{ordered[-1]}'; is that time's order?"
        )
    before = np.cumsum([0, *(counts[value] for value in ordered)])[:-1] / sum(counts.values())
    return dict(zip(ordered, np.searchsorted(edges, before + 1e-9, side="right").tolist(), strict=True))


def _infer(stage: Path, label: str, weight: str, no_fields: Collection[str]) -> tuple[Schema, list[str]]:
    chunks, taken = [], 0
    for batch in parquet.ParquetFile(stage / "train.parquet").iter_batches(50_000):
        chunks.append(pa.Table.from_batches([batch]))
        taken += batch.num_rows
        if taken >= SAMPLE_ROWS:
            break
    sample = pa.concat_tables(chunks)
    labels = sample[LABEL].to_numpy().astype(np.float32)
    fields = [name for name in sample.column_names if name not in (LABEL, WEIGHT, ROW, *no_fields)]
    schema, notes = infer_schema(sample.select(fields), labels, label, weight)
    for name in sorted(set(sample.column_names) & set(no_fields)):
        notes.append(f"column '{name}' is no field: other parts hold values of it that training never sees")
    return schema, notes


def fit_encoder(
    schema: Schema, staged: Path, progress: Progress = lambda step, rows: None, known: Encoder | None = None
) -> Encoder:
    """Vocabularies and thresholds from the staged training rows, or a known encoder's with what they add to it."""
    import duckdb

    codes = []
    names = parquet.read_schema(staged).names
    # Numbered columns, because DuckDB takes names that differ in case alone for one.
    numbered = ", ".join(f"c{number}" for number in range(len(names)))
    source = f"read_parquet({quoted(str(staged))}) AS staged({numbered})"
    label = f"c{names.index(LABEL)}"
    with duckdb.connect(config={"threads": 2, "memory_limit": "1GB", "temp_directory": str(staged.parent)}) as base:
        for number, field in enumerate(schema.fields, 1):
            column = f"c{names.index(field.name)}"
            old = known.codes[number - 1] if known else None
            codes.append(_grown(old, base, source, column) if old else _fit(field, base, source, column, label))
            progress("fitting", number)
    return Encoder(schema, codes)


def _fit_leaves(encoder: Encoder, staged: Path, rows: int) -> Leaves:
    """Trees over the encoded training rows, or over evenly spaced ones where there are very many."""
    every = -(-rows // MOST_ROWS)
    ids, labels, weights = [], [], []
    for chunk, past in _with_past(encoder, staged):
        chunk = chunk.take(pa.array(np.arange(0, len(chunk), every)))
        ids.append(encoder.transform(chunk, None if past is None else past[::every]))
        labels.append(chunk[LABEL].to_numpy())
        if encoder.schema.weight:
            weights.append(chunk[WEIGHT].to_numpy())
    weighted = np.concatenate(weights) if weights else None
    trees, depth = encoder.schema.gbdt_leaves, encoder.schema.gbdt_depth
    return Leaves.fit(encoder.layout, np.concatenate(ids), np.concatenate(labels), weighted, trees, depth)


def _check_numbers(field: Field, base: Any, source: str, column: str) -> None:
    """A training text that is no number is a mistake in the schema; later ones are the field's `other`."""
    query = (
        f"SELECT DISTINCT {column} FROM {source} WHERE TRY_CAST({column} AS DOUBLE) IS NULL AND {column} IS NOT NULL"
    )
    for (text,) in base.sql(query + " LIMIT 100").fetchall():
        if as_number(text_of(text)) is None:
            way_out = "make it categorical in the schema, or mend the value"
            raise DataError(
                f"field '{field.name}' is numeric, found {str(text)[:40]!r} in the training rows; {way_out}"
            )


def _fit(field: Field, base: Any, source: str, column: str, label: str) -> FieldCode:
    none = np.empty(0)
    if field.kind == "numeric":
        _check_numbers(field, base, source, column)
        seen = _histogram(base, source, column, label)
        if field.buckets == "log-square":
            pairs = [(log_square(v), n) for v, n in zip(seen.values.tolist(), seen.counts.tolist(), strict=True)]
            return FieldCode(field, fit_vocabulary(field, _summed(pairs)), none)
        thresholds = fit_thresholds(field, seen)
        anchors = fit_anchors(thresholds, seen) if field.interpolate else none
        return FieldCode(field, {}, thresholds, max(1, field.interpolate), anchors=anchors)
    width = 1
    if field.kind == "set":
        cell = _members(field, base, source, column)
        query = f"SELECT max(len(list_distinct({cell}))) FROM {source}"
        width = min(field.max_values, max(1, int(base.sql(query).fetchall()[0][0] or 1)))
    if field.hash_buckets:
        return FieldCode(field, {}, none, width)
    return FieldCode(field, fit_vocabulary(field, _text_counts(field, base, source, column)), none, width)


def _histogram(base: Any, source: str, column: str, label: str) -> Histogram:
    """The finite numbers of a staged column, how many rows have each, and how many of these are positive."""
    number = f"TRY_CAST({column} AS DOUBLE)"
    query = f"SELECT {number} AS v, count(*) AS n, sum({label})::BIGINT AS p FROM {source} GROUP BY v ORDER BY v"
    found = base.sql(query).fetchnumpy()
    values = np.ma.filled(np.ma.asarray(found["v"], dtype=np.float64), np.nan)
    keep = np.isfinite(values)
    return Histogram(values[keep], *(np.asarray(found[name], dtype=np.int64)[keep] for name in ("n", "p")))


def _grown(code: FieldCode, base: Any, source: str, column: str) -> FieldCode:
    """A known field's code with the new rows' values; thresholds, hashes and the width of sets stay."""
    if code.field.kind == "numeric":
        _check_numbers(code.field, base, source, column)
    if code.field.kind == "numeric" or code.field.hash_buckets:
        return code
    return grow(code, _text_counts(code.field, base, source, column))


def _text_counts(field: Field, base: Any, source: str, column: str) -> list[tuple[str, int]]:
    """How often each text occurs, a set's members once in each of its cells."""
    if field.kind == "set":
        cell = _members(field, base, source, column)
        source, column = f"(SELECT unnest(list_distinct({cell})) AS member FROM {source})", "member"
    rows = base.sql(f"SELECT {column} AS v, count(*) AS n FROM {source} GROUP BY v").fetchall()
    return _summed((text_of(v) or "", n) for v, n in rows)


def _members(field: Field, base: Any, source: str, column: str) -> str:
    """The expression for a cell of a set as a list."""
    kind = str(base.sql(f"SELECT {column} FROM {source} LIMIT 0").types[0])
    return column if kind.endswith("[]") else f"string_split({column}::VARCHAR, {quoted(field.separator)})"


def _summed(pairs: Iterator[tuple[str, int]] | Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Counts of texts that different raw values share, such as 3 and 3.0."""
    total: dict[str, int] = {}
    for text, n in pairs:
        total[text] = total.get(text, 0) + n
    return list(total.items())


def _with_past(encoder: Encoder, staged: Path) -> Iterator[tuple[pa.Table, NDArray[np.int32] | None]]:
    """Staged rows, and what the history has told of them."""
    past = None
    if encoder.history is not None:
        past = np.load(past_file(staged.parent, staged.stem), mmap_mode="r", allow_pickle=False)
    first = 0
    for chunk in staged_chunks(staged):
        yield chunk, None if past is None else np.asarray(past[first : first + len(chunk)])
        first += len(chunk)


def _encode_parts(
    encoder: Encoder, stage: Path, folder: Path, rows: dict[str, int], weighted: bool, progress: Progress
) -> str:
    digest = hashlib.blake2b(json.dumps([encoder.layout.sizes, encoder.layout.widths]).encode(), digest_size=16)
    done = 0
    for part, n in rows.items():
        with ExitStack() as stack:
            files: dict[str, tuple[type, tuple[int, ...]]] = {
                "ids": (np.int32, (n, encoder.layout.columns)),
                "labels": (np.uint8, (n,)),
            }
            if weighted:
                files["weights"] = (np.float32, (n,))
            arrays = {
                name: stack.enter_context(array_file(folder / part / f"{name}.npy", kind, shape))
                for name, (kind, shape) in files.items()
            }
            for chunk, past in _with_past(encoder, stage / f"{part}.parquet"):
                digest.update(arrays["ids"].append(encoder.transform(chunk, past)))
                digest.update(arrays["labels"].append(chunk[LABEL].to_numpy()))
                if weighted:
                    digest.update(arrays["weights"].append(chunk[WEIGHT].to_numpy()))
                done += len(chunk)
                progress("encoding", done)
    return digest.hexdigest()
