"""What people see while they wait: progress bars on standard error, results on standard output."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fieldwise.config import progress
from fieldwise.evaluation.metrics import MOST_VALUES
from fieldwise.reporting import result_tables
from fieldwise.reporting.result_tables import Column

out = Console()
err = Console(stderr=True)
# Where no bar can be drawn, a line of progress is printed this often, in seconds.
PULSE = 60.0
PROPOSAL_COLUMNS = (
    Column("alone", "Log loss saved alone", ".3%"),
    Column("on_top", "on top of the fields and those above", ".3%"),
)
GROUP_COLUMNS = (
    Column("rows", "Rows", ","),
    Column("positive_rate", "Positive", ".4%"),
    Column("auc", "AUC", ".4f"),
    Column("log_loss", "Log loss", ".5f"),
    Column("calibration", "Pred./obs.", ".3f"),
)
# Columns for what a model is compared with.
RIVALS = {
    "log_loss_against": Column("log_loss_against", "Against", ".5f"),
    "log_loss_truth": Column("log_loss_truth", "Truth", ".5f"),
}
COST_COLUMNS = (
    Column("share", "Rows", ".1%"),
    Column("auc", "AUC", ".4f"),
    Column("log_loss", "Log loss", ".5f"),
    Column("rig", "RIG", ".3f"),
    Column("calibration", "Pred./obs.", ".3f"),
    Column("log_loss_hidden", "Hidden", ".5f"),
    Column("cost", "Costs", ".5f"),
)


def print_json(values: dict[str, Any]) -> None:
    """One JSON object on standard output, for scripts."""
    print(json.dumps(values, allow_nan=False))


def say(text: str) -> None:
    """Prints a line unchanged: without highlighting and line breaks."""
    _print(out, text)


def warn(text: str) -> None:
    """Prints a warning on standard error."""
    _print(err, f"warning: {text}")


def note(text: str) -> None:
    """Prints a note on standard error."""
    _print(err, f"note: {text}")


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_metrics(title: str, found: dict[str, Any]) -> None:
    """Prints metrics, one in a line."""
    words = {
        "auc": "AUC",
        "log_loss": "log loss",
        "rig": "relative information gain",
        "calibration": "predicted / observed",
        "ece": "calibration error",
    }
    say(f"{title}: {found['rows']:,} rows, {found['positive_rate']:.4%} positive")
    for key, word in words.items():
        value = "not defined on one class" if found[key] is None else f"{found[key]:.5f}"
        say(f"  {word:26} {value}")
    for key, word in {"log_loss_against": "log loss against", "log_loss_truth": "log loss of the truth"}.items():
        if key in found:
            say(f"  {word:26} {found[key]:.5f}")
    if "served" in found:
        own = found["served"]
        auc = "" if own["auc"] is None else f"AUC {own['auc']:.5f}, "
        say(f"  {'with the position fixed':26} {auc}log loss {own['log_loss']:.5f}")


def print_report(report: dict[str, Any], run: Path) -> None:
    """Prints the metrics of a finished run on held-out rows, where it is, and what to do next."""
    part = "test" if "test" in report else "valid"
    print_metrics(f"{report['model']} on {part} rows", report[part])
    for line in result_tables.outlook_lines(report):
        say(line)
    for warning in report.get("warnings", ()):
        warn(warning)
    if "times" in report:  # a run of an older version has none
        say(time_line(report["times"]))
    say(f"run: {run}  bundle: {run / 'bundle'}")
    say(f"next: fieldwise predict {run} FILE -o predictions.csv")


def time_line(times: dict[str, float]) -> str:
    """Where a run's time went: the parts that took a twentieth of it or more, the longest first.

    >>> time_line({"setup": 0.2, "steps": 9.0, "evaluations": 0.8})
    'time: 10.0 s (steps 9.0, evaluations 0.8)'
    """
    total = sum(times.values())
    long = sorted((item for item in times.items() if item[1] >= total / 20), key=lambda item: -item[1])
    return f"time: {total:.1f} s ({', '.join(f'{part} {seconds:.1f}' for part, seconds in long)})"


def print_recipes(found: Sequence[dict[str, Any]]) -> None:
    """Prints for each recipe its title, where it is published, its terms and its number of rows."""
    for recipe in found:
        say(f"{recipe['name']:17}{recipe['title']}")
        say(f"{'':17}{recipe['link']}; terms: {recipe['terms']}; {_published(recipe)}")
    say("more: fieldwise recipes NAME; use: fieldwise prepare --recipe NAME FILES --out DATA")


def _published(recipe: dict[str, Any]) -> str:
    rows = ", ".join(f"{count:,} {name}" for name, count in recipe["rows"].items())
    return f"rows when published: {rows}" if rows else "no count of rows is known"


def print_recipe(recipe: dict[str, Any]) -> None:
    """Prints everything about a recipe."""
    shares = ", ".join(f"{share:g}" for share in recipe["split"]["shares"])
    by = f" in the order of {recipe['split']['by']}" if recipe["split"]["by"] else " at random"
    named = "; ".join(f"{part}: {pattern}" for part, pattern in recipe["split"]["files"].items())
    lines = {
        "link": recipe["link"],
        "terms": recipe["terms"],
        "files": recipe["files"],
        "rows": _published(recipe),
        "label": recipe["label"],
        "fields": f"{len(recipe['fields'])}: {', '.join(recipe['fields'])}" if recipe["fields"] else "inferred",
        "derived": ", ".join(f"{made} from {raw}" for made, raw in recipe["derived"].items()),
        "parts": f"files by name ({named}); training rows split {shares}{by}" if named else f"{shares}{by}",
        "negatives": "as many as positives, in each file" if recipe["balance"] else "",
        "trees": f"the leaves of {recipe['gbdt_leaves']} as fields" if recipe["gbdt_leaves"] else "",
    }
    say(f"{recipe['name']}: {recipe['title']}")
    for key, line in lines.items():
        if line:
            say(f"  {key:11}{line}")
    for remark in recipe["remarks"]:
        say(f"  - {remark}")


def print_proposals(found: Sequence[dict[str, Any]]) -> None:
    """Prints the proposed history keys and the share of the base rate's log loss that each saves."""
    if found:
        rows = [{"name": row["key"]} | row for row in found]
        result_tables.show(out, PROPOSAL_COLUMNS, result_tables.lines(rows, PROPOSAL_COLUMNS), "Proposed history")


