"""A chain of folders: values earn ids over all of them, lose them when they are not seen, and others have them then."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.bundle.bundle import BundleError
from fieldwise.config.errors import ConfigError
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import fit, lifetimes
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.lifetimes import FILE
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.kinds import category
from fieldwise.data.read.texts import hash_of
from fieldwise.data.schema import FIRST, OTHER, Field, HistorySettings, Schema

ALL = Split((1.0, 0.0, 0.0))
FIELDS = (
    Field("word", min_count=3),
    Field("seen", "sequence", like="word"),
    Field("every", min_count=1),
    Field("tags", "set", min_count=2),
    Field("shared", min_count=2, shared_ids=4),
    Field("hashed", hash_buckets=5),
    Field("number", "numeric", max_buckets=3),
)
WORDS = ("word", "every", "tags", "shared")


def chained(rows: list[dict[str, Any]] | pa.Table, folder: Path, known: Encoder | None = None, **more: Any) -> Encoder:
    """The encoder of a folder of a chain, as whoever continues it loads it."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    if "click" not in table.column_names:
        table = table.append_column("click", pa.array(np.arange(len(table)) % 2))
    more = {"schema": None if known else more.pop("schema", Schema("click", FIELDS)), "split": ALL, **more}
    prepare({"train": lambda: iter([table])}, folder, "click", known=known, **more)
    return Encoder.load(folder / "encoder", Schema.load(folder / "schema.toml"), lifetimes=True)


def word_codes(encoder: Encoder) -> dict[str, Any]:
    return {code.field.name: code.own_words for code in encoder.codes if code.own_words}


class Slow:
    """What a field should have, folder after folder, from the definition."""

    def __init__(self, field: Field, expire: int) -> None:
        self.field, self.expire = field, expire
        self.ids: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.waiting: dict[str, tuple[int, int]] = {}
        self.size = FIRST

    def count(self, counts: Counter[str], folder: int) -> None:
        oldest = folder - self.expire
        for text, n in counts.items():
            if text in self.ids:
                self.last[text] = folder
            else:
                self.waiting[text] = (self.waiting.get(text, (0, 0))[0] + n, folder)
        for text in [text for text in self.ids if self.last[text] < oldest]:
            del self.ids[text], self.last[text]
        enough = [(-n, text) for text, (n, _) in self.waiting.items() if n >= self.field.min_count]
        for _, text in sorted(enough):
            del self.waiting[text]
            self.ids[text], self.last[text] = self.place(text), folder
        self.waiting = {text: (n, last) for text, (n, last) in self.waiting.items() if last >= oldest}

    def place(self, text: str) -> int:
        bins = self.field.shared_ids
        for other, id in self.ids.items():
            if bins and hash_of(other) % bins == hash_of(text) % bins:
                return id
        free = sorted(set(range(FIRST, self.size)) - set(self.ids.values()))
        self.size += not free
        return free[0] if free else self.size - 1


def log(random: np.random.Generator, day: int) -> list[dict[str, Any]]:
    """Values that come and go: on each day some of a few neighbours, and now and then any."""
    names = [f"v{(day * 2 + int(place)) % 40}" for place in random.integers(0, 8, 30)]
    names += [f"v{int(place)}" for place in random.integers(0, 40, 5)] + ["3.0", "3", "True", "ü"]
    some = [names[int(place)] for place in random.integers(0, len(names), 200)]
    # The first folder says how long sequences and sets may be.
    sizes = [4] if day == 0 else []
    return [
        {
            "word": some[row] or None,
            "seen": "|".join(some[40 + row : 40 + row + (sizes.pop() if sizes else int(random.integers(0, 3)))]),
            "every": some[80 + row],
            "tags": "|".join(some[120 + row : 124 + row : 1 + row % 3]) if row % 5 else None,
            "shared": some[150 + row],
            "hashed": some[row],
            "number": row / 7,
        }
        for row in range(30)
    ]


def spelt(text: str) -> str:
    return {"3.0": "3", "True": "true"}.get(text, text)


