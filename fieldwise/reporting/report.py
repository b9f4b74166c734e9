"""Compares runs in a table, on the terminal and in a self-contained HTML page."""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fieldwise.bundle import bundle
from fieldwise.bundle.predictions import Predictions
from fieldwise.config.errors import BundleError, FieldwiseError
from fieldwise.data.dataset import Dataset, is_prepared
from fieldwise.data.encode.on_demand import made
from fieldwise.evaluation import significance
from fieldwise.evaluation.pair_strength import strength_of_pairs
from fieldwise.reporting import plots, result_tables
from fieldwise.reporting.pages import figure, write_page
from fieldwise.reporting.result_tables import Column, Line, high, low, near_one

# A pair strength below this many logits is rounding: the effects of the fields add up.
ADDITIVE = 1e-4
# Metrics that the page needs, beside the table's columns.
_NEEDED = ("rows", "positive_rate", "reliability")
# A heat map with more fields gets the full width of the page.
WIDE_FIELDS = 20


MEANINGS = {
    "auc": "probability that a positive row scores above a negative one; 0.5 is guessing, 1 is perfect.",
    "log_loss": "mean of -log of the probability of what happened; lower is better, and wrong probabilities cost.",
    "rig": "relative information gain: share of the average rate's log loss that the model removes; 0 is none.",
    "calibration": "mean predicted probability over observed rate; 1 is right, 1.1 is 10 % too high.",
    "ece": "expected calibration error: mean distance of predicted and observed rates over groups of rows.",
    "rows_per_s": "training rows per second.",
    "parameters": "number of values that the model learns.",
    "epochs": "passes over the training rows until training stopped.",
}
COLUMNS = (
    Column("auc", "AUC", ".4f", high),
    Column("log_loss", "Log loss", ".5f", low),
    Column("rig", "RIG", ".4f", high),
    Column("calibration", "Calibration", ".3f", near_one),
    Column("ece", "ECE", ".5f", low),
    Column("rows_per_s", "Rows/s", ",.0f", high),
    Column("parameters", "Parameters", ",.0f", None),
    Column("epochs", "Epochs", ".0f", None),
)


@dataclass(frozen=True)
class Run:
    """A run folder, read; `report` is empty until the run is finished."""

    path: Path
    model: str
    config: str
    log: list[dict[str, Any]]
    report: dict[str, Any]

    @property
    def part(self) -> str:
        """The held-out part of the metrics: test, valid if there was no test data, or '' before the run is finished."""
        return next((part for part in ("test", "valid") if part in self.report), "")

    @property
    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = self.report.get(self.part, {})
        return found

    @classmethod
    def read(cls, path: Path) -> Run:
        """Opens a folder that training wrote, finished or not."""
        for name in ("config.toml", "log.jsonl"):
            if not (path / name).is_file():
                found = f"it has no {name}" if path.is_dir() else "no such folder"
                raise BundleError(f"{path} is not a run: {found}; name a folder that `fieldwise train --out` wrote")
        try:
            config = (path / "config.toml").read_text(encoding="utf-8")
            done = (path / "DONE").exists()
            report = json.loads((path / "report.json").read_text(encoding="utf-8")) if done else {}
            model = report["model"] if done else tomllib.loads(config)["model"]["name"]
            for part in ("valid", "test"):
                _need(report.get(part, _NEEDED), _NEEDED)
            return cls(path, str(model), config, _read_log(path / "log.jsonl"), report)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(f"the run {path} is damaged: {error!r}; train it again into a new folder") from None