def print_groups(found: dict[str, Any]) -> None:
    """Prints the AUC within the values of a column and, if there are few, the metrics of each."""
    column, area = found["column"], found["auc"]
    say(f"  {'AUC within ' + column:26} {'not defined' if area is None else f'{area:.5f}'}")
    used = f"{found['groups_used']:,} of {found['groups']:,} values have both classes"
    say(f"  {'':26} {used}, {found['rows_covered']:.1%} of the rows")
    if found["values"] is None:
        say(f"  {'':26} {found['groups']:,} values: too many to list, at most {MOST_VALUES} are")
        return
    rows = [{"name": row["value"]} | row for row in found["values"]]
    columns = (*GROUP_COLUMNS, *(rival for key, rival in RIVALS.items() if rows and key in rows[0]))
    result_tables.show(out, columns, result_tables.lines(rows, columns), column)


def print_seen(found: Sequence[dict[str, Any]], by: str = "") -> None:
    """Prints the metrics of rows whose values training knew, and of rows with `other` and their cost."""
    known = [own["field"] for own in found if not own["share"]]
    if known:
        say(f"no row with `other` in {', '.join(known)}")
    found = [own for own in found if own["share"]]
    _print_costs([(own["field"], own) for own in found], "Value")
    for own in found if by else ():
        _print_costs([(f"{by} {row['value']}", row) for row in own["by"]], own["field"])


def _print_costs(slices: Sequence[tuple[str, dict[str, Any]]], head: str) -> None:
    rows: list[dict[str, Any]] = []
    for name, own in slices:
        sides = (("seen", 1 - own["share"], None), ("other", own["share"], own["cost"]))
        rows += [{"name": f"{name}: {s}"} | (own[s] or {}) | {"share": share, "cost": cost} for s, share, cost in sides]
        rows[-1].pop("log_loss_hidden", None)
    columns = (*COST_COLUMNS, *(rival for key, rival in RIVALS.items() if any(key in row for row in rows)))
    if rows:
        result_tables.show(out, columns, result_tables.lines(rows, columns), head)


