"""Raw rows -> a prepared folder: stage the parts, fit the encoder on training rows, encode all of them.

Rows pass in chunks, so that memory does not depend on how many there are. Each step has its file: stage.py,
fit.py, encode.py; timeline.py where there is a history. What is asked for is a `Plan`.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError
from fieldwise.config.files import drop_folder, resumed_folder, whole_folder
from fieldwise.config.interrupts import check
from fieldwise.data.dataset import FACTS, Tally, one_label
from fieldwise.data.encode import folds, rates, refit
from fieldwise.data.encode.encode import Coder, fit_leaves, write_parts
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.engine import Engine
from fieldwise.data.encode.expiry import Expiry
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.fit_shards import fit_in_shards
from fieldwise.data.encode.giveaways import find_giveaways
from fieldwise.data.encode.history_shards import fold_history
from fieldwise.data.encode.infer import SAMPLE_ROWS, infer_schema, is_time, sample_of
from fieldwise.data.encode.kept import Kept, keep_rows
from fieldwise.data.encode.leaks import Leak, find_leak
from fieldwise.data.encode.lifetimes import Lifetimes, lifetimes_at
from fieldwise.data.encode.plan import Inputs, Plan
from fieldwise.data.encode.propose_history import Proposal, propose
from fieldwise.data.encode.restart import stamp_of
from fieldwise.data.encode.split import Rows, Split
from fieldwise.data.encode.split_staged import own_words
from fieldwise.data.encode.stage import DROPPED, JOURNAL, Stager, Taken
from fieldwise.data.encode.stage_shards import FOLDER as SHARDS
from fieldwise.data.encode.stage_shards import ShardStager
from fieldwise.data.encode.staged import LABEL, ROW, WEIGHT, Progress, quiet, read_staged, staged_chunks, staged_files
from fieldwise.data.encode.time_shards import ordered_history
from fieldwise.data.encode.timeline import write_history, write_sequences
from fieldwise.data.history.history import History
from fieldwise.data.read.labels import read_labels, read_weights
from fieldwise.data.read.parallel import cores, threads, using
from fieldwise.data.schema import FIRST, Schema, check_names

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


@dataclass(frozen=True)
class _Work:
    """What the steps share: what was asked for, where rows are staged, the progress callback, what works on shards,
    if rows come in such, and the notes."""

    plan: Plan
    stage: Path
    progress: Progress
    engine: Engine | None = None
    notes: list[str] = field(default_factory=list)


def carry_out(
    plan: Plan, out: Path, force: bool = False, progress: Progress = quiet, engine: Engine | None = None
) -> dict[str, Any]:
    """Writes the prepared folder `out` as planned, whole or not at all, and returns its facts.

    With an engine the steps work on shards of the rows; the folder is the same.
    """

    def heard(step: str, rows: int) -> None:
        check()
        progress(step, rows)

    if plan.given:
        # Before all rows are read; of a schema that these decide, behind them.
        Expiry(tuple(plan.expire_after)).check(plan.given)
    with _folder(out, stamp_of(plan, engine is not None), force) as folder, using(plan.threads or cores()):
        work = _Work(plan, folder / "stage", heard, engine)
        if engine:
            work.stage.mkdir(exist_ok=True)
            engine.check([*(plan.inputs.files if plan.inputs else ()), work.stage])
        tally = _stage(work)
        schema = _schema(work)
        lifetimes = lifetimes_at(work.stage / "train", schema, plan.known, plan.expire_after)
        encoder = _fit(work, schema, lifetimes)
        proposals = _add_history(work, encoder, tally)
        _add_leaves(work, encoder, tally)
        check_names(encoder.names)
        kept = plan.keep_negatives
        write_parts(encoder, work.stage, folder, tally, heard, negatives_kept=kept, engine=engine)
        if lifetimes.see_shared(encoder.codes, folder / "train"):
            lifetimes.save(folder / "encoder")
        leak = _leak(work, encoder, tally)
        giveaways = find_giveaways(folder / "train", encoder.codes)
        work.notes.extend(giveaway.warning for giveaway in giveaways)
        # The journal first: what is killed here must not be taken for staged.
        forget_journal(work.stage)
        makes = _keep(work, encoder, tally, leak, folder)
        shutil.rmtree(work.stage)
    return {
        "data": str(out),
        "rows": tally.rows,
        "positive_rate": {part: tally.positives[part] / rows for part, rows in tally.rows.items()},
        "negatives_kept": plan.keep_negatives,
        "fields": field_facts(encoder),
        "new_ids": _new_ids(encoder, plan.known) if plan.known else {},
        "expired": {name: count for name, count in lifetimes.expired.items() if count},
        "proposals": [asdict(proposal) for proposal in proposals],
        "leak": asdict(leak) if leak else None,
        "giveaways": [asdict(giveaway) for giveaway in giveaways],
        "rows_kept_for": makes,
        "notes": work.notes,
    }


def check_shards(plan: Plan) -> None:
    """Refuses what does not come out of shards as it does of all rows one after another."""
    if plan.log_fields:
        raise ConfigError("--engine ray does not make sequences yet; leave them out, or prepare on one machine")


def _folder(out: Path, stamp: str, force: bool) -> AbstractContextManager[Path]:
    return resumed_folder(out, FACTS, stamp, force) if stamp else whole_folder(out, FACTS, force)


def _stage(work: _Work) -> Tally:
    """Stages the rows of all parts, and counts them."""
    plan, schema = work.plan, work.plan.given
    work.stage.mkdir(exist_ok=True)
    columns = [*schema.columns, *plan.past.group] if schema else None
    taken = Taken(plan.label, plan.weight, columns, plan.drop, plan.past, plan.values, plan.log_fields)
    names = {source: f"the {source} rows" for source in plan.sources} | dict(plan.names)
    stager = Stager(work.stage, taken, plan.parting, plan.keep_negatives, names)
    if work.engine:
        staged = ShardStager(stager, plan.sources, work.engine).stage(work.notes, work.progress)
    else:
        staged = stager.stage(plan.sources, work.notes, work.progress)
    if staged.kept:
        work.notes.append(f"went on after an interrupted run: {staged.kept:,} rows were staged already")
    work.notes.extend(held_out_notes(staged.tally, None if plan.parting is plan.split else plan.parting))
    return staged.tally


def _fit(work: _Work, schema: Schema, lifetimes: Lifetimes) -> Encoder:
    """The codes of all fields, from the staged training rows."""
    train, known = work.stage / "train", work.plan.known
    if work.engine:
        return fit_in_shards(schema, train, work.progress, known, work.engine, work.stage / SHARDS, lifetimes)
    return fit_encoder(schema, train, work.progress, known, threads(), lifetimes)


def _schema(work: _Work) -> Schema:
    """The schema that was given, or the one that training rows look like, with what the plan says of it."""
    plan, schema = work.plan, work.plan.given
    if schema is None:
        orders = {plan.split.by, plan.past.time, *(field.time for field in plan.sequences)}
        schema, left_out = _infer(work.stage, plan.label, plan.weight, orders, plan.drop)
        work.notes.extend(left_out)
        schema = schema.with_position(plan.position)
    leaves, recipe = plan.gbdt_leaves or schema.gbdt_leaves, plan.recipe or schema.recipe
    schema = replace(plan.with_past(schema), label=plan.label, weight=plan.weight)
    schema = replace(schema, positive=plan.values.positive, negative=plan.values.negative)
    return replace(schema, gbdt_leaves=leaves, recipe=recipe)


def _add_history(work: _Work, encoder: Encoder, tally: Tally) -> list[Proposal]:
    """Replays the rows through the encoder's history, if it has one; returns the keys that `auto` stands for."""
    history, known = work.plan.past, work.plan.known
    proposals = propose(encoder, work.stage / "train", history, work.progress) if history.proposals else []
    if history.proposals and not proposals:
        work.notes.append("history auto: no key adds to what the fields say by more than chance, so none is proposed")
    history = replace(history, keys=(*history.named, *(proposal.key for proposal in proposals)))
    encoder.schema = replace(encoder.schema, history=history)
    if history.keys:
        encoder.history = copy.deepcopy(known.history) if known else History(history)
        _write_history(work, encoder, tally)
    if encoder.pasts:
        if known:
            encoder.pasts.take(known.pasts, _given_up(encoder, known))
        write_sequences(encoder, work.stage, tally.rows, work.progress)
    # Only what later rows see counts the negatives that training does not keep.
    for found in (tally.rows, tally.positives):
        found.pop(DROPPED, 0)
    return proposals


