"""History fields: what a row sees, that it never sees its own label or a later one, and the same numbers everywhere."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise import models
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import BundleError, ConfigError, DataError, FieldwiseError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import timeline
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.history import counts
from fieldwise.data.history.counts import Counts
from fieldwise.data.history.history import COUNT_EDGES, LIFT_EDGES, History, history_ids, moments, shuffled, value_of
from fieldwise.data.read import formats
from fieldwise.data.schema import FIRST, HISTORY_PARTS, MISSING, PAD, Field, HistorySettings, Schema, history_settings
from fieldwise.later_models import LATER
from fieldwise.nn.tree_models import TREES
from fieldwise.train.loop import train

KEYS = ("user", "user*item", "price")
FIELDS = (Field("user"), Field("item"), Field("price", "numeric", max_buckets=4))
TIMED = HistorySettings(KEYS, time="hour", view="rolling")
FOLDED = HistorySettings(KEYS, folds=4)
SHUFFLED = HistorySettings(KEYS, folds=0)


def drawn(rows: int = 600, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "click": rng.integers(0, 2, rows),
            "user": [f"u{number}" if number else None for number in rng.integers(0, 15, rows)],
            "item": rng.integers(0, 6, rows),
            "price": rng.random(rows).round(3),
            "hour": np.sort(rng.integers(0, rows // 4, rows)),
            "session": rng.integers(0, 50, rows),
        }
    )


def prepared(table: pa.Table, folder: Path, history: HistorySettings, split: Split, **more: Any) -> Dataset:
    schema = Schema("click", FIELDS)
    prepare({"train": lambda: iter([table])}, folder, "click", schema, split, history=history, **more)
    return Dataset.open(folder)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system reserves no room for files")
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays that are filled through a map have their room before: a write to a full disk would end the process."""
    reserve, room = os.posix_fallocate, [0]

    def limited(opened: int, first: int, size: int) -> None:
        if size > 4000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] += 1
        reserve(opened, first, size)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    with pytest.raises(FieldwiseError, match="the disk is full; free some space"):
        prepared(drawn(), tmp_path / "data", TIMED, BY_ROW)
    assert not (tmp_path / "data").exists()
    prepared(drawn(60), tmp_path / "small", TIMED, BY_ROW)
    assert room[0] >= 4


def past(dataset: Dataset, part: str) -> np.ndarray:
    return np.asarray(dataset.parts[part].ids)[:, len(FIELDS) :]


def in_order(dataset: Dataset) -> np.ndarray:
    """The history fields of all rows, in the order of a split by row."""
    return np.concatenate([past(dataset, part) for part in ("train", "valid", "test")])


