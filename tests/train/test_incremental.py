"""A new day of data: old ids stay, tables grow, weights and optimiser state go on from where they were."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fieldwise import cli
from fieldwise.bundle import bundle
from fieldwise.bundle.predictor import Predictor
from fieldwise.bundle.scoring import score
from fieldwise.config.errors import ConfigError, DataError, FieldwiseError
from fieldwise.config.settings import Config, load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import OTHER, Field, Layout, Schema
from fieldwise.data.world import World
from fieldwise.models import MODELS, build, options
from fieldwise.train.incremental import settings_of, take_weights
from fieldwise.train.loop import train
from tests.test_contract import LAYOUTS, SMALL, drawn_ids, made
from tests.test_resume import KillAt, Killed, assert_same, outcome

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "paper": {},
    "lazy": {"train.sparse_mode": "lazy"},
    "dense": {"train.sparse_mode": "dense"},
    "adagrad": {"train.optimizer": "adagrad", "train.lr": 0.05},
    "ftrl": {"train.optimizer": "ftrl", "train.lr": 0.05},
    "sgd": {"train.optimizer": "sgd"},
    "sgd without momentum": {"train.optimizer": "sgd", "train.momentum": 0.0},
}
FM = {"model.name": "fm", "model.dim": 4, "train.epochs": 2, "train.batch_size": 64, "train.lr": 0.01, "device": "cpu"}


def rows_of(*days: int, rows: int = 1000, seed: int = 0) -> pa.Table:
    """Rows of the demo world on these days, without the day itself."""
    return World("demo").log(rows, seed, days[0], days[-1]).table.drop_columns(["day"])


def prepared(log: pa.Table, folder: Path, run: Path | None = None, split: Split | None = None) -> dict[str, Any]:
    known = bundle.load_encoder(run) if run else None
    return prepare({"train": lambda: iter([log])}, folder, "click", split=split, known=known)


def continued(run: Path, **changes: Any) -> Config:
    return load_config(base=changes, start=settings_of(run))


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data1 and an FM `one` trained on it, and data2 with later rows."""
    folder = tmp_path_factory.mktemp("days")
    prepared(rows_of(0, 4), folder / "data1")
    train(load_config(base=FM), folder / "data1", folder / "one")
    prepared(rows_of(5, 9), folder / "data2", folder / "one")
    return folder


# Ids.

