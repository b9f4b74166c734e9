"""Verbs that train: demo, train, blend, tune, compare."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldwise.commands.app import Force, Json, app
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, load_config
from fieldwise.reporting.console import (
    ComparisonBar,
    TrainingBar,
    TuningBar,
    counting,
    err,
    out,
    print_json,
    print_report,
    print_study,
    say,
    warn,
)


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
    from fieldwise.experiments.demo import run_demo

    result = run_demo(folder, rows, seed, quiet=json)
    if json:
        print_json(result)


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
    workers: Annotated[int, typer.Option(help="Processes that share each batch; torchrun sets its own.")] = 1,
    tables: Annotated[str, typer.Option(help="Of --workers: replicated, sharded, or auto (what fits).")] = "",
    restarts: Annotated[int, typer.Option(help="How often --workers are started again when one dies.")] = 3,
    stalled_after: Annotated[float, typer.Option(help="Seconds until a silent worker is taken for dead.")] = 300.0,
    json: Json = False,
) -> None:
    """Train a model on a prepared folder; leaves a run folder with a bundle in it.

    Example: `fieldwise train data --model pin --set train.lr=3e-4 --out runs/pin`
    """
    from fieldwise.train import distributed
    from fieldwise.train.incremental import settings_of
    from fieldwise.train.sharded import torchrec_engine

    chosen = {"model.name": model, "device": device, "seed": seed, "train.init_from": init_from, "train.tables": tables}
    given = {k: v for k, v in chosen.items() if v not in ("", None)}
    settings = load_config(config, set_ or (), given, settings_of(continue_from) if continue_from else None)
    job = Job(settings, _made(data, json), folder, resume, json, stalled_after)
    # One worker of cut tables is a worker, too.
    if (workers != 1 or settings.train.tables == "sharded") and "WORLD_SIZE" not in os.environ:
        preload: tuple[str, ...] = ("fieldwise.train.loop",)
        if settings.train.tables == "sharded":
            torchrec_engine.check()
            preload += ("torchrec.distributed",)
        report = distributed.launch(_train, (job,), workers, restarts, preload)
    else:
        report = _train(job)
    if not report:  # this is a worker of torchrun, and not the first
        return
    if json:
        print_json(report)
        return
    print_report(report, folder)


@dataclass(frozen=True)
class Job:
    """What a worker is told to train."""

    settings: Config
    data: Path
    folder: Path
    resume: bool
    quiet: bool
    stalled_after: float


def _train(job: Job) -> dict[str, Any]:
    """Trains, as one of the workers where there are any; the report, empty but for the first worker."""
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
    from fieldwise.experiments import tune as room

    seconds, held = _seconds(limit), [item.partition("=")[0].strip() for item in set_ or ()]
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
        str, typer.Option(help="Names of `fieldwise models`, with commas; all; a few quick and strong ones without.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each model.")] = 3,
    recipes: Annotated[Path | None, typer.Option(help="A folder of MODEL.toml; defaults for the others.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where runs and tables go.")] = Path("comparison"),
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    blend: Annotated[
        str,
        typer.Option(help="Models to blend for a further line, such as gbdt,ipnn; all; none. All without --models."),
    ] = "",
    refit: Annotated[
        bool, typer.Option(help="Train the best again, with the test rows among its training rows, to predict with.")
    ] = True,
    json: Json = False,
) -> None:
    """Train many models on one prepared folder; leaves a table, a page, and `best`, a bundle. Goes on after a kill.

    Example: `fieldwise compare data --models lr,fm,deepfm,pin --seeds 3 --out comparison`
    """
    from fieldwise.experiments import compare as room
    from fieldwise.experiments import entrants as lineup
    from fieldwise.reporting import result_tables

    entrants, notes = lineup.entrants(models, data)
    names = [entrant.name for entrant in entrants]
    blended = blend or ("none" if models else "all")
    members = room.members_named("" if blended == "none" else blended, names)
    for note in notes:
        err.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    with ComparisonBar(json) as bar:
        found = room.compare(entrants, data, folder, seeds, recipes, device, jobs, bar, members, refit)
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
    say(f"table: {folder / 'table.md'}  page: {folder / 'index.html'}")
    best = found["best"]
    say(f"lowest validation log loss: {best['model']}, {best['valid_log_loss']:.5f}")
    if "refit_rows" in best:
        say(f"{best['bundle']} has learnt {best['refit_rows']:,} rows, the test part too, which measures it no more")
    say(f"next: fieldwise predict {best['bundle']} FILE -o predictions.csv")


def _seconds(text: str) -> float:
    """90s, 30m or 2h in seconds; nothing means without end."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if text and (found is None or float(found[1]) == 0):
        raise ConfigError(f"--time takes a time such as 90s, 30m or 2h, found '{text}'")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found else math.inf
