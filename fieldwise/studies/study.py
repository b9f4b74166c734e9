"""The definition of a study: cases to run, a table of their results, and claims about it that can fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from fieldwise.reporting.result_tables import Column

SIZES = ("small", "medium", "paper")
Row = dict[str, Any]
# Prepares rows in the folder it is given.
Source = Callable[[Path], object]


@dataclass(frozen=True)
class Shared:
    """A source that several studies have. The name says all that decides its rows; one --out has them once."""

    name: str
    make: Source

    def __call__(self, folder: Path) -> object:
        return self.make(folder)


@dataclass(frozen=True)
class Setup:
    """The size of a study, its number of seeds, the folder of real data, if any, and the device."""

    size: str = "small"
    seeds: int = 1
    data: Path | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Case:
    """One run: its keys (columns of the table), the name of its prepared data, and its settings.

    `start` names another case of the same seed, whose run gives the initial weights.
    """

    keys: Row
    data: str
    settings: Row = field(default_factory=dict)
    seed: int = 0
    start: str = ""

    @property
    def name(self) -> str:
        """The name of the case, without its seed."""
        return " ".join(str(value) for value in self.keys.values())


@dataclass(frozen=True)
class Plan:
    """The prepared folders that a study needs, by name, with the functions that make them; and the runs on them.

    `others` are plans of other studies, by their ids, whose runs this one uses: they are in those studies' folders, and
    the study that runs first trains them. The column `study` of their rows has the id.
    """

    sources: Mapping[str, Source]
    cases: Sequence[Case]
    others: Mapping[str, Plan] = field(default_factory=dict)


def by_seed(setup: Setup, cases: Sequence[tuple[Row, str, Row]], source: Callable[[str, int], Source]) -> Plan:
    """Every case, a tuple (keys, data, settings), once for each seed; `source` makes that seed's rows of the data."""
    seeds = range(setup.seeds)
    return Plan(
        {f"{data}-{seed}": source(data, seed) for seed in seeds for _, data, _ in cases},
        [Case(keys, f"{data}-{seed}", settings, seed) for seed in seeds for keys, data, settings in cases],
    )