FIELDS = (
    Field("word", min_count=2),
    Field("every", min_count=1),
    Field("tags", "set", min_count=2),
    Field("hashed", hash_buckets=5),
    Field("number", "numeric", max_buckets=3),
    Field("place", "numeric", max_buckets=3, interpolate=4),
    Field("count", "numeric", buckets="log-square", min_count=1),
)
ROW = st.fixed_dictionaries(
    {
        "word": st.sampled_from([None, *"abcdefgh"]),
        "every": st.sampled_from(["1", "1.0", "x", "", "ü"]),
        "tags": st.lists(st.sampled_from("pqrstu"), max_size=4).map("|".join),
        "hashed": st.text("xyz", max_size=2),
        "number": st.none() | st.floats(-9, 9),
        "place": st.none() | st.floats(-9, 9),
        "count": st.integers(0, 50),
    }
)
LOG = st.lists(ROW, min_size=2, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(logs=st.lists(LOG, min_size=2, max_size=3))
def test_no_old_id_ever_changes(logs: list[list[dict[str, Any]]], tmp_path: Path) -> None:
    encoder: Encoder | None = None
    for number, log in enumerate(logs, 1):
        table = pa.Table.from_pylist(log).append_column("click", pa.array(np.arange(len(log)) % 2))
        sources = {"train": lambda table=table: iter([table])}
        schema, split = Schema("click", FIELDS), Split((1.0, 0.0, 0.0))
        before, grown = encoder, tmp_path / "grown"
        facts = prepare(sources, grown, "click", schema, split, force=True, known=before)
        encoder = Encoder.load(grown / "encoder", Schema.load(grown / "schema.toml"), lifetimes=True)
        assert encoder.layout == Dataset.open(grown).with_ranks.layout
        if before is None:
            assert encoder.layout.first_sizes == ()
            continue
        for other in logs:
            rows = pa.Table.from_pylist(other)
            old, new = before.transform(rows), encoder.transform(rows)
            single = [n for n, f in enumerate(encoder.layout.column_fields) if FIELDS[f].kind != "set"]
            known = (old != OTHER)[:, single]
            assert (new[:, single][known] == old[:, single][known]).all()
        for code, was in zip(encoder.codes, before.codes, strict=True):
            assert code.width == was.width
            assert code.state == was.state
            assert code.texts[: len(was.texts)] == was.texts
            added = code.texts[len(was.texts) :]
            assert added == expected_texts(code.field, [row for one in logs[:number] for row in one], was.texts)
            assert facts["new_ids"].get(code.field.name, 0) == len(added)


def expected_texts(field: Field, log: list[dict[str, Any]], known: list[str]) -> list[str]:
    """Slowly: what the rows of all folders add to a vocabulary, whose ids follow its order."""
    if field.kind == "numeric" or field.hash_buckets:
        return []
    cells = [row[field.name] or "" for row in log]
    texts = [t for cell in cells for t in (set(cell.split("|")) if field.kind == "set" else [cell])]
    counts = Counter("1" if text == "1.0" else text for text in texts if text)
    new = sorted((-n, text) for text, n in counts.items() if n >= field.min_count and text not in known)
    return [text for _, text in new]


def test_only_training_rows_add_ids(days: Path, tmp_path: Path) -> None:
    log = rows_of(5, 6, rows=400).to_pylist()
    held = [{**row, "item": "only held out"} for row in log]
    sources = {"train": lambda: iter([pa.Table.from_pylist(log)]), "test": lambda: iter([pa.Table.from_pylist(held)])}
    prepare(sources, tmp_path / "data", "click", known=bundle.load_encoder(days / "one"))
    encoder = Encoder.load(tmp_path / "data" / "encoder", Schema.load(tmp_path / "data" / "schema.toml"))
    items = next(code for code in encoder.codes if code.field.name == "item")
    assert "only held out" not in items.vocabulary
    assert items.first_size < items.size


# Weights.

# Poly-2 has weights for pairs of values, whose places move with every new one.
GROWING = [name for name in MODELS if name != "poly2"]
GROWN = {
    "plain": Layout((8, 7, 6), (1, 1, 1), (), (5, 7, 4)),
    "sets": Layout((5, 9, 4, 8), (1, 3, 1, 2), (), (5, 7, 4, 6)),
    "interpolated": Layout((8, 7, 6, 6), (1, 4, 2, 1), (1, 3), (5, 7, 4, 6)),
    "sequences": Layout((8, 4, 8), (1, 1, 3), (), (5, 4, 5), like=(0, 1, 0), sequences=((2,),)),
}


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("adaptive", [0.0, 2.0])
def test_growing_changes_no_prediction(name: str, kind: str, adaptive: float) -> None:
    """Rows of old ids score as before, and new ids as `other`: what the model took them for until now."""
    before, after = LAYOUTS[kind], GROWN[kind]
    chosen = {"adaptive": adaptive} if adaptive and "adaptive" in options(name) else {}
    try:
        origin = made(name, before, **chosen).eval()
    except ConfigError:
        pytest.skip("this model has no vectors of different sizes")
    model = made(name, after, seed=1, **chosen).eval()
    take_weights(model, after, origin)
    ids = drawn_ids(before)
    assert torch.equal(model(ids), origin(ids))
    for column, field in enumerate(after.column_fields):
        new, as_other = ids.clone(), ids.clone()
        new[:, column] = torch.where(ids[:, column] < 0, ids[:, column], after.sizes[field] - 1)
        as_other[:, column] = torch.where(ids[:, column] < 0, ids[:, column], OTHER)
        if after.sizes[field] > before.sizes[field]:
            assert torch.equal(model(new), origin(as_other))


def test_a_model_with_other_rows_than_the_fields_is_refused_once_they_grow() -> None:
    """Poly-2 has rows for pairs of values, N0 * N1 of them, whose numbers change with N1."""
    before, after = Layout.of((3, 4)), Layout((3, 5), (1, 1), (), (3, 4))
    origin, model = build("poly2", before), build("poly2", after)
    with pytest.raises(ConfigError, match=r"cannot take new ids: .*weight has the shape \(12, 1\)"):
        take_weights(model, after, origin)
    same = build("poly2", before)
    take_weights(same, before, origin)
    for name, value in same.state_dict().items():
        assert torch.equal(value, origin.state_dict()[name])


def test_vectors_keep_their_size_where_their_field_grew(days: Path, tmp_path: Path) -> None:
    config = load_config(
        base={"model.name": "fnn", "model.dim": 40, "model.adaptive": 4.0, "model.hidden": (8,), "train.epochs": 1}
    )
    train(config, days / "data1", tmp_path / "one")
    train(continued(tmp_path / "one"), days / "data2", tmp_path / "two")
    one, two = (bundle.load(tmp_path / run).model.embedding for run in ("one", "two"))
    assert one.dims == two.dims
    assert len(set(one.dims)) > 3
    grown = Dataset.open(days / "data2").layout
    assert one.dims != MODELS["fnn"](Layout(grown.sizes, grown.widths)).embedding.dims
    assert one.dims == Predictor.load(tmp_path / "two").model.embedding.dims


# Runs.


def state_of(run: Path, step: str = "*") -> dict[str, torch.Tensor]:
    (folder,) = (run / "checkpoint").glob(step)
    return load_file(folder / "state.safetensors")


def grown_slowly(old: torch.Tensor, before: Layout, after: Layout, new: str) -> torch.Tensor:
    """A table row by row: old ids where they were, new ones zero or as the field's other."""
    rows, start = [], 0
    for size, larger in zip(before.sizes, after.sizes, strict=True):
        rows += [old[start + number] for number in range(size)]
        fill = torch.zeros_like(old[0]) if new == "zero" else old[start + OTHER]
        rows += [fill] * (larger - size)
        start += size
    return torch.stack(rows)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_and_optimiser_state_are_carried_over(days: Path, tmp_path: Path, optimizer: str) -> None:
    train(load_config(base={**FM, **OPTIMIZERS[optimizer]}), days / "data1", tmp_path / "one")
    with pytest.raises(Killed):
        train(continued(tmp_path / "one"), days / "data2", tmp_path / "two", progress=KillAt(1))
    one, two = state_of(tmp_path / "one"), state_of(tmp_path / "two", "000000000000")
    weights = load_file(tmp_path / "one" / "bundle" / "weights.safetensors")
    before, after = (Dataset.open(days / data).layout for data in ("data1", "data2"))
    assert after.rows > before.rows
    assert one.keys() == two.keys()
    for name, value in one.items():
        if name.startswith("model."):
            assert torch.equal(value, weights[name.removeprefix("model.")])
        if name != "random":
            tabular = value.dim() > 0 and len(value) == before.rows
            new = "other" if name.startswith("model.") else "zero"
            assert torch.equal(two[name], grown_slowly(value, before, after, new) if tabular else value), name
    clocks = [
        json.loads(next((tmp_path / r / "checkpoint").glob(s)).joinpath("state.json").read_text())["groups"][0]
        for r, s in (("one", "*"), ("two", "000000000000"))
    ]
    assert clocks[0]["step"] == clocks[1]["step"] > 0
    train(continued(tmp_path / "one"), days / "data2", tmp_path / "two", resume=True)
    assert (tmp_path / "two" / "DONE").exists()


@pytest.mark.parametrize("name", GROWING)
def test_every_network_continues(days: Path, tmp_path: Path, name: str) -> None:
    small = {f"model.{key}": value for key, value in SMALL.items() if key in options(name)}
    train(load_config(base={**small, "model.name": name, "train.epochs": 1}), days / "data1", tmp_path / "one")
    report = train(continued(tmp_path / "one"), days / "data2", tmp_path / "two")
    predictor = Predictor.load(tmp_path / "two")
    assert predictor.evaluate_prepared(days / "data2") == report["test"]
    events = [json.loads(line) for line in (tmp_path / "two" / "log.jsonl").read_text().splitlines()]
    assert events[0] == {"event": "continued", "from": str(tmp_path / "one"), "note": ""}
    first, *later = [event["log_loss"] for event in events if event["event"] == "valid"]
    assert min(later) < first or report["best_epoch"] == 0


def test_a_continued_run_resumes_as_if_never_killed(days: Path, tmp_path: Path) -> None:
    config = continued(days / "one", **{"train.checkpoint_minutes": 0.0, "train.epochs": 3})
    train(config, days / "data2", tmp_path / "whole")
    for moment in (1, 3, 7, 9, 4):
        with pytest.raises(Killed):
            train(config, days / "data2", tmp_path / "killed", resume=True, progress=KillAt(moment))
    train(config, days / "data2", tmp_path / "killed", resume=True)
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "killed"))


