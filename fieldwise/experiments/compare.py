"""Many models and seeds on one prepared folder -> one table: markdown, csv and a page."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fieldwise.bundle.predictions import Predictions
from fieldwise.bundle.scoring import device_of
from fieldwise.config.errors import ConfigError, TrainingError
from fieldwise.config.files import held_folder, whole_file
from fieldwise.config.progress import Watch
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.on_demand import forget, made
from fieldwise.data.encode.refit import FOLDER as REFIT
from fieldwise.evaluation import significance
from fieldwise.experiments import folds
from fieldwise.experiments.entrants import Entrant, again, beside, is_part, keep_again, keep_best, model_of
from fieldwise.experiments.jobs import Job, run_all
from fieldwise.experiments.race import FIRST_SHARE, Budget, Outcome, race
from fieldwise.reporting import plots, result_tables
from fieldwise.reporting.pages import figure, write_page
from fieldwise.reporting.report import MEANINGS, Run, pictures, settings, significance_section
from fieldwise.reporting.result_tables import Column, Line, high, low, near_one
from fieldwise.train import blend as blending
from fieldwise.train.race import Race
from fieldwise.train.runs import check_parts

# What the paper compares its models with; the best of those in a comparison is what the others are tested against.
BASELINES = ("lr", "poly2", "gbdt", "symmetric", "fm", "ffm", "afm", "ccpm", "fnn", "deepfm")
COLUMNS = (
    Column("auc", "AUC", ".4f", high, "auc_sd"),
    Column("log_loss", "Log loss", ".5f", low, "log_loss_sd"),
    Column("calibration", "Calibration", ".3f", near_one),
    Column("parameters", "Parameters", ",.0f"),
    Column("rows_per_s", "Rows/s", ",.0f", high),
    Column("seconds", "Seconds", ",.1f", low),
)
WORDS = MEANINGS | {
    "seconds": "how long a run trained, without evaluation.",
    "verdict": "Wilcoxon's signed-rank test of the log loss on blocks of rows, against the best baseline.",
}


def members_named(text: str, models: Sequence[str]) -> list[str]:
    """The members of the blend that a comma-separated list asks for, all models for `all`, none for an empty one."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    members = list(models) if names == ["all"] else names
    for name in members:
        if name not in models:
            raise ConfigError(f"--blend takes models of this comparison, {', '.join(models)}, found '{name}'")
    if len(members) == 1:
        raise ConfigError(f"--blend takes at least two models, found one, {members[0]}")
    return members


def compare(
    entrants: Sequence[Entrant],
    data: Path,
    out: Path,
    seeds: int | None = None,
    recipes: Path | None = None,
    device: str = "",
    workers: int = 1,
    watch: Watch | None = None,
    members: Sequence[str] = (),
    refit: bool = True,
    limit: float = math.inf,
) -> dict[str, Any]:
    """Trains each entrant with each seed into out/NAME/seedN, writes the table, and returns it.

    Without a number of `seeds` the entrants race (race.py): one that adds nothing is stopped, and only trees that are
    worth it have several seeds. After `limit` seconds no run is begun, and the one under way ends.

    Settings are those of recipes/MODEL.toml, or the defaults. Runs that are DONE are kept, killed ones go on. A model
    that fails is left out of the table; the error that names it comes after the others are trained. The `members` are
    blended, each seed's runs by themselves, and the blend has a line like any model. out/best is the one of the lowest
    validation log loss, to predict with; with `refit` it is trained again with the test rows among the training rows,
    where `prepare` has kept the rows for that. Folders inside of `data` are made for the runs that read them,
    and removed in the end: they are many times as large as the rows.
    """
    for name, number in (
        ("--seeds", 1 if seeds is None else seeds),
        ("--jobs", workers),
        ("the number of models", len(entrants)),
    ):
        if number < 1:
            raise ConfigError(f"{name} must be at least 1, found {number}")
    budget = Budget(limit)
    if recipes is not None and not recipes.is_dir():
        raise ConfigError(f"--recipes takes a folder with a MODEL.toml for each model, found none ({recipes})")
    check_parts(Dataset.open(data))
    if device:
        device_of(device)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out takes a folder, found a file; choose another name ({out})")
    with held_folder(out, f"comparing models in {out}"):
        watch = watch or Watch()
        read = dict.fromkeys([data, *(entrant.data for entrant in entrants)])
        folders = [made(folder, watch.making) for folder in read]
        found = _compare(entrants, folders, out, seeds, recipes, device, workers, watch, members, refit, budget)
        for folder in {*read, data / REFIT}:
            forget(folder)
        return found


