"""Verbs that make data: simulate, prepare."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.commands.app import Force, Json, app, listed
from fieldwise.console import counting, err, print_json, print_proposals, say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.data.encoder import Encoder


@app.command()
def simulate(
    file: Annotated[Path, typer.Option("--out", help="A .csv, .tsv, .txt or .parquet file (.gz too).")],
    kind: Annotated[str, typer.Option(help="demo, criteo, avazu, ipinyou or appstore.")] = "demo",
    rows: int = 100_000,
    seed: int = 0,
    rate: Annotated[float | None, typer.Option(help="Share of positives; the kind's own without it.")] = None,
    truth: Annotated[bool, typer.Option("--truth", help="Add the true probability as a column.")] = False,
    first_day: Annotated[int, typer.Option(help="The world has days 0 to 9, and lives: values come and go.")] = 0,
    last_day: Annotated[int, typer.Option()] = 9,
    json: Json = False,
) -> None:
    """Write a click log drawn from a world whose truth is known.

    Example: `fieldwise simulate --kind criteo --rows 100000 --out log.csv`
    """
    from fieldwise.data.world import World, write_log

    with counting("simulating", json):
        write_log(World(kind, seed, rate), rows, file, seed, truth, first_day, last_day)
    if json:
        print_json({"file": str(file), "rows": rows, "kind": kind, "seed": seed})
    else:
        drop = " --drop true_probability" if truth else ""
        say(f"{rows:,} rows in {file}\nnext: fieldwise prepare {file} --label click{drop} --out data")


@app.command()
def prepare(
    files: Annotated[list[Path], typer.Argument(help="Training rows: csv, tsv, parquet, libsvm, libffm, .gz too.")],
    folder: Annotated[Path, typer.Option("--out", help="The prepared folder to write.")],
    label: Annotated[str, typer.Option(help="The 0/1 column; a schema may name it instead.")] = "",
    schema: Annotated[Path | None, typer.Option(help="A schema.toml; inferred without one.")] = None,
    split: Annotated[str, typer.Option(help="Shares of train, valid, test.")] = "0.8,0.1,0.1",
    split_by: Annotated[str, typer.Option(help="Split in the order of this column (`row`: the file's).")] = "",
    split_group: Annotated[str, typer.Option(help="Rows alike in these columns go to one part.")] = "",
    valid: Annotated[Path | None, typer.Option(help="Validation rows in a file of their own.")] = None,
    test: Annotated[Path | None, typer.Option(help="Test rows in a file of their own.")] = None,
    weight: Annotated[str, typer.Option(help="A column of row weights.")] = "",
    drop: Annotated[list[str] | None, typer.Option(help="A column that is no field; may be given again.")] = None,
    keep_negatives: Annotated[
        float, typer.Option(help="Share of the negatives that training rows keep; probabilities stay true.")
    ] = 1.0,
    gbdt_leaves: Annotated[
        int, typer.Option(help="Add the leaves of so many boosted trees of depth 7 as fields, such as 30.")
    ] = 0,
    history: Annotated[
        str,
        typer.Option(help="Keys whose past becomes fields: columns and crosses such as user,user*item; auto, auto:8."),
    ] = "",
    history_set: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: time, delay, window, half_life, folds, group, strength.")
    ] = None,
    continue_from: Annotated[Path | None, typer.Option(help="A run or bundle whose ids stay; new ones follow.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random split and the kept negatives.")] = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Turn raw rows into ids on disk: split them, fit vocabularies on the training rows, encode.

    Example: `fieldwise prepare log.csv --label click --out data`
    """
    from fieldwise.data import formats
    from fieldwise.data import prepare as room
    from fieldwise.data.schema import Schema, history_settings

    if history_set and not history:
        raise ConfigError("--history-set needs --history, the keys whose past becomes fields")
    if continue_from and (history or gbdt_leaves):
        raise ConfigError("--continue-from keeps the fields as they are; leave out --history and --gbdt-leaves")
    known = _known_encoder(continue_from, schema) if continue_from else None
    written = Schema.load(schema) if schema else known.schema if known else None
    label = label or (written.label if written else "")
    if not label:
        raise ConfigError("--label is missing: name the column that holds the 0/1 response")
    if written and written.label != label:
        written = dataclasses.replace(written, label=label)
    weight = weight or (written.weight if written else "")
    given = {"train": files, **({"valid": [valid]} if valid else {}), **({"test": [test]} if test else {})}
    for paths in given.values():
        for path in paths:
            formats.column_names(path)
    every = [path for paths in given.values() for path in paths]
    numbers = written.numbers if written else formats.number_fields(every)
    sources = {part: partial(formats.read, paths, numbers=numbers) for part, paths in given.items()}
    names = {part: ", ".join(map(str, paths)) for part, paths in given.items()}
    with counting("preparing", json) as progress:
        facts = room.prepare(
            sources,
            folder,
            label,
            written,
            room.Split(_shares(split), split_by, seed, listed(split_group)),
            weight,
            drop or (),
            force,
            progress,
            names,
            keep_negatives=keep_negatives,
            gbdt_leaves=gbdt_leaves,
            history=history_settings(history, history_set or ()) if history else None,
            known=known,
        )
    if json:
        print_json(facts)
        return
    for note in facts["notes"]:
        err.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    for part, count in facts["rows"].items():
        say(f"{part:6}{count:>12,} rows, {facts['positive_rate'][part]:.4%} positive")
    print_proposals(facts["proposals"])
    kinds = ", ".join(f"{n} ({v['kind']}, {v['size']:,} ids)" for n, v in facts["fields"].items())
    if known:
        grown = ", ".join(f"{name} {count:,}" for name, count in facts["new_ids"].items())
        say(f"fields: {kinds}\nnew ids, behind the old ones: {grown or 'none'}")
        say(f"next: fieldwise train {folder} --continue-from {continue_from} --out runs/next")
        return
    say(f"fields: {kinds}\nschema: {folder / 'schema.toml'} (edit it and pass it with --schema)")
    say(f"next: fieldwise train {folder} --model pin --out runs/pin, or all models: fieldwise compare {folder}")
    if not history and all(field["kind"] != "history" for field in facts["fields"].values()):
        say("ids that come back, such as users and items? --history auto adds what they did before, where it helps")


def _known_encoder(source: Path, schema: Path | None) -> Encoder:
    from fieldwise.bundle import load_encoder

    if schema:
        raise ConfigError(f"--continue-from keeps the schema of {source}; leave out --schema {schema}")
    return load_encoder(source)


def _shares(text: str) -> tuple[float, float, float]:
    try:
        first, second, third = (float(share) for share in text.split(","))
    except ValueError:
        raise ConfigError(f"--split takes three shares such as 0.8,0.1,0.1, found '{text}'") from None
    return first, second, third
