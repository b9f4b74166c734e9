"""Values that training never saw: no model of a comparison may answer them with nonsense.

The worlds are made here, so that the true probability of each row is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.bundle.predictor import Predictor
from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import prepare
from fieldwise.evaluation import metrics
from fieldwise.experiments.entrants import entrants

ROWS = 6000
FIELDS = {"user": 1.0, "item": 0.8, "site": 0.6}


@dataclass(frozen=True)
class Rows:
    """Rows with their true probabilities."""

    table: pa.Table
    truth: NDArray[np.float64]

    def with_new(self, field: str) -> pa.Table:
        """The same rows, the values of a field by names that nobody knows."""
        place = self.table.column_names.index(field)
        return self.table.set_column(place, field, [[f"new {text}" for text in self.table[field].to_pylist()]])


def rows(users: NDArray[np.int64], seed: int) -> Rows:
    """Rows of these users; each user, item and site has an effect, and each pair of item and site another."""
    random, world = np.random.default_rng(seed), np.random.default_rng(7)
    places = {"user": users, "item": random.integers(0, 60, len(users)), "site": random.integers(0, 8, len(users))}
    effects = {name: world.normal(0, FIELDS[name], 2000) for name in FIELDS}
    pairs = world.normal(0, 0.7, (60, 8))
    price = random.normal(size=len(users))
    logits = sum(effects[name][own] for name, own in places.items()) + pairs[places["item"], places["site"]]
    truth = metrics.sigmoid(logits + 0.3 * price - 1)
    clicks = (random.random(len(users)) < truth).astype(int)
    texts = {name: [f"{name}{value}" for value in own] for name, own in places.items()}
    return Rows(pa.table({"click": clicks, **texts, "price": price}), truth)


def trained(names: str, data: Path, out: Path) -> dict[str, Predictor]:
    found = {}
    for one in entrants(names, data)[0]:
        job = one.job(0, out, None, "cpu")
        made(job.data)
        assert job.attempt() == ""
        found[one.name] = Predictor.load(job.out)
    return found


def test_no_entrant_loses_its_level_where_all_values_of_a_field_are_new(tmp_path: Path) -> None:
    """All users, items and sites are in the training rows, many times: not one of these shows a new value."""
    random = np.random.default_rng(1)
    log = rows(random.integers(0, 200, ROWS), seed=2).table
    prepare({"train": lambda: iter([log])}, tmp_path / "data", "click", keep_rows=True)
    later = rows(random.integers(0, 200, 4000), seed=3)
    for name, predictor in trained("", tmp_path / "data", tmp_path / "runs").items():
        for field in FIELDS:
            ratio = predictor.predict(later.with_new(field)).mean() / later.truth.mean()
            assert 0.8 < ratio < 1.25, f"{name}: {ratio:.2f} times the truth where every {field} is new"


def test_trees_on_rates_do_no_worse_than_lr_on_new_users(tmp_path: Path) -> None:
    """Users come and go in time: later rows have many that the log, divided at random, does not show."""
    users = np.arange(ROWS + 2000) // 40 + np.random.default_rng(4).integers(0, 20, ROWS + 2000)
    log = rows(users, seed=5)
    prepare({"train": lambda: iter([log.table.slice(0, ROWS)])}, tmp_path / "data", "click", keep_rows=True)
    new = ~np.isin(users[ROWS:], users[:ROWS])
    labels, losses = log.table["click"].to_numpy()[ROWS:], {}
    for name, predictor in trained("lr,gbdt-rates,gbdt-order", tmp_path / "data", tmp_path / "runs").items():
        found = predictor.predict(log.table.slice(ROWS))
        losses[name] = -np.log(np.where(labels == 1, found, 1 - found))[new]
        assert 0.8 < found[new].mean() / log.truth[ROWS:][new].mean() < 1.25
    for name in ("gbdt-rates", "gbdt-order"):
        worse = losses[name] - losses["lr"]
        assert worse.mean() < 2 * worse.std() / np.sqrt(len(worse))