def _compare(
    entrants: Sequence[Entrant],
    folders: Sequence[Path],
    out: Path,
    seeds: int | None,
    recipes: Path | None,
    device: str,
    workers: int,
    watch: Watch,
    members: Sequence[str],
    refit: bool,
    budget: Budget,
) -> dict[str, Any]:
    data = folders[0]
    found = _trained(entrants, data, out, seeds, recipes, device, workers, watch, budget)
    jobs, failures = found.jobs, found.failures
    kept = {
        entrant.name: own
        for entrant in entrants
        if entrant.name not in failures and (own := [job for job in jobs if job.group == entrant.name and job.done])
    }
    whole = [job for own in kept.values() for job in own]
    folded = folds.gather(kept, data, out, run_all, workers, watch) if budget.allows(whole) else None
    blended = set(folded.names if folded else found.chosen)
    blends = _blends({name: kept[name] for name in members if name in blended and name in kept}, seeds)
    if blends:
        kept[blending.NAME] = [_blended(runs, folders, out, seed) for seed, runs in enumerate(blends)]
    result = (
        write_comparison(kept, data, out, recipes, seeds is None) | {"best": keep_best(kept, folders, out)}
        if kept
        else {}
    )
    result |= {"skipped": [entrant.name for entrant in entrants if entrant.name not in {*kept, *failures}]}
    more = []
    if kept and refit and budget.allows([job for job in jobs if is_part(job, result["best"], out)]):
        more = again(result["best"], jobs, data, out, watch.making)
    if more:
        failed = run_all(more, workers, watch)
        failures |= failed
        result["best"] |= {} if failed else keep_again(more, out)
    if failures:
        rest = f"; the others are in {out / 'table.md'}" if kept else ""
        alike = {problem: [m for m, own in failures.items() if own == problem] for problem in failures.values()}
        problems = "; ".join(f"{', '.join(named)} failed: {problem}" for problem, named in alike.items())
        raise TrainingError(f"{problems}{rest}; mend it and give the same command again")
    return result


def _trained(
    entrants: Sequence[Entrant],
    data: Path,
    out: Path,
    seeds: int | None,
    recipes: Path | None,
    device: str,
    workers: int,
    watch: Watch,
    budget: Budget,
) -> Outcome:
    """Trains each entrant with each seed; or, without a number of seeds, lets them race."""
    if seeds is None:
        parts, job = Dataset.open(data).parts, lambda own, seed: own.job(seed, out, recipes, device)
        return race(entrants, job, parts["valid"], parts["train"].rows, workers, watch, budget)
    until = Race(until=budget.at(FIRST_SHARE))
    jobs = [replace(own.job(seed, out, recipes, device), race=until) for seed in range(seeds) for own in entrants]
    return Outcome(jobs, run_all(jobs, workers, watch), [entrant.name for entrant in entrants])


def _blends(kept: Mapping[str, Sequence[Job]], seeds: int | None) -> list[list[Path]]:
    """The runs that are blended: those of each seed by themselves; of a race, all runs of the chosen."""
    if len(kept) < 2:
        return []
    if seeds is None:
        return [[job.out for jobs in kept.values() for job in jobs]]
    return [[jobs[seed].out for jobs in kept.values()] for seed in range(min(map(len, kept.values())))]


def _blended(runs: Sequence[Path], folders: Sequence[Path], out: Path, seed: int) -> Job:
    """A blend, made anew each time: it takes seconds, and any of its runs may be another by now."""
    folder = out / blending.NAME / f"seed{seed}"
    blending.blend(runs, folder, folders, force=True, beside=beside(runs, out), pairs=False)
    return Job(blending.NAME, f"{blending.NAME} seed {seed}", folders[0], folder)


