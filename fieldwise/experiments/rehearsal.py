"""An A/B test in the simulated world, through the real router: an incumbent that learns every day against a network.

The incumbent is a logistic regression with FTRL, updated with each day's rows for months before and during the test;
the challenger is trained once, on the last days before it. Both learn from a log of random impressions, not from what
they showed. A request goes to the arm of its user, which ranks the slate; the best are shown, and clicks are drawn
from the true probabilities.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle.bundle import load_encoder
from fieldwise.config.errors import ConfigError
from fieldwise.config.files import whole_folder, write_whole
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.world import World
from fieldwise.experiments.arena import Arena, InProcess, OverHttp
from fieldwise.reporting import plots, result_tables
from fieldwise.reporting.result_tables import Column
from fieldwise.train.loop import train

INCUMBENT, CHALLENGER = "ftrl", "pin"
# The first day of the test in the event log; arbitrary.
FIRST_TIME = 1_600_000_000
DAY = 86_400
# The paper's network won every day; here it may lose one in seven by chance.
WON = 12 / 14
COLUMNS = (
    Column("incumbent", "CTR FTRL", ".3%"),
    Column("challenger", "CTR PIN", ".3%"),
    Column("improvement", "Improvement", "+.1%"),
    Column("expected", "by the truth", "+.1%"),
    Column("oracle", "Oracle", "+.1%"),
    Column("random", "Random", "+.1%"),
)


@dataclass(frozen=True)
class Plan:
    """How long both learn and are compared, and on how much; `rows` and `requests` are per day."""

    days: int = 14
    incumbent_days: int = 90
    challenger_days: int = 40
    rows: int = 5000
    requests: int = 2000
    candidates: int = 30
    top: int = 3
    kind: str = "appstore"
    rate: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("days", 1), ("rows", 100), ("requests", 1), ("candidates", 1), ("top", 1), ("seed", 0)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} must be at least {least}, found {getattr(self, name)}")
        if not 1 <= self.challenger_days <= self.incumbent_days:
            found = f"{self.challenger_days} and {self.incumbent_days}"
            raise ConfigError(f"--challenger-days must be from 1 to --incumbent-days, found {found}")


@dataclass
class Tally:
    """What one arm showed in a day: rows, clicks, and the sum of their true probabilities."""

    shown: int = 0
    clicks: int = 0
    truth: float = 0.0


@dataclass(frozen=True)
class Slates:
    """A day's requests: contexts, candidates, their true probabilities, and whether each would be clicked."""

    contexts: list[dict[str, Any]]
    candidates: list[list[dict[str, Any]]]
    truth: NDArray[np.float64]
    clicked: NDArray[np.bool_]


Progress = Callable[[str, int], None]


def rehearse(
    plan: Plan, out: Path, http: bool = False, force: bool = False, progress: Progress = lambda step, days: None
) -> dict[str, Any]:
    """Runs the test and writes to `out` runs of both arms, event log, table and figure. Returns table and verdicts."""
    world = World(plan.kind, plan.seed, plan.rate, plan.incumbent_days + plan.days)
    with whole_folder(out, "rehearsal.json", force) as folder, ExitStack() as stack:
        incumbent = Incumbent(world, plan, folder)
        for day in range(plan.incumbent_days):
            incumbent.learn(day)
            progress("the incumbent learns", day + 1)
        _train_challenger(world, plan, folder)
        place: type[Arena] = OverHttp if http else InProcess
        arena = stack.enter_context(place(folder, (INCUMBENT, CHALLENGER), "user"))
        days = []
        for number in range(plan.days):
            day = plan.incumbent_days + number
            with arena.at(FIRST_TIME + number * DAY):
                tallies = _serve(arena, slates_of(world, plan, day), plan.top)
            days.append(_day_row(number + 1, tallies, slates_of(world, plan, day).truth, plan.top))
            incumbent.learn(day)
            arena.swap()
            progress("testing", number + 1)
        found = {"simulation": True, "plan": asdict(plan), "days": days, "verdicts": verdicts(days)}
        _write(found, folder)
    return found | {"folder": str(out)}


class Incumbent:
    """LR with FTRL, updated day by day; the link `arms/ftrl` points to its newest run."""

    def __init__(self, world: World, plan: Plan, folder: Path) -> None:
        self.world, self.plan, self.folder = world, plan, folder
        self.latest: Path | None = None

    def learn(self, day: int) -> None:
        """Trains on one more day of rows, once; new values get ids, weights and FTRL's sums are kept."""
        data, run = self.folder / "days" / f"{day:03}", self.folder / "runs" / f"{INCUMBENT}-{day:03}"
        known = load_encoder(self.latest) if self.latest else None
        _prepare(self.world, self.plan, data, day, day, known=known)
        settings = {
            "model.name": "lr",
            "train.optimizer": "ftrl",
            "train.lr": 0.1,
            "train.l2": 0.0,
            "train.epochs": 1,
            "train.evaluations": 1,
            "train.continue_from": str(self.latest or ""),
            "seed": self.plan.seed,
        }
        train(load_config(base=settings), data, run)
        _point_link(self.folder / "arms" / INCUMBENT, run)
        shutil.rmtree(data)
        # The run before this one may still be in service; older ones are not.
        for old in sorted(run.parent.glob(f"{INCUMBENT}-*"))[:-2]:
            shutil.rmtree(old)
        self.latest = run


def _train_challenger(world: World, plan: Plan, folder: Path) -> None:
    data, run = folder / "days" / CHALLENGER, folder / "runs" / CHALLENGER
    _prepare(world, plan, data, plan.incumbent_days - plan.challenger_days, plan.incumbent_days - 1)
    train(load_config(base={"model.name": CHALLENGER, "seed": plan.seed}), data, run)
    _point_link(folder / "arms" / CHALLENGER, run)


