"""Raw rows -> a prepared folder: stage the parts, fit the encoder on training rows, encode all of them.

Rows pass in chunks, so that memory does not depend on how many there are. Each step is a file of its own: stage.py,
fit.py, encode.py; timeline.py where there is a history. What is asked for is a `Plan`.
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

from fieldwise.config.files import resumed_folder, whole_folder
from fieldwise.data.dataset import FACTS, Counted, one_label
from fieldwise.data.encode import rates, refit
from fieldwise.data.encode.encode import Coder, fit_leaves, write_parts
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.infer import SAMPLE_ROWS, infer_schema
from fieldwise.data.encode.kept import Kept, keep_rows
from fieldwise.data.encode.leaks import Leak, find_leak
from fieldwise.data.encode.plan import Inputs, Plan
from fieldwise.data.encode.propose_history import Proposal, propose
from fieldwise.data.encode.restart import stamp_of
from fieldwise.data.encode.split import Rows, Split
from fieldwise.data.encode.split_staged import own_words
from fieldwise.data.encode.stage import DROPPED, JOURNAL, Stager, Taken
from fieldwise.data.encode.staged import LABEL, ROW, WEIGHT, Progress, quiet, staged_chunks
from fieldwise.data.encode.timeline import tell
from fieldwise.data.history.history import History
from fieldwise.data.read.labels import read_labels, read_weights
from fieldwise.data.read.parallel import cores, threads, using
from fieldwise.data.schema import Schema, check_names

__all__ = ["Inputs", "Plan", "Rows", "Split", "carry_out", "prepare", "read_labels", "read_weights"]


def prepare(
    sources: Mapping[str, Rows],
    out: Path,
    label: str,
    schema: Schema | None = None,
    split: Split | None = None,
    *,
    force: bool = False,
    progress: Progress = quiet,
    **more: Any,
) -> dict[str, Any]:
    """Writes the prepared folder `out` and returns its facts; `more` are further fields of `Plan`."""
    return carry_out(Plan(sources, label, schema, split or Split(), **more), out, force, progress)


def carry_out(plan: Plan, out: Path, force: bool = False, progress: Progress = quiet) -> dict[str, Any]:
    """Writes the prepared folder `out` as planned, whole or not at all, and returns its facts."""
    notes: list[str] = []
    with _folder(out, stamp_of(plan), force) as folder, using(plan.threads or cores()):
        stage = folder / "stage"
        counted = _stage(plan, stage, notes, progress)
        schema = _schema(plan, stage, notes)
        encoder = fit_encoder(schema, stage / "train", progress, plan.known, threads())
        proposals = _add_history(encoder, plan, stage, counted, notes, progress)
        _add_leaves(encoder, plan, stage, counted)
        check_names(encoder.names)
        write_parts(encoder, stage, folder, counted, progress, negatives_kept=plan.keep_negatives)
        leak = _leak(encoder, plan, stage, counted, notes)
        # The journal first: what is killed here must not be taken for staged.
        (stage / JOURNAL).unlink()
        makes = _keep(encoder, plan, stage, folder, counted, leak, notes)
        shutil.rmtree(stage)
    return {
        "data": str(out),
        "rows": counted.rows,
        "positive_rate": {part: counted.positives[part] / rows for part, rows in counted.rows.items()},
        "negatives_kept": plan.keep_negatives,
        "fields": _fields(encoder),
        "new_ids": _new_ids(encoder, plan.known) if plan.known else {},
        "proposals": [asdict(proposal) for proposal in proposals],
        "leak": asdict(leak) if leak else None,
        "rows_kept_for": makes,
        "notes": notes,
    }


def _folder(out: Path, stamp: str, force: bool) -> AbstractContextManager[Path]:
    return resumed_folder(out, FACTS, stamp, force) if stamp else whole_folder(out, FACTS, force)


def _stage(plan: Plan, stage: Path, notes: list[str], progress: Progress) -> Counted:
    """Stages the rows of all parts, and counts them."""
    stage.mkdir(exist_ok=True)
    schema, history = plan.given, plan.past
    taken = Taken(plan.label, plan.weight, [*schema.columns, *history.group] if schema else None, plan.drop, history)
    names = {source: f"the {source} rows" for source in plan.sources} | dict(plan.names)
    staged = Stager(stage, taken, plan.parting, plan.keep_negatives, names).stage(plan.sources, notes, progress)
    if staged.kept:
        notes.append(f"went on after an interrupted run: {staged.kept:,} rows were staged already")
    counted = Counted(staged.rows, staged.positives)
    notes += _held_out_notes(counted, None if plan.parting is plan.split else plan.parting)
    return counted


def _schema(plan: Plan, stage: Path, notes: list[str]) -> Schema:
    """The schema that was given, or the one that training rows look like, with what the plan says of it."""
    schema = plan.given
    if schema is None:
        schema, left_out = _infer(stage, plan.label, plan.weight, {plan.parting.by, plan.past.time, *plan.drop})
        notes += left_out
    return replace(
        schema,
        label=plan.label,
        weight=plan.weight,
        gbdt_leaves=plan.gbdt_leaves or schema.gbdt_leaves,
        recipe=plan.recipe or schema.recipe,
        history=plan.past,
    )


def _add_history(
    encoder: Encoder, plan: Plan, stage: Path, counted: Counted, notes: list[str], progress: Progress
) -> list[Proposal]:
    """Lets the rows pass by the encoder's history, if it has one; returns the keys that `auto` stands for."""
    history = plan.past
    proposals = propose(encoder, stage / "train", history, progress) if history.proposals else []
    if history.proposals and not proposals:
        notes.append("history auto: no key adds to what the fields say by more than chance, so none is proposed")
    history = replace(history, keys=(*history.named, *(proposal.key for proposal in proposals)))
    encoder.schema = replace(encoder.schema, history=history)
    if history.keys:
        encoder.history = copy.deepcopy(plan.known.history) if plan.known else History(history)
        tell(encoder, stage, counted.rows, progress)
    for found in (counted.rows, counted.positives):
        found.pop(DROPPED, 0)
    return proposals