def _given_up(encoder: Encoder, known: Encoder) -> dict[str, NDArray[np.int32]]:
    """The ids that a known encoder's values had and that now mean none, or another one."""
    lifetimes, found = encoder.lifetimes, {}
    for code in known.codes if lifetimes else ():
        assert lifetimes is not None
        renewed = lifetimes.renewed(code.field.name, lifetimes.folder - 1)
        if renewed is not None:
            found[code.field.name] = (FIRST + np.flatnonzero(renewed[: code.size - FIRST])).astype(np.int32)
    return found


def _write_history(work: _Work, encoder: Encoder, tally: Tally) -> None:
    """What all rows see of the history, which then has counted the training rows."""
    if work.engine is None:
        write_history(encoder, work.stage, tally.rows, work.progress)
    else:
        settings = encoder.schema.history
        in_shards = fold_history if settings.folds and not settings.time else ordered_history
        in_shards(encoder, work.stage, tally.rows, work.progress, work.engine)


def _add_leaves(work: _Work, encoder: Encoder, tally: Tally) -> None:
    """Fits trees on the encoded training rows, if their leaves shall be fields."""
    if encoder.schema.gbdt_leaves:
        known = work.plan.known
        encoder.leaves = (
            known.leaves if known else fit_leaves(Coder(encoder, work.stage, engine=work.engine), tally.rows["train"])
        )


