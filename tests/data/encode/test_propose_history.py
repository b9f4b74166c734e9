"""`--history auto`: finds what was planted, leaves noise and copies alone, and looks at training labels only."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise import cli
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.encode.propose_history import RIDGE, Additive, Sample, fit_logistic, losses
from fieldwise.data.read import formats
from fieldwise.data.schema import Field, HistorySettings, Schema, history_settings

ROWS = 16_000
BY_ROW = Split((0.8, 0.1, 0.1), by="row")


def returning(rows: int = ROWS, seed: int = 0, likes: bool = True) -> pa.Table:
    """Users who come back to six items of theirs, half of which they like; the rest is noise."""
    rng = np.random.default_rng(seed)
    user, place = rng.integers(0, 150, rows), rng.integers(0, 6, rows)
    item = (user * 7 + place * 11) % 60
    liked = rng.integers(0, 2, (150, 6))[user, place] == 1 if likes else np.full(rows, False)
    return pa.table(
        {
            "click": (rng.random(rows) < np.where(liked, 0.7, 0.2)).astype(int),
            "user": user,
            "item": item,
            "day": np.sort(rng.integers(0, 30, rows)),
            "few": rng.integers(0, 5, rows),
            "many": rng.integers(0, 2000, rows),
            "number": rng.random(rows).round(4),
            "tags": rng.choice(["a|b", "b", "a|c"], rows),
        }
    )


FIELDS = (*(Field(name) for name in ("user", "item", "few", "many")), Field("number", "numeric"), Field("tags", "set"))


def proposed(folder: Path, table: pa.Table, history: HistorySettings, pieces: int = 1, **more: Any) -> dict[str, Any]:
    size = -(-len(table) // pieces)
    chunks = [table.slice(first, size) for first in range(0, len(table), size)]
    schema = more.pop("schema", Schema("click", FIELDS))
    return prepare({"train": lambda: iter(chunks)}, folder, "click", schema, BY_ROW, history=history, **more)


def keys(facts: dict[str, Any]) -> list[str]:
    return [proposal["key"] for proposal in facts["proposals"]]


@pytest.mark.parametrize("given", [[], ["time=day"], ["time=row"], ["group=user,day"]], ids=str)
def test_a_planted_cross_is_found_first_and_noise_is_not(tmp_path: Path, given: list[str]):
    facts = proposed(tmp_path / "data", returning(), history_settings("auto", given))
    assert keys(facts)[0] == "user*item"
    assert not {name for key in keys(facts)[1:] for name in key.split("*")} & {"few", "many", "number", "tags"}
    first = facts["proposals"][0]
    assert first["on_top"] > 0.05
    assert first["alone"] > 0.05
    # The keys themselves stand in the schema and in the folder; nothing there says auto.
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.schema.history == replace(history_settings("auto", given), keys=tuple(keys(facts)))
    assert [name for name in dataset.names if name.endswith(":rate")] == [f"{key}:rate" for key in keys(facts)]


@pytest.mark.parametrize("given", [[], ["time=row"]], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_proposed_from_noise(tmp_path: Path, given: list[str], seed: int):
    facts = proposed(tmp_path / "data", returning(seed=seed, likes=False), history_settings("auto", given))
    assert facts["proposals"] == []
    assert any("no key adds to what the fields say" in note for note in facts["notes"])
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.names == dataset.schema.names
    assert dataset.schema.history.keys == ()


def test_of_a_column_and_its_copy_one_is_taken(tmp_path: Path):
    table = returning()
    table = table.append_column("copy", table["user"])
    schema = Schema("click", (*FIELDS, Field("copy")))
    found = keys(proposed(tmp_path / "data", table, history_settings("auto"), schema=schema))
    assert found[0] == "user*item"
    assert not {"item*copy", "user*copy"} & set(found)
    named = keys(proposed(tmp_path / "named", table, history_settings("item*copy,auto"), schema=schema))
    assert not {"user*item", "item*copy"} & set(named)
    assert Dataset.open(tmp_path / "named").schema.history.keys == ("item*copy", *named)


def test_labels_of_held_out_rows_do_not_matter(tmp_path: Path):
    table = returning()
    labels = np.array(table["click"]).copy()
    labels[int(ROWS * 0.8) :] = 1 - labels[int(ROWS * 0.8) :]
    flipped = table.set_column(0, "click", pa.array(labels))
    for history in (history_settings("auto"), history_settings("auto", ["time=day"])):
        one = proposed(tmp_path / "one", table, history, force=True)
        other = proposed(tmp_path / "other", flipped, history, force=True)
        assert one["proposals"] == other["proposals"]
        assert one["positive_rate"]["test"] != other["positive_rate"]["test"]


@pytest.mark.parametrize("given", [[], ["time=day"]], ids=str)
def test_chunks_do_not_matter(tmp_path: Path, given: list[str]):
    history = history_settings("auto", given)
    one = proposed(tmp_path / "one", returning(), history)
    many = proposed(tmp_path / "many", returning(), history, pieces=13)
    assert one["proposals"] == many["proposals"]


def test_a_number_of_keys_may_be_given(tmp_path: Path):
    table = returning()
    rng = np.random.default_rng(5)
    # Further crosses that matter: four columns, and labels by the parity of neighbours.
    more = {f"c{place}": rng.integers(0, 8, ROWS) for place in range(4)}
    odd = sum(((more[f"c{p}"] + more[f"c{p + 1}"]) % 2 for p in range(3)), np.zeros(ROWS, dtype=int))
    table = table.set_column(0, "click", pa.array((rng.random(ROWS) < 0.2 + 0.2 * odd).astype(int)))
    for name, column in more.items():
        table = table.append_column(name, pa.array(column))
    schema = Schema("click", (*FIELDS, *(Field(name) for name in more)))
    planted = ["c0*c1", "c1*c2", "c2*c3"]
    found = keys(proposed(tmp_path / "all", table, history_settings("auto"), schema=schema))
    assert sorted(found[:3]) == planted
    two = keys(proposed(tmp_path / "two", table, history_settings("auto:2"), schema=schema))
    assert two == found[:2]
    both = keys(proposed(tmp_path / "both", table, history_settings("c1*c0,auto:2"), schema=schema))
    assert sorted(both) == ["c1*c2", "c2*c3"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("auto:x", "history auto takes a number of keys of 1 or more, such as auto:8, found 'auto:x'"),
        ("auto:0", "history auto takes a number of keys of 1 or more, such as auto:8, found 'auto:0'"),
        ("auto,auto:3", "history takes auto once, found auto, auto:3"),
    ],
)
def test_a_bad_auto_is_one_line(given: str, message: str):
    with pytest.raises(ConfigError) as error:
        history_settings(given)
    assert str(error.value) == message


def test_one_label_in_the_sample_proposes_nothing(tmp_path: Path):
    table = returning(3000)
    clicks = np.zeros(3000, dtype=int)
    clicks[0] = 1
    facts = proposed(tmp_path / "data", table.set_column(0, "click", pa.array(clicks)), history_settings("auto"))
    assert facts["proposals"] == []


def run(*command: object) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([str(word) for word in command])
    assert end.value.code == 0


def test_on_the_command_line_and_in_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = ("--out", tmp_path / "data")
    formats.write(tmp_path / "log.csv", iter([returning()]), lambda step, rows: None)
    # Columns that no key can name are fields like others.
    table = returning().rename_columns(["click", "user", "item", "day", "a*b", "auto", "number", "tags"])
    formats.write(tmp_path / "odd.csv", iter([table]), lambda step, rows: None)
    for file in ("log.csv", "odd.csv"):
        run("prepare", tmp_path / file, "--label", "click", "--drop", "day", "--history", "auto", *out, "--force")
        said = capsys.readouterr().out
        assert "Proposed history" in said
        assert "user*item" in said
    text = (tmp_path / "data" / "schema.toml").read_text()
    assert '"user*item"' in text
    start, stop = text.index("keys = ["), text.index("]", text.index("keys = ["))
    (tmp_path / "auto.toml").write_text(text[:start] + 'keys = ["auto:1"' + text[stop:])
    run("prepare", tmp_path / "odd.csv", "--schema", tmp_path / "auto.toml", "--out", tmp_path / "again")
    assert Dataset.open(tmp_path / "again").schema.history.keys == ("user*item",)
    run("train", tmp_path / "again", "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run")
    assert np.isfinite(Predictor.load(tmp_path / "run").predict([{"user": "1", "item": "7"}])).all()


def test_dropped_negatives_leave_no_trace_where_nothing_is_proposed(tmp_path: Path):
    table = returning(4000, likes=False)
    facts = proposed(tmp_path / "data", table, history_settings("auto"), keep_negatives=0.5)
    assert set(facts["rows"]) == set(Dataset.open(tmp_path / "data").parts) == {"train", "valid", "test"}


def small_sample(settings: HistorySettings, rows: int = 300) -> Sample:
    rng = np.random.default_rng(2)
    hashes = {name: rng.integers(0, 9, rows).astype(np.uint64) for name in ("a", "b")}
    labels = (rng.random(rows) < 0.2 + 0.6 * (hashes["a"] % 2 == 0)).astype(float)
    when = np.sort(rng.integers(0, 60, rows)).astype(float) if settings.time else rng.integers(0, settings.folds, rows)
    return Sample(settings, hashes, labels, when)


@pytest.mark.parametrize(
    "settings",
    [HistorySettings(folds=4), HistorySettings(time="t"), HistorySettings(time="t", delay=3.0, strength=2.0)],
    ids=["folds", "time", "delay"],
)
def test_features_are_those_of_the_history(settings: HistorySettings):
    sample = small_sample(settings)
    a, b, when = sample.hashes["a"], sample.hashes["b"], sample.when
    slow = []
    for row in range(300):
        if settings.time:
            seen = [o for o in range(300) if when[o] < when[row] and when[o] <= when[row] - settings.delay]
        else:
            seen = [o for o in range(300) if when[o] != when[row]]
        same = [o for o in seen if a[o] == a[row] and b[o] == b[row]]
        prior = (sample.labels[seen].sum() + 0.5) / (len(seen) + 1)
        positives = sample.labels[same].sum()
        rate = (positives + settings.strength * prior) / (len(same) + settings.strength)
        lift = math.log(rate / (1 - rate)) - math.log(prior / (1 - prior))
        of_all = 300 / max(len(seen), 1)
        slow.append([lift, math.log(1 + len(same) * of_all), math.log(1 + positives * of_all)])
    found, expected = sample.features("a*b"), np.array(slow)
    fitted, held = sample.parts
    if settings.time:
        assert [*fitted, *held] == list(range(100, 300))
    mean, deviation = expected[fitted].mean(axis=0), expected[fitted].std(axis=0)
    assert np.allclose(found.fitted, (expected[fitted] - mean) / deviation, atol=1e-5)
    assert np.allclose(found.held, (expected[held] - mean) / deviation, atol=1e-5)


def test_a_logistic_fit_is_where_the_slope_is_zero():
    rng = np.random.default_rng(0)
    design = np.hstack([np.ones((500, 1)), rng.normal(size=(500, 4)) * [1, 5, 0.1, 1]])
    labels = (rng.random(500) < 1 / (1 + np.exp(-design @ [-1, 2, 1, 3, 0]))).astype(float)
    found = fit_logistic(design, labels, np.zeros(5))
    slope = np.zeros(5)
    for row, label in zip(design, labels, strict=True):
        slope += row * (label - 1 / (1 + math.exp(-float(row @ found))))
    assert np.abs(slope - RIDGE * found).max() < 1e-3
    # Rows that can be told apart exactly have no finite optimum; the fit stays finite all the same.
    assert np.isfinite(fit_logistic(design, (design[:, 1] > 0).astype(float), np.zeros(5))).all()


def test_losses_are_log_losses():
    logits, labels = np.array([-800.0, -2.0, 0.0, 3.0, 800.0]), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    assert np.allclose(
        losses(logits, labels), [0, math.log(1 + math.exp(2)), math.log(2), 3 + math.log1p(math.exp(-3)), 0]
    )


def test_a_promise_is_about_the_gain():
    sample = small_sample(HistorySettings(folds=4), 4000)
    model = Additive(sample)
    rate = sample.labels[sample.parts.fitted].mean()
    held = sample.labels[sample.parts.held]
    base = -(held * math.log(rate) + (1 - held) * math.log(1 - rate)).mean()
    assert model.loss == pytest.approx(base, abs=1e-6)
    gains = {key: model.gain(sample.features(key)) for key in ("a", "b", "a*b")}
    for key, (gain, _) in gains.items():
        assert model.promise(sample.features(key)) == pytest.approx(gain, abs=0.1 * gains["a"][0])
    assert gains["a"][0] > 10 * gains["a"][1]
    assert gains["b"][0] < 3 * gains["b"][1]
    model.add(sample.features("a"))
    assert model.loss == pytest.approx(base - gains["a"][0], abs=1e-6)
    assert abs(model.gain(sample.features("a"))[0]) < 1e-4
    assert abs(model.promise(sample.features("a"))) < 1e-4