def test_three_days_in_a_chain(tmp_path: Path) -> None:
    runs = [tmp_path / f"run{day}" for day in range(4)]
    for day, run in enumerate(runs):
        data = tmp_path / f"data{day}"
        prepared(rows_of(2 * day, 2 * day + 1, rows=700), data, runs[day - 1] if day else None)
        train(continued(runs[day - 1]) if day else load_config(base=FM), data, run)
    encoders = [bundle.load_encoder(run) for run in runs]
    for old, new in pairwise(encoders):
        assert new.layout.rows > old.layout.rows
        for was, code in zip(old.codes, new.codes, strict=True):
            assert code.texts[: len(was.texts)] == was.texts
    assert {encoder.layout.first_sizes for encoder in encoders[1:]} == {encoders[0].layout.sizes}
    steps = [json.loads(next((run / "checkpoint").glob("*/state.json")).read_text()) for run in runs]
    clocks = [facts["groups"][0]["step"] for facts in steps]
    assert np.diff(clocks).tolist() == [facts["progress"]["step"] for facts in steps[1:]]


def test_continuing_is_better_than_staying_and_than_starting_anew(tmp_path: Path) -> None:
    """On a living world, on held-out rows of the new days."""
    fm = {**FM, "train.epochs": 8, "train.lr": 2e-3}
    prepared(rows_of(0, 6, rows=8_000), tmp_path / "data1")
    train(load_config(base=fm), tmp_path / "data1", tmp_path / "stayed")
    prepared(rows_of(7, 9, rows=4_000), tmp_path / "data2", tmp_path / "stayed")
    train(continued(tmp_path / "stayed"), tmp_path / "data2", tmp_path / "continued")
    train(load_config(base=fm), tmp_path / "data2", tmp_path / "anew")
    held_out = rows_of(7, 9, rows=10_000, seed=1)
    loss = {
        run: Predictor.load(tmp_path / run).evaluate(iter([held_out]))["log_loss"]
        for run in ("stayed", "continued", "anew")
    }
    assert loss["continued"] < min(loss["stayed"], loss["anew"]) - 0.005


