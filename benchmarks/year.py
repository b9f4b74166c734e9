"""A year of days, each predicted before it is trained on: tables that forget values, beside tables that never do.

    python benchmarks/year.py --days 365 --rows 2000 --out build/year

In a simulated world in which users and items die and are born each day, two chains of runs continue day by day: one
whose users and items expire (`--expire 30`: the values of all fields), and one that keeps all. Of each day it writes
the rows of the tables, and the log loss of either chain on the day's rows before it has learnt from them; in the end
the means, the largest difference, and whether bundles of the past predict what they did. That ids of living values
stay is checked after each day. `tests/train/test_year.py` runs twelve days of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.bundle import bundle
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.world import World
from fieldwise.train.incremental import settings_of
from fieldwise.train.loop import train

MODEL = {
    "model.name": "fm",
    "model.dim": 8,
    "train.lr": 2e-3,
    "train.batch_size": 100,
    "train.epochs": 1,
    "train.average": 0.0,
    # The rate of this world does not move, and few validation rows would say that it does.
    "train.calibration": "none",
    "device": "cpu",
}
# Of a day's rows; what a day teaches is judged by the rest.
TRAINING = (0.9, 0.1, 0.0)


@dataclass
class Chain:
    """The runs of one chain, of which the newest alone stays on the disk, and some copies of older bundles."""

    folder: Path
    expire_after: tuple[str, ...] = ()
    run: Path | None = None
    encoder: Encoder | None = None
    kept: dict[Path, Any] = field(default_factory=dict)

    def learn(self, log: pa.Table, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Takes in a folder of rows; returns what `prepare` says of it."""
        known = bundle.load_encoder(self.run) if self.run else None
        data, run = self.folder / f"data{name}", self.folder / f"run{name}"
        said = () if known else self.expire_after
        facts = prepare(
            {"train": lambda: iter([log])}, data, "click", None, Split(TRAINING), known=known, expire_after=said
        )
        config = (
            load_config(base=changes, start=settings_of(self.run)) if self.run else load_config(base=MODEL | changes)
        )
        train(config, data, run, pairs=False)
        shutil.rmtree(data)
        if self.run:
            shutil.rmtree(self.run)
        before, self.run, self.encoder = self.encoder, run, bundle.load_encoder(run)
        if before is not None:
            check_living(before, self.encoder)
        return facts

    def loss(self, log: pa.Table) -> float:
        assert self.run is not None
        return float(Predictor.load(self.run).evaluate(iter([log]))["log_loss"])

    def keep(self, name: str, probe: pa.Table) -> None:
        """Keeps a copy of the newest bundle, and what it says of some rows."""
        assert self.run is not None
        copy = self.folder / f"kept{name}"
        shutil.copytree(self.run / "bundle", copy)
        self.kept[copy] = Predictor.load(copy).predict(probe.to_pylist())

    def check_kept(self, probe: pa.Table) -> int:
        """How many bundles of the past say what they said; any other is an error."""
        for copy, said in self.kept.items():
            assert np.array_equal(Predictor.load(copy).predict(probe.to_pylist()), said), copy
        return len(self.kept)


def check_living(before: Encoder, after: Encoder) -> None:
    """The id of a value that is in two vocabularies, one after the other, is the same in both."""
    for old, new in zip(before.codes, after.codes, strict=True):
        was, now = old.own_words, new.own_words
        if was is not None and now is not None:
            moved = [text for text, id in was.vocabulary.items() if now.vocabulary.get(text, id) != id]
            assert not moved, f"{old.field.name}: {moved[:3]}"


def days_of(world: World, rows: int, first: int, last: int) -> pa.Table:
    """The rows of some days, without the day itself."""
    return world.log(rows * (last - first + 1), 1000 + first, first, last).table.drop_columns(["day"])


def year(out: Path, days: int, rows: int, warm: int, expire: Sequence[str], churn: float) -> Iterator[dict[str, Any]]:
    """A record of each day, after the first `warm` ones, which both chains begin with; then one of all days."""
    world = World("demo", days=warm + days, churn=churn)
    chains = {"forgets": Chain(out / "forgets", tuple(expire)), "keeps": Chain(out / "keeps", ("never",))}
    begin, probe, found = days_of(world, rows, 0, warm - 1), days_of(world, 500, 0, 0), []
    for chain in chains.values():
        chain.learn(begin, "", {"train.epochs": 5})
        chain.keep("", probe)
    for day in range(warm, warm + days):
        log = days_of(world, rows, day, day)
        record: dict[str, Any] = {"day": day}
        for name, chain in chains.items():
            loss = chain.loss(log)
            facts = chain.learn(log, str(day), {})
            assert chain.encoder is not None
            record[name] = {"log_loss": loss, "rows": chain.encoder.layout.rows}
            record[name] |= {"new": sum(facts["new_ids"].values()), "expired": sum(facts["expired"].values())}
            if (day - warm) % 60 == 30:
                chain.keep(str(day), probe)
        found.append(record)
        yield record
    yield summary(found) | {"bundles_unchanged": sum(chain.check_kept(probe) for chain in chains.values())}


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The means and the largest differences of all days, and of stretches of 30 days; the rows of the tables."""
    loss = {name: np.array([record[name]["log_loss"] for record in records]) for name in ("forgets", "keeps")}
    rows = {name: [record[name]["rows"] for record in records] for name in loss}
    more = loss["forgets"] - loss["keeps"]
    stretches = [float(more[first : first + 30].mean()) for first in range(0, len(more), 30)]
    return {
        "days": len(records),
        "log_loss": {name: float(own.mean()) for name, own in loss.items()},
        "more_by_forgetting": {
            "mean": float(more.mean()),
            "standard_error": float(more.std() / len(more) ** 0.5),
            "largest_day": float(more.max()),
            "smallest_day": float(more.min()),
            "largest_month": max(stretches),
            "smallest_month": min(stretches),
            "months": stretches,
        },
        "rows": {name: {"first": own[0], "last": own[-1], "most": max(own)} for name, own in rows.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rows", type=int, default=2000, help="of a day")
    parser.add_argument("--warm", type=int, default=30, help="days of the first folder")
    parser.add_argument("--expire", nargs="+", default=["user=30", "item=30"], help="as --expire-after of prepare")
    parser.add_argument("--churn", type=float, default=0.01, help="the share of users and items that die each day")
    parser.add_argument("--out", type=Path, default=Path("build/year"))
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    start = time.process_time(), time.perf_counter()
    with (given.out / "days.jsonl").open("w", encoding="utf-8") as file:
        for record in year(given.out, given.days, given.rows, given.warm, given.expire, given.churn):
            print(json.dumps(record), file=file, flush=True)
            print(json.dumps(record), flush=True)
    print(f"processor seconds {time.process_time() - start[0]:.0f}, seconds {time.perf_counter() - start[1]:.0f}")


if __name__ == "__main__":
    main()
