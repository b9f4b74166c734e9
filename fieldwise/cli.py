"""The verbs of the command line, thin: parse, call, print."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.config import load_config
from fieldwise.console import (
    ComparisonBar,
    TrainingBar,
    TuningBar,
    counting,
    err,
    out,
    print_groups,
    print_json,
    print_metrics,
    print_proposals,
    print_report,
    print_study,
    say,
)
from fieldwise.errors import ConfigError, DataError, FieldwiseError

if TYPE_CHECKING:
    from fieldwise.data.encoder import Encoder

app = typer.Typer(
    name="fieldwise",
    help="Predict clicks and purchases from multi-field categorical data. --debug shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where to leave data, runs, bundle and report.")] = Path("demo"),
    rows: Annotated[int, typer.Option(help="Rows of the simulated log.")] = 200_000,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Simulate a click log, train LR, FM, FNN and PIN on it, and compare them with the truth.

    Example: `fieldwise demo --out demo`
    """
    from fieldwise.demo import run_demo

    result = run_demo(folder, rows, seed, quiet=json)
    if json:
        print_json(result)


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
            room.Split(_shares(split), split_by, seed, _list(split_group)),
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
    say(f"next: fieldwise train {folder} --model pin --out runs/pin")


def _known_encoder(source: Path, schema: Path | None) -> Encoder:
    from fieldwise.bundle import load_encoder

    if schema:
        raise ConfigError(f"--continue-from keeps the schema of {source}; leave out --schema {schema}")
    return load_encoder(source)


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="A prepared folder.")],
    folder: Annotated[Path, typer.Option("--out", help="The run folder to write.")],
    model: Annotated[str, typer.Option(help="A name of `fieldwise models`.")] = "",
    config: Annotated[Path | None, typer.Option(help="A recipe in TOML.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, such as train.lr=3e-4.")] = None,
    init_from: Annotated[str, typer.Option(help="An FM run to start the vectors from.")] = "",
    continue_from: Annotated[Path | None, typer.Option(help="A run to go on with, its model and settings too.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    seed: Annotated[int | None, typer.Option()] = None,
    json: Json = False,
) -> None:
    """Train a model on a prepared folder; leaves a run folder with a bundle in it.

    Example: `fieldwise train data --model pin --set train.lr=3e-4 --out runs/pin`
    """
    from fieldwise import train as room
    from fieldwise.incremental import settings_of

    chosen = {"model.name": model, "device": device, "seed": seed, "train.init_from": init_from}
    given = {k: v for k, v in chosen.items() if v not in ("", None)}
    settings = load_config(config, set_ or (), given, settings_of(continue_from) if continue_from else None)
    with TrainingBar(settings.model, json) as bar:
        report = room.train(settings, data, folder, resume, bar)
    if json:
        print_json(report)
        return
    print_report(report, folder)


@app.command()
def blend(
    members: Annotated[list[Path], typer.Argument(help="Runs or bundles, such as one of trees and one of a PNN.")],
    folder: Annotated[Path, typer.Option("--out", help="The run folder to write.")],
    data: Annotated[
        list[Path] | None, typer.Option(help="A member's prepared folder, where it is not the one it was trained on.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="The same weight for all; only the calibration is fitted.")
    ] = False,
    calibration: Annotated[str, typer.Option(help="none, shift, platt or isotonic.")] = "platt",
    device: str = "cpu",
    force: Force = False,
    json: Json = False,
) -> None:
    """Combine the logits of trained models, weighted by what validation rows say; leaves a run folder with a bundle.

    Example: `fieldwise blend runs/gbdt runs/pin --out runs/blend`
    """
    from fieldwise import blend as room

    with counting("blending", json):
        report = room.blend(members, folder, data or (), plain, calibration, device, force)
    if json:
        print_json(report)
        return
    for member in report["members"]:
        place = f"{member['model']} ({member['run']})"
        say(f"weight {member['weight']:.4f}  {place}, validation log loss {member['log_loss']:.5f} before calibration")
    print_report(report, folder)


@app.command()
def tune(
    data: Annotated[Path, typer.Argument(help="A prepared folder.")],
    model: Annotated[str, typer.Option(help="A name of `fieldwise models`.")] = "",
    trials: Annotated[int, typer.Option(help="How many trials the study shall have in all.")] = 30,
    limit: Annotated[str, typer.Option("--time", help="How long this call may take, such as 90s, 30m, 2h.")] = "",
    folder: Annotated[Path | None, typer.Option("--out", help="The study to begin or go on with: tune/MODEL.")] = None,
    config: Annotated[Path | None, typer.Option(help="A recipe to begin with; it is the first trial.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE that every trial shall have.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    seed: Annotated[int | None, typer.Option()] = None,
    json: Json = False,
) -> None:
    """Search for settings with a lower validation log loss; leaves a recipe for `train`. Call it again to go on.

    Example: `fieldwise tune data --model pin --trials 50 --time 30m --out tune/pin`
    """
    from fieldwise import tune as room

    seconds, held = _seconds(limit), [item.partition("=")[0].strip() for item in set_ or ()]
    chosen = {"model.name": model, "device": device, "seed": seed}
    settings = load_config(config, set_ or (), {k: v for k, v in chosen.items() if v not in ("", None)})
    folder = folder or Path("tune") / settings.model
    with TuningBar(settings.model, json) as bar:
        found = room.tune(settings, data, folder, trials, seconds, held, bar)
    if json:
        print_json(found)
    else:
        print_study(found)
        say(f"next: fieldwise train {data} --config {found['recipe']} --out runs/{settings.model}")
    if found["stopped"] == "interrupt":
        raise typer.Exit(130)


@app.command()
def evaluate(
    source: Annotated[Path, typer.Argument(help="A run or a bundle.")],
    rows: Annotated[Path, typer.Argument(help="A file with the label column, or a prepared folder.")],
    part: Annotated[str, typer.Option(help="Which part of a prepared folder.")] = "test",
    by: Annotated[str, typer.Option(help="A column: metrics by its values, and the AUC within them.")] = "",
    device: str = "cpu",
    json: Json = False,
) -> None:
    """Measure a model on rows whose responses are known.

    Example: `fieldwise evaluate runs/pin log.csv --by weekday`
    """
    from fieldwise.data import formats
    from fieldwise.predictor import Predictor

    predictor = Predictor.load(source, device)
    with counting("evaluating", json):
        if rows.is_dir():
            found = predictor.evaluate_prepared(rows, part, by)
        else:
            schema = predictor.schema
            known = formats.column_names(rows)
            if by and by not in known:
                raise DataError(f"--by column '{by}' is missing; the file has: {', '.join(known)} ({rows})")
            columns = dict.fromkeys([schema.label, *schema.columns, schema.weight, by])
            chunks = formats.read([rows], [name for name in columns if name], schema.numbers)
            found = predictor.evaluate(chunks, by)
    if json:
        print_json(found)
    else:
        print_metrics(f"{predictor.bundle.config.model} on {rows}", found)
        if by:
            print_groups(found["by"])


@app.command()
def predict(
    source: Annotated[Path, typer.Argument(help="A run or a bundle.")],
    rows: Annotated[Path, typer.Argument(help="A file with the model's columns; no label needed.")],
    file: Annotated[Path, typer.Option("-o", "--out", help="A .csv, .tsv or .parquet file.")],
    keep: Annotated[bool, typer.Option("--keep", help="Copy the input's columns too.")] = False,
    device: str = "cpu",
    json: Json = False,
) -> None:
    """Write the probability of a response for each row, in the input's order.

    Example: `fieldwise predict runs/pin new.csv -o predictions.csv`
    """
    from fieldwise.data import formats
    from fieldwise.predictor import Predictor

    predictor = Predictor.load(source, device)
    if file.exists() and file.samefile(rows):
        raise ConfigError(f"the output would replace the input; choose another -o ({file})")
    chunks = formats.read([rows], None if keep else predictor.schema.columns, predictor.schema.numbers)
    with counting("predicting", json) as progress:
        count = formats.write(file, predictor.annotate(chunks, keep), progress)
    if json:
        print_json({"file": str(file), "rows": count})
    else:
        say(f"{count:,} rows in {file}, column `probability`")


@app.command()
def models(
    name: Annotated[str, typer.Argument(help="One model; all without a name.")] = "",
    data: Annotated[Path | None, typer.Option(help="A prepared folder, to count parameters for.")] = None,
    json: Json = False,
) -> None:
    """List the models: their parts, their options, and with --data how many parameters they would have.

    Example: `fieldwise models pin --data data`
    """
    from rich.table import Table

    from fieldwise.data.dataset import Dataset
    from fieldwise.models import describe, registry

    layout = Dataset.open(data).layout if data else None
    shown = [describe(each, layout) for each in ([name] if name else registry())]
    if json:
        print_json({"models": shown})
        return
    table = Table("model", "linear", "interaction", "classifier", "options and defaults", show_lines=True)
    for row in shown:
        options = ", ".join(f"{k}={v}" for k, v in row["options"].items())
        branches = row["branches"] or [{"interaction": "-", "classifier": "-"}]
        parts = ["\n".join(branch[part] for branch in branches) for part in ("interaction", "classifier")]
        table.add_row(row["name"], "yes" if row["linear"] else "-", *parts, options)
    out.print(table)
    for row in shown:
        count = f" ({row['parameters']:,} parameters)" if row["parameters"] is not None else ""
        say(f"{row['name']:7} {row['description'].splitlines()[0]}{count}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    file: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    significance: Annotated[bool, typer.Option("--significance", help="Test the best run against the others.")] = False,
    blocks: Annotated[int, typer.Option(help="Into how many blocks the test cuts the rows.", show_default="50")] = 0,
    json: Json = False,
) -> None:
    """Compare runs: a table here, and one self-contained page with curves, reliability and heat maps.

    Example: `fieldwise report runs/fm runs/pin --significance -o report.html`
    """
    from fieldwise.report import differences, print_table, table_rows, write_report
    from fieldwise.significance import sentences

    if blocks and not significance:
        raise ConfigError(f"--blocks is for --significance, which is missing; found --blocks {blocks}")
    rows = table_rows(runs)
    tested = differences(runs, blocks) if significance else None
    write_report(runs, file, tested=tested)
    if json:
        print_json({"file": str(file), "runs": rows} | ({"significance": tested} if tested else {}))
        return
    print_table(rows, None, out)
    for sentence in sentences(tested) if tested else ():
        say(sentence)
    say(f"page: {file}")


@app.command()
def compare(
    data: Annotated[Path, typer.Argument(help="A prepared folder.")],
    models: Annotated[str, typer.Option(help="Names of `fieldwise models`, with commas; all without.")] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each model.")] = 3,
    recipes: Annotated[Path | None, typer.Option(help="A folder of MODEL.toml; defaults for the others.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where runs and tables go.")] = Path("comparison"),
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    json: Json = False,
) -> None:
    """Train many models on one prepared folder; leaves a table (markdown, csv) and a page. Goes on after a kill.

    Example: `fieldwise compare data --models lr,fm,deepfm,pin --seeds 3 --out comparison`
    """
    from fieldwise import compare as room
    from fieldwise import tables

    names, notes = room.models_named(models)
    for note in notes:
        err.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    with ComparisonBar(json) as bar:
        found = room.compare(data, names, folder, seeds, recipes, device, jobs, bar)
    if json:
        print_json(found)
        return
    tables.show(out, room.COLUMNS, tables.lines(found["models"], room.COLUMNS))
    for row in found["models"]:
        if row["verdict"]:
            blocks = f"better in {row['blocks_better']} of {row['blocks']} blocks"
            say(f"{row['model']} against {found['baseline']} on log loss: {row['verdict']}, {blocks}")
    say(f"table: {folder / 'table.md'}  page: {folder / 'index.html'}")


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _seconds(text: str) -> float:
    """90s, 30m or 2h in seconds; nothing means without end."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if text and (found is None or float(found[1]) == 0):
        raise ConfigError(f"--time takes a time such as 90s, 30m or 2h, found '{text}'")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found else math.inf


def _shares(text: str) -> tuple[float, float, float]:
    try:
        first, second, third = (float(share) for share in text.split(","))
    except ValueError:
        raise ConfigError(f"--split takes three shares such as 0.8,0.1,0.1, found '{text}'") from None
    return first, second, third


def main(arguments: list[str] | None = None) -> None:
    """Runs a verb. A user's mistake is one line on standard error and exit code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"] or ["--help"]
    # typer carries its own click; this is that click's error, whichever it is.
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]
    warnings.filterwarnings("default" if debug else "ignore")
    try:
        code = app(arguments, standalone_mode=False)
    except (FieldwiseError, usage_error, OSError, MemoryError) as error:
        if debug:
            raise
        message = error.format_message() if hasattr(error, "format_message") else str(error) or type(error).__name__
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {error}; this is a fault of ours, see it with --debug", file=sys.stderr)
        sys.exit(1)
    if code == 130:
        print("stopped; `compare` and `tune` go on with the same command, `train` with --resume added", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