def clicks(rates: dict[str, float], seed: int, rows: int = 3000) -> pa.Table:
    """Items with a rate each, and a colour that means nothing."""
    random = np.random.default_rng(seed)
    items = random.choice(list(rates), rows)
    clicked = random.random(rows) < np.array([rates[item] for item in items])
    return pa.table({"click": clicked, "item": items, "colour": random.choice(["red", "blue", "green"], rows)})


def test_a_new_category_is_learnt(tmp_path: Path) -> None:
    """New items are the average `other` before, and have their rates after; old ones keep theirs."""
    rates = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    prepared(clicks(rates, seed=0), tmp_path / "data1")
    train(load_config(base={**FM, "train.epochs": 10}), tmp_path / "data1", tmp_path / "one")
    later = {**rates, "hit": 0.9, "miss": 0.02}
    prepared(clicks(later, seed=1), tmp_path / "data2", tmp_path / "one")
    train(continued(tmp_path / "one"), tmp_path / "data2", tmp_path / "two")
    rows = [{"item": item, "colour": colour} for item in later for colour in ("red", "blue", "green")]
    found = [Predictor.load(tmp_path / run).predict(rows).reshape(-1, 3).mean(axis=1) for run in ("one", "two")]
    before, after = found
    assert before[4] == before[5]
    assert after == pytest.approx(list(later.values()), abs=0.05)