class Results:
    """The rows of a study, one for each case and seed: keys and measurements."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    def where(self, **keys: Any) -> Results:
        return Results([row for row in self.rows if all(row.get(key) == value for key, value in keys.items())])

    def among(self, values: Mapping[str, Collection[Any]]) -> Results:
        """The rows that have, for each key, one of its values."""
        return Results([row for row in self.rows if all(row.get(key) in own for key, own in values.items())])

    def values(self, column: str, **keys: Any) -> list[float]:
        """The values of a column in the rows with these keys, without failed runs."""
        return [float(row[column]) for row in self.where(**keys).rows if row.get(column) is not None]

    def mean(self, column: str, **keys: Any) -> float:
        """The mean over seeds; NaN, with which no claim holds, if there is none or a run failed."""
        found = self.values(column, **keys)
        complete = found and len(found) == len(self.where(**keys).rows)
        return fmean(found) if complete else float("nan")

    def different(self, key: str) -> list[Any]:
        """The distinct values of a key, in the order of the rows."""
        return list(dict.fromkeys(row[key] for row in self.rows if key in row))

    @property
    def seeds(self) -> int:
        return max(1, len(self.different("seed")))

    def summed_up(self, keys: Sequence[str], columns: Sequence[Column]) -> list[Row]:
        """A row for each case: the mean over its seeds, and the standard deviation if there are several."""
        found: list[Row] = []
        for names in dict.fromkeys(tuple(row.get(key) for key in keys) for row in self.rows):
            own = self.where(**dict(zip(keys, names, strict=True)))
            row: Row = {"name": " ".join(str(name) for name in names), **dict(zip(keys, names, strict=True))}
            for column in columns:
                known = [one[column.key] for one in own.rows if one.get(column.key) is not None]
                row[column.key] = known[0] if len(set(known)) == 1 else fmean(known) if known else None
                if column.spread:
                    row[column.spread] = stdev(known) if len(known) > 1 else None
            found.append(row | {"seeds": len(own.rows), "failed": sum("failed" in one for one in own.rows)})
        return found


PASS, FAIL, UNDECIDED = OUTCOMES = ("PASS", "FAIL", "UNDECIDED")
# A margin decides from this many standard errors on.
DECIDES = 2.0


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, by how much, and over how many seeds. The margin is positive where it holds.

    `error` is the standard error of the margin over the seeds; None: the claim is not of each seed, and decides alone.
    """

    claim: str
    margin: float
    seeds: int = 1
    words: str = ""
    strict: bool = True
    error: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the margin is on the right side, by however little; NaN, a failed run, is not."""
        return bool(self.margin > 0 if self.strict else self.margin >= 0)

    @property
    def outcome(self) -> str:
        """PASS or FAIL; UNDECIDED where the margin is within two standard errors or a run that it needs has failed."""
        if self.margin != self.margin:
            return UNDECIDED
        if self.error is not None and abs(self.margin) < DECIDES * self.error:
            return UNDECIDED
        return PASS if self.passed else FAIL

    def as_json(self) -> Row:
        """What result.json keeps of it; what is no finite number becomes null."""
        found: Row = {"claim": self.claim, "outcome": self.outcome, "seeds": self.seeds}
        for name, value in (("margin", self.margin), ("error", self.error)):
            found[name] = float(value) if value is not None and isfinite(value) else None
        return found

    def __str__(self) -> str:
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        words = f"; {self.words}" if self.words else ""
        error = "" if self.error is None or not isfinite(self.error) else f" +- {self.error:.2g}"
        return f"{self.outcome}  {self.claim}: margin {self.margin:+.5g}{error} ({seeds}{words})"


def lowest(values: Iterable[float]) -> float:
    """The minimum; NaN, with which no claim holds, if any value is NaN, which min() would ignore.

    >>> lowest([1.0, float("nan"), 0.5])
    nan
    """
    found = list(values)
    return float("nan") if any(value != value for value in found) else min(found)


def highest(values: Iterable[float]) -> float:
    """The maximum, with the same rule for NaN."""
    return -lowest(-value for value in values)


def key_of_lowest(values: Mapping[Any, float]) -> Any:
    """The key of the least value; NaN, a failed run, is the last to be chosen.

    >>> key_of_lowest({"a": float("nan"), "b": 2.0, "c": 1.0})
    'c'
    """
    return min(values, key=lambda key: (values[key] != values[key], values[key]))


def mostly(claim: str, margins: Mapping[Any, float], seeds: int, needed: int = 3, strict: bool = True) -> Verdict:
    """A claim that must hold on `needed` of several data sets (on all, if there are fewer): the `needed`-th largest
    margin decides."""
    needed = min(needed, len(margins))
    ordered = sorted(margins.values(), key=lambda margin: (margin != margin, -margin))
    words = ", ".join(f"{name} {margin:+.4f}" for name, margin in margins.items())
    wanted = f"on at least {needed} of {len(margins)}" if len(margins) > 1 else f"on {next(iter(margins))}"
    return Verdict(f"{claim}, {wanted}", ordered[needed - 1], seeds, words, strict)


@dataclass(frozen=True)
class Study:
    """A study: `plan` names runs to train and `look` adds measurements of each run, or else `compute` returns the rows.

    `derive` makes the rows that claims, table and figure are of where those of the runs are not. `keys` tell the lines
    of the table apart, `columns` are what it shows of them. `says` is what the paper states, and `budget` about how
    many minutes size small takes on one core. Runs keep no weights, unless `look` reads them (`weights`).
    """

    id: str
    paper: str
    asks: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    claims: Callable[[Results], list[Verdict]]
    draw: Callable[[Results], Figure]
    plan: Callable[[Setup], Plan] | None = None
    compute: Callable[[Setup], list[Row]] | None = None
    look: Callable[[Case, Path], Row] | None = None
    weights: bool = False
    derive: Callable[[Results], list[Row]] | None = None
    says: str = ""
    budget: float = 1.0
    seeds: Mapping[str, int] = field(default_factory=lambda: {"small": 1, "medium": 3, "paper": 1})

    def verdicts(self, runs: Results) -> list[Verdict]:
        """The claims, each with the standard error of its margin over the seeds.

        A run has noise: where there is one seed, how much is unknown, and nothing is decided. What is computed without
        training has none, and derived rows are of all seeds together.
        """
        found = self.claims(self.derived(runs))
        if self.plan is None or self.derive:
            return found
        seeds = runs.different("seed")
        without: dict[str, list[float]] = {}
        for seed in seeds if len(seeds) > 1 else ():
            for verdict in self.claims(Results([row for row in runs.rows if row["seed"] != seed])):
                without.setdefault(verdict.claim, []).append(verdict.margin)
        return [replace(verdict, error=_error(without.get(verdict.claim, []), len(seeds))) for verdict in found]

    def derived(self, runs: Results) -> Results:
        """The rows that claims, table and figure are of."""
        return Results(self.derive(runs)) if self.derive else runs


def _error(margins: Sequence[float], seeds: int) -> float | None:
    """The standard error of a margin by those without one seed each, the jackknife: of a mean it is the usual one.

    Infinite for one seed; None where one of them is of failed runs.
    """
    if seeds < 2:
        return inf
    if len(margins) < seeds or any(margin != margin for margin in margins):
        return None
    middle = fmean(margins)
    return sqrt((seeds - 1) / seeds * sum((margin - middle) ** 2 for margin in margins))
