"""Simulated rows in the layouts of the public files, so that recipes can be tried where these cannot be had.

The cells are the click world's; what a world does not have, such as bid ids and urls, is made up and says nothing.
MovieLens has a small world of its own, whose likes depend on the genres of a film.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.files import whole_file, whole_folder
from fieldwise.data.recipes.avazu import COLUMNS as AVAZU_COLUMNS
from fieldwise.data.recipes.ipinyou import BROWSERS, IMPRESSION, SYSTEMS
from fieldwise.data.recipes.movielens import GENRES as FLAGS
from fieldwise.data.world import World

MARKER = "SIMULATED.txt"
# The first day of the simulated seasons of iPinYou, a Sunday as in the world; days from the eighth on are for testing.
SEASON, TRAINING_DAYS = date(2013, 6, 2), 7
# A price in the middle of each of the recipe's buckets.
PRICES = (0, 5, 30, 80, 150)
# A user agent for each system and browser that the recipe looks for, and for none of them.
AGENTS = [f"Mozilla/5.0 ({system}) {browser}" for system in (*SYSTEMS, "none") for browser in (*BROWSERS, "none")]
TERABYTE_DAYS, TERABYTE_RATE = range(6, 14), 0.032
GENRES = (
    "Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy Film-Noir Horror Musical Mystery "
    "Romance Sci-Fi Thriller War Western"
)
AGES = (1, 18, 25, 35, 45, 50, 56)


@dataclass(frozen=True)
class Simulation:
    """Which rows to draw: how many, by which seed, with which share of positives (the kind's own without it)."""

    rows: int
    seed: int = 0
    rate: float | None = None


def write_raw(kind: str, what: Simulation, path: Path) -> None:
    """Writes rows in a public layout, to one file, or to a folder where the public has several; whole or not at all."""
    if kind not in KINDS:
        raise ConfigError(unknown("kind with a raw layout", kind, KINDS))
    if what.rows < 1:
        raise ConfigError(f"rows must be at least 1, found {what.rows}")
    write, in_folder = KINDS[kind]
    if not in_folder:
        with whole_file(path) as work:
            write(what, work)
        return
    with whole_folder(path, MARKER) as folder:
        (folder / MARKER).write_text(f"rows simulated by fieldwise in the layout of {kind}\n", encoding="utf-8")
        write(what, folder)


def _write(path: Path, tables: Iterable[pa.Table], delimiter: str = "\t", header: bool = False) -> None:
    """Tables with the same columns as one text file, without quotes."""
    options = pacsv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        pa.output_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as stream,
        ExitStack() as stack,
    ):
        writer = None
        for table in tables:
            if writer is None:
                if header:
                    stream.write(f"{delimiter.join(table.column_names)}\n".encode())
                writer = stack.enter_context(pacsv.CSVWriter(stream, table.schema, write_options=options))
            writer.write_table(table)


def _criteo(what: Simulation, path: Path) -> None:
    _write(path, (log.table for log in World("criteo", what.seed, what.rate).chunks(what.rows, what.seed)))


def _terabyte(what: Simulation, folder: Path) -> None:
    world = World("criteo", what.seed, what.rate or TERABYTE_RATE)
    for day, rows in enumerate(_daily(what.rows, len(TERABYTE_DAYS))):
        _write(folder / f"day_{TERABYTE_DAYS[day]}", [world.log(rows, what.seed, day, day).table])


def _avazu(what: Simulation, path: Path) -> None:
    chunks = World("avazu", what.seed, what.rate).chunks(what.rows, what.seed)
    _write(path, (_with_id(log.table, 10**9 * number) for number, log in enumerate(chunks)), ",", header=True)


def _appstore(what: Simulation, path: Path) -> None:
    chunks = World("appstore", what.seed, what.rate).chunks(what.rows, what.seed)
    _write(path, (log.table for log in chunks), ",", header=True)


def _with_id(rows: pa.Table, first: int) -> pa.Table:
    ids = pa.array([str(10**18 + 7_919 * (first + place)) for place in range(len(rows))])
    return rows.append_column("id", ids).select(list(AVAZU_COLUMNS))


def _daily(rows: int, days: int) -> list[int]:
    """How many rows each day has."""
    return [len(some) for some in np.array_split(np.arange(rows), days) if len(some)]


def _ipinyou(what: Simulation, folder: Path) -> None:
    """Seven days of impressions and clicks in two seasons, and three days of test rows with their counts of clicks."""
    world = World("ipinyou", what.seed, what.rate)
    first = 0
    for day, rows in enumerate(_daily(what.rows, world.days)):
        log = world.log(rows, what.seed, day, day).table
        stamp, season = SEASON + timedelta(day), "2nd" if day < 4 or day in (7, 8) else "3rd"
        shown = _impressions(log, stamp, first, what.seed)
        clicks = log["click"].to_numpy() > 0
        if day < TRAINING_DAYS:
            clicked = shown.filter(pa.array(clicks))
            clicked = clicked.set_column(2, "logtype", pa.array(["2"] * len(clicked)))
            for name, table in (("imp", shown), ("clk", clicked)):
                _write(folder / f"training{season}" / f"{name}.{stamp:%Y%m%d}.txt", [table])
        else:
            counted = shown.append_column("nclick", pa.array(clicks.astype(np.int8)))
            counted = counted.append_column("nconversion", pa.array(np.zeros(len(clicks), dtype=np.int8)))
            _write(folder / f"testing{season}" / f"leaderboard.test.data.{stamp:%Y%m%d}.txt", [counted])
        first += rows


