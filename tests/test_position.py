"""The place where a row was shown: learnt, and fixed when rows are predicted, ranked and served.

The log comes from a world whose truth is known: an older ranker shows items by their age, and clicks fall with the
place. So items look worse, or better, than they are to a model that does not know the place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import csv

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError, DataError
from fieldwise.config.settings import load_config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.encode.rates import usual_history
from fieldwise.data.schema import Field, HistorySettings, Schema
from fieldwise.export.export import write_network
from fieldwise.serving.engine import Engine
from fieldwise.train.blend import blend
from fieldwise.train.loop import train

ROWS, USERS, ITEMS, PLACES = 12_000, 4, 30, 6
PLAIN = (Field("user"), Field("item"))
# One model reads the place as a category, the other as a number that trees cut.
WORD, NUMBER = Field("place", role="position"), Field("place", "numeric", role="position", at="1")


def click_log() -> tuple[pa.Table, NDArray[np.float64]]:
    """Rows of a log, and the true probability of a click at the first place for each user and item."""
    random = np.random.default_rng(0)
    appeal = random.normal(0.0, 0.8, ITEMS) + random.normal(0.0, 0.2, (USERS, ITEMS))
    age = random.normal(0.0, 1.0, ITEMS)
    user, item = random.integers(USERS, size=ROWS), random.integers(ITEMS, size=ROWS)
    usual = np.argsort(np.argsort(age)) / ITEMS * PLACES
    place = np.clip(np.round(usual[item] + random.normal(0.0, 3.0, ROWS)), 0, PLACES - 1)
    click = random.random(ROWS) < 1 / (1 + np.exp(-(appeal[user, item] - place)))
    names = {"user": [f"u{u}" for u in user], "item": [f"i{i}" for i in item]}
    return pa.table({"click": click.astype(int), **names, "place": place.astype(int) + 1}), 1 / (1 + np.exp(-appeal))


LOG, TRUTH = click_log()
EVERY = [{"user": f"u{user}", "item": f"i{item}"} for user in range(USERS) for item in range(ITEMS)]


@dataclass(frozen=True)
class Runs:
    """The log as a file, data with a position, and trained runs."""

    log: Path
    data: Path
    runs: dict[str, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("positions")

    def fitted(name: str, model: str, *places: Field, leaves: int = 0) -> Path:
        schema, data = Schema("click", (*PLAIN, *places)), folder / f"{name}-data"
        prepare({"train": lambda: iter([LOG])}, data, "click", schema, gbdt_leaves=leaves)
        own = [] if model == "gbdt" else ["model.dim=4", "train.lr=0.01", "train.epochs=6", "train.batch_size=200"]
        config = load_config(overrides=[f"model.name={model}", "device=cpu", *own])
        train(config, data, folder / name, pairs=False)
        return folder / name

    runs = {
        "fm": fitted("fm", "fm", WORD, leaves=2),
        "gbdt": fitted("gbdt", "gbdt", NUMBER),
        "fm-without": fitted("fm-without", "fm"),
        "gbdt-without": fitted("gbdt-without", "gbdt"),
    }
    for name in ("fm",):  # in this process: the first load of an engine would start another
        write_network(runs[name] / "bundle", runs[name] / "bundle" / "online")
    runs["both"] = folder / "both"
    blend([runs["fm"], runs["gbdt"]], runs["both"], pairs=False)
    first = runs["both"] / "bundle" / "members" / "0"
    write_network(first, first / "online")
    log = folder / "log.csv"
    csv.write_csv(LOG.slice(0, 500), log)
    return Runs(log, folder / "fm-data", runs)


def order_like_truth(predictions: NDArray[np.float64]) -> float:
    """The rank correlation with the truth."""
    ranks = [np.argsort(np.argsort(values)) for values in (predictions, TRUTH.ravel())]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("model", ["fm", "gbdt"])
def test_a_ranking_that_knows_positions_is_nearer_to_the_truth(made: Runs, model: str) -> None:
    knows, lacks = (Predictor.load(made.runs[name]).predict(EVERY) for name in (model, f"{model}-without"))
    assert order_like_truth(knows) > order_like_truth(lacks) + 0.1
    # And probabilities are those of the first place, not of the mean one.
    assert abs(knows.mean() - TRUTH.mean()) < 0.06 < abs(lacks.mean() - TRUTH.mean())


@pytest.mark.parametrize("name", ["fm", "gbdt", "both"])
def test_predictions_do_not_read_the_position(made: Runs, name: str) -> None:
    """Whether rows say it or not: in tables, files and requests, alone and ranked."""
    predictor, engine, rows = Predictor.load(made.runs[name]), Engine.load(made.runs[name]), EVERY[:40]
    wanted = predictor.predict(rows)
    elsewhere = [{**row, "place": 1 + number % PLACES} for number, row in enumerate(rows)]
    assert (predictor.predict(elsewhere) == wanted).all()
    assert (predictor.predict(pa.Table.from_pylist(elsewhere)) == wanted).all()
    for given in (rows, elsewhere):
        np.testing.assert_allclose(engine.predict(given), wanted, rtol=2e-6)
    for _ in range(2):  # from the second ranking on, the context is computed once
        order, found = engine.rank({"user": "u0"}, [{k: v for k, v in row.items() if k != "user"} for row in elsewhere])
        expected = predictor.predict([{**row, "user": "u0"} for row in rows])
        np.testing.assert_allclose(found, expected[order], rtol=2e-6)
    assert engine.explain(elsewhere[5]).values["place"] == "1 (fixed)"


@pytest.mark.parametrize("name", ["fm", "gbdt", "both"])
def test_a_file_has_the_same_predictions_with_and_without_positions(made: Runs, tmp_path: Path, name: str) -> None:
    predictor, rows, bare = Predictor.load(made.runs[name]), LOG.slice(0, 500), tmp_path / "bare.csv"
    csv.write_csv(rows.drop_columns(["place", "click"]), bare)
    wanted = predictor.predict(rows)
    for file in (made.log, bare):
        found = pa.concat_tables(predictor.predict_file(file))["probability"].to_numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["fm", "gbdt"])
def test_evaluate_takes_the_position_shown_and_says_both_figures(
    made: Runs, name: str, run: Callable[..., Any]
) -> None:
    found = run("evaluate", made.runs[name], made.log)
    assert found["positions"] == "shown"
    assert found["auc"] > found["served"]["auc"] + 0.03
    assert abs(found["calibration"] - 1) < 0.2 < found["served"]["calibration"] - 1
    prepared = run("evaluate", made.runs[name], made.data.parent / f"{name}-data")
    assert prepared["auc"] > prepared["served"]["auc"] + 0.03


def test_evaluate_without_positions_is_as_served(made: Runs) -> None:
    predictor, rows = Predictor.load(made.runs["fm"]), LOG.slice(0, 500)
    found = predictor.evaluate(iter([rows.drop_columns(["place"])]))
    assert found["positions"] == "fixed"
    assert "served" not in found
    assert found["auc"] == predictor.evaluate(iter([rows]))["served"]["auc"]
    assert "positions" not in Predictor.load(made.runs["fm-without"]).evaluate(iter([rows]))


def test_prepare_says_the_first_position_and_keeps_it_where_rows_go_on(made: Runs, tmp_path: Path) -> None:
    schema = Schema.load(made.data / "schema.toml")
    assert schema.positions == ["place"]
    assert schema.fields[2].at == "1"
    assert schema.optional == {"place"}
    assert 'role = "position"\nat = "1"' in schema.to_toml()
    zero = LOG.set_column(3, "place", pa.array(np.zeros(len(LOG), dtype=int)))
    known = Encoder.load(made.data / "encoder", schema)
    prepare({"train": lambda: iter([zero])}, tmp_path / "next", "click", known=known)
    assert Schema.load(tmp_path / "next" / "schema.toml").fields[2].at == "1"


def test_prepare_takes_a_position_by_its_column(made: Runs, tmp_path: Path, run: Callable[..., Any]) -> None:
    run("prepare", made.log, "--label", "click", "--position", "place", "--out", tmp_path / "data")
    schema = Schema.load(tmp_path / "data" / "schema.toml")
    assert schema.positions == ["place"]
    assert schema.fields[2].at == "1"


def test_histories_leave_positions_out(made: Runs) -> None:
    keys = usual_history(Schema("click", (*PLAIN, WORD))).keys
    assert keys == ("user", "item", "user*item")
    with pytest.raises(ConfigError, match="'place' is fixed in service and cannot be part of a history key"):
        Schema("click", (*PLAIN, WORD), history=HistorySettings(("user*place",)))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('role = "place"', "unknown role 'place'; .*position"),
        ('kind = "set"\nrole = "position"', "one value in each row, found a set field"),
        ("at = 1", "at is for a field with role = \"position\", found '1'"),
        ('kind = "numeric"\nrole = "position"\nat = "top"', "at must be a number, found 'top'"),
        ('role = "position"', "needs a field that is no position, found place alone"),
    ],
)
def test_a_schema_refuses_a_role_that_makes_no_sense(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Schema.from_toml(f'label = "click"\n[[field]]\nname = "place"\n{text}', "schema.toml")


@pytest.mark.parametrize(
    ("places", "field", "error"),
    [
        (["top", "side"], WORD, "which of its words is the first position. set at, found side, top"),
        (["1", "2"], Field("place", role="position", at="3"), "at must be a value that training rows have, found '3'"),
    ],
)
def test_prepare_refuses_a_position_that_it_cannot_fix(
    places: list[str], field: Field, error: str, tmp_path: Path
) -> None:
    rows = pa.table({"click": [0, 1] * 20, "user": ["a", "b"] * 20, "place": places * 20})
    with pytest.raises(ConfigError, match=error):
        prepare({"train": lambda: iter([rows])}, tmp_path / "d", "click", Schema("click", (Field("user"), field)))


def test_training_rows_must_say_their_positions(tmp_path: Path) -> None:
    rows = LOG.drop_columns(["place"])
    with pytest.raises(DataError, match="place"):
        prepare({"train": lambda: iter([rows])}, tmp_path / "data", "click", Schema("click", (*PLAIN, WORD)))
    with pytest.raises(ConfigError, match="unknown position column 'plase'; did you mean 'place'"):
        prepare({"train": lambda: iter([LOG])}, tmp_path / "data", "click", position="plase")