def values(table: pa.Table) -> list[list[Any]]:
    """What each key counts by; a price by its quarter, with bounds from the training rows."""
    prices = np.array(table["price"])
    bounds = [np.sort(prices[: len(prices) * 8 // 10])[round(len(prices) * 0.8 * q / 4) - 1] for q in (1, 2, 3)]
    user, item = table["user"].to_pylist(), table["item"].to_pylist()
    return [user, list(zip(user, item, strict=True)), np.searchsorted(bounds, prices).tolist()]


def twin(seen: np.ndarray, table: pa.Table, strength: float = 10.0) -> np.ndarray:
    """The ids that rows should have, seen[i, j] saying how much of row j row i sees."""
    labels = np.array(table["click"], dtype=float)
    total = np.stack([seen.sum(1), seen @ labels], 1)
    counts = []
    for column in values(table):
        same = np.array([[one == other for other in column] for one in column])
        counts.append(np.stack([(seen * same).sum(1), (seen * same) @ labels], 1))
    ids = []
    for found in counts:
        prior = (total[:, 1] + 0.5) / (total[:, 0] + 1)
        rate = (found[:, 1] + strength * prior) / (found[:, 0] + strength)
        lift = np.log(rate / (1 - rate)) - np.log(prior / (1 - prior))
        near = np.searchsorted(LIFT_EDGES, lift) + FIRST
        ids += [np.searchsorted(COUNT_EDGES, found[:, part]) + FIRST for part in (0, 1)]
        ids.append(np.where(found[:, 0] > 0, near, MISSING))
    return np.stack(ids, 1)


BY_ROW = Split((0.8, 0.1, 0.1), by="row")


@pytest.mark.parametrize(
    "settings",
    [{}, {"delay": 3.0}, {"window": 40.0}, {"delay": 3.0, "window": 40.0}, {"half_life": 20.0}, {"strength": 2.0}],
    ids=str,
)
def test_with_a_time_rows_see_what_came_before(tmp_path: Path, settings: dict[str, float]):
    table = drawn()
    dataset = prepared(table, tmp_path / "data", replace(TIMED, **settings), BY_ROW)
    hours = np.array(table["hour"], dtype=float)
    gap = hours[:, None] - hours[None, :]
    seen = ((gap > 0) & (gap >= settings.get("delay", 0))).astype(float)
    seen *= gap <= settings.get("window", np.inf)
    if "half_life" in settings:
        seen *= 0.5 ** (gap / settings["half_life"])
    assert np.array_equal(in_order(dataset), twin(seen, table, settings.get("strength", 10.0)))
    assert dataset.names[3:6] == ["user:count", "user:positives", "user:rate"]
    assert dataset.layout.ordered == (2, *range(3, 12))


@pytest.mark.parametrize("settings", [{}, {"delay": 3.0}, {"half_life": 20.0}], ids=str)
def test_held_out_rows_see_what_predictions_will_see(tmp_path: Path, settings: dict[str, float]):
    """The past as the training rows left it, as `predict` has it; and beside it what a server would have counted."""
    table = drawn()
    rolling = prepared(table, tmp_path / "rolling", replace(TIMED, **settings), BY_ROW)
    frozen = prepared(table, tmp_path / "frozen", replace(TIMED, **settings, view="frozen"), BY_ROW)
    assert np.array_equal(frozen.parts["train"].ids, rolling.parts["train"].ids)
    encoder = Encoder.load(tmp_path / "frozen" / "encoder", frozen.schema)
    held = 480
    for name in ("valid", "test"):
        one, other = frozen.parts[name], rolling.parts[name]
        assert np.array_equal(one.ids, encoder.transform(table.slice(held, one.rows))[:, : one.ids.shape[1]])
        assert np.array_equal(one.other_ids, other.ids)
        assert np.array_equal(other.other_ids, one.ids)
        assert not np.array_equal(one.ids, other.ids)
        held += one.rows
    assert frozen.parts["train"].other_ids is None


def test_rows_that_lie_in_one_another_have_one_view(tmp_path: Path):
    """A past that was frozen after all training rows would hold what came after the row."""
    found = prepared(drawn(), tmp_path / "data", replace(TIMED, view="frozen"), Split((0.8, 0.1, 0.1)))
    assert all(part.other_ids is None for part in found.parts.values())


def test_an_unknown_view_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'frozen'"):
        HistorySettings(KEYS, time="hour", view="frosen")


def test_the_order_of_the_rows_may_be_the_time(tmp_path: Path):
    table = drawn()
    by_row = replace(TIMED, keys=("user", "user*item"), time="row")
    numbered = table.append_column("number", pa.array(np.arange(len(table))))
    by_number = replace(by_row, time="number")
    for split in (BY_ROW, Split((0.5, 0.25, 0.25))):
        folder = tmp_path / str(split.by)
        one = prepared(table, folder / "one", by_row, split)
        other = prepared(numbered, folder / "other", by_number, split)
        assert np.array_equal(in_order(one), in_order(other))
        assert "row" not in one.schema.columns
    encoder = Encoder.load(tmp_path / "row" / "one" / "encoder", prepared(table, tmp_path / "x", by_row, BY_ROW).schema)
    # New rows come after all of the training rows, the last one included.
    last = table.slice(479, 1)
    users = [user == last["user"][0].as_py() for user in table["user"].to_pylist()[:480]]
    assert encoder.transform(last)[0, 3] == FIRST + np.searchsorted(COUNT_EDGES, sum(users))


def slow_places(numbers: np.ndarray, anchors: list[float], steps: int) -> np.ndarray:
    """The mean of the ids that a number has: its anchor's and the next one's, in the nearest steps."""
    found = []
    for number in np.clip(numbers, anchors[0], anchors[-1]):
        lower = max(place for place in range(len(anchors) - 1) if anchors[place] <= number)
        share = (number - anchors[lower]) / (anchors[lower + 1] - anchors[lower])
        found.append(FIRST + lower + np.floor(share * steps + 0.5) / steps)
    return np.array(found)


@pytest.mark.parametrize("settings", [{}, {"half_life": 20.0}, {"strength": 2.0}], ids=str)
def test_interpolated_histories_lie_between_fixed_anchors(tmp_path: Path, settings: dict[str, float]):
    table, steps, keys = drawn(), 5, ("user", "user*item")
    history = replace(TIMED, keys=keys, interpolate=steps, **settings)
    dataset = prepared(table, tmp_path / "data", history, BY_ROW)
    assert dataset.names[3:6] == ["user:count", "user:positives", "user:rate"]
    assert dataset.layout.widths[3:] == (steps,) * 6
    assert dataset.layout.sizes[3:6] == (27, 27, 19)
    assert dataset.layout.ordered == (2, *range(3, 9))
    hours, labels = np.array(table["hour"], dtype=float), np.array(table["click"], dtype=float)
    gap = hours[:, None] - hours[None, :]
    seen = (gap > 0) * (0.5 ** (gap / settings["half_life"]) if "half_life" in settings else 1.0)
    prior = (seen @ labels + 0.5) / (seen.sum(1) + 1)
    counts = [0.0, *(2.0**power for power in range(24))]
    lifts = [-6, -4, -3, -2, -1.5, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6]
    ids = in_order(dataset).reshape(len(table), 6, steps)
    for place, column in enumerate(values(table)[:2]):
        same = seen * np.array([[one == other for other in column] for one in column])
        count, positives = same.sum(1), same @ labels
        strength = settings.get("strength", 10.0)
        rate = (positives + strength * prior) / (count + strength)
        lift = np.log(rate / (1 - rate)) - np.log(prior / (1 - prior))
        expected = [slow_places(count, counts, steps), slow_places(positives, counts, steps)]
        for part, one in enumerate(expected):
            np.testing.assert_allclose(ids[:, 3 * place + part].mean(axis=1), one, atol=1e-9)
        unseen = count == 0
        assert (ids[unseen, 3 * place + 2] == [MISSING] + [PAD] * (steps - 1)).all()
        found = ids[~unseen, 3 * place + 2].mean(axis=1)
        np.testing.assert_allclose(found, slow_places(lift[~unseen], lifts, steps), atol=1e-9)


@pytest.mark.parametrize("interpolate", [0, 4])
def test_only_some_parts_of_a_history_may_be_fields(tmp_path: Path, interpolate: int):
    whole = prepared(drawn(), tmp_path / "whole", replace(FOLDED, interpolate=interpolate), BY_ROW)
    some = replace(FOLDED, interpolate=interpolate, parts=("rate", "count"))
    rates = prepared(drawn(), tmp_path / "some", some, BY_ROW)
    assert rates.names[3:] == [f"{key}:{part}" for key in KEYS for part in ("rate", "count")]
    places = [whole.names.index(name) for name in rates.names]
    assert rates.layout == whole.layout.only(places)
    columns = whole.layout.columns_of(places)
    for part in whole.parts:
        assert np.array_equal(rates.parts[part].ids, np.asarray(whole.parts[part].ids)[:, columns])
    encoder = Encoder.load(tmp_path / "some" / "encoder", rates.schema)
    assert encoder.value_of(3, FIRST + 1) == ("lift -4" if interpolate else "lift (-6, -5.75]")
    assert encoder.value_of(4, FIRST + 4) == ("8" if interpolate else "4")


def test_an_interpolated_number_counts_by_its_bucket(tmp_path: Path):
    table, smooth = drawn(), replace(FIELDS[2], interpolate=8)
    hard = prepared(table, tmp_path / "hard", FOLDED, BY_ROW)
    schema = Schema("click", (*FIELDS[:2], smooth), history=FOLDED)
    prepare({"train": lambda: iter([table])}, tmp_path / "smooth", "click", schema, BY_ROW)
    dataset = Dataset.open(tmp_path / "smooth")
    for part in hard.parts:
        assert np.array_equal(past(hard, part), np.asarray(dataset.parts[part].ids)[:, -9:])


def test_in_a_random_split_training_rows_see_training_rows_only(tmp_path: Path):
    table = drawn()
    random = np.random.default_rng(3)
    part = random.choice(["train", "valid", "test"], len(table), p=[0.6, 0.2, 0.2])
    part[: len(part) * 8 // 10 // 3] = "train"
    table = table.append_column("part", pa.array(part))
    dataset = prepared(table, tmp_path / "data", replace(TIMED, keys=("user", "user*item")), Split(by="part"))
    hours, labels = np.array(table["hour"]), np.array(table["click"])
    users = table["user"].to_pylist()
    for name in ("train", "test"):
        rows = np.flatnonzero(part == name)
        for place, row in enumerate(rows):
            seen = (hours < hours[row]) & (np.array([user == users[row] for user in users]))
            if name == "train":
                seen &= part == "train"
            expected = [np.searchsorted(COUNT_EDGES, n) + FIRST for n in (seen.sum(), labels[seen].sum())]
            assert past(dataset, name)[place, :2].tolist() == expected


@pytest.mark.parametrize("group", [(), ("session",)])
def test_without_a_time_training_rows_see_the_other_folds(tmp_path: Path, group: tuple[str, ...]):
    table = drawn()
    dataset = prepared(table, tmp_path / "data", replace(FOLDED, group=group), BY_ROW)
    counts = history_counts(dataset)
    users, sessions = table["user"].to_pylist(), table["session"].to_pylist()
    training = range(480)
    # A row sees about three quarters of its user's training rows, and none of its own session's with a group.
    own = np.array([sum(users[o] == users[row] for o in training) for row in range(600)])
    assert (counts[480:] == np.searchsorted(COUNT_EDGES, own[480:])).all()
    assert (counts[:480] <= np.searchsorted(COUNT_EDGES, own[:480] - 1)).all()
    if group:
        inside = [sum(users[o] == users[row] and sessions[o] == sessions[row] for o in training) for row in training]
        assert (counts[:480] <= np.searchsorted(COUNT_EDGES, own[:480] - inside)).all()


@pytest.mark.parametrize("group", [(), ("session",)])
def test_without_folds_training_rows_see_those_before_them_in_a_random_order(tmp_path: Path, group: tuple[str, ...]):
    table, settings = drawn(), replace(SHUFFLED, group=group)
    dataset = prepared(table, tmp_path / "data", settings, BY_ROW)
    order = shuffled(settings, table, 0)
    training = np.arange(600) < 480
    seen = training[None] & ((order[None] < order[:, None]) | ~training[:, None])
    assert np.array_equal(in_order(dataset), twin(seen.astype(float), table))
    assert abs(np.corrcoef(order, np.arange(600))[0, 1]) < 0.15
    sessions = np.array(table["session"])
    alike = len(np.unique(order)) == (len(np.unique(sessions)) if group else 600)
    assert alike, "rows of a group have one moment, others their own"


def history_counts(dataset: Dataset) -> np.ndarray:
    return in_order(dataset)[:, 0] - FIRST


@pytest.mark.parametrize(
    "settings", [TIMED, replace(TIMED, delay=2.0), FOLDED, replace(FOLDED, group=("session",)), SHUFFLED]
)
def test_a_rows_own_label_changes_nothing_that_it_sees(tmp_path: Path, settings: HistorySettings):
    table = drawn(300)
    before = in_order(prepared(table, tmp_path / "data", settings, BY_ROW))
    for row in (0, 100, 200, 239, 250, 299):
        labels = np.array(table["click"]).copy()
        labels[row] = 1 - labels[row]
        changed = table.set_column(0, "click", pa.array(labels))
        after = in_order(prepared(changed, tmp_path / f"data{row}", settings, BY_ROW))
        assert np.array_equal(before[row], after[row])
        if settings.time:
            # Nor what any row up to then sees; and later ones of the same user see a difference.
            hours = np.array(table["hour"])
            assert np.array_equal(before[hours <= hours[row]], after[hours <= hours[row]])
        if row < 200:
            assert not np.array_equal(before, after)


@pytest.mark.parametrize("settings", [replace(TIMED, keys=("user", "user*item")), FOLDED], ids=["time", "folds"])
@pytest.mark.parametrize("name", sorted(models.registry().keys() - {build.__name__ for build in LATER}))
def test_random_labels_cannot_be_predicted(tmp_path_factory: pytest.TempPathFactory, name: str, settings: Any):
    if name == "gbdt":
        pytest.importorskip("xgboost")
    folder = tmp_path_factory.getbasetemp() / f"random-{'time' if settings.time else 'folds'}"
    if not folder.exists():
        prepared(drawn(6000), folder, settings, Split((0.4, 0.1, 0.5), by="row"))
    chosen = [f"model.name={name}", "device=cpu"]
    chosen += ["model.rounds=10"] if name in TREES else ["train.epochs=2", "train.patience=9"]
    report = train(load_config(overrides=chosen), folder, tmp_path_factory.mktemp(name) / "run")
    # The AUC of 3,000 rows has a standard deviation of .0105.
    assert abs(report["test"]["auc"] - 0.5) < 0.045


def test_the_predictor_sees_what_the_prepared_rows_see(tmp_path: Path):
    table = drawn()
    timed = (
        replace(TIMED, **one) for one in ({"delay": 2.0}, {"window": 50.0}, {"half_life": 9.0}, {"interpolate": 4})
    )
    for number, settings in enumerate((FOLDED, replace(FOLDED, interpolate=4), SHUFFLED, *timed)):
        folder = tmp_path / str(number)
        dataset = prepared(table, folder / "data", settings, BY_ROW)
        run = folder / "run"
        train(load_config(overrides=["model.name=lr", "train.epochs=1", "device=cpu"]), folder / "data", run)
        encoder = Predictor.load(run).encoder
        held = table.slice(480)
        found = encoder.transform(held)[:, 3 : dataset.layout.columns]
        if not settings.time:
            assert np.array_equal(found, in_order(dataset)[480:])
            continue
        # Without their labels held-out rows see the training rows alone: so do the first of them in the folder.
        first = np.array(held["hour"]) == held["hour"][0].as_py()
        assert np.array_equal(found[first], in_order(dataset)[480:][first])
        # Replayed with their labels, all of them see what the folder has, in whichever pieces they come.
        history = encoder.history
        assert history is not None
        pieces = []
        for start, stop in ((480, 481), (481, 500), (500, 600)):
            piece = table.slice(start, stop - start)
            labels, times = np.array(piece["click"]), np.array(piece["hour"], dtype=float)
            pieces.append(history.ids(history.replay(encoder.keys(piece), labels, times)))
        assert np.array_equal(np.concatenate(pieces), in_order(dataset)[480:])


def test_looking_changes_nothing_and_does_not_depend_on_company(tmp_path: Path):
    table = drawn()
    prepared(table, tmp_path / "data", replace(TIMED, delay=5.0, window=60.0), BY_ROW)
    encoder = Encoder.load(tmp_path / "data" / "encoder", Schema.load(tmp_path / "data" / "schema.toml"))
    held = table.slice(480)
    together = encoder.transform(held)
    alone = np.concatenate([encoder.transform(held.slice(row, 1)) for row in reversed(range(len(held)))])[::-1]
    assert np.array_equal(together, alone)
    encoder.save(tmp_path / "again")
    again = Encoder.load(tmp_path / "again", encoder.schema)
    assert np.array_equal(again.transform(held), together)


@pytest.mark.parametrize("settings", [{}, {"delay": 5.0}, {"window": 60.0}, {"half_life": 20.0}], ids=str)
def test_several_threads_may_look_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, float]):
    """What one of them loads, or lets run ahead, is whole before another looks at it."""
    table = drawn()
    prepared(table, tmp_path / "data", replace(TIMED, **settings), BY_ROW)
    schema = Schema.load(tmp_path / "data" / "schema.toml")
    pieces = [table.slice(480 + 20 * number, 20) for number in range(4)]
    expected = [Encoder.load(tmp_path / "data" / "encoder", schema).transform(piece) for piece in pieces]
    monkeypatch.setattr(counts, "FEW", 0)
    for name in ("_allocate", "stream"):
        monkeypatch.setattr(Counts, name, slowly(getattr(Counts, name)))
    encoder = Encoder.load(tmp_path / "data" / "encoder", schema)
    with ThreadPoolExecutor(4) as pool:
        assert all(map(np.array_equal, pool.map(encoder.transform, pieces), expected))


def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
    def waits(*arguments: Any) -> Any:
        found = function(*arguments)
        time.sleep(0.02)
        return found

    return waits


def test_rows_that_training_drops_still_count(tmp_path: Path):
    table = drawn()
    # Not the price: its buckets are fitted on the rows that are kept.
    folded, timed = replace(FOLDED, keys=("user", "user*item")), replace(TIMED, keys=("user", "user*item"))
    whole = prepared(table, tmp_path / "whole", folded, BY_ROW)
    some = prepared(table, tmp_path / "some", folded, BY_ROW, keep_negatives=0.3)
    assert some.parts["train"].rows < whole.parts["train"].rows
    for part in ("valid", "test"):
        assert np.array_equal(past(whole, part), past(some, part))
    both = [prepared(table, tmp_path / f"timed{k}", timed, BY_ROW, keep_negatives=k) for k in (1.0, 0.3)]
    assert np.array_equal(past(both[0], "test"), past(both[1], "test"))


def test_leaves_are_grown_over_the_history_too(tmp_path: Path):
    pytest.importorskip("xgboost")
    table = drawn()
    dataset = prepared(table, tmp_path / "data", FOLDED, BY_ROW, gbdt_leaves=3)
    assert dataset.names[-3:] == ["leaf_1", "leaf_2", "leaf_3"]
    encoder = Encoder.load(tmp_path / "data" / "encoder", dataset.schema)
    assert np.array_equal(encoder.transform(table.slice(480, 60)), dataset.with_ranks.parts["valid"].ids)
    assert encoder.value_of(3, FIRST + 2) == "2"
    assert encoder.value_of(12, FIRST) == "(leaf 0)"


def test_a_column_may_count_without_being_a_field(tmp_path: Path):
    table = drawn()
    dataset = prepared(table, tmp_path / "data", HistorySettings(("session", "session*user")), BY_ROW)
    assert dataset.schema.columns == ["user", "item", "price", "session"]
    run = tmp_path / "run"
    train(load_config(overrides=["model.name=lr", "train.epochs=1", "device=cpu"]), tmp_path / "data", run)
    predictor = Predictor.load(run)
    ids = predictor.encoder.transform(table.slice(0, 5))
    assert ids.shape == (5, dataset.with_ranks.layout.columns) == (5, 11)
    assert np.isfinite(predictor.predict([{"session": 3, "user": "u1"}, {"item": 2}, {}])).all()
    with pytest.raises(DataError, match="history needs the column 'session'"):
        predictor.predict(table.drop_columns(["session"]))


def test_ids_say_what_they_mean():
    found = np.array([[[3.0, 1.0], [100.0, 20.0]], [[0.0, 0.0], [100.0, 20.0]]])
    ids = history_ids(found, strength=10.0)
    assert ids[1].tolist() == [FIRST, FIRST, MISSING]
    assert [value_of(part, number) for part, number in zip(HISTORY_PARTS, ids[0], strict=True)] == [
        "3",
        "1",
        "lift (0.1, 0.2]",
    ]
    assert value_of("count", FIRST + 6) == "(6, 8]"
    assert value_of("rate", MISSING) == "(missing)"


def test_times_are_numbers_dates_or_texts():
    assert moments(pa.chunked_array([[1, 2]]), "t").tolist() == [1.0, 2.0]
    assert moments(pa.chunked_array([["14102100", "14102101"]]), "t").tolist() == [14102100, 14102101]
    day = moments(pa.chunked_array([["2014-10-21", "2014-10-22"]]), "t")
    assert (day[1] - day[0]) == 86400
    typed = pa.chunked_array([["2014-10-21T01:00:00", None]]).cast(pa.timestamp("s"))
    assert moments(typed, "t")[0] - day[0] == 3600
    assert np.isnan(moments(typed, "t")[1])
    with pytest.raises(DataError, match="the time column 't' must hold numbers, dates, or texts like 2014-10-21"):
        moments(pa.chunked_array([["soon"]]), "t")


def test_history_runs_forward():
    history = History(TIMED)
    keys = np.ones((2, 4), dtype=np.uint64)
    history.replay(keys, np.zeros(2), np.array([1.0, 5.0]))
    with pytest.raises(DataError, match="history runs forward: it has come to 5, found a row of 4"):
        history.replay(keys, np.zeros(2), np.array([4.0, 9.0]))


def test_a_row_without_a_time_is_refused(tmp_path: Path):
    table = drawn()
    hours = [None if row == 7 else hour for row, hour in enumerate(table["hour"].to_pylist())]
    table = table.set_column(table.column_names.index("hour"), "hour", pa.array(hours))
    with pytest.raises(DataError, match=r"the time column 'hour' must have a value in every row.*row 8 of train"):
        prepared(table, tmp_path / "data", TIMED, BY_ROW)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("keys", "given", "message"),
    [
        ("user*", [], "columns and crosses"),
        ("user*user", [], "columns and crosses"),
        ("user,user", [], "must differ, found 'user' 2 times"),
        ("user", ["delay=2"], "delay needs a time column"),
        ("user", ["time=hour", "window=-1"], "window must be 0 or more"),
        ("user", ["time=hour", "window=1", "half_life=1"], "a window or a half_life, found both"),
        ("user", ["time=hour", "group=item"], "a time column or a group"),
        ("user", ["folds=1"], "folds of 2 or more"),
        ("auto", ["folds=0"], "auto needs folds of 2 or more, found 0"),
        ("user", ["fold=5"], "unknown history setting 'fold'"),
        ("user", ["folds=few"], "folds must be a number, found 'few'"),
        ("user", ["interpolate=100"], "history: interpolate takes 1 to 64 steps, or 0 for none, found 100"),
        ("user", ["parts=rates"], "unknown history part 'rates'; did you mean 'rate'"),
        ("user", ["parts=rate,rate"], "parts takes one or more of count, positives, rate, found rate, rate"),
    ],
)
def test_bad_settings_are_named(keys: str, given: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        history_settings(keys, given)


def test_settings_live_in_the_schema(tmp_path: Path):
    settings = history_settings(
        "user, user*item", ["time=hour", "delay=2", "strength=5", "parts=rate,count", "interpolate=4"]
    )
    schema = Schema("click", FIELDS, history=settings)
    assert Schema.from_toml(schema.to_toml(), "here") == schema
    with pytest.raises(ConfigError, match="unknown history setting 'keyz'"):
        Schema.from_toml(schema.to_toml().replace("keys", "keyz"), "here")
    table = drawn()
    prepare({"train": lambda: iter([table])}, tmp_path / "one", "click", schema, BY_ROW)
    again = Schema.load(tmp_path / "one" / "schema.toml")
    prepare({"train": lambda: iter([table])}, tmp_path / "two", "click", again, BY_ROW)
    assert np.array_equal(in_order(Dataset.open(tmp_path / "one")), in_order(Dataset.open(tmp_path / "two")))


@pytest.mark.parametrize("settings", [TIMED, FOLDED, SHUFFLED], ids=["time", "folds", "no folds"])
def test_history_and_leaves_go_on_with_a_new_day(tmp_path: Path, settings: HistorySettings):
    pytest.importorskip("xgboost")
    table = drawn(900)
    split = Split((1.0, 0.0, 0.0))
    days = [table.slice(0, 600), table.slice(600)]
    first = prepared(days[0], tmp_path / "first", settings, split, gbdt_leaves=2)
    known = Encoder.load(tmp_path / "first" / "encoder", first.schema)
    prepare({"train": lambda: iter([days[1]])}, tmp_path / "second", "click", split=BY_ROW, known=known)
    second = Dataset.open(tmp_path / "second")
    assert second.names == first.names
    grown = Encoder.load(tmp_path / "second" / "encoder", second.schema)
    assert grown.trees == known.trees
    if settings.time:
        both = prepared(table, tmp_path / "both", settings, split, gbdt_leaves=2)
        assert np.array_equal(np.asarray(both.parts["train"].ids)[600:, 3:9], in_order(second)[:, :6])
    else:
        # Its test rows see the first day and the training rows of the second.
        users = [*table["user"].to_pylist()[:840]]
        counts = [users.count(user) for user in table["user"].to_pylist()[870:]]
        assert (past(second, "test")[:, 0] == FIRST + np.searchsorted(COUNT_EDGES, counts)).all()
        # And its training rows see all of the first day.
        before = [table["user"].to_pylist()[:600].count(user) for user in table["user"].to_pylist()[600:840]]
        assert (past(second, "train")[:, 0] >= FIRST + np.searchsorted(COUNT_EDGES, before)).all()
    last = Encoder.load(tmp_path / "second" / "encoder", second.schema).transform(days[1])
    assert last.shape[1] == second.with_ranks.layout.columns


def test_damage_is_named(tmp_path: Path):
    prepared(drawn(), tmp_path / "data", FOLDED, BY_ROW)
    (tmp_path / "data" / "encoder" / "history.npz").write_bytes(b"PK nothing")
    with pytest.raises(BundleError, match="the history is damaged"):
        Encoder.load(tmp_path / "data" / "encoder", Schema.load(tmp_path / "data" / "schema.toml"))


def test_chunks_do_not_matter(tmp_path: Path):
    table = drawn()
    for number, settings in enumerate((TIMED, FOLDED, SHUFFLED)):
        one = prepared(table, tmp_path / f"one{number}", settings, BY_ROW)
        pieces = [table.slice(first, 70) for first in range(0, 600, 70)]
        schema = Schema("click", FIELDS, history=settings)
        folder = tmp_path / f"many{number}"
        prepare({"train": lambda pieces=pieces: iter(pieces)}, folder, "click", schema, BY_ROW)
        assert np.array_equal(in_order(one), in_order(Dataset.open(folder)))


def test_rows_alike_in_the_group_go_to_one_part(tmp_path: Path):
    table = drawn(2000)
    file = tmp_path / "log.csv"
    formats.write(file, iter([table]), lambda step, rows: None)
    schema = Schema("click", (Field("session", min_count=1), Field("item")))
    split = Split((0.6, 0.2, 0.2), group=("session", "user"), seed=1)
    prepare({"train": lambda: formats.read([file])}, tmp_path / "data", "click", schema, split)
    dataset = Dataset.open(tmp_path / "data")
    assert abs(dataset.parts["train"].rows / 2000 - 0.6) < 0.06
    schema = Schema("click", (Field("session", min_count=1), Field("user", min_count=1)))
    prepare({"train": lambda: formats.read([file])}, tmp_path / "again", "click", schema, split)
    again = Dataset.open(tmp_path / "again")
    # Groups never meet across parts: held-out sessions with their users are not among the training rows'.
    pairs = {part: {tuple(row) for row in np.asarray(again.parts[part].ids).tolist()} for part in again.parts}
    assert not pairs["train"] & (pairs["valid"] | pairs["test"]) - {(1, 1)}


@pytest.mark.parametrize("settings", [TIMED, SHUFFLED])
def test_steps_of_fewer_rows_tell_the_same(
    settings: HistorySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = in_order(prepared(drawn(), tmp_path / "whole", settings, Split(by="row")))
    monkeypatch.setattr(timeline, "STEP_KEYS", 50)
    np.testing.assert_array_equal(in_order(prepared(drawn(), tmp_path / "steps", settings, Split(by="row"))), whole)
