"""Runs -> one table, for the terminal and for the page, and one self-contained HTML page."""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import fieldwise
from fieldwise import plots
from fieldwise.errors import BundleError, FieldwiseError
from fieldwise.files import whole_file

# Below so many logits a pair's strength is rounding: the model just adds its fields up.
ADDITIVE = 1e-4
# What the page reads of a part's metrics, beside the table's columns.
_NEEDED = ("rows", "positive_rate", "reliability")
# More fields than this, and a heat map gets the page's whole width.
WIDE_FIELDS = 20


class Column(NamedTuple):
    """A column of the table: its key in the rows, how it is written, and how bad a value is."""

    key: str
    title: str
    form: str
    badness: Callable[[float], float] | None


def _low(value: float) -> float:
    return value


def _high(value: float) -> float:
    return -value


def _near_one(value: float) -> float:
    return abs(math.log(value)) if value > 0 else math.inf


MEANINGS = {
    "auc": "chance that a positive row scores above a negative one; 0.5 is guessing, 1 is perfect.",
    "log_loss": "average surprise at what happened; lower is better, and wrong probabilities cost.",
    "rig": "relative information gain: share of the average rate's log loss that the model removes; 0 is no help.",
    "calibration": "mean predicted probability over observed rate; 1 is right, 1.1 promises 10 % too much.",
    "ece": "expected calibration error: mean distance of predicted and observed rates over groups of rows.",
    "rows_per_s": "training rows handled in a second.",
    "parameters": "how many numbers the model learns.",
    "epochs": "how often training went over its rows before it stopped.",
}
COLUMNS = (
    Column("auc", "AUC", ".4f", _high),
    Column("log_loss", "Log loss", ".5f", _low),
    Column("rig", "RIG", ".4f", _high),
    Column("calibration", "Calibration", ".3f", _near_one),
    Column("ece", "ECE", ".5f", _low),
    Column("rows_per_s", "Rows/s", ",.0f", _high),
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
        """The held-out rows that the metrics are of: test, or valid if there was no test data, or '' yet."""
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
                found = f"it has no {name}" if path.is_dir() else "there is no such folder"
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

    A value that is not there, because the run is unfinished or the metric has no meaning, is None.
    """
    return _rows([Run.read(Path(path)) for path in runs])


def print_table(rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None, console: Console) -> None:
    """Draws the table on a terminal; the best value of a column is bold and green."""
    # Nine columns just fit a terminal of 80 without air between them.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, int(console.width >= 100)), show_edge=False)
    table.add_column("Model", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    for name, remark, cells in _lines(rows, oracle):
        marked = [Text(text, style="bold green" if best else "") for text, best in cells]
        table.add_row(Text(name + remark), *marked)
    console.print(table)


def write_report(
    runs: Sequence[Path], out: Path, oracle: dict[str, float] | None = None, heat_maps: bool = True
) -> Path:
    """Writes the page of these runs to `out`; `oracle`: metrics of the true probabilities, where known."""
    if not runs:
        raise FieldwiseError("a report needs at least one run, found none; name what `fieldwise train --out` wrote")
    read = [Run.read(Path(path)) for path in runs]
    rows = _rows(read)
    named = dict(zip([row["name"] for row in rows], read, strict=True))
    parts = [
        f"<h1>{escape(' · '.join(named))}</h1>",
        f'<p class="summary">{" ".join(_summary(named, rows, oracle))}</p>',
        _table(rows, oracle),
        _pictures(named),
        _heat_maps(named) if heat_maps else "",
        _settings(named),
        _footer(runs, out),
    ]
    page = PAGE.format(title=escape(", ".join(named)), style=STYLE, body="\n".join(filter(None, parts)))
    try:
        with whole_file(out) as file:
            file.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise FieldwiseError(f"cannot write the report: {error.strerror} ({out})") from None
    return out


def _read_log(path: Path) -> list[dict[str, Any]]:
    """The log's records; a last line that a kill cut short is left out."""
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    records = [json.loads(line) for line in whole.split("\n") if line]
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
        # calibration is the method's name in the report and the ratio in the metrics: those win.
        values = run.report | run.metrics
        about = {"name": name, "path": str(run.path), "model": run.model, "part": run.part}
        numbers = {column.key: _number(values.get(column.key)) for column in COLUMNS}
        rows.append(about | {"finished": bool(run.report)} | numbers)
    return rows


def _names(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its model, with as much of its folder as tells it from the others."""
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
    """The part whose rows compare with each other: test, if any run has it."""
    return "test" if any(row["part"] == "test" for row in rows) else "valid"


def _lines(
    rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None
) -> Iterator[tuple[str, str, list[tuple[str, bool]]]]:
    """The table's lines as text: name, remark, and each cell with whether it is its column's best."""
    best = {column.key: _best(rows, column) for column in COLUMNS}
    for row in rows:
        remark = " – validation" if row["part"] == "valid" else "" if row["finished"] else " – unfinished"
        cells = [_cell(row, column) for column in COLUMNS]
        compares = row["part"] == _compared(rows)
        marks = [compares and cell == best[column.key] for cell, column in zip(cells, COLUMNS, strict=True)]
        yield row["name"], remark, list(zip(cells, marks, strict=True))
    if oracle:
        yield "oracle", "", [(_cell(oracle, column), False) for column in COLUMNS]


def _best(rows: Sequence[Mapping[str, Any]], column: Column) -> str | None:
    """How a column's best value is written; None if there is nothing to choose from."""
    known = [row for row in rows if row["part"] == _compared(rows) and row[column.key] is not None]
    badness = column.badness
    if badness is None or len(known) < 2:
        return None
    return _cell(min(known, key=lambda row: badness(row[column.key])), column)


def _cell(row: Mapping[str, Any], column: Column) -> str:
    value = row.get(column.key)
    return "–" if value is None else format(value, column.form)


def _summary(
    named: Mapping[str, Run], rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None
) -> Iterator[str]:
    """The first paragraph's sentences: what is shown, which run is best, how far from the oracle."""
    data = sorted({Path(str(run.report["data"])).name for run in named.values() if run.report.get("data")})
    trained = f", trained on {escape(', '.join(data))}." if data else "."
    yield (f"{len(rows)} runs are shown here" if len(rows) > 1 else "One run is shown here") + trained
    part = _compared(rows)
    known = [row for row in rows if row["part"] == part and row["log_loss"] is not None]
    if not known:
        yield "There is no result to compare yet; the curves show how far training has come."
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
    if oracle and "log_loss" in oracle:
        yield _beside_oracle(best, oracle["log_loss"])
    if part == "valid":
        yield "There was no test data; validation rows also decide when to stop, so expect slightly worse."
    elif any(row["part"] == "valid" for row in rows):
        yield "Runs without test data show their validation rows, which are not compared with the others."


def _beside_oracle(best: Mapping[str, Any], oracle: float) -> str:
    gap = best["log_loss"] - oracle
    place = f"{abs(gap):.5f} {'above' if gap >= 0 else 'below'} it"
    if best["rig"] is not None and best["rig"] < 1:
        base = best["log_loss"] / (1 - best["rig"])
        share = (base - best["log_loss"]) / (base - oracle) if base > oracle else math.nan
        if 0 <= share <= 1:
            place += f", having learned {share:.0%} of what can be known beyond the average rate"
    return f"The oracle, which knows the true probabilities, reaches {oracle:.5f}; the best run is {place}."


def _table(rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, float] | None) -> str:
    head = "".join(f'<th scope="col">{column.title}</th>' for column in COLUMNS)
    lines, any_best = [], False
    for name, remark, cells in _lines(rows, oracle):
        values = "".join(f'<td class="best">{text}</td>' if best else f"<td>{text}</td>" for text, best in cells)
        lines.append(f'<tr><th scope="row">{escape(name)}<span>{remark}</span></th>{values}</tr>')
        any_best = any_best or any(best for _, best in cells)
    meanings = [(column.title, MEANINGS[column.key]) for column in COLUMNS]
    if oracle:
        meanings.append(("oracle", "the true probabilities of the simulated log, which no model knows."))
    note = "<p class='note'>Bold on green: the best of its column.</p>" if any_best else ""
    return (
        '<h2>The table</h2>\n<div class="scroll"><table>'
        f'<thead><tr><th scope="col">Model</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n{note}"
        f"<dl>{''.join(f'<dt>{title}</dt><dd>{meaning}</dd>' for title, meaning in meanings)}</dl>"
    )


def _pictures(named: Mapping[str, Run]) -> str:
    """The training curves of all runs and the reliability diagram of the finished ones."""
    logs = {name: run.log for name, run in named.items()}
    curves = _figure(
        "<h2>Training curves</h2>",
        plots.training_curves(logs),
        "Both fall while a model learns. Where validation turns up and training falls on, a model begins to "
        "learn its rows by heart; the weights at the ring are kept.",
    )
    bins = {name: run.metrics.get("reliability", {}) for name, run in named.items()}
    if not any(bins.values()):
        return f'<div class="pair">{curves}</div>'
    reliability = _figure(
        "<h2>Reliability diagram</h2>",
        plots.reliability_diagram(bins),
        "Each point is a group of rows with similar predictions. On the dashed line a predicted 20 % comes "
        "true in 20 % of the rows; below it a model promises too much.",
    )
    return f'<div class="pair">{curves}{reliability}</div>'


def _heat_maps(named: Mapping[str, Run]) -> str:
    """A map for each run whose fields act together, and a word on those that only add up."""
    figures, adding, wide = [], [], ""
    for name, run in named.items():
        found = run.report.get("pair_strength")
        if not found:
            continue
        fields, matrix = found["fields"], np.array(found["matrix"], dtype=np.float64)
        if np.nanmax(matrix, initial=0.0) < ADDITIVE:
            adding.append(escape(name))
            continue
        figures.append(_figure("", plots.heat_map(matrix, fields, name), _strongest(fields, matrix)))
        wide = " wide" if len(fields) > WIDE_FIELDS else wide
    if not figures:
        return ""
    none = f" No map for {', '.join(adding)}: there all fields just add up." if adding else ""
    return (
        "<h2>Which fields act together</h2>\n"
        "<p>A dark square is a pair of fields that the model reads together: how much, in logits, the effect "
        "of changing one depends on the other, measured on held-out rows. "
        f"White is a pair whose effects just add up. Each map has its own scale.{none}</p>\n"
        f'<div class="pair{wide}">{"".join(figures)}</div>'
    )


def _strongest(fields: Sequence[str], matrix: NDArray[np.float64], count: int = 3) -> str:
    first, second = np.triu_indices(len(fields), k=1)
    order = np.argsort(-matrix[first, second], kind="stable")[:count]
    pairs = [
        f"{fields[i]} × {fields[j]} ({matrix[i, j]:#.2g})" for i, j in zip(first[order], second[order], strict=True)
    ]
    return f"Strongest: {escape(', '.join(pairs))}."


def _settings(named: Mapping[str, Run]) -> str:
    boxes = []
    for name, run in named.items():
        data, config = str(run.report.get("data", "DATA")), str(run.path / "config.toml")
        again = shlex.join(["fieldwise", "train", data, "--model", run.model, "--config", config, "--out", "RUN"])
        boxes.append(
            f"<details><summary>{escape(name)}</summary><pre>{escape(run.config)}</pre>"
            f"<p>Train it again: <code>{escape(again)}</code></p></details>"
        )
    return "<h2>Settings</h2>\n" + "\n".join(boxes)


def _footer(runs: Sequence[Path], out: Path) -> str:
    command = shlex.join(["fieldwise", "report", *map(str, runs), "--out", str(out)])
    version = escape(fieldwise.__version__)
    return f"<footer>fieldwise {version}. Make this page again: <code>{escape(command)}</code></footer>"


def _figure(head: str, svg: str, caption: str) -> str:
    return f'<figure>{head}<div class="scroll">{svg}</div><figcaption>{caption}</figcaption></figure>'


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fieldwise: {title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: #23272e; font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 40px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 36px 0 10px; }
p { max-width: 46rem; margin: 8px 0; overflow-wrap: anywhere; }
.summary { font-size: 1.06rem; }
.scroll { overflow-x: auto; background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid #edf0f3; }
th:first-child { text-align: left; }
tbody th { font-weight: 600; position: sticky; left: 0; background: #fff; max-width: 15rem; overflow: hidden;
  text-overflow: ellipsis; }
thead th { font-size: .86rem; color: #545b66; font-weight: 600; vertical-align: bottom; }
tbody tr:last-child > * { border-bottom: 0; }
.best { background: #e3f3ea; font-weight: 700; }
tbody th span { color: #8a4b00; font-weight: 400; }
.note { font-size: .9rem; color: #545b66; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; font-size: .9rem; }
dt { font-weight: 600; }
dd { margin: 0; color: #3d444e; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 0 24px; }
.pair.wide { grid-template-columns: minmax(0, 1fr); }
figure { margin: 0 0 20px; min-width: 0; }
figure .scroll { padding: 10px; }
svg { display: block; height: auto; width: 100%; max-width: 600px; margin: 0 auto; }
.wide svg { max-width: none; min-width: 760px; }
figcaption { font-size: .9rem; color: #3d444e; margin: 8px 2px 0; max-width: 46rem; overflow-wrap: anywhere; }
details { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px; margin: 8px 0; padding: 8px 14px; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: .86rem; }
code { font-size: .9em; background: #eceff3; padding: 1px 5px; border-radius: 4px; overflow-wrap: anywhere; }
footer { margin-top: 40px; font-size: .9rem; color: #545b66; }
@media (max-width: 560px) {
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: 6px; }
  th, td { padding: 7px 9px; }
  tbody th { max-width: 9rem; }
  tbody th span { display: block; }
}
@media print { body { background: #fff; } .scroll { overflow: visible; } }
"""