def test_growing_changes_no_prediction_of_raw_rows(days: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(continued(days / "one"), days / "data2", tmp_path / "two", progress=KillAt(1))
    encoder = Encoder.load(days / "data2" / "encoder", Schema.load(days / "data2" / "schema.toml"))
    old = bundle.load(days / "one")
    model = bundle.build_model(old.config, encoder.layout)
    weights = state_of(tmp_path / "two", "000000000000")
    model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items() if k.startswith("model.")})
    rows = pa.concat_tables([rows_of(0, 4), rows_of(5, 9)])
    ids, new_ids = old.encoder.transform(rows), encoder.transform(rows)
    assert (ids != new_ids).any(axis=1).sum() > 100
    columns = old.layout.columns
    assert np.array_equal(score(model, new_ids, columns=columns), score(old.model, ids, columns=columns))


def test_another_share_of_negatives_changes_no_probability(days: Path, tmp_path: Path) -> None:
    sources = {"train": lambda: iter([rows_of(5, 9)])}
    known = bundle.load_encoder(days / "one")
    prepare(sources, tmp_path / "data", "click", keep_negatives=0.25, known=known)
    with pytest.raises(Killed):
        train(continued(days / "one"), tmp_path / "data", tmp_path / "two", progress=KillAt(1))
    found, before = state_of(tmp_path / "two", "000000000000"), bundle.load(days / "one").model
    # Four times fewer negatives: the odds among the rows that are kept are four times higher.
    assert float(found["model.linear.bias"] - before.linear.bias.detach()) == pytest.approx(np.log(4), abs=1e-5)


# What is said and refused.


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("source", "changes", "note"),
    [
        ("one/bundle", {}, "a bundle alone has no state"),
        ("one", {"train.optimizer": "adagrad"}, "its settings are others"),
        ("one", {"train.sparse_mode": "lazy"}, "its settings are others"),
        ("one", {"train.lr": 1e-3, "train.batch_size": 100, "train.eps": 1e-6}, ""),
    ],
)
def test_an_optimiser_that_starts_anew_says_so(
    days: Path, tmp_path: Path, source: str, changes: dict[str, Any], note: str
) -> None:
    told: list[str] = []
    watcher = KillAt(1)
    watcher.say = told.append
    with pytest.raises(Killed):
        train(continued(days / source, **changes), days / "data2", tmp_path / "two", progress=watcher)
    assert [note in line for line in told] == ([True] if note else [])
    assert note in log_of(tmp_path / "two")[0]["note"]
    clock = json.loads((tmp_path / "two" / "checkpoint" / "000000000000" / "state.json").read_text())["groups"][0]
    assert (clock["step"] == 0) == bool(note)


def test_ftrl_with_another_rate_starts_anew(days: Path, tmp_path: Path) -> None:
    """Its weights are a function of the rate: with the old z they would jump."""
    train(load_config(base={**FM, **OPTIMIZERS["ftrl"]}), days / "data1", tmp_path / "one")
    train(continued(tmp_path / "one", **{"train.lr": 0.01}), days / "data2", tmp_path / "two")
    assert "its settings are others" in log_of(tmp_path / "two")[0]["note"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model.dim": 8}, "--continue-from keeps model.dim = 4, found 8; leave it out, or train anew"),
        ({"model.name": "pin"}, "--continue-from keeps model.name = fm, found pin"),
        ({"model.no_such_thing": 8}, "unknown option 'no_such_thing'"),
        ({"train.init_from": "somewhere"}, "leave one out"),
        ({"train.continue_from": "nowhere"}, "expected a run or a bundle folder"),
    ],
)
def test_another_model_is_refused(days: Path, tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(FieldwiseError, match=line) as error:
        train(continued(days / "one", **changes), days / "data2", tmp_path / "two")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "two").exists()