def _leak(work: _Work, encoder: Encoder, tally: Tally) -> Leak | None:
    """The plainest leak between the training rows and those to judge by, noted."""
    held_out = next((part for part in ("valid", "test") if part in tally.rows), "")
    fields = _plain_columns(encoder.schema)
    leak = find_leak(work.stage, tally.rows, held_out, fields, work.engine) if held_out else None
    if leak:
        history = encoder.schema.history
        in_folds = bool(history.keys) and not history.time
        work.notes.append(leak.warning(held_out, held_out in work.plan.sources, in_folds))
    return leak


def _plain_columns(schema: Schema) -> list[str]:
    """The columns that are fields themselves; a time is none: rows of one event may differ in it by a second."""
    return [field.name for field in schema.fields if field.column == field.name]


def _keep(work: _Work, encoder: Encoder, tally: Tally, leak: Leak | None, folder: Path) -> tuple[str, ...]:
    """Keeps the staged rows where further folders are made of them; returns the names of those."""
    plan, schema, rows = work.plan, encoder.schema, tally.rows["train"]
    other = plan.known or schema.counts_rows or schema.gbdt_leaves or plan.keep_negatives < 1
    if not plan.keep_rows or other or rows > rates.MOST_ROWS:
        return ()
    if too_wide := rates.too_wide(rows, len(schema.fields)):
        work.notes.append(too_wide)
        return ()
    joins = plan.divides and "test" not in plan.sources and refit.joins(work.stage, tally)
    makes = (*rates.worth(schema), *([refit.FOLDER] if joins else ()))
    # The group's rows stay together only where they can still be told.
    split = plan.divides and set(plan.parting.group) <= set(schema.columns)
    makes += folds.FOLDERS[: folds.needed(tally)] if split else ()
    if makes:
        kept = Kept(makes, leak.alike_in if leak else (), plan.parting.group)
        keep_rows(work.stage, folder, schema.columns, kept)
    return makes


def forget_journal(stage: Path) -> None:
    """Removes what says which rows are staged."""
    (stage / JOURNAL).unlink(missing_ok=True)
    drop_folder(stage / SHARDS)


def held_out_notes(tally: Tally, split: Split | None) -> list[str]:
    """Notes about the parts to judge by; `split` took the validation rows where test rows came alone."""
    notes, rows, positives = [], tally.rows, tally.positives
    if split and "valid" in rows:
        taken = f"{split.shares[1]:.0%} of the training rows{f' in the order of {split.by}' if split.by else ''}"
        notes.append(f"the validation part is {taken}: a test file came without one (--valid names a separate file)")
    if "valid" not in rows:
        notes.append("there is no validation part, which training needs to stop in time: leave it a share of --split")
    for part in ("valid", "test"):
        if part in rows and positives[part] in (0, rows[part]):
            notes.append(one_label(part, rows[part], int(positives[part] > 0)))
    return notes


def field_facts(encoder: Encoder) -> dict[str, dict[str, Any]]:
    """The kind and size of every field."""
    history = encoder.schema.history
    kinds = [field.kind for field in encoder.schema.fields] + ["history"] * (len(history.keys) * len(history.parts))
    kinds += ["leaf"] * encoder.schema.gbdt_leaves
    fields = zip(encoder.names, kinds, encoder.layout.sizes, strict=True)
    return {name: {"kind": kind, "size": size} for name, kind, size in fields}


def _new_ids(encoder: Encoder, known: Encoder) -> dict[str, int]:
    """How many ids of each field have a value that they did not have in the known encoder."""
    found = {code.field.name: code.size - old.size for code, old in zip(encoder.codes, known.codes, strict=True)}
    for name, ids in _given_up(encoder, known).items():
        words = encoder.codes[encoder.schema.names.index(name)].own_words
        found[name] += len(ids) - len(np.intersect1d(ids, words.free if words else ()))
    return {name: count for name, count in found.items() if count}


def _infer(
    stage: Path, label: str, weight: str, orders: Collection[str], drop: Collection[str]
) -> tuple[Schema, list[str]]:
    """A schema from the first training rows; of `orders`, columns by which rows are ordered, times alone are fields."""
    chunks, left = [], SAMPLE_ROWS
    for chunk in staged_chunks(stage / "train"):
        # Texts of the rows that are cut off would count as values that no row has.
        chunks.append(chunk if len(chunk) <= left else own_words(chunk.slice(0, left)))
        left -= len(chunks[-1])
        if not left:
            break
    sample = pa.concat_tables(chunks)
    labels = sample[LABEL].to_numpy().astype(np.float32)
    later = None if left else read_staged(staged_files(stage / "train")[-1])
    there = [name for name in orders if name in sample.column_names and name not in drop]
    no_fields = {*orders, *drop}.difference(
        name for name in there if is_time(name, sample_of(name, sample, labels, later))
    )
    fields = [name for name in sample.column_names if name not in (LABEL, WEIGHT, ROW, *no_fields)]
    schema, notes = infer_schema(sample.select(fields), labels, label, weight, later)
    for name in sorted(set(sample.column_names) & no_fields):
        notes.append(f"column '{name}' is no field: other parts hold values of it that training never sees")
    return schema, notes
