"""Tables of numbers, one line for each run or model, for a terminal and for a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# A name up to this length stands in one line.
NAME_WIDTH = 24


class Column(NamedTuple):
    """A column: its key in the rows, its title and format, how bad a value is (None: none is better), and the key of
    the standard deviation, if the value is a mean."""

    key: str
    title: str
    form: str
    badness: Callable[[float], float] | None = None
    spread: str = ""


def low(value: float) -> float:
    """The badness of a value that should be low."""
    return value


def high(value: float) -> float:
    """The badness of a value that should be high."""
    return -value


def near_one(value: float) -> float:
    """The badness of a ratio that should be 1."""
    return abs(math.log(value)) if value > 0 else math.inf


class Line(NamedTuple):
    """A line as text: its name, a remark, and each cell with whether it is the best of its column."""

    name: str
    remark: str
    cells: list[tuple[str, bool]]


def lines(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    remarks: Sequence[str] | None = None,
    competing: Sequence[bool] | None = None,
) -> list[Line]:
    """The lines of rows, each with its `name`; only competing rows can have the best value of a column."""
    competing = competing or [True] * len(rows)
    best = {column.key: _best([row for row, c in zip(rows, competing, strict=True) if c], column) for column in columns}
    found = []
    for row, remark, competes in zip(rows, remarks or [""] * len(rows), competing, strict=True):
        cells = [(text := cell(row, column), competes and text == best[column.key]) for column in columns]
        found.append(Line(str(row["name"]), remark, cells))
    return found


def cell(row: Mapping[str, Any], column: Column) -> str:
    """A value as text; a dash if there is none."""
    value, spread = row.get(column.key), row.get(column.spread)
    if value is None:
        return "–"
    return format(value, column.form) + ("" if spread is None else f" ± {format(spread, column.form)}")


def _best(rows: Sequence[Mapping[str, Any]], column: Column) -> str | None:
    """The text of a column's best value; None if there is no choice."""
    known, badness = [row for row in rows if row.get(column.key) is not None], column.badness
    if badness is None or len(known) < 2:
        return None
    return cell(min(known, key=lambda row: badness(row[column.key])), column)


def show(console: Console, columns: Sequence[Column], shown: Sequence[Line], head: str = "Model") -> None:
    """Draws a table on a terminal; the best value of a column is bold and green. Columns on the right that leave names
    no room are left out, and named below it."""
    # Nine columns just fit a terminal of 80 characters without padding.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, int(console.width >= 100)), show_edge=False)
    table.add_column(Text(head), overflow="fold")
    fitting = _fitting(console.width, columns, shown, head)
    for column in columns[:fitting]:
        table.add_column(column.title, justify="right", no_wrap=True)
    for line in shown:
        marked = [Text(text, style="bold green" if best else "") for text, best in line.cells[:fitting]]
        table.add_row(Text(line.name + line.remark), *marked)
    console.print(table)
    if left_out := [column.title for column in columns[fitting:]]:
        console.print(f"a wider terminal shows {', '.join(left_out)} too", style="dim", highlight=False, soft_wrap=True)


def _fitting(width: int, columns: Sequence[Column], shown: Sequence[Line], head: str) -> int:
    """How many of the columns fit beside names that are not folded; one at least."""
    pad = 2 * int(width >= 100)
    names = [head, *(min(line.name + line.remark, " " * NAME_WIDTH, key=len) for line in shown)]
    room = width - max(map(len, names)) - pad
    for place, column in enumerate(columns):
        room -= 1 + pad + max(len(column.title), *(len(line.cells[place][0]) for line in shown), 0)
        if room < 0:
            return max(place, 1)
    return len(columns)


def html(columns: Sequence[Column], shown: Sequence[Line], meanings: Sequence[tuple[str, str]]) -> str:
    """The table of a page, with explanations of its columns."""
    head = "".join(f'<th scope="col">{column.title}</th>' for column in columns)
    body = []
    for line in shown:
        cells = "".join(f'<td class="best">{text}</td>' if best else f"<td>{text}</td>" for text, best in line.cells)
        body.append(f'<tr><th scope="row">{escape(line.name)}<span>{line.remark}</span></th>{cells}</tr>')
    marked = any(best for line in shown for _, best in line.cells)
    note = "<p class='note'>Bold on green: the best of its column.</p>" if marked else ""
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">Model</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>\n{note}"
        f"<dl>{''.join(f'<dt>{title}</dt><dd>{meaning}</dd>' for title, meaning in meanings)}</dl>"
    )


def markdown(columns: Sequence[Column], shown: Sequence[Line], head: str = "Model") -> str:
    """The table for a document; the best value of a column is bold."""
    rows = [[head, *(column.title for column in columns)], ["---", *["---:"] * len(columns)]]
    for line in shown:
        cells = [f"**{text}**" if best else text for text, best in line.cells]
        rows.append([(line.name + line.remark).replace("|", "\\|"), *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def outlook_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What to expect of later rows: the range of predicted/observed, and the metrics in both views of a history."""
    if "expected_calibration" in report:
        low, high = report["expected_calibration"]
        kept = ""
        if "level_kept" in report:
            kept = f"; {report['level_kept']:.0%} of what validation rows say of the level stands"
        yield f"on as many later rows, predicted / observed is expected between {low:.2f} and {high:.2f}{kept}"
    words = {
        "frozen": "the past as the training rows left it (predict)",
        "rolling": "a past that keeps moving (serve, evaluate --live)",
    }
    for view, found in report.get("views", {}).items():
        yield f"with {words[view]}: log loss {found['log_loss']:.5f}, predicted / observed {found['calibration']:.3f}"