def write_comparison(
    kept: Mapping[str, Sequence[Job]], data: Path, out: Path, recipes: Path | None = None, raced: bool = False
) -> dict[str, Any]:
    """Writes table.md, table.csv and index.html of finished runs, and returns what is in them."""
    runs = {model: [Run.read(job.out) for job in jobs] for model, jobs in kept.items()}
    rows = [_row(model, own) for model, own in runs.items()]
    baseline, tested = _tested(rows, kept)
    for row in rows:
        row |= _verdict(row["model"], tested)
    rows.sort(key=lambda row: (row["log_loss"] is None, row["log_loss"]))
    first = next(iter(runs.values()))[0]
    result = {
        "out": str(out),
        "data": str(data),
        "recipes": str(recipes) if recipes else None,
        "seeds": max(map(len, runs.values())),
        "raced": raced,
        "part": first.part,
        "rows": first.metrics["rows"],
        "positive_rate": first.metrics["positive_rate"],
        "baseline": baseline,
        "models": rows,
        "warnings": [
            f"{job.name}: {warning}"
            for model, jobs in kept.items()
            for job, run in zip(jobs, runs[model], strict=True)
            for warning in run.report.get("warnings", ())
        ],
    }
    columns = (*COLUMNS, Column("verdict", f"Against {baseline}", "")) if baseline else COLUMNS
    lines = result_tables.lines(rows, columns)
    with whole_file(out / "table.md") as file:
        file.write_text(
            result_tables.markdown(columns, lines) + "\n" + " ".join(_summary(result)) + "\n", encoding="utf-8"
        )
    with whole_file(out / "table.csv") as file, file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, [key for key in rows[0] if key != "name"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    _write_page(result, runs, columns, lines, tested)
    return result


def _row(model: str, runs: Sequence[Run]) -> dict[str, Any]:
    """A model's line: means over its seeds, and standard deviations where there are several."""
    values = [run.report | run.metrics for run in runs]
    row: dict[str, Any] = {"name": model, "model": model, "seeds": len(runs)}
    for column in COLUMNS:
        known = [value[column.key] for value in values if value[column.key] is not None]
        row[column.key] = known[0] if len(set(known)) == 1 else fmean(known) if known else None
        if column.spread:
            row[column.spread] = stdev(known) if len(known) > 1 else None
    return row


def _tested(rows: Sequence[Mapping[str, Any]], kept: Mapping[str, Sequence[Job]]) -> tuple[str, dict[str, Any]]:
    """The baseline of the lowest log loss, the hardest to beat, and the tests of all other models against it."""
    known = [row for row in rows if _is_baseline(row["model"]) and row["log_loss"] is not None]
    if not known or len(rows) < 2:
        return "", {}
    baseline = str(min(known, key=lambda row: float(row["log_loss"]))["model"])
    named = {model: [Predictions.load(job.out) for job in jobs] for model, jobs in kept.items()}
    if len(named[baseline][0].labels) < significance.LEAST_BLOCKS:
        return "", {}
    return baseline, significance.compare_pairs(named, [(model, baseline) for model in named if model != baseline])


def _is_baseline(name: str) -> bool:
    """Whether the paper compares with this model; it may read rates."""
    return model_of(name) in BASELINES


def _verdict(model: str, tested: Mapping[str, Any]) -> dict[str, Any]:
    """What the test of a model's log loss says, for the table; empty for the baseline itself."""
    found = next((pair["log_loss"] for pair in tested.get("pairs", ()) if pair["name"] == model), None)
    if found is None:
        return {"verdict": None, "p": None, "blocks_better": None, "blocks": None}
    words = f"{found['verdict']}, p = {found['p']:.2g}"
    return {"verdict": words, "p": found["p"], "blocks_better": found["better"], "blocks": found["blocks"]}


def _summary(result: Mapping[str, Any]) -> list[str]:
    """What was compared and how to read it, in sentences."""
    rows, kind = result["models"], {"test": "test", "valid": "validation"}[result["part"]]
    seeds = f"Mean ± standard deviation over {result['seeds']} seeds" if result["seeds"] > 1 else "One seed"
    if result["raced"] and result["seeds"] > 1:
        seeds = f"Mean ± standard deviation over {result['seeds']} seeds of the chosen trees, one seed of the others,"
    said = [
        seeds,
        f"on {result['rows']:,} {kind} rows of {Path(result['data']).name}, {result['positive_rate']:.2%} positive.",
    ]
    if len(rows) > 1 and rows[1]["log_loss"] is not None:
        gap = rows[1]["log_loss"] - rows[0]["log_loss"]
        said.append(f"{rows[0]['model']} has the lowest log loss, {gap:.5f} ahead of {rows[1]['model']}.")
    if result["raced"]:
        said.append(
            "A network that added nothing to the others was stopped early, and its line is of where it stopped."
        )
    if result["baseline"]:
        present = ", ".join(row["model"] for row in rows if _is_baseline(row["model"]))
        said.append(
            f"The last column tests the log loss against {result['baseline']}, the best baseline on these rows (of "
            f"{present}): Wilcoxon's signed-rank test over blocks of rows, each with its mean log loss over the seeds."
        )
    return said


def _write_page(
    result: Mapping[str, Any],
    runs: Mapping[str, Sequence[Run]],
    columns: Sequence[Column],
    lines: Sequence[Line],
    tested: Mapping[str, Any],
) -> None:
    """index.html: the table, the seeds, the tests, and of each model's first seed curves, reliability and settings."""
    order = [row["model"] for row in result["models"]]
    losses = {model: [run.metrics["log_loss"] for run in runs[model]] for model in order}
    first = {model: runs[model][0] for model in order}
    caption = "Each point is a seed, the bar their mean; to the left is better. Bars that lie closer than points "
    parts = [
        f"<h1>{len(order)} models on {escape(Path(result['data']).name)}</h1>",
        f'<p class="summary">{escape(" ".join(_summary(result)))}</p>',
        "<h2>The table</h2>\n" + result_tables.html(columns, lines, [(c.title, WORDS[c.key]) for c in columns]),
        figure("<h2>Seeds</h2>", plots.spread(losses, "Log loss"), caption + "of one model spread say little."),
        significance_section(tested) if tested else "",
        pictures(first),
        settings(first),
    ]
    command = ["fieldwise", "compare", result["data"], "--out", result["out"]]
    if not result["raced"]:
        names = ",".join(run for run in runs if run != blending.NAME)
        command += ["--models", names, "--seeds", str(result["seeds"])]
        if blending.NAME in runs:
            members = runs[blending.NAME][0].report["members"]
            command += ["--blend", ",".join(Path(member["run"]).parent.name for member in members)]
    command += ["--recipes", result["recipes"]] if result["recipes"] else []
    write_page(Path(result["out"]) / "index.html", f"models on {Path(result['data']).name}", parts, command)