class Pulse:
    """Lines of progress where no bar can be drawn, in a file or a pipe: every minute, and at every `tell`.

    `state` returns the line. On a terminal, and with `quiet`, nothing is printed.
    """

    def __init__(self, state: Callable[[], str], quiet: bool) -> None:
        self.state, self.enabled = state, not (quiet or err.is_terminal)
        self.last_line, self.ended = time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def tell(self, text: str = "") -> None:
        """Prints a line now; without a text, that of `state`, unless it is empty."""
        line = text or self.state()
        if self.enabled and line:
            self.last_line = time.monotonic()
            _print(err, line)

    def _beat(self) -> None:
        while not self.ended.wait(max(0.0, self.last_line + PULSE - time.monotonic())):
            if time.monotonic() >= self.last_line + PULSE:
                self.last_line = time.monotonic()
                self.tell()

    def start(self) -> None:
        if self.enabled and self.thread.ident is None:
            self.last_line = time.monotonic()
            self.thread.start()

    def stop(self) -> None:
        self.ended.set()
        if self.thread.ident is not None:
            self.thread.join()


def _bar(*columns: ProgressColumn, quiet: bool, transient: bool = False) -> Progress:
    """A bar on standard error, if that is a terminal."""
    return Progress(*columns, console=err, disable=quiet or not err.is_terminal, transient=transient)


class TrainingBar(progress.Progress):
    """A bar with rows/s, loss, validation and the time left."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title = title
        self.epoch, self.valid, self.loss = 0, "", 0.0
        self.pulse = Pulse(self._state, quiet)
        self.bar = _bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[speed]:>7,.0f} rows/s  loss {task.fields[loss]:.3f}  {task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left at most"),
            quiet=quiet,
        )

    def start(self, rows: int, epochs: int, done: int) -> None:
        total = rows * epochs
        self.bar.start()
        self.pulse.start()
        self.task = self.bar.add_task(self.title, total=total, completed=done, speed=0.0, loss=0.0, note="")

    def step(self, rows: int, loss: float, epoch: int) -> None:
        self.loss, self.epoch = loss if not self.loss else 0.98 * self.loss + 0.02 * loss, epoch
        speed = self.bar.tasks[self.task].speed or 0.0
        title = f"{self.title} {epoch:2}"
        self.bar.update(self.task, advance=rows, description=title, speed=speed, loss=self.loss)

    def say(self, text: str) -> None:
        note(text)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.valid = f"valid {record['log_loss']:.4f}"
        self.bar.update(self.task, note=self.valid)

    def _state(self) -> str:
        facts = (f"{self.title} epoch {self.epoch}", f"loss {self.loss:.3f}", self.valid)
        return ", ".join(fact for fact in facts if fact) if self.epoch else ""

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.pulse.stop()
        self.pulse.tell()
        if self.bar.live.is_started:
            self.bar.stop()


class TuningBar(progress.Progress):
    """A bar for the trial at hand, with the best so far and the time left; a line for each trial that ended."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.deadline, self.best, self.running, self.valid = math.inf, "", "", ""
        self.pulse = Pulse(lambda: ", ".join(filter(None, (self.running, self.valid))), quiet)
        self.bar = _bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[note]}"),
            TextColumn("{task.fields[left]}"),
            quiet=quiet,
            transient=True,
        )
        self.task = self.bar.add_task(title, note="", left="")

    def trial(self, number: int, trials: int, deadline: float, best: tuple[float, int] | None) -> None:
        """A trial begins."""
        self.deadline = deadline
        self.best = "" if best is None else f"  best {best[0]:.5f} (trial {best[1]})"
        self.running, self.valid = f"{self.title} trial {number} of {trials}", self.best.strip()
        self.bar.reset(self.task, description=self.running, note=self.best, left="")
        self.bar.start()
        self.pulse.start()

    def start(self, rows: int, epochs: int, done: int) -> None:
        self.bar.update(self.task, total=rows * epochs, completed=done)

    def step(self, rows: int, loss: float, epoch: int) -> None:
        left = self.deadline - time.monotonic()
        text = "" if math.isinf(left) else f" {timedelta(seconds=max(0, round(left)))} left"
        self.bar.update(self.task, advance=rows, left=text)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.valid = f"valid {record['log_loss']:.5f}{self.best}"
        self.bar.update(self.task, note=self.valid)

    def say(self, text: str) -> None:
        if not self.quiet:
            _print(err, text)

    def __enter__(self) -> TuningBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.pulse.stop()
        self.bar.stop()