def members(row: dict[str, Any], name: str) -> list[str]:
    return [spelt(text) for text in (row[name] or "").split("|") if text]


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_a_chain_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loops: bool, together: bool) -> None:
    if loops:
        for room in (category, lifetimes):
            monkeypatch.setattr(room, "MANY", 0)
    if not together:
        monkeypatch.setattr(fit, "most_together", lambda rows, width: 1)
    random, expire = np.random.default_rng(1), 2
    slow = {name: Slow(next(field for field in FIELDS if field.name == name), expire) for name in WORDS}
    encoder: Encoder | None = None
    encoders, logs = [], []
    for day in range(9):
        logs.append(log(random, day))
        for name in WORDS:
            counts = Counter(text for row in logs[-1] for text in set(members(row, name)))
            slow[name].count(counts, day)
        encoder = chained(
            logs[-1], tmp_path / f"{day}", encoder, **({} if encoder else {"expire_after": (f"{expire}",)})
        )
        # Where the words of a column are shared, a value that only the sequence has lives on too.
        in_sequences = {text for row in logs[-1] for text in members(row, "seen")}
        slow["word"].last |= {text: day for text in in_sequences if text in slow["word"].ids}
        codes = word_codes(encoder)
        for name, expected in slow.items():
            assert codes[name].vocabulary == expected.ids, (day, name)
            assert codes[name].size == expected.size
            free = set(range(FIRST, expected.size)) - set(expected.ids.values())
            assert codes[name].free == tuple(sorted(free))
            assert (
                dict(zip(codes[name].vocabulary, encoder.lifetimes.lives[name].last.tolist(), strict=True))
                == expected.last
            )
        encoders.append(encoder)
    assert any(one.free for one in word_codes(encoders[-1]).values())
    reused = [word_codes(encoders[-1])[name] for name in WORDS]
    assert all(code.size < FIRST + 30 for code in reused)


def test_old_encoders_stay_and_new_ones_forget(tmp_path: Path) -> None:
    """The row of a value that has expired is another's in the new folder, and its own in the old one."""
    fields = (Field("x", min_count=1), Field("y", min_count=1))
    rows = {"old": [{"x": "old", "y": "y"}] * 2, "new": [{"x": "new", "y": "y"}] * 2}
    first = chained(rows["old"], tmp_path / "0", schema=Schema("click", fields), expire_after=["1"])
    second = chained([{"x": "other", "y": "y"}] * 2, tmp_path / "1", first)
    third = chained(rows["new"], tmp_path / "2", second)
    assert [one.codes[0].vocabulary for one in (first, second, third)] == [
        {"old": 2},
        {"old": 2, "other": 3},
        {"new": 2, "other": 3},
    ]
    again = Encoder.load(tmp_path / "0" / "encoder", first.schema)
    table = pa.table({"x": ["old", "new"], "y": ["y", "y"]})
    assert [one.transform(table)[:, 0].tolist() for one in (again, third)] == [[2, OTHER], [OTHER, 2]]
    assert third.codes[0].value_of(2) == "new"
    assert third.lifetimes.lives["x"].since.tolist() == [2, 1]
    assert Dataset.open(tmp_path / "2").layout.sizes == (4, 3)


def test_a_free_id_is_saved_and_stands_for_nothing(tmp_path: Path) -> None:
    first = chained(
        [{"x": "a"}] * 2 + [{"x": "b"}] * 3, tmp_path / "0", schema=Schema("click", (Field("x"),)), expire_after=["1"]
    )
    second = chained([{"x": "a"}] * 2, tmp_path / "1", first)
    third = chained([{"x": "a"}] * 2, tmp_path / "2", second)
    (code,) = third.codes
    assert (code.vocabulary, code.free, code.size) == ({"a": 3}, (2,), 4)
    assert code.texts == ["", "a"]
    assert code.value_of(2) == "(expired)"
    assert third.transform(pa.table({"x": ["a", "b", "", None]}))[:, 0].tolist() == [3, OTHER, 0, 0]
    # Seen again, it takes the first id that is free, its own by chance.
    fourth = chained([{"x": "b"}] * 2, tmp_path / "3", third)
    assert (fourth.codes[0].vocabulary, fourth.lifetimes.lives["x"].since.tolist()) == ({"b": 2, "a": 3}, [3, 0])


def test_a_value_that_trickles_in_earns_its_id(tmp_path: Path) -> None:
    """One row a day, and a folder in between: without expiry too, and from the first folder on."""
    known = None
    for day in range(4):
        rows = [{"x": "a"}] * 5 + ([{"x": "rare"}] if day != 1 else [])
        more = {} if known else {"schema": Schema("click", (Field("x", min_count=3),))}
        known = chained(rows, tmp_path / f"{day}", known, **more)
        assert ("rare" in known.codes[0].vocabulary) == (day == 3)
    assert known.codes[0].vocabulary == {"a": 2, "rare": 3}


