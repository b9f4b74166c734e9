"""Verbs that make data: simulate, prepare, recipes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldwise.commands.app import Force, Json, Separator, app, listed, shipped
from fieldwise.config.errors import ConfigError, unknown
from fieldwise.reporting.console import counting, err, print_json, print_proposals, print_recipe, print_recipes, say

if TYPE_CHECKING:
    from fieldwise.data.encode.encoder import Encoder
    from fieldwise.data.encode.engine import Opened
    from fieldwise.data.world import SequentialWorld, World

# Fields that are named one by one.
SHOWN = 100


@app.command()
def simulate(
    file: Annotated[Path, typer.Option("--out", help="A .csv, .tsv, .txt or .parquet file (.gz too), or a folder.")],
    kind: Annotated[
        str,
        typer.Option(
            help="demo, criteo, avazu, ipinyou, appstore, repeat (users return), sequence (clicks depend on the last "
            "three items); raw also criteo-1tb, movielens-1m and movielens-100k."
        ),
    ] = "demo",
    rows: int = 100_000,
    seed: int = 0,
    rate: Annotated[float | None, typer.Option(help="Share of positives; the kind's own without it.")] = None,
    truth: Annotated[bool, typer.Option("--truth", help="Add the true probability as a column.")] = False,
    days: Annotated[int, typer.Option(help="How long the world lives; day by day values come and go.")] = 10,
    first_day: Annotated[int, typer.Option(help="The log's first day; days begin at 0.")] = 0,
    last_day: Annotated[int | None, typer.Option(help="The log's last day; the world's last without it.")] = None,
    churn: Annotated[
        float, typer.Option(help="Share of the values of large fields, such as items, that die each day; others come.")
    ] = 0.0,
    layout: Annotated[
        str,
        typer.Option(help="plain; raw: as the public files of this kind are written; ids: a prepared folder, at once."),
    ] = "plain",
    threads: Annotated[int, typer.Option(help="Threads to make ids with.", show_default="cores")] = 0,
    json: Json = False,
) -> None:
    """Write a click log drawn from a world whose truth is known.

    Example: `fieldwise simulate --kind criteo --rows 100000 --out log.csv`
    """
    from fieldwise.data.world import World, write_log
    from fieldwise.data.world.layouts import Simulation, write_raw

    if layout not in ("plain", "raw", "ids"):
        raise ConfigError(f"--layout takes plain, raw or ids, found '{layout}'")
    if layout == "ids":
        if truth:
            raise ConfigError("--layout ids has no column for --truth; leave it out")
        _simulate_ids(
            World(kind, seed, rate, days, churn=churn), (rows, seed, first_day, last_day), file, threads, json
        )
        return
    if threads:
        raise ConfigError(f"--threads is for --layout ids, found --layout {layout}; leave it out")
    if layout == "raw" and (truth or (days, first_day, last_day, churn) != (10, 0, None, 0.0)):
        raise ConfigError("--layout raw has no column for --truth, and days of its own; leave those options out")
    with counting("simulating", json):
        if layout == "raw":
            write_raw(kind, Simulation(rows, seed, rate), file)
        else:
            world = _world(kind, seed, rate, days, churn)
            write_log(world, rows, file, seed, truth, first_day, last_day)
    drop = " --drop true_probability" if truth else ""
    how = f"--recipe {kind}" if layout == "raw" else f"--label click{drop}"
    if json:
        print_json({"file": str(file), "rows": rows, "kind": kind, "seed": seed, "days": days, "layout": layout})
    else:
        say(f"{rows:,} rows in {file}\nnext: fieldwise prepare {file} {how} --out data")


def _world(kind: str, seed: int, rate: float | None, days: int, churn: float) -> World | SequentialWorld:
    from fieldwise.data.world import SequentialWorld, World

    if kind != "sequence":
        return World(kind, seed, rate, days, churn=churn)
    if rate is not None or days != 10 or churn:
        raise ConfigError("--kind sequence has a rate of its own and no days; leave out --rate, --days and --churn")
    return SequentialWorld(seed)


def _simulate_ids(world: World, log: tuple[int, int, int, int | None], folder: Path, threads: int, json: bool) -> None:
    from fieldwise.data.world.prepared import prepare_log

    with counting("simulating", json) as progress:
        facts = prepare_log(world, world.span(*log), folder, progress=progress, threads=threads)
    if json:
        print_json(facts)
    else:
        _print_prepared(facts, folder, None, advise_history=False)


@app.command()
def prepare(
    files: Annotated[list[Path], typer.Argument(help="Training rows: csv, tsv, parquet, libsvm, libffm, .gz too.")],
    folder: Annotated[Path, typer.Option("--out", help="The prepared folder to write.")],
    recipe: Annotated[str, typer.Option(help="What public raw files these are: see `fieldwise recipes`.")] = "",
    label: Annotated[str, typer.Option(help="The 0/1 column; a schema or a recipe may name it instead.")] = "",
    positive: Annotated[str, typer.Option(help="Which of the label's two values is 1, such as yes.")] = "",
    schema: Annotated[Path | None, typer.Option(callback=shipped, help="A schema.toml; inferred without one.")] = None,
    split: Annotated[str, typer.Option(help="Shares of train, valid, test.", show_default="0.8,0.1,0.1")] = "",
    split_by: Annotated[
        str,
        typer.Option(
            help="Split in the order of this column (`row`: the file's; `none`: at random).",
            show_default="a time, if a column is one",
        ),
    ] = "",
    split_group: Annotated[str, typer.Option(help="Rows alike in these columns go to one part.")] = "",
    valid: Annotated[Path | None, typer.Option(help="Validation rows in a file of their own.")] = None,
    test: Annotated[Path | None, typer.Option(help="Test rows in a file of their own.")] = None,
    weight: Annotated[str, typer.Option(help="A column of row weights.")] = "",
    drop: Annotated[list[str] | None, typer.Option(help="A column that is no field; may be given again.")] = None,
    position: Annotated[
        str, typer.Option(help="The column of where a row was shown: learnt, and fixed in predictions.")
    ] = "",
    keep_negatives: Annotated[
        float | None,
        typer.Option(help="Share of the negatives that training rows keep; probabilities stay true.", show_default="1"),
    ] = None,
    gbdt_leaves: Annotated[
        int | None, typer.Option(help="Add the leaves of this many boosted trees of depth 7 as fields, such as 30.")
    ] = None,
    history: Annotated[
        str,
        typer.Option(
            help="Keys whose past becomes fields: columns and crosses such as user,user*item; auto, auto:8. "
            "Without it the rows are kept too, for rates that `compare` makes; none leaves them out."
        ),
    ] = "",
    history_set: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: time, delay, window, half_life, folds, group, strength.")
    ] = None,
    sequence: Annotated[
        list[str] | None,
        typer.Option(
            help="What earlier rows had: 'item,category by user last 50'; behind it positives, negatives, "
            "responses, gaps, delay N, window N, time COLUMN, view rolling. May be given again."
        ),
    ] = None,
    continue_from: Annotated[Path | None, typer.Option(help="A run or bundle whose ids stay; new ones follow.")] = None,
    expire_after: Annotated[
        list[str] | None,
        typer.Option(
            help="Values unseen for so long lose their ids: 30d, 12h, 4w, a number of continued folders, or FIELD=30d; "
            "may be given again. It stays until another is given; never: as without it."
        ),
    ] = None,
    separator: Separator = "",
    on_bad_rows: Annotated[
        str, typer.Option(help="stop, or skip: such rows are left out, counted and noted.")
    ] = "stop",
    seed: Annotated[int, typer.Option(help="Of the random split and the kept negatives.")] = 0,
    threads: Annotated[
        int, typer.Option(help="Threads to work with; the result is the same.", show_default="cores")
    ] = 0,
    engine: Annotated[str, typer.Option(help="Who works: local, the cores of this machine; ray, a cluster.")] = "local",
    ray_address: Annotated[
        str, typer.Option(help="Of --engine ray: the cluster.", show_default="RAY_ADDRESS, or one on this machine")
    ] = "",
    force: Force = False,
    json: Json = False,
) -> None:
    """Turn raw rows into ids on disk: split them, fit vocabularies on the training rows, encode.

    Example: `fieldwise prepare log.csv --label click --out data`
    """
    from fieldwise.data.kinds.past import pasts
    from fieldwise.data.read.delimited import separated
    from fieldwise.data.recipes.asked import Asked
    from fieldwise.data.recipes.prepared import prepare_asked
    from fieldwise.data.schema import Schema, history_settings

    if history_set and history in ("", "none"):
        raise ConfigError("--history-set needs --history, the keys whose past becomes fields")
    if on_bad_rows not in ("stop", "skip"):
        raise ConfigError(f"--on-bad-rows takes stop or skip, found '{on_bad_rows}'")
    opened = _engine(engine, ray_address, threads)
    known = _known_encoder(continue_from, schema) if continue_from else None
    past = history_settings(history, history_set or ()) if history and history != "none" else None
    asked = Asked(
        files=files,
        valid=valid,
        test=test,
        label=label,
        weight=weight,
        schema=Schema.load(schema) if schema else None,
        recipe=recipe,
        shares=shares_of(split) if split else None,
        split_by=split_by,
        split_group=listed(split_group),
        seed=seed,
        drop=drop or (),
        keep_negatives=keep_negatives,
        history=past,
        sequences=tuple(field for text in sequence or () for field in pasts(text)),
        gbdt_leaves=gbdt_leaves,
        known=known,
        skip_bad_rows=on_bad_rows == "skip",
        threads=threads,
        # Where `auto` proposes nothing, there is no history.
        keep_rows=not sequence and (not history or bool(past and past.proposals)),
        positive=positive,
        separator=separator,
        position=position,
        expire_after=expire_after or (),
        any_order=not any(item.partition("=")[0] in ("time", "folds", "group") for item in history_set or ()),
    )
    with separated(separator), counting("preparing", json) as progress:
        facts, plan = prepare_asked(asked, folder, force, progress, opened)
    if json:
        print_json(facts)
    else:
        _print_prepared(facts, folder, continue_from, advise_history=not (history or plan.past.keys))


def _engine(name: str, address: str, workers: int) -> Opened | None:
    """What opens the engine that was asked for; nothing for the cores of this machine, where rows pass one by one."""
    if name not in ("local", "ray"):
        raise ConfigError(unknown("--engine", name, ("local", "ray")))
    if address and name != "ray":
        raise ConfigError(f"--ray-address is for --engine ray, found --engine {name}; leave it out")
    if name == "local":
        return None
    from fieldwise.data.encode.ray_engine import on_ray
    from fieldwise.data.read.parallel import cores

    return partial(on_ray, address, workers or cores())


def _print_prepared(facts: dict[str, Any], folder: Path, continued: Path | None, advise_history: bool) -> None:
    for note in facts["notes"]:
        said = note if note.startswith("warning: ") else f"note: {note}"
        err.print(said, highlight=False, markup=False, soft_wrap=True)
    for part, count in facts["rows"].items():
        say(f"{part:6}{count:>12,} rows, {facts['positive_rate'][part]:.4%} positive")
    print_proposals(facts["proposals"])
    trains = "valid" in facts["rows"] and all(0 < rate < 1 for rate in facts["positive_rate"].values())
    kinds = _kinds(facts["fields"])
    if continued:
        grown = ", ".join(f"{name} {count:,}" for name, count in facts["new_ids"].items())
        gone = ", ".join(f"{name} {count:,}" for name, count in facts["expired"].items())
        where = "in place of expired values, and behind the old ones" if gone else "behind the old ones"
        say(f"fields: {kinds}\nnew ids, {where}: {grown or 'none'}")
        if gone:
            say(f"expired: {gone}")
        if trains:
            say(f"next: fieldwise train {folder} --continue-from {continued} --out runs/next")
        return
    say(f"fields: {kinds}\nschema: {folder / 'schema.toml'} (edit it and pass it with --schema)")
    if facts["rows_kept_for"]:
        say(f"rows: {folder / 'rows'}, from which `compare` makes {', '.join(facts['rows_kept_for'])}")
    if trains:
        say(f"next: fieldwise train {folder} --model pin --out runs/pin, or several models: fieldwise compare {folder}")
    if advise_history:
        say("ids that come back, such as users and items? --history auto adds what they did before, where it helps")


def _kinds(fields: dict[str, dict[str, Any]]) -> str:
    """The fields with their kinds and sizes; of very many the first ones."""
    shown = [f"{name} ({field['kind']}, {field['size']:,} ids)" for name, field in fields.items()]
    more = f" and {len(shown) - SHOWN:,} more" if len(shown) > SHOWN else ""
    return ", ".join(shown[:SHOWN]) + more


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="One recipe; all without a name.")] = "",
    json: Json = False,
) -> None:
    """List the public data sets that `prepare --recipe` takes as they are published.

    Example: `fieldwise recipes criteo`
    """
    from fieldwise.data.recipes import RECIPES, find

    shown = [find(name).facts()] if name else [recipe.facts() for recipe in RECIPES.values()]
    if json:
        print_json({"recipes": shown})
    elif name:
        print_recipe(shown[0])
    else:
        print_recipes(shown)


def _known_encoder(source: Path, schema: Path | None) -> Encoder:
    from fieldwise.bundle.bundle import load_encoder

    if schema:
        raise ConfigError(f"--continue-from keeps the schema of {source}; leave out --schema {schema}")
    return load_encoder(source)


def shares_of(text: str) -> tuple[float, float, float]:
    try:
        first, second, third = (float(share) for share in text.split(","))
    except ValueError:
        raise ConfigError(f"--split takes three shares such as 0.8,0.1,0.1, found '{text}'") from None
    return first, second, third