@contextmanager
def counting(title: str, quiet: bool = False) -> Iterator[Any]:
    """A bar with the step, a count of rows and rows/s; yields the function that moves it.

    How many rows there are is known when all have been read; until then the bar only moves.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TextColumn("{task.completed:,.0f}{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with _bar(*columns, quiet=quiet, transient=True) as bar:
        counter = _Counter(bar, title)
        pulse = Pulse(lambda: counter.said, quiet)
        pulse.start()
        try:
            yield counter.move
        finally:
            pulse.stop()


class _Counter:
    """Moves a bar through steps, each of which counts rows from the start."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar, self.title, self.task = bar, title, bar.add_task(title, total=None, rate="")
        self.step, self.began, self.read = "", time.monotonic(), 0
        self.said = title

    def move(self, step: str, count: int) -> None:
        if step != self.step:
            self.step, self.began = step, time.monotonic()
        passed = time.monotonic() - self.began
        # Fields are fitted one by one; all other steps count rows.
        of_rows = step != "fitting"
        if step == "reading":
            self.read = count
        rate = f" rows, {count / passed:,.0f} rows/s" if of_rows and passed > 0.1 else ""
        total = self.read if of_rows and step != "reading" and self.read else None
        self.said = f"{self.title}: {step}, {count:,.0f}{rate}"
        self.bar.update(self.task, description=f"{self.title}: {step}", completed=count, total=total, rate=rate)


class ComparisonBar(progress.Watch):
    """A bar over many runs: which one is under way, how far it is, and the time left."""

    def __init__(self, quiet: bool = False) -> None:
        self.running, self.state, self.end = "", "", 0.0
        columns = (
            TextColumn("{task.completed:.0f} of {task.total:.0f} runs"),
            BarColumn(bar_width=10),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = _bar(*columns, quiet=quiet)
        self.task = self.bar.add_task("", total=0, left="")
        self.pulse = Pulse(self._line, quiet)
        self.count = ""

    def moved(self, running: Sequence[str], done: int, total: int, left: float | None) -> None:
        self.running, self.state = ", ".join(running), ""
        self.end = 0.0 if left is None else time.monotonic() + left
        self.count = f"{done} of {total} runs done"
        self.bar.update(self.task, completed=done, total=total)
        self._show()
        self.pulse.tell()

    def making(self, step: str, rows: int) -> None:
        self.running, self.state, self.end = "making folders:", f"{step} {rows:,} rows", 0.0
        self._show()

    def step(self, rows: int, loss: float, epoch: int) -> None:
        if not self.state.startswith(f"epoch {epoch},"):
            self.state = f"epoch {epoch}, loss {loss:.3f}"
            self._show()

    def evaluated(self, record: dict[str, Any]) -> None:
        self.state = f"epoch {record['epoch']}, valid {record['log_loss']:.4f}"
        self._show()

    def say(self, text: str) -> None:
        note(text)

    def _show(self) -> None:
        self.bar.update(self.task, description=f"{self.running} {self.state}".strip(), left=self._left())

    def _left(self) -> str:
        seconds = max(0.0, self.end - time.monotonic())
        return f"about {timedelta(seconds=round(seconds))} left" if self.end and self.running else ""

    def _line(self) -> str:
        facts = (self.count, f"{self.running} {self.state}".strip(), self._left())
        return ", ".join(fact for fact in facts if fact)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What the block prints stands above the bar, and goes where standard output goes."""
        self.bar.stop()
        try:
            yield
        finally:
            self.bar.start()

    def __enter__(self) -> ComparisonBar:
        self.bar.start()
        self.pulse.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.pulse.stop()
        self.bar.stop()


def print_study(found: dict[str, Any]) -> None:
    """The best trials of a search, what mattered in it, and where it is."""
    from rich.table import Table

    table = Table("trial", "valid log loss", "settings", show_lines=True)
    for row in found["best"]:
        settings = ", ".join(f"{name.partition('.')[2] or name} {_short(v)}" for name, v in row["settings"].items())
        table.add_row(str(row["trial"]), f"{row['log_loss']:.5f}", settings)
    out.print(table)
    if found["importance"]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found["importance"].items() if share > 0.05)
        say(f"what mattered: {shares}")
    counts = ", ".join(f"{count} {word}" for word, count in found["trials"].items())
    say(f"trials: {counts}{' (the time is up)' if found['stopped'] == 'time' else ''}; all of them: {found['csv']}")
    say(f"recipe: {found['recipe']}")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