def test_the_time_of_the_rows_is_the_clock(tmp_path: Path) -> None:
    """Folders of some days each; one row with a time far away, or without any, changes nothing."""

    def day(number: int, *names: str) -> pa.Table:
        times = [f"2024-03-{number:02} 1{place % 10}:00:00" for place in range(20)] + ["2031-01-01 00:00:00"]
        cells = [names[place % len(names)] for place in range(21)]
        return pa.table({"time": times, "x": cells})

    fields = (Field("hour", "time", of="time"), Field("x", min_count=1))
    encoder = chained(day(1, "a", "b"), tmp_path / "1", schema=Schema("click", fields), expire_after=["10d"])
    for number, left in ((3, "ab"), (10, "ab"), (12, "a"), (13, "a"), (23, "c")):
        name = "c" if number == 23 else "a" if number == 3 else "c"
        encoder = chained(day(number, name), tmp_path / f"{number}", encoder)
        assert set(encoder.codes[1].vocabulary) - {"c"} == set(left) - {"c"}, number
    assert np.diff(encoder.lifetimes.moments).tolist() == [2 * 86400, 7 * 86400, 2 * 86400, 86400, 10 * 86400]


def test_what_was_said_stays_until_something_else_is(tmp_path: Path) -> None:
    schema = Schema("click", (Field("x", min_count=1), Field("y", min_count=1)))
    known = chained([{"x": "a", "y": "a"}] * 2, tmp_path / "0", schema=schema, expire_after=["1", "y=never"])
    for day in (1, 2):
        known = chained([{"x": f"b{day}", "y": f"b{day}"}] * 2, tmp_path / f"{day}", known)
    assert ["a" in code.vocabulary for code in known.codes] == [False, True]
    known = chained([{"x": "c", "y": "c"}] * 2, tmp_path / "3", known, expire_after="never")
    known = chained([{"x": "c", "y": "c"}] * 2, tmp_path / "4", known)
    assert set(known.codes[0].vocabulary) == {"b1", "b2", "c"}
    assert known.lifetimes.expiry.said == ("never",)


def test_a_folder_from_before_begins_as_if_all_were_seen_in_it(tmp_path: Path) -> None:
    schema = Schema("click", (Field("x"),))
    first = chained([{"x": "a"}] * 2 + [{"x": "rare"}], tmp_path / "0", schema=schema)
    (tmp_path / "0" / "encoder" / FILE).unlink()
    first = Encoder.load(tmp_path / "0" / "encoder", first.schema, lifetimes=True)
    assert first.lifetimes is None
    second = chained([{"x": "rare"}, {"x": "b"}], tmp_path / "1", first, expire_after=["1"])
    assert second.codes[0].vocabulary == {"a": 2}
    third = chained([{"x": "rare"}, {"x": "c"}], tmp_path / "2", second)
    assert third.codes[0].vocabulary == {"rare": 2}


def test_sequences_of_earlier_rows_forget_what_expired(tmp_path: Path) -> None:
    """What a user had before the item expired is `other`, not the item that has its id now."""
    fields = (
        Field("item", min_count=1),
        Field("user", min_count=1),
        Field("before", "past", of="item", by="user", time="t", last=2),
    )
    rows = [{"item": "old", "user": "u", "t": 0}, {"item": "old", "user": "v", "t": 0}]
    known = chained(rows, tmp_path / "0", schema=Schema("click", fields), expire_after=["item=1"])
    # User u comes each day and sees the old item in her past until the second day: as long it lives.
    for day, item in enumerate(("a", "b", "c", "d"), 1):
        known = chained([{"item": item, "user": "u", "t": day}] * 2, tmp_path / f"{day}", known)
    ids = known.codes[0].vocabulary
    assert "old" not in ids
    assert ids["c"] == FIRST
    (past,) = known.pasts
    seen = past.seen(pa.table({"item": ["x", "x"], "user": ["u", "v"], "t": [9, 9]}), {})["before"]
    assert seen.tolist() == [[ids["d"], ids["d"]], [OTHER, -1]]


