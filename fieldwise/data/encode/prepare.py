"""Raw rows -> a prepared folder: stage the parts, fit the encoder on training rows, encode all of them.

Rows pass in chunks, so that memory does not depend on how many there are. Each step is a file of its own: stage.py,
fit.py, encode.py; timeline.py where there is a history.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import ConfigError
from fieldwise.config.files import resumed_folder, whole_folder
from fieldwise.data.dataset import one_label, write_facts
from fieldwise.data.encode import rates
from fieldwise.data.encode.encode import Coder, encode_parts, fit_leaves
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.infer import SAMPLE_ROWS, infer_schema
from fieldwise.data.encode.leaks import find_leak
from fieldwise.data.encode.propose_history import propose
from fieldwise.data.encode.refit import write_refit
from fieldwise.data.encode.restart import Inputs, stamp_of
from fieldwise.data.encode.split import Rows, Split
from fieldwise.data.encode.split_staged import own_words
from fieldwise.data.encode.stage import DROPPED, JOURNAL, Progress, Stager, Taken
from fieldwise.data.encode.staged import LABEL, ROW, WEIGHT, staged_chunks
from fieldwise.data.encode.timeline import tell
from fieldwise.data.history.history import History
from fieldwise.data.read.labels import read_labels, read_weights
from fieldwise.data.read.parallel import cores, using
from fieldwise.data.schema import HistorySettings, Schema, check_names

__all__ = ["Inputs", "Rows", "Split", "prepare", "read_labels", "read_weights"]


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
    threads: int = 0,
    inputs: Inputs | None = None,
    with_rates: bool = False,
) -> dict[str, Any]:
    """Writes the prepared folder `out` and returns its facts.

    `sources` holds rows for `train` and, where they are given apart, `valid` and `test`; without them the
    training rows are split, beside test rows into training and validation rows. Without a schema all columns but those
    to `drop` may become fields, with one all of its fields but those. `names` say
    where the rows of a source come from, for errors. `keep_negatives` is the share of negatives that training
    rows keep, drawn by the split's seed; probabilities are corrected for it. `gbdt_leaves` trees add a field each,
    `history` those of what came before; without it the schema's own stands, and `auto` in it gives way to the keys that
    are proposed. With a `known` encoder its schema and
    ids stay, and its history goes on; the training rows only add ids behind the old ones. `recipe` is the name of how
    the raw files were read, for those that will read more of them. `threads` (0: all cores) change nothing but the
    time. With the `inputs` that the rows come from, a killed `prepare` goes on where it was. `with_rates` leaves
    folders inside of the same rows with the rates of their categories (rates.py), and a further one with the test
    part among the training rows (refit.py), unless there is a history or the test rows are given apart.
    """
    schema = known.schema if known else schema
    asked = split or Split()
    split = asked.beside(sources)
    if not 0 < keep_negatives <= 1:
        raise ConfigError(f"--keep-negatives takes a share above 0 and at most 1, found {keep_negatives}")
    if threads < 0:
        raise ConfigError(f"--threads takes a number of threads, 0 for all cores, found {threads}")
    if (split.by or split.group) and not split.divides(sources):
        raise ConfigError("--split-by splits the training rows; leave it out where --valid is given")
    history = history or (schema.history if schema else HistorySettings())
    if schema:
        schema = replace(schema if known else schema.without(drop), history=history)
    names = {source: f"the {source} rows" for source in sources} | dict(names or {})
    threads = threads or cores()
    columns = [*schema.columns, *history.group] if schema else None
    taken = Taken(label, weight, columns, drop, history)
    settings = [label, schema.to_toml() if schema else "", split, weight, sorted(drop), keep_negatives, history]
    stamp = stamp_of(inputs, [*settings, gbdt_leaves, with_rates], known) if inputs else ""
    notes: list[str] = []
    with _folder(out, stamp, force) as folder, using(threads):
        stage = folder / "stage"
        stage.mkdir(exist_ok=True)
        staged = Stager(stage, taken, split, keep_negatives, names).stage(sources, notes, progress)
        if staged.kept:
            notes.append(f"went on after an interrupted run: {staged.kept:,} rows were staged already")
        rows, positives = staged.rows, staged.positives
        notes += held_out_notes(rows, positives, None if split is asked else split)
        if schema is None:
            schema, left_out = _infer(stage, label, weight, {split.by, history.time, *drop})
            schema = replace(schema, history=history)
            notes += left_out
        schema = replace(schema, label=label, weight=weight, gbdt_leaves=gbdt_leaves or schema.gbdt_leaves)
        schema = replace(schema, recipe=recipe or schema.recipe)
        encoder = fit_encoder(schema, stage / "train", progress, known, threads)
        proposals = propose(encoder, stage / "train", history, progress) if history.proposals else []
        if history.proposals and not proposals:
            notes.append("history auto: no key adds to what the fields say by more than chance, so none is proposed")
        history = replace(history, keys=(*history.named, *(proposal.key for proposal in proposals)))
        encoder.schema = schema = replace(schema, history=history)
        (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
        if history.keys:
            encoder.history = copy.deepcopy(known.history) if known else History(history)
            tell(encoder, stage, rows, progress)
        for found in (rows, positives):
            found.pop(DROPPED, 0)
        if schema.gbdt_leaves:
            encoder.leaves = known.leaves if known else fit_leaves(Coder(encoder, stage), rows["train"])
        check_names(encoder.names)
        encoder.save(folder / "encoder")
        digest = encode_parts(encoder, stage, folder, rows, progress)
        held_out = next((part for part in ("valid", "test") if part in rows), "")
        leak = find_leak(stage, rows, held_out, schema.names) if held_out else None
        if leak:
            notes.append(leak.warning(held_out, held_out in sources, bool(history.keys) and not history.time))
        plain = not (known or history.keys or schema.gbdt_leaves or keep_negatives < 1)
        few, counted = rows["train"] <= rates.MOST_ROWS, rates.Counted(rows, positives)
        too_wide = rates.too_wide(rows["train"], len(schema.fields)) if with_rates and plain and few else ""
        notes += [too_wide] if too_wide else []
        told = with_rates and plain and few and not too_wide
        keys = rates.write_rates(encoder, stage, folder, counted, leak, progress) if told else 0
        joins = told and split.divides(sources) and "test" not in sources
        again = joins and write_refit(schema, stage, folder, counted, leak, progress)
        write_facts(folder, encoder.names, encoder.layout, rows, positives, keep_negatives, digest)
        # The journal first: what is killed here must not be taken for staged.
        (stage / JOURNAL).unlink()
        shutil.rmtree(stage)
    return {
        "data": str(out),
        "rows": rows,
        "positive_rate": {part: positives[part] / rows[part] for part in rows},
        "negatives_kept": keep_negatives,
        "fields": field_facts(encoder),
        "new_ids": {} if known is None else _new_ids(encoder, known),
        "proposals": [asdict(proposal) for proposal in proposals],
        "leak": asdict(leak) if leak else None,
        "rates": keys,
        "refit": again,
        "notes": notes,
    }


def held_out_notes(rows: Mapping[str, int], positives: Mapping[str, int], split: Split | None) -> list[str]:
    """What is to be said of the parts to judge by; `split` took the validation rows where test rows came alone."""
    notes = []
    if split and "valid" in rows:
        taken = f"{split.shares[1]:.0%} of the training rows{f' in the order of {split.by}' if split.by else ''}"
        notes.append(f"the validation part is {taken}: a test file came without one (--valid names a file of its own)")
    if "valid" not in rows:
        notes.append("there is no validation part, which training needs to stop in time: leave it a share of --split")
    for part in ("valid", "test"):
        if part in rows and positives[part] in (0, rows[part]):
            notes.append(one_label(part, rows[part], int(positives[part] > 0)))
    return notes


def _folder(out: Path, stamp: str, force: bool) -> AbstractContextManager[Path]:
    return resumed_folder(out, "data.json", stamp, force) if stamp else whole_folder(out, "data.json", force)


def field_facts(encoder: Encoder) -> dict[str, dict[str, Any]]:
    """The kind and size of every field."""
    history = encoder.schema.history
    kinds = [field.kind for field in encoder.schema.fields] + ["history"] * (len(history.keys) * len(history.parts))
    kinds += ["leaf"] * encoder.schema.gbdt_leaves
    fields = zip(encoder.names, kinds, encoder.layout.sizes, strict=True)
    return {name: {"kind": kind, "size": size} for name, kind, size in fields}


def _new_ids(encoder: Encoder, known: Encoder) -> dict[str, int]:
    """How many ids each field has that the known encoder does not."""
    return {
        code.field.name: code.size - old.size
        for code, old in zip(encoder.codes, known.codes, strict=True)
        if code.size > old.size
    }


def _infer(stage: Path, label: str, weight: str, no_fields: Collection[str]) -> tuple[Schema, list[str]]:
    chunks, left = [], SAMPLE_ROWS
    for chunk in staged_chunks(stage / "train"):
        # Texts of the rows that are cut off would count as values that no row has.
        chunks.append(chunk if len(chunk) <= left else own_words(chunk.slice(0, left)))
        left -= len(chunks[-1])
        if not left:
            break
    sample = pa.concat_tables(chunks)
    labels = sample[LABEL].to_numpy().astype(np.float32)
    fields = [name for name in sample.column_names if name not in (LABEL, WEIGHT, ROW, *no_fields)]
    schema, notes = infer_schema(sample.select(fields), labels, label, weight)
    for name in sorted(set(sample.column_names) & set(no_fields)):
        notes.append(f"column '{name}' is no field: other parts hold values of it that training never sees")
    return schema, notes
