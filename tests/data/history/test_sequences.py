"""What earlier rows had, against brute force: ties, delays, windows, positives; at every moment, and in a bundle."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise.config.errors import BundleError, ConfigError
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.history.trails import Trail
from fieldwise.data.kinds.kind import FIRST, MISSING, PAD, Field
from fieldwise.data.kinds.past import LOWEST, PastField, pasts
from fieldwise.data.schema import Schema

Event = tuple[int, int, int, float]  # key, id, label, time


def slow(events: Sequence[Event], key: int, now: float, past: PastField) -> list[int]:
    """The ids that a row of this key and moment sees of events, in the order in which these came."""
    seen = [
        id
        for own, id, label, time in events
        if own == key
        and (label or not past.positives)
        and not (label and past.negatives)
        and time < now
        and time <= now - past.delay
        and not (past.window and time < now - past.window)
    ]
    newest = seen[::-1][: past.last] or [MISSING]
    return newest + [PAD] * (past.last - len(newest))


EVENTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(2, 9), st.integers(0, 1), st.integers(0, 12).map(float)), max_size=40
)
KINDS = st.builds(
    lambda last, delay, window, rows: PastField(
        "p", of="item", by="user", time="t", last=last, delay=delay, window=window, **rows
    ),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.0, 1.0, 3.5]),
    st.sampled_from([0.0, 0.0, 2.0, 6.0]),
    st.sampled_from([{}, {"positives": True}, {"negatives": True}]),
)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, past=KINDS, cut=st.integers(0, 40), room=st.integers(1, 4))
def test_every_row_sees_what_brute_force_sees(events: list[Event], past: PastField, cut: int, room: int) -> None:
    events = sorted(events, key=lambda event: event[3])
    trail = Trail(1, past.last, past.delay, past.window)
    # So little room that events are dropped all the time.
    trail._allocate_events(room)
    found = []
    for part in (events[:cut], events[cut:]):
        keys, ids, labels, times = (np.array([event[of] for event in part]) for of in range(4))
        counts = [label if past.positives else not label if past.negatives else True for label in labels.tolist()]
        args = (
            keys.astype(np.uint64),
            ids.astype(np.int32)[:, None],
            np.array(counts, dtype=bool),
            times.astype(np.float64),
        )
        found += trail.replay(*args).ids[:, 0].tolist() if part else []
        if part:
            again = Trail(1, past.last, past.delay, past.window)
            again.load(trail.state(), trail.end, [10])
            assert all((again.state()[name] == state).all() for name, state in trail.state().items())
            trail = again
    assert found == [slow(events[:place], key, now, past) for place, (key, _, _, now) in enumerate(events)]
    for now in (trail.end, trail.end + 2, trail.after) if events else ():
        seen = trail.lookup(np.arange(1, 4, dtype=np.uint64), np.full(3, now))
        assert seen.ids[:, 0].tolist() == [slow(events, key, now, past) for key in (1, 2, 3)]
        assert (seen.ages[seen.ids[:, 0] >= 2] > 0).all()


def test_the_keys_that_were_idle_longest_are_dropped() -> None:
    def filled(chunk: int) -> Trail:
        trail = Trail(1, 3, most=2000)
        keys = np.arange(1, 5001, dtype=np.uint64)
        for first in range(0, 5000, chunk):
            rows = slice(first, first + chunk)
            ids = np.full((len(keys[rows]), 1), 2, dtype=np.int32)
            trail.replay(keys[rows], ids, np.ones(len(ids), dtype=bool), keys[rows].astype(np.float64))
        return trail

    trail = filled(5000)
    assert trail.events <= 2000 == len(trail.times)
    there = trail.lookup(np.array([1, 4999], dtype=np.uint64), np.full(2, 6000.0)).ids[:, 0, 0]
    assert there.tolist() == [MISSING, 2]
    assert (trail.state()["keys"] == filled(7).state()["keys"]).all()


def test_no_key_is_dropped_while_there_is_room() -> None:
    trail = Trail(1, 3, most=2000)
    keys = np.tile(np.arange(1, 401, dtype=np.uint64), 20)
    rows = np.full((8000, 1), 2, dtype=np.int32), np.ones(8000, dtype=bool), np.arange(8000.0)
    # 1,200 rows are seen by later ones: the last three of each key.
    assert (trail.replay(keys, *rows).ids[1200:] == 2).all()
    assert trail.events <= 2000 == len(trail.times)


def log(rows: int = 400, seed: int = 0) -> dict[str, list[Any]]:
    random = np.random.default_rng(seed)
    return {
        "user": [f"u{n}" for n in random.integers(0, 9, rows)],
        "item": [f"i{n}" for n in random.integers(0, 30, rows)],
        "price": random.integers(0, 4, rows).tolist(),
        "t": np.sort(random.integers(0, rows // 3, rows)).astype(float).tolist(),
        "label": random.integers(0, 2, rows).tolist(),
    }


FIELDS = Field("user", min_count=1), Field("item", min_count=2), Field("price", "numeric")


def prepared(rows: dict[str, list[Any]], folder: Path, *asked: PastField, **more: Any) -> tuple[Dataset, Encoder]:
    table = pa.table(rows)
    split = more.pop("split", Split((0.6, 0.2, 0.2), by="t"))
    sources = {"train": lambda: iter([table.slice(0, 150), table.slice(150)])}
    prepare(sources, folder, "label", Schema("label", FIELDS), split, sequences=asked, force=True, **more)
    data = Dataset.open(folder)
    return data, Encoder.load(folder / "encoder", data.schema)


def expected(
    rows: dict[str, list[Any]], encoder: Encoder, past: PastField, until: int | None = None
) -> list[list[int]]:
    """What each row of a log in the order of time sees, by brute force; of the first `until` rows alone."""
    places = {name: number for number, name in enumerate(dict.fromkeys(rows["user"]))}
    code = encoder.codes[encoder.schema.names.index(past.of)]
    ids = code.ids([str(value) for value in rows[past.of]]).tolist()
    events = [
        (places[u], id, label, t) for u, id, label, t in zip(rows["user"], ids, rows["label"], rows["t"], strict=True)
    ]
    before = [events[:place] if until is None else events[:until] for place in range(len(events))]
    return [slow(seen, key, t, past) for seen, (key, _, _, t) in zip(before, events, strict=True)]


ASKED = [
    "item by user last 5",
    "item,price by user last 4 positives",
    "item by user last 3 delay 7 window 30",
    "item by user last 4 negatives",
    "item by user last 50 delay 0.5 positives view rolling",
]


@pytest.mark.parametrize("text", ASKED)
def test_prepared_rows_are_those_of_brute_force_and_predictions_too(tmp_path: Path, text: str) -> None:
    asked, rows = [replace(one, time="t") for one in pasts(text)], log()
    data, encoder = prepared(rows, tmp_path / "data", *asked)
    train, total = data.parts["train"].rows, len(rows["t"])
    assert data.layout == encoder.layout.without_ranks
    assert len(data.layout.sequences) == 1
    for past in asked:
        columns = data.layout.columns_of([data.names.index(past.name)])
        rolling = expected(rows, encoder, past)
        frozen = rolling[:train] + expected(rows, encoder, past, until=train)[train:]
        ids = np.concatenate([part.ids[:, columns] for part in data.parts.values()])
        other = np.concatenate(
            [part.other_ids[:, columns] for part in data.parts.values() if part.other_ids is not None]
        )
        held_out = (frozen, rolling) if past.view == "frozen" else (rolling, frozen)
        assert ids.tolist() == held_out[0]
        assert other.tolist() == held_out[1][train:]
        # A raw row is predicted after the training rows.
        later = {name: values[train:] for name, values in rows.items()}
        assert encoder.transform(pa.table(later))[:, columns].tolist() == frozen[train:]
        # Rows that are counted one after the other see what prepare shows in the rolling view.
    table = pa.table({name: values[train:] for name, values in rows.items()})
    labels = np.array(rows["label"][train:])
    seen = encoder.pasts.follow(table, lambda columns: encoder.buckets(table, columns), labels)
    for past in asked:
        assert seen[past.name].tolist() == expected(rows, encoder, past)[train:]
    assert encoder.pasts.end == rows["t"][total - 1]


def test_gaps_say_how_long_ago(tmp_path: Path) -> None:
    rows, (past, gap) = log(), pasts("item by user last 4 delay 2 positives time t gaps")
    data, encoder = prepared(rows, tmp_path / "data", past, gap)
    (group,) = data.layout.sequences
    assert [data.names[field] for field in group] == ["item by user positives delay 2", "gap by user positives delay 2"]
    assert data.layout.like == (0, 1, 2, 1, 4)
    places = {name: number for number, name in enumerate(dict.fromkeys(rows["user"]))}
    events = [
        (places[u], place, label, t)
        for place, (u, label, t) in enumerate(zip(rows["user"], rows["label"], rows["t"], strict=True))
    ]
    expected = []
    for place, (key, _, _, now) in enumerate(events[: data.parts["train"].rows]):
        seen = [
            one for one in slow([(k, 1000 + n, y, t) for k, n, y, t in events[:place]], key, now, past) if one >= 1000
        ]
        ids = [FIRST + int(np.floor(np.log2(now - rows["t"][one - 1000]))) - LOWEST for one in seen] or [MISSING]
        expected.append(ids + [PAD] * (4 - len(ids)))
    columns = data.layout.columns_of([group[1]])
    assert data.parts["train"].ids[:, columns].tolist() == expected
    assert encoder.value_of(4, FIRST - LOWEST + 3) == "8 ago"
    train = data.parts["train"].rows
    held = {name: values[train:] for name, values in rows.items()}
    ids = np.concatenate([data.parts[part].ids[:, columns] for part in ("valid", "test")])
    assert encoder.transform(pa.table(held))[:, columns].tolist() == ids.tolist()


def test_responses_say_what_became_of_earlier_rows(tmp_path: Path) -> None:
    rows, (item, response, gap) = log(), pasts("item by user last 5 delay 2 responses gaps time t view rolling")
    assert (response.name, response.responses) == ("response by user delay 2", True)
    data, encoder = prepared(rows, tmp_path / "data", item, response, gap)
    assert [data.names[field] for field in data.layout.sequences[0]] == [item.name, response.name, gap.name]
    assert [encoder.value_of(4, FIRST + label) for label in (0, 1)] == ["without a response", "with a response"]
    # The rows of one sequence are the same, place by place: what is said of one is said of the item there.
    labelled = rows | {"item": [f"{FIRST + label}" for label in rows["label"]]}
    places = {name: number for number, name in enumerate(dict.fromkeys(rows["user"]))}
    events = [(places[u], int(id), 1, t) for u, id, t in zip(rows["user"], labelled["item"], rows["t"], strict=True)]
    wanted = [slow(events[:place], key, now, response) for place, (key, _, _, now) in enumerate(events)]
    columns = data.layout.columns_of([data.names.index(response.name)])
    found = np.concatenate([part.ids[:, columns] for part in data.parts.values()])
    assert found.tolist() == wanted
    train = data.parts["train"].rows
    table, labels = pa.table({name: values[train:] for name, values in rows.items()}), np.array(rows["label"][train:])
    seen = encoder.pasts.follow(table, lambda columns: encoder.buckets(table, columns), labels)
    assert seen[response.name].tolist() == wanted[train:]
    # Its own label is nothing to a row, nor to those of its moment and before; to later ones it is.
    flipped = rows | {"label": [*rows["label"][:200], *(1 - label for label in rows["label"][200:])]}
    other, _ = prepared(flipped, tmp_path / "other", item, response, gap)
    again = np.concatenate([part.ids[:, columns] for part in other.parts.values()])
    until = rows["t"].index(rows["t"][200]) + rows["t"].count(rows["t"][200])
    assert (found[:until] == again[:until]).all()
    assert (found[until:] != again[until:]).any()


def test_parts_in_one_another_and_the_order_of_the_rows(tmp_path: Path) -> None:
    rows = log()
    (past,) = pasts("item by user last 4 time row")
    data, encoder = prepared(rows, tmp_path / "data", past, split=Split((0.6, 0.2, 0.2), seed=1))
    columns = data.layout.columns_of([data.names.index(past.name)])
    in_order = rows | {"t": [float(place) for place in range(len(rows["t"]))]}
    # Rows of train see those of train alone; the rest see all that came before.
    found = {part: own.ids[:, columns].tolist() for part, own in data.parts.items()}
    every = expected(in_order, encoder, past)
    assert sum(row in every for row in found["test"]) == len(found["test"])
    assert all(part.other_ids is None for part in data.parts.values())


def test_a_flipped_label_or_a_later_row_changes_nothing_earlier(tmp_path: Path) -> None:
    rows, (past,) = log(), pasts("item by user last 6 positives time t")
    changed = {name: list(values) for name, values in rows.items()}
    at = 120
    changed["label"][at] = 1 - rows["label"][at]
    for place in range(at + 1, 200):
        changed["item"][place] = "i3"
    before, after = (prepared(one, tmp_path / name, past) for one, name in ((rows, "a"), (changed, "b")))
    (data, encoder), (other, again) = before, after
    first = [place for place, t in enumerate(rows["t"]) if t <= rows["t"][at]]
    columns = data.layout.columns_of([data.names.index(past.name)])

    def texts(ids: Any, own: Encoder) -> list[list[str]]:
        return [[own.codes[1].value_of(id) if id >= 0 else "" for id in row] for row in ids[:, columns].tolist()]

    one = texts(data.parts["train"].ids[: len(first)], encoder)
    two = texts(other.parts["train"].ids[: len(first)], again)
    known = set(encoder.codes[1].texts) & set(again.codes[1].texts)
    same = [[word if word in known else "" for word in row] for row in one]
    assert same == [[word if word in known else "" for word in row] for row in two]


@pytest.mark.parametrize("view", ["frozen", "rolling"])
def test_a_new_key_has_no_past_unless_it_goes_on(tmp_path: Path, view: str) -> None:
    rows, (past,) = log(), pasts(f"item by user last 3 time t view {view}")
    # Most held-out rows are of new users.
    rows["user"][260:] = [f"new{place % 9}" for place in range(140)]
    data, _ = prepared(rows, tmp_path / "data", past)
    assert 0 < data.hide["user"] <= 0.1
    own, ids = data.training(0), data.parts["train"].ids
    shown = own.shown(np.arange(own.rows))
    hidden = (shown[:, 0] == 1) & (ids[:, 0] != 1)
    columns = data.layout.columns_of([data.names.index(past.name)])
    seen = shown[hidden][:, columns]
    if view == "frozen":
        assert (seen == [MISSING, PAD, PAD]).all()
    else:
        assert (seen == ids[hidden][:, columns]).all()
    assert hidden.sum() > 3


def test_dropped_negatives_are_seen(tmp_path: Path) -> None:
    rows, (past,) = log(), pasts("item by user last 6 time t")
    whole, _ = prepared(rows, tmp_path / "whole", past)
    some, _ = prepared(rows, tmp_path / "some", past, keep_negatives=0.5)
    columns = whole.layout.columns_of([whole.names.index(past.name)])
    # Fitting sees fewer rows, so that ids may differ; but as many rows came before.
    lengths = (whole.parts["train"].ids[:, columns] != PAD).sum(axis=1).tolist()
    kept = (some.parts["train"].ids[:, columns] != PAD).sum(axis=1).tolist()
    left = iter(lengths)
    assert len(kept) < len(lengths)
    assert all(any(one == other for other in left) for one in kept)


def test_more_rows_go_on_where_it_stopped(tmp_path: Path) -> None:
    rows, (past,) = log(), pasts("item by user last 6 time t")
    first = {name: values[:250] for name, values in rows.items()}
    cut = next(place for place in range(250, 400) if rows["t"][place] > rows["t"][249])
    later = {name: values[cut:] for name, values in rows.items()}
    later["item"] = ["fresh" if place % 5 == 0 else item for place, item in enumerate(later["item"])]
    _, encoder = prepared(first, tmp_path / "first", past, split=Split((1.0, 0.0, 0.0)))
    table = pa.table(later)
    sources = {"train": lambda: iter([table])}
    prepare(sources, tmp_path / "more", "label", None, Split((1.0, 0.0, 0.0)), known=encoder)
    data = Dataset.open(tmp_path / "more")
    grown = Encoder.load(tmp_path / "more" / "encoder", data.schema)
    assert grown.codes[1].size > encoder.codes[1].size == grown.codes[3].first_size
    assert grown.codes[3].grew_from(encoder.codes[3])
    both = {name: first[name] + later[name] for name in rows}
    columns = data.layout.columns_of([data.names.index(past.name)])
    assert data.parts["train"].ids[:, columns].tolist() == expected(both, grown, past)[250:]


def test_a_copy_goes_on_alone_with_the_same_codes(tmp_path: Path) -> None:
    _, encoder = prepared(log(), tmp_path / "data", *pasts("item by user last 3 time t"))
    # What a code has made of many words cannot be copied.
    encoder.codes[1].word_ids(pa.array([f"i{n}" for n in range(300)]))
    (past,) = encoder.pasts
    other = copy.deepcopy(past)
    before = past.trail.state()
    rows = np.arange(1, 4, dtype=np.uint64), np.full((3, 1), 2, dtype=np.int32), np.ones(3), np.full(3, 1e6)
    other.replay(*rows)
    assert all((past.trail.state()[name] == array).all() for name, array in before.items())
    assert len(other.trail.state()["keys"]) == len(before["keys"]) + 3
    assert other.codes is past.codes


def test_mistakes_are_told(tmp_path: Path) -> None:
    for text, line in [
        ("item last 5", "takes COLUMNS by KEY"),
        ("item by user last five", "last takes a number, found 'five'"),
        ("item by user newest 5", "unknown setting of --sequence 'newest'"),
        ("item by user last 0", "last must be at least 1, found 0"),
        ("item by user*user", "found 'user\\*user'"),
        ("item by user view all", "unknown view 'all'"),
        ("item by user positives negatives", "positives, negatives or responses, found positives and negatives"),
        ("item by user responses positives", "positives, negatives or responses, found positives and responses"),
    ]:
        with pytest.raises(ConfigError, match=line):
            pasts(text)
    for text, line in [
        ("item by user", "need a time"),
        ("thing by user time t", "unknown field 'thing'"),
        ("item,label by user time t", "found the label 'label'; responses = true"),
    ]:
        with pytest.raises(ConfigError, match=line):
            prepared(log(), tmp_path / "none", *pasts(text))
    assert not (tmp_path / "none").exists()


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    data, _ = prepared(log(), tmp_path / "data", *pasts("item by user last 3 time t"))
    file = tmp_path / "data" / "encoder" / "sequences.npz"
    with np.load(file) as held:
        good = {name: held[name] for name in held.files}
    for name, change in [
        ("0_ids", lambda array: array + 1000),
        ("0_counts", lambda array: array + 1),
        ("0_keys", lambda array: array[::-1].copy()),
        ("0_times", lambda array: array[::-1].copy()),
        ("0_end", lambda array: np.float64("nan")),
    ]:
        np.savez(file, **good | {name: change(good[name])})
        with pytest.raises(BundleError, match="the sequences are damaged"):
            Encoder.load(tmp_path / "data" / "encoder", data.schema)
    file.unlink()
    with pytest.raises(BundleError, match="the sequences are damaged"):
        Encoder.load(tmp_path / "data" / "encoder", data.schema)