def table_rows(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """One dict for each run, in order: name, path, model, part, finished, and the keys of COLUMNS.

    A value is None if the run is unfinished or the metric is not defined.
    """
    return _rows([Run.read(Path(path)) for path in runs])


def print_table(rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None, console: Console) -> None:
    """Draws the table on a terminal; the best value of a column is bold and green."""
    result_tables.show(console, COLUMNS, _lines(rows, oracle))


def differences(runs: Sequence[Path], blocks: int = 0) -> dict[str, Any]:
    """Tests the best of these runs against each of the others on the same held-out rows, with significance.py."""
    if len(runs) < 2:
        raise FieldwiseError(f"--significance compares runs: name at least two, found {len(runs)}")
    rows = table_rows(runs)
    named = {row["name"]: [Predictions.load(Path(path))] for row, path in zip(rows, runs, strict=True)}
    best = min(rows, key=lambda row: math.inf if row["log_loss"] is None else float(row["log_loss"]))["name"]
    return significance.compare_pairs(named, [(best, name) for name in named if name != best], blocks)


def write_report(
    runs: Sequence[Path],
    out: Path,
    oracle: dict[str, float] | None = None,
    heat_maps: bool = True,
    tested: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the page of these runs to `out`.

    `oracle`: metrics of the true probabilities, if known; `tested`: the result of `differences`.
    """
    if not runs:
        raise FieldwiseError("a report needs at least one run, found none; name what `fieldwise train --out` wrote")
    read = [Run.read(Path(path)) for path in runs]
    rows = _rows(read)
    named = dict(zip([row["name"] for row in rows], read, strict=True))
    parts = [
        f"<h1>{escape(' · '.join(named))}</h1>",
        f'<p class="summary">{" ".join(_summary(named, rows, oracle))}</p>',
        _table(rows, oracle),
        significance_section(tested) if tested else "",
        pictures(named),
        _heat_maps(named) if heat_maps else "",
        settings(named),
    ]
    more = ["--significance", "--blocks", str(tested["blocks"])] if tested else []
    return write_page(out, ", ".join(named), parts, ["fieldwise", "report", *map(str, runs), "--out", str(out), *more])


def _read_log(path: Path) -> list[dict[str, Any]]:
    """The log's records, without a last line that a kill cut off."""
    complete, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    records = [json.loads(line) for line in complete.split("\n") if line]
    for record in records:
        _need(record, {"train": ("rows", "loss"), "valid": ("rows", "log_loss")}.get(record["event"], ()))
    return records


def _need(values: Container[str], keys: Sequence[str]) -> None:
    for key in keys:
        if key not in values:
            raise KeyError(key)


def _rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    rows = []
    for run, name in zip(runs, _names(runs), strict=True):
        # `calibration` is the method in the report and the ratio in the metrics: the metrics win.
        values = run.report | run.metrics
        about = {"name": name, "path": str(run.path), "model": run.model, "part": run.part}
        numbers = {column.key: _number(values.get(column.key)) for column in COLUMNS}
        rows.append(about | {"finished": bool(run.report)} | numbers)
    return rows


def _names(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its model, and as much of its folder as makes it unique."""
    for names in (
        [run.model for run in runs],
        [f"{run.model} ({run.path.name})" for run in runs],
        [f"{run.model} ({run.path})" for run in runs],
    ):
        if len(set(names)) == len(names):
            return names
    return [f"{run.model} ({number})" for number, run in enumerate(runs, start=1)]


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _compared(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part whose rows are compared: test, if any run has it."""
    return "test" if any(row["part"] == "test" for row in rows) else "valid"


def _lines(rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None) -> list[Line]:
    """The table's lines; only runs measured on the compared part can have the best value."""
    remarks = [" – validation" if r["part"] == "valid" else "" if r["finished"] else " – unfinished" for r in rows]
    lines = result_tables.lines(rows, COLUMNS, remarks, [row["part"] == _compared(rows) for row in rows])
    return lines + (result_tables.lines([{"name": "oracle"} | dict(oracle)], COLUMNS) if oracle else [])


def _summary(
    named: Mapping[str, Run], rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None
) -> Iterator[str]:
    """The sentences of the first paragraph: the runs, the best of them, its distance to the oracle."""
    data = sorted({Path(str(run.report["data"])).name for run in named.values() if run.report.get("data")})
    trained = f", trained on {escape(', '.join(data))}." if data else "."
    yield (f"{len(rows)} runs are shown here" if len(rows) > 1 else "One run is shown here") + trained
    part = _compared(rows)
    known = [row for row in rows if row["part"] == part and row["log_loss"] is not None]
    if not known:
        yield "No run has a result yet; the curves show the progress of training."
        return
    best, *others = sorted(known, key=lambda row: float(row["log_loss"]))
    name, metrics = f"<strong>{escape(best['name'])}</strong>", named[best["name"]].metrics
    kind = {"test": "test", "valid": "validation"}[part]
    yield f"On {metrics['rows']:,} {kind} rows, {metrics['positive_rate']:.2%} of them positive, {name}"
    if others:
        gap, second = others[0]["log_loss"] - best["log_loss"], escape(others[0]["name"])
        yield f"is best with a log loss of {best['log_loss']:.5f}, {gap:.5f} ahead of {second}."
    else:
        yield f"has a log loss of {best['log_loss']:.5f}."
    yield from (
        f"{line[0].upper()}{escape(line[1:])}." for line in result_tables.outlook_lines(named[best["name"]].report)
    )
    if oracle and "log_loss" in oracle:
        yield _beside_oracle(best, oracle["log_loss"])
    if part == "valid":
        yield "There was no test data; validation rows also decide when to stop, so new rows will be slightly worse."
    elif any(row["part"] == "valid" for row in rows):
        yield "Runs without test data show their validation rows, which are not compared with the others."


def _beside_oracle(best: Mapping[str, Any], oracle: float) -> str:
    gap = best["log_loss"] - oracle
    place = f"{abs(gap):.5f} {'above' if gap >= 0 else 'below'} it"
    if best["rig"] is not None and best["rig"] < 1:
        base = best["log_loss"] / (1 - best["rig"])
        share = (base - best["log_loss"]) / (base - oracle) if base > oracle else math.nan
        if 0 <= share <= 1:
            place += f", and has learned {share:.0%} of what can be known beyond the average rate"
    return f"The oracle, which knows the true probabilities, reaches {oracle:.5f}; the best run is {place}."


def _table(rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None) -> str:
    meanings = [(column.title, MEANINGS[column.key]) for column in COLUMNS]
    if oracle:
        meanings.append(("oracle", "the true probabilities of the simulated log, which no model knows."))
    return "<h2>The table</h2>\n" + result_tables.html(COLUMNS, _lines(rows, oracle), meanings)


def significance_section(tested: Mapping[str, Any]) -> str:
    """The results of the tests as sentences, and how to read them."""
    kind = {"test": "test", "valid": "validation"}[tested["part"]]
    many = " One in twenty pairs without a difference has p below 0.05." if len(tested["pairs"]) > 1 else ""
    return (
        "<h2>Is the difference real?</h2>\n"
        f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in significance.sentences(tested))}</ul>\n"
        f"<p class='note'>Wilcoxon's signed-rank test on the {tested['rows']:,} {kind} rows, divided in order into "
        f"{tested['blocks']} blocks. p is how often two equally good models would differ as much; below "
        f"{significance.LEVEL} the difference is called significant.{many}</p>"
    )


def pictures(named: Mapping[str, Run]) -> str:
    """The training curves of all runs and the reliability diagram of the finished ones."""
    logs = {name: run.log for name, run in named.items()}
    curves = figure(
        "<h2>Training curves</h2>",
        plots.training_curves(logs),
        "Both fall while a model learns. Where validation rises while training still falls, the model begins to "
        "overfit; the weights at the ring are kept.",
    )
    bins = {name: run.metrics.get("reliability", {}) for name, run in named.items()}
    if not any(bins.values()):
        return f'<div class="pair">{curves}</div>'
    reliability = figure(
        "<h2>Reliability diagram</h2>",
        plots.reliability_diagram(bins),
        "Each point is a group of rows with similar predictions. On the dashed line a predicted 20 % comes "
        "true in 20 % of the rows; below the line, predictions are too high.",
    )
    return f'<div class="pair">{curves}{reliability}</div>'


def _heat_maps(named: Mapping[str, Run]) -> str:
    """A map for each run with interactions, and a note on runs without any."""
    figures, adding, wide = [], [], ""
    for name, run in named.items():
        found = run.report.get("pair_strength") or _measured(run)
        if not found:
            continue
        fields, matrix = found["fields"], np.array(found["matrix"], dtype=np.float64)
        if np.nanmax(matrix, initial=0.0) < ADDITIVE:
            adding.append(escape(name))
            continue
        some = f" The {len(fields)} strongest of {found['of']:,} fields." if "of" in found else ""
        figures.append(figure("", plots.heat_map(matrix, fields, name), _strongest(fields, matrix) + some))
        wide = " wide" if len(fields) > WIDE_FIELDS else wide
    if not figures:
        return ""
    none = f" No map for {', '.join(adding)}: the effects of its fields add up." if adding else ""
    return (
        "<h2>Which fields interact</h2>\n"
        "<p>The darker a square, the more the effect of one field depends on the other, in logits, measured on "
        "held-out rows. "
        f"White is a pair whose effects add up. Each map has its own scale.{none}</p>\n"
        f'<div class="pair{wide}">{"".join(figures)}</div>'
    )


def _measured(run: Run) -> dict[str, Any] | None:
    """How strongly fields interact in a run of a comparison, where that was left out; None without the rows for it."""
    if not run.report or "members" in run.report:
        return None
    rows = made(Path(str(run.report.get("data", ""))))
    if not is_prepared(rows):
        return None
    opened = bundle.load(run.path)
    if opened.own_encoder.layout.fields < 2 or not opened.encoded(rows):
        return None
    valid = Dataset.open(rows).with_ranks.parts["valid"]
    ids = np.asarray(valid.ids)[:, : opened.layout.columns]
    return strength_of_pairs(opened.logits, ids, opened.layout, opened.own_encoder.names)


def _strongest(fields: Sequence[str], matrix: NDArray[np.float64], count: int = 3) -> str:
    first, second = np.triu_indices(len(fields), k=1)
    order = np.argsort(-matrix[first, second], kind="stable")[:count]
    pairs = [
        f"{fields[i]} × {fields[j]} ({matrix[i, j]:#.2g})" for i, j in zip(first[order], second[order], strict=True)
    ]
    return f"Strongest: {escape(', '.join(pairs))}."


def settings(named: Mapping[str, Run]) -> str:
    """Every setting of each run, and the command that trains it again."""
    boxes = []
    for name, run in named.items():
        boxes.append(
            f"<details><summary>{escape(name)}</summary><pre>{escape(run.config)}</pre>"
            f"{_members(run)}<p>Train it again: <code>{escape(shlex.join(_train_command(run)))}</code></p></details>"
        )
    return "<h2>Settings</h2>\n" + "\n".join(boxes)


def _members(run: Run) -> str:
    """The members of a blend; empty for other runs."""
    named = [f"{member['model']} {member['weight']:.3f}" for member in run.report.get("members", ())]
    return f"<p>Members and their weights: {escape(', '.join(named))}.</p>" if named else ""


def _train_command(run: Run) -> list[str]:
    """The command that trains such a run."""
    if "members" in run.report:
        members = [str(member["run"]) for member in run.report["members"]]
        folders = dict.fromkeys(str(member["data"]) for member in run.report["members"])
        named = [word for folder in folders for word in ("--data", folder)]
        settings = tomllib.loads(run.config)
        more = [*(["--plain"] if settings["model"]["plain"] else []), "--calibration", settings["train"]["calibration"]]
        return ["fieldwise", "blend", *members, *named, *more, "--out", "RUN"]
    data = str(run.report.get("data", "DATA"))
    return ["fieldwise", "train", data, "--model", run.model, "--config", str(run.path / "config.toml"), "--out", "RUN"]