def test_data_with_other_ids_are_refused(days: Path, tmp_path: Path) -> None:
    later = rows_of(5, 9)
    prepared(later, tmp_path / "anew")
    prepared(later.drop_columns(["city"]), tmp_path / "fewer")
    prepared(later.select(later.column_names[::-1]), tmp_path / "turned")
    for data, line in (
        ("anew", "field '.*' has other ids there; prepare the new rows with `fieldwise prepare ... --continue-from"),
        ("fewer", "needs the fields of the first data, 'city' is a field of one of them alone"),
        ("turned", "found them in another order"),
    ):
        with pytest.raises(ConfigError, match=line):
            train(continued(days / "one"), tmp_path / data, tmp_path / "two")
    with pytest.raises(DataError, match="column 'city' is missing"):
        prepared(later.drop_columns(["city"]), tmp_path / "never", days / "one")
    assert not (tmp_path / "two").exists()


def test_trees_are_refused(days: Path, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    train(load_config(base={"model.name": "gbdt", "model.rounds": 2}), days / "data1", tmp_path / "one")
    with pytest.raises(ConfigError, match="--continue-from needs a network, found gbdt; train anew on all rows"):
        train(continued(tmp_path / "one"), days / "data2", tmp_path / "two")


def test_the_command_line(days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: Any) -> str:
        with pytest.raises(SystemExit) as end:
            cli.main([str(word) for word in words])
        shown = capsys.readouterr()
        assert end.value.code == (2 if shown.err.startswith("error") else 0), shown.err
        return shown.err if end.value.code else shown.out

    log, one, data, two = tmp_path / "log.csv", days / "one", tmp_path / "data", tmp_path / "two"
    assert "600 rows" in run("simulate", "--rows", 600, "--first-day", 8, "--last-day", 9, "--out", log)
    assert "leave out --schema" in run("prepare", log, "--continue-from", one, "--schema", "s.toml", "--out", data)
    told = run("prepare", log, "--continue-from", one, "--out", data)
    assert "new ids, behind the old ones: " in told
    assert f"next: fieldwise train {data} --continue-from {one}" in told
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[train]\nepochs = 1\nlr = 0.5\n")
    assert "keeps model.name = fm, found lr" in run(
        "train", data, "--continue-from", one, "--model", "lr", "--out", two
    )
    chosen = ("--config", recipe, "--set", "train.lr=0.001", "--model", "fm", "--out", two)
    assert "fm on test rows" in run("train", data, "--continue-from", one, *chosen)
    settings = bundle.load(two).config
    assert (settings.train.epochs, settings.train.lr, settings.train.batch_size) == (1, 0.001, 64)
    assert (settings.train.continue_from, settings.options["dim"]) == (str(one), 4)
    assert "probability" in run("predict", two, log, "-o", tmp_path / "predictions.csv")
    assert run("evaluate", two, data)


def test_a_finished_run_keeps_the_state_of_its_best_step_alone(days: Path, tmp_path: Path) -> None:
    report = train(load_config(base={**FM, "train.epochs": 20, "train.patience": 2}), days / "data1", tmp_path / "run")
    assert report["best_epoch"] < report["epochs"]
    facts = json.loads(next((tmp_path / "run" / "checkpoint").glob("*/state.json")).read_text())["progress"]
    assert facts["step"] == facts["best_step"]
    whole = (tmp_path / "run" / "log.jsonl").read_text()
    train(
        load_config(base={**FM, "train.epochs": 20, "train.patience": 2}), days / "data1", tmp_path / "run", resume=True
    )
    assert (tmp_path / "run" / "log.jsonl").read_text() == whole