def test_a_value_lives_as_long_as_a_sequence_shows_it(tmp_path: Path) -> None:
    fields = (
        Field("item", min_count=1),
        Field("user", min_count=1),
        Field("b", "past", of="item", by="user", time="t", last=9),
    )
    known = chained(
        [{"item": "old", "user": "u", "t": 0}] * 2, tmp_path / "0", schema=Schema("click", fields), expire_after=["2"]
    )
    for day in range(1, 7):
        known = chained([{"item": "x", "user": "u", "t": day}] * 2, tmp_path / f"{day}", known)
        assert "old" in known.codes[0].vocabulary
    for day in range(7, 11):
        known = chained([{"item": "x", "user": "v", "t": day}] * 2, tmp_path / f"{day}", known)
    assert "old" not in known.codes[0].vocabulary


def test_the_history_of_a_value_outlives_its_id(tmp_path: Path) -> None:
    schema = Schema("click", (Field("x", min_count=1),), history=HistorySettings(("x",), folds=2))
    known = chained([{"x": "old"}] * 4, tmp_path / "0", schema=schema, expire_after=["1"])
    for day in (1, 2):
        known = chained([{"x": "new"}] * 4, tmp_path / f"{day}", known)
    assert known.codes[0].vocabulary == {"new": 3}
    count = known.schema.names.index("x") + 1
    ids = known.transform(pa.table({"x": ["old", "never seen"]}))
    assert ids[0, 0] == ids[1, 0] == OTHER
    assert ids[0, count] > ids[1, count] == FIRST


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            ["soon"],
            "takes a time such as 30d, 12h or 4w, a number of folders such as 30, or never, found 'soon'",
        ),
        (["0"], "found '0'"),
        (["1.5"], "found '1.5'"),
        (["x=-3d"], "found '-3d'"),
        (["30", "40"], "says twice when values of all fields expire, found '40'"),
        (["x=1", "x=2"], "says twice when values of field 'x' expire"),
        (["nothing=3"], "unknown field 'nothing'; available: "),
        (["number=3"], "the values of 'number' cannot expire: numbers always have a bucket; leave it out"),
        (["hashed=3"], "the values of 'hashed' cannot expire: hashed values are never told apart"),
        (["seen=3"], "the values of 'seen' cannot expire: its ids are those of 'x'"),
        (["place=3"], "the values of 'place' cannot expire: a position is fixed at one of them"),
        (["hour=3"], "the values of 'hour' cannot expire: a time field has no vocabulary"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, said: list[str], line: str) -> None:
    fields = (
        Field("x", min_count=1),
        Field("number", "numeric"),
        Field("hashed", hash_buckets=3),
        Field("seen", "sequence", like="x"),
        Field("place", min_count=1, role="position"),
        Field("hour", "time", of="time"),
    )
    row = {"x": "a", "number": 1.0, "hashed": "b", "seen": "a", "place": "1", "time": "2024-01-01 10:00:00"}
    with pytest.raises(ConfigError) as error:
        chained([row] * 4, tmp_path / "data", schema=Schema("click", fields), expire_after=said)
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_what_a_schema_makes_impossible_is_refused(tmp_path: Path) -> None:
    row = {"x": "a", "number": 1.0}
    for fields, more, said, line in (
        ((Field("x"),), {}, "30d", "takes a time only where a field is one, found none; name a number of folders"),
        ((Field("number", "numeric"),), {}, "30", "no field has values that can expire; leave it out"),
        ((Field("x"),), {"gbdt_leaves": 3}, "30", "the trees of --gbdt-leaves know values by their ids"),
    ):
        with pytest.raises(ConfigError, match=line):
            chained([row] * 4, tmp_path / "data", schema=Schema("click", fields, **more), expire_after=[said])


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    encoder = chained([{"x": "a"}] * 3, tmp_path / "0", schema=Schema("click", (Field("x"),)))
    file = tmp_path / "0" / "encoder" / FILE
    with np.load(file) as held:
        arrays = {name: held[name] for name in held.files}
    for change in ({"last": np.zeros(3, dtype=np.int32), "last_sizes": np.array([3])}, {"facts": np.array("{}")}, None):
        if change is None:
            file.write_bytes(b"PK")
        else:
            np.savez(file, **{**arrays, **change})
        with pytest.raises(BundleError, match=r"what is remembered of values is damaged: .*lifetimes\.npz"):
            Encoder.load(tmp_path / "0" / "encoder", encoder.schema, lifetimes=True)
        # Who predicts does not look at it.
        assert Encoder.load(tmp_path / "0" / "encoder", encoder.schema).codes[0].size == encoder.codes[0].size