def _prepare(world: World, plan: Plan, data: Path, first: int, last: int, **more: Any) -> None:
    def rows() -> Iterator[Any]:
        return (log.table for log in world.chunks(plan.rows * (last - first + 1), 0, first_day=first, last_day=last))

    split = Split((0.9, 0.1, 0.0), seed=plan.seed)
    # The days of the test do not occur in training, so no model can learn from them.
    days = [name for name, column in world.columns.items() if column.style in ("day", "stamp")]
    data.parent.mkdir(exist_ok=True)
    prepare({"train": rows}, data, world.label, split=split, drop=days, **more)


def _point_link(link: Path, run: Path) -> None:
    """Points a link to a run, atomically: a server always finds the old or the new one."""
    link.parent.mkdir(exist_ok=True)
    new = link.with_suffix(".new")
    new.symlink_to(os.path.relpath(run, link.parent))
    new.replace(link)


def slates_of(world: World, plan: Plan, day: int) -> Slates:
    """The requests of a day, the same for every arm."""
    log = world.candidates(plan.requests, plan.candidates, day, seed=1)
    columns = {name: log.table[name].to_pylist() for name in world.field_names if name in log.table.column_names}
    shape = (plan.requests, plan.candidates)
    own = [name for name in world.item_names if name in columns]
    shared = [name for name in columns if name not in own]
    starts = range(0, len(log.probability), plan.candidates)
    draws = np.random.default_rng([plan.seed, 4, day]).random(shape)
    truth = log.probability.reshape(shape)
    return Slates(
        [{name: columns[name][start] for name in shared} for start in starts],
        [[{name: columns[name][start + i] for name in own} for i in range(plan.candidates)] for start in starts],
        truth,
        draws < truth,
    )


def _serve(arena: Arena, slates: Slates, top: int) -> dict[str, Tally]:
    """Ranks each slate in the arm of its user, shows the best, and reports the clicks."""
    tallies = {INCUMBENT: Tally(), CHALLENGER: Tally()}
    for number, (context, candidates) in enumerate(zip(slates.contexts, slates.candidates, strict=True)):
        shown = arena.rank(context, candidates, top)
        tally = tallies[shown.arm]
        for place in shown.order:
            tally.shown += 1
            tally.truth += float(slates.truth[number, place])
            if slates.clicked[number, place]:
                tally.clicks += 1
                arena.click(shown.request_id, place)
    return tallies


def _day_row(day: int, tallies: dict[str, Tally], truth: NDArray[np.float64], top: int) -> dict[str, Any]:
    """A day's click rates; improvements are over the incumbent, `expected` and the bounds by the true probabilities."""
    challenger, incumbent = tallies[CHALLENGER], tallies[INCUMBENT]
    base = _ratio(incumbent.truth, incumbent.shown)
    best = float(np.sort(truth, axis=1)[:, -top:].mean())
    return {
        "day": day,
        "name": f"day {day}",
        "incumbent": _ratio(incumbent.clicks, incumbent.shown),
        "challenger": _ratio(challenger.clicks, challenger.shown),
        "improvement": _over(_ratio(challenger.clicks, challenger.shown), _ratio(incumbent.clicks, incumbent.shown)),
        "expected": _over(_ratio(challenger.truth, challenger.shown), base),
        "oracle": _over(best, base),
        "random": _over(float(truth.mean()), base),
    }


def _ratio(part: float, total: float) -> float | None:
    return part / total if total else None


def _over(value: float | None, base: float | None) -> float | None:
    """The relative increase; None if there is nothing to compare with."""
    return None if value is None or not base else value / base - 1


def verdicts(days: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims about the table, and whether they hold; a day without clicks in an arm does not count as won."""
    rise, expected, oracle = (
        [-math.inf if row[key] is None else row[key] for row in days] for key in ("improvement", "expected", "oracle")
    )
    needed, won = math.ceil(WON * len(days)), sum(value > 0 for value in rise)
    mean, reached, bound = fmean(rise), fmean(expected), fmean(oracle)
    return [
        _verdict(
            won >= needed, f"PIN has more clicks per row than FTRL on {won} of {len(days)} days ({needed} needed)"
        ),
        _verdict(mean > 0, f"mean improvement {mean:+.1%}, by the truth {reached:+.1%}"),
        _verdict(reached <= bound, f"below the oracle, which has {bound:+.1%}"),
    ]


def _verdict(holds: bool, text: str) -> dict[str, Any]:
    return {"holds": holds, "text": f"{'PASS' if holds else 'FAIL'}: {text}"}


def _write(found: dict[str, Any], folder: Path) -> None:
    days = found["days"]
    x = [float(row["day"]) for row in days]
    series = {
        name: (x, [math.nan if row[key] is None else 100 * row[key] for row in days])
        for name, key in (
            ("PIN, clicks", "improvement"),
            ("PIN, by the truth", "expected"),
            ("oracle", "oracle"),
            ("random", "random"),
        )
    }
    figure = plots.curves(series, "Day of the simulated test", "CTR over FTRL's, %")
    plots.save(
        figure, folder / "days", "Relative improvement of the click rate over the incumbent, by day; a simulation"
    )
    lines = [f"- {verdict['text']}\n" for verdict in found["verdicts"]]
    table = result_tables.markdown(COLUMNS, result_tables.lines(days, COLUMNS), "Day")
    write_whole(
        folder / "table.md", f"A simulation: clicks were drawn from a known truth.\n\n{table}\n{''.join(lines)}"
    )
    write_whole(folder / "rehearsal.json", json.dumps(found, indent=1))