def _add_leaves(encoder: Encoder, plan: Plan, stage: Path, counted: Counted) -> None:
    if encoder.schema.gbdt_leaves:
        encoder.leaves = plan.known.leaves if plan.known else fit_leaves(Coder(encoder, stage), counted.rows["train"])


def _leak(encoder: Encoder, plan: Plan, stage: Path, counted: Counted, notes: list[str]) -> Leak | None:
    """The plainest leak between the training rows and those to judge by, noted."""
    held_out = next((part for part in ("valid", "test") if part in counted.rows), "")
    leak = find_leak(stage, counted.rows, held_out, encoder.schema.names) if held_out else None
    if leak:
        history = encoder.schema.history
        notes.append(leak.warning(held_out, held_out in plan.sources, bool(history.keys) and not history.time))
    return leak


def _keep(
    encoder: Encoder, plan: Plan, stage: Path, folder: Path, counted: Counted, leak: Leak | None, notes: list[str]
) -> tuple[str, ...]:
    """Keeps the staged rows where further folders are made of them; returns the names of those."""
    schema, rows = encoder.schema, counted.rows["train"]
    other = plan.known or schema.history.keys or schema.gbdt_leaves or plan.keep_negatives < 1
    if not plan.keep_rows or other or rows > rates.MOST_ROWS:
        return ()
    if too_wide := rates.too_wide(rows, len(schema.fields)):
        notes.append(too_wide)
        return ()
    joins = plan.divides and "test" not in plan.sources and refit.joins(stage, counted)
    makes = (*(rates.FOLDS if rates.usual_history(schema).keys else ()), *([refit.FOLDER] if joins else ()))
    if makes:
        keep_rows(stage, folder, schema.names, Kept(makes, leak.alike_in if leak else ()))
    return makes


def _held_out_notes(counted: Counted, split: Split | None) -> list[str]:
    """What is to be said of the parts to judge by; `split` took the validation rows where test rows came alone."""
    notes, rows, positives = [], counted.rows, counted.positives
    if split and "valid" in rows:
        taken = f"{split.shares[1]:.0%} of the training rows{f' in the order of {split.by}' if split.by else ''}"
        notes.append(f"the validation part is {taken}: a test file came without one (--valid names a file of its own)")
    if "valid" not in rows:
        notes.append("there is no validation part, which training needs to stop in time: leave it a share of --split")
    for part in ("valid", "test"):
        if part in rows and positives[part] in (0, rows[part]):
            notes.append(one_label(part, rows[part], int(positives[part] > 0)))
    return notes


def _fields(encoder: Encoder) -> dict[str, dict[str, Any]]:
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
