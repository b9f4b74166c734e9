"""Commands that train: demo, train, blend, tune, compare."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldwise.commands.app import Force, Json, app, shipped
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, load_config
from fieldwise.reporting.console import (
    ComparisonBar,
    TrainingBar,
    TuningBar,
    counting,
    note,
    out,
    print_json,
    print_report,
    print_study,
    say,
    warn,
)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="The folder for data, runs, bundle and report.")] = Path("demo"),
    rows: Annotated[int, typer.Option(help="Rows of the simulated log.")] = 200_000,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Simulate a click log, train LR, FM, FNN and PIN on it, and compare them with the truth.

    Example: `fieldwise demo --out demo`
    """
    from fieldwise.experiments.demo import run_demo

    result = run_demo(folder, rows, seed, quiet=json)
    if json:
        print_json(result)


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="A prepared folder.")],
    folder: Annotated[Path, typer.Option("--out", help="The run folder to write.")],
    model: Annotated[str, typer.Option(help="A name from `fieldwise models`.")] = "",
    config: Annotated[Path | None, typer.Option(callback=shipped, help="A recipe in TOML.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, such as train.lr=3e-4.")] = None,
    init_from: Annotated[str, typer.Option(help="An FM run that gives the initial vectors.")] = "",
    continue_from: Annotated[
        Path | None, typer.Option(help="A run, its model and settings, to continue with new rows.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    seed: Annotated[int | None, typer.Option()] = None,
    workers: Annotated[int, typer.Option(help="Processes that share each batch; torchrun sets them itself.")] = 1,
    tables: Annotated[str, typer.Option(help="With --workers: replicated, sharded, or auto (whichever fits).")] = "",
    restarts: Annotated[int, typer.Option(help="How often --workers are restarted when one dies.")] = 3,
    stalled_after: Annotated[float, typer.Option(help="Seconds after which a silent worker counts as dead.")] = 300.0,
    json: Json = False,
) -> None:
    """Train a model on a prepared folder; write a run folder with a bundle in it.

    Example: `fieldwise train data --model pin --set train.lr=3e-4 --out runs/pin`
    """
    from fieldwise.train import distributed
    from fieldwise.train.incremental import settings_of

    chosen = {"model.name": model, "device": device, "seed": seed, "train.init_from": init_from, "train.tables": tables}
    given = {k: v for k, v in chosen.items() if v not in ("", None)}
    settings = load_config(config, set_ or (), given, settings_of(continue_from) if continue_from else None)
    job = Job(settings, _made(data, json), folder, resume, json, stalled_after)
    # Sharded tables need the launcher even for one worker.
    if (workers != 1 or settings.train.tables == "sharded") and "WORLD_SIZE" not in os.environ:
        preload: tuple[str, ...] = ("fieldwise.train.network",)
        if settings.train.tables == "sharded":
            preload += ("fieldwise.train.sharded.store",)
        report = distributed.launch(_train, (job,), workers, restarts, preload)
    else:
        report = _train(job)
    if not report:  # a worker of torchrun other than the first
        return
    if json:
        print_json(report)
        return
    print_report(report, folder)


@dataclass(frozen=True)
class Job:
    """The task of a worker."""

    settings: Config
    data: Path
    folder: Path
    resume: bool
    quiet: bool
    stalled_after: float


def _train(job: Job) -> dict[str, Any]:
    """Trains, as one of the workers if there are several; returns the report, which only the first worker has."""
    from fieldwise.train import distributed
    from fieldwise.train import loop as room

    with (
        distributed.joined(job.stalled_after),
        TrainingBar(job.settings.model, job.quiet or not distributed.first()) as bar,
    ):
        return room.train(job.settings, job.data, job.folder, job.resume, bar)


def _made(data: Path, quiet: bool) -> Path:
    """The prepared folder to read; `rates`, `order` or `refit` inside of one is made where it is not there yet."""
    from fieldwise.data.encode.on_demand import made

    with counting("preparing", quiet) as progress:
        return made(data, progress)


@app.command()
def blend(
    members: Annotated[list[Path], typer.Argument(help="Runs or bundles, such as trees and a PNN.")],
    folder: Annotated[Path, typer.Option("--out", help="The run folder to write.")],
    data: Annotated[
        list[Path] | None, typer.Option(help="A member's prepared folder, if it is not the one it was trained on.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Equal weights; only the calibration is fitted.")] = False,
    calibration: Annotated[str, typer.Option(help="none, shift, platt or isotonic.")] = "platt",
    device: str = "cpu",
    force: Force = False,
    json: Json = False,
) -> None:
    """Combine the logits of trained models with weights fitted on validation rows; write a run folder with a bundle.

    Example: `fieldwise blend runs/gbdt runs/pin --out runs/blend`
    """
    from fieldwise.train import blend as room

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
    model: Annotated[str, typer.Option(help="A name from `fieldwise models`.")] = "",
    trials: Annotated[int, typer.Option(help="Total number of trials of the study.")] = 30,
    limit: Annotated[str, typer.Option("--time", help="Time limit of this call, such as 90s, 30m, 2h.")] = "",
    folder: Annotated[Path | None, typer.Option("--out", help="The study to start or continue: tune/MODEL.")] = None,
    config: Annotated[
        Path | None, typer.Option(callback=shipped, help="A recipe to start from; it is the first trial.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for every trial.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    seed: Annotated[int | None, typer.Option()] = None,
    json: Json = False,
) -> None:
    """Search for settings with a lower validation log loss; write a recipe for `train`. Call it again to continue.

    Example: `fieldwise tune data --model pin --trials 50 --time 30m --out tune/pin`
    """
    from fieldwise.experiments import tune as room

    seconds, held = seconds_of(limit), [item.partition("=")[0].strip() for item in set_ or ()]
    chosen = {"model.name": model, "device": device, "seed": seed}
    settings = load_config(config, set_ or (), {k: v for k, v in chosen.items() if v not in ("", None)})
    folder, data = folder or Path("tune") / settings.model, _made(data, json)
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
def compare(
    data: Annotated[Path, typer.Argument(help="A prepared folder.")],
    models: Annotated[
        str,
        typer.Option(help="Names of `fieldwise models`, with commas; field; all; by default a few fast, strong ones."),
    ] = "",
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs of each model. Default: 3; without --models one, and more where that is worth it."),
    ] = None,
    limit: Annotated[
        str, typer.Option("--time", help="Time limit, such as 90s, 30m, 2h; `best` is the best of what was trained.")
    ] = "",
    recipes: Annotated[
        Path | None, typer.Option(callback=shipped, help="A folder of MODEL.toml; other models have defaults.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where runs and tables go.")] = Path("comparison"),
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    blend: Annotated[
        str,
        typer.Option(
            help="Models to blend as one more entry, such as gbdt,ipnn; all; none. Default: all, or none with --models."
        ),
    ] = "",
    refit: Annotated[bool, typer.Option(help="Train the best again with the test rows added, for predictions.")] = True,
    json: Json = False,
) -> None:
    """Train many models on one prepared folder; write a table, a page, and `best`, a bundle. Continues after a kill.

    Example: `fieldwise compare data --models lr,fm,deepfm,pin --seeds 3 --out comparison`
    """
    from fieldwise.experiments import compare as room
    from fieldwise.experiments.lineup import lineup
    from fieldwise.reporting import result_tables

    asked = lineup(data, models, blend, seeds)
    for text in asked.notes:
        note(text)
    with ComparisonBar(json) as bar:
        settings = (recipes, device, jobs, bar, asked.members, refit, seconds_of(limit))
        found = room.compare(asked.entrants, data, folder, asked.seeds, *settings)
    if json:
        print_json(found)
        return
    result_tables.show(out, room.COLUMNS, result_tables.lines(found["models"], room.COLUMNS))
    for row in found["models"]:
        if row["verdict"]:
            blocks = f"better in {row['blocks_better']} of {row['blocks']} blocks"
            say(f"{row['model']} against {found['baseline']} on log loss: {row['verdict']}, {blocks}")
    for warning in found["warnings"]:
        warn(warning)
    if found["skipped"]:
        note(f"the time was up before {', '.join(found['skipped'])}; the same command without --time trains the rest")
    say(f"table: {folder / 'table.md'}  page: {folder / 'index.html'}")
    best = found["best"]
    say(f"lowest validation log loss: {best['model']}, {best['valid_log_loss']:.5f}")
    for line in result_tables.outlook_lines(best):
        say(line)
    if "refit_rows" in best:
        say(f"{best['bundle']} was trained on {best['refit_rows']:,} rows, including those of the test part")
    say(f"next: fieldwise predict {best['bundle']} FILE -o predictions.csv")


def seconds_of(text: str, option: str = "--time", zero: bool = False) -> float:
    """90s, 30m or 2h in seconds; infinite if empty."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if text and (found is None or (float(found[1]) == 0 and not zero)):
        raise ConfigError(f"{option} takes a time such as 90s, 30m or 2h, found '{text}'")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found else math.inf