def _impressions(log: pa.Table, day: date, first: int, seed: int) -> pa.Table:
    """A world's rows as lines of an impression log."""
    rng = np.random.default_rng([seed, first])
    numbers, cells = range(first, first + len(log)), {name: log[name].to_pylist() for name in log.column_names}
    times = np.sort(rng.integers(3_600_000, size=len(log))).tolist()
    agents = [AGENTS[int(agent.rpartition("_")[2])] for agent in cells["useragent"]]
    made: dict[str, list[Any]] = {
        "bidid": [f"{number * 0x9E3779B97F4A7C15 % 2**128:032x}" for number in numbers],
        "timestamp": [f"{day:%Y%m%d}{h:02}{_within_hour(ms)}" for h, ms in zip(cells["hour"], times, strict=True)],
        "logtype": ["1"] * len(log),
        "ipinyouid": [f"Vh{number:010d}" for number in numbers],
        "user_agent": agents,
        "IP": [f"{(n := int(ip, 16)) >> 24}.{n >> 16 & 255}.{n >> 8 & 255}.*" for ip in cells["IP"]],
        "url": [f"{number:032x}" for number in numbers],
        "urlid": ["null"] * len(log),
        "slotprice": [PRICES[price] for price in cells["slotprice"]],
        "bidprice": [300] * len(log),
        "payprice": [max(1, PRICES[price]) for price in cells["slotprice"]],
        "keypage": ["null"] * len(log),
        "usertag": ["10006,10063"] * len(log),
    }
    return pa.table({name: [str(cell) for cell in made.get(name) or cells[name]] for name in IMPRESSION})


def _within_hour(milliseconds: int) -> str:
    """Minutes, seconds and milliseconds as digits."""
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes:02}{rest:05}"


def _movielens(what: Simulation, folder: Path, small: bool = False) -> None:
    """Ratings of users whose age and gender decide which genres they like; few ratings tell of a film.

    `small` writes them as MovieLens 100K does.
    """
    rng = np.random.default_rng(what.seed)
    users, films = (
        int(np.clip(what.rows // per, least, most)) for per, least, most in ((60, 60, 6040), (40, 80, 3883))
    )
    if what.rows > users * films:
        raise ConfigError(f"every user rates a film once: at most {users * films} rows, found {what.rows}")
    genres = GENRES.split()
    of_film = [sorted(rng.choice(len(genres), rng.integers(1, 4), replace=False).tolist()) for _ in range(films)]
    gender, age, job = rng.integers(2, size=users), rng.integers(len(AGES), size=users), rng.integers(21, size=users)
    taste = rng.normal(size=(2, len(genres)))[gender] + rng.normal(size=(len(AGES), len(genres)))[age]
    quality, mood = 0.3 * rng.normal(size=films), 0.5 * rng.normal(size=users)
    pairs = np.sort(rng.choice(users * films, what.rows, replace=False))
    user, film = np.divmod(pairs, films)
    liking = np.array([taste[:, of].mean(axis=1) for of in of_film]).T[user, film]
    score = liking + quality[film] + mood[user] + rng.normal(size=what.rows)
    rating = 1 + np.searchsorted(_thresholds(score, what.rate), score)
    seconds = 956_703_932 + 1000 * pairs + rng.integers(1000, size=what.rows)
    names = ["Am\u00e9lie" if number % 7 == 0 else "Film" for number in range(films)]
    titles = (f"{name} {number} ({1950 + number % 50})" for number, name in enumerate(names, 1))
    kinds = ["|".join(genres[g] for g in of) for of in of_film]
    people = [("FM"[gender[u]], AGES[age[u]], job[u], f"{u % 900:05}") for u in range(users)]
    if small:
        _lines(folder / "u.user", ((u, age, who, *more) for u, (who, age, *more) in enumerate(people, 1)), "|")
        flags = ([int(flag in own.split("|")) for flag in FLAGS] for own in kinds)
        told = (
            (n, title, "01-Jan-1990", "", "", *own) for n, (title, own) in enumerate(zip(titles, flags, strict=True), 1)
        )
        _lines(folder / "u.item", told, "|")
        _lines(folder / "u.data", zip(user + 1, film + 1, rating, seconds, strict=True), "\t")
        return
    _lines(folder / "users.dat", ((u, *person) for u, person in enumerate(people, 1)))
    _lines(folder / "movies.dat", zip(range(1, films + 1), titles, kinds, strict=True))
    _lines(folder / "ratings.dat", zip(user + 1, film + 1, rating, seconds, strict=True))


def _thresholds(score: NDArray[np.float64], rate: float | None) -> NDArray[np.float64]:
    """Bounds between 1, 2, 3, 4 and 5, as often as in MovieLens; or with this share of 4 and 5."""
    liked = 0.575 if rate is None else rate
    return np.quantile(score, [0.13 * (1 - liked), 0.38 * (1 - liked), 1 - liked, 1 - 0.4 * liked])


def _lines(path: Path, rows: Any, between: str = "::") -> None:
    with path.open("w", encoding="latin-1", newline="") as file:
        file.writelines(between.join(map(str, row)) + "\n" for row in rows)


KINDS: dict[str, tuple[Callable[[Simulation, Path], None], bool]] = {
    "criteo": (_criteo, False),
    "criteo-1tb": (_terabyte, True),
    "avazu": (_avazu, False),
    "ipinyou": (_ipinyou, True),
    "movielens-1m": (_movielens, True),
    "movielens-100k": (partial(_movielens, small=True), True),
    "appstore": (_appstore, False),
}
