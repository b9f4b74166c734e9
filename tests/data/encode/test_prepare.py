"""Raw rows to a prepared folder: who goes to which part, what is fitted on, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from fieldwise import cli
from fieldwise.config.errors import ConfigError, DataError, FieldwiseError
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import prepare as room
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare, read_labels
from fieldwise.data.read import formats
from fieldwise.data.read.formats import as_table
from fieldwise.data.schema import Field, Schema

# The id of row number n is n + 2 in every part, so that ids tell which rows they are.
MOST = 1000
NUMBER = Field("n", "numeric", buckets="explicit", thresholds=tuple(n + 0.5 for n in range(MOST)))
SCHEMA = Schema("click", (NUMBER,))


def log(rows: int = MOST, **columns: Any) -> pa.Table:
    """Numbered rows; every third is positive."""
    numbers = np.arange(rows)
    return pa.table({"n": numbers, "click": (numbers % 3 == 0).astype(int), **columns})


def chunked(table: pa.Table, size: int = 100_000) -> Iterator[pa.Table]:
    for first in range(0, len(table), size):
        yield table.slice(first, size)


def parts_of(
    table: pa.Table, out: Path, split: Split | None = None, size: int = 100_000, schema: Schema | None = SCHEMA
) -> dict[str, list[int]]:
    """The numbers of the rows in each part, in the order of the part."""
    prepare({"train": lambda: chunked(table, size)}, out, "click", schema, split, force=True)
    return {name: (part.ids[:, 0] - 2).tolist() for name, part in Dataset.open(out).parts.items()}


# The split.


def test_labels_drawn_with_the_seed_of_the_split(tmp_path: Path) -> None:
    """The parts must not depend on numpy's plain stream of the seed, nor on its first key, which is the same stream."""
    for seed, stream in ((0, 0), (3, 3), (3, [3, 0])):
        draws = np.random.default_rng(stream).random(MOST)
        table = log().set_column(1, "click", pa.array((draws < 0.3).astype(int)))
        facts = prepare(
            {"train": lambda t=table: iter([t])}, tmp_path / "a", "click", SCHEMA, Split(seed=seed), force=True
        )
        assert list(facts["positive_rate"].values()) == pytest.approx([0.3] * 3, abs=0.12)


def test_parts_of_one_class_are_said(tmp_path: Path) -> None:
    table = log(100).set_column(1, "click", pa.array([1, 0] * 40 + [0] * 10 + [1] * 10))
    facts = prepare({"train": lambda: iter([table])}, tmp_path / "data", "click", SCHEMA, Split(by="row"))
    said = [note for note in facts["notes"] if "have label" in note]
    assert [note.partition(",")[0] for note in said] == [
        "all 10 rows of the valid part have label 0",
        "all 10 rows of the test part have label 1",
    ]


def test_test_rows_alone_leave_validation_rows_to_the_training_file(tmp_path: Path) -> None:
    sources = {"train": lambda: iter([log(1000)]), "test": lambda: iter([log(50)])}
    facts = prepare(sources, tmp_path / "a", "click", SCHEMA, Split((0.7, 0.2, 0.1), by="row"))
    assert facts["rows"] == {"train": 800, "valid": 200, "test": 50}
    assert any(
        note.startswith("the validation part is 20% of the training rows in the order of") for note in facts["notes"]
    )
    facts = prepare(sources, tmp_path / "b", "click", SCHEMA, Split((1.0, 0.0, 0.0)))
    assert any(note.startswith("there is no validation part") for note in facts["notes"])


def test_dates_are_in_the_order_of_time(tmp_path: Path) -> None:
    """Without a question, whatever their format; only other texts are asked about."""
    days = ["2024-10-01T00:00:00+02:00", "2024-09", "2024-09-30 23:00:00", "2024-10-02"]
    parts = parts_of(log(4, day=days), tmp_path / "data", Split((0.5, 0.25, 0.25), by="day"))
    assert parts == {"train": [0, 1], "valid": [2], "test": [3]}
    for values, asked in ((days, False), (["Mon", "Tue", "Wed", "Thu"], True)):
        source = {"train": lambda v=values: iter([log(4, day=v)])}
        notes = prepare(source, tmp_path / "data", "click", SCHEMA, Split(by="day"), force=True)["notes"]
        assert any("is that time's order?" in note for note in notes) == asked


# Columns that are left out.


def test_what_is_dropped(tmp_path: Path) -> None:
    schema = Schema("click", (NUMBER, Field("x")))
    source = {"train": lambda: iter([log(60, x=["a", "b"] * 30)])}
    facts = prepare(source, tmp_path / "data", "click", schema, drop=("x",))
    assert list(facts["fields"]) == ["n"]
    with pytest.raises(ConfigError, match=r"--drop: unknown column 'xx'; did you mean 'x'\? available: click, n, x"):
        prepare(source, tmp_path / "other", "click", drop=("xx",))


@pytest.mark.parametrize("head", ["", "Unnamed: 0"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_index_of_a_pandas_table(
    tmp_path: Path, run: Callable[..., dict[str, Any]], head: str, shuffled: bool
) -> None:
    numbers = [n * 7 % 10 if shuffled else n for n in range(10)]
    path = tmp_path / "log.csv"
    path.write_text(f"{head},click,user\n" + "".join(f"{n},{n % 2},{'ab'[n % 2]}\n" for n in numbers))
    command = ["prepare", path, "--split", "1,0,0", "--history", "none", "--label", "click"]
    facts = run(*command, "--out", tmp_path / "data")
    assert list(facts["fields"]) == ["user"]
    assert any("'Unnamed: 0' has no name and numbers the rows" in note for note in facts["notes"])
    schema = tmp_path / "schema.toml"
    schema.write_text('label = "click"\n[[field]]\nname = "Unnamed: 0"\n')
    assert list(run(*command, "--schema", schema, "--out", tmp_path / "kept")["fields"]) == ["Unnamed: 0"]
    assert "numbers the rows" not in str(run(*command, "--drop", "Unnamed: 0", "--out", tmp_path / "more")["notes"])


def test_an_identifier_of_more_rows_than_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of rows beyond the sample are no values of its rows."""
    monkeypatch.setattr(room, "SAMPLE_ROWS", 150)
    table = log(400, id=[f"u{n}" for n in range(400)], x=["a", "b"] * 200).drop_columns(["n"])
    facts = prepare({"train": lambda: chunked(table, 100)}, tmp_path / "data", "click")
    assert list(facts["fields"]) == ["x"]


def test_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("click,user\n" + "0,a\n1,b\n" * 100)

    def said(*options: str) -> str:
        with pytest.raises(SystemExit):
            cli.main(["prepare", str(path), "--label", "click", "--out", str(tmp_path / "data"), "--force", *options])
        return capsys.readouterr().out

    assert "--history auto" in said()
    assert "next: fieldwise train" in said("--history", "none")
    assert "--history auto" not in said("--history", "auto")
    assert "next:" not in said("--split", "1,0,0", "--history", "none")


def test_random_shares(tmp_path: Path) -> None:
    parts = parts_of(log(), tmp_path / "data", Split((0.6, 0.3, 0.1), seed=4))
    assert sorted(n for part in parts.values() for n in part) == list(range(MOST))
    assert [len(parts[name]) / MOST for name in ("train", "valid", "test")] == pytest.approx([0.6, 0.3, 0.1], abs=0.05)
    assert all(part == sorted(part) for part in parts.values())


def test_the_seed_decides_and_chunks_do_not(tmp_path: Path) -> None:
    one = parts_of(log(), tmp_path / "data", Split(seed=1))
    digest = Dataset.open(tmp_path / "data").fingerprint
    assert parts_of(log(), tmp_path / "data", Split(seed=1), size=7) == one
    assert Dataset.open(tmp_path / "data").fingerprint == digest
    assert parts_of(log(), tmp_path / "data", Split(seed=2)) != one


def test_parts_with_no_share_are_not_there(tmp_path: Path) -> None:
    assert set(parts_of(log(), tmp_path / "data", Split((0.5, 0.5, 0.0)))) == {"train", "valid"}


@pytest.mark.parametrize("size", [100_000, 17])
def test_the_order_of_the_file(tmp_path: Path, size: int) -> None:
    parts = parts_of(log(10), tmp_path / "data", Split((0.6, 0.2, 0.2), by="row"), size)
    assert parts == {"train": [0, 1, 2, 3, 4, 5], "valid": [6, 7], "test": [8, 9]}


@pytest.mark.parametrize("size", [100_000, 13])
def test_a_schema_is_guessed_from_training_rows_alone(tmp_path: Path, size: int) -> None:
    """Where rows are divided inside of a chunk, the words of held-out rows are not among those of training rows."""
    table = log(60, name=[f"name {n}" for n in range(60)], x=["a", "b", "c"] * 20)
    split = Split((0.5, 0.25, 0.25), by="row")
    facts = prepare({"train": lambda: chunked(table, size)}, tmp_path / "data", "click", split=split)
    assert list(facts["fields"]) == ["x"]
    assert any("column 'name' has another value in every row" in note for note in facts["notes"])


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
def test_the_order_of_a_column(tmp_path: Path, kind: pa.DataType) -> None:
    """Numbers in the order of numbers, whatever their type: 9 comes before 10. Rows of one day stay together."""
    days = pa.array([11, 9, 10, None, 2, 9, 1, 1, 1, 1]).cast(kind)
    parts = parts_of(log(10, day=days), tmp_path / "data", Split((0.5, 0.4, 0.1), by="day"), size=3)
    assert parts == {"train": [3, 6, 7, 8, 9], "valid": [1, 2, 4, 5], "test": [0]}


def test_the_order_of_texts(tmp_path: Path) -> None:
    days = ["2024-02-01", "2024-01-09", "2024-01-10", "2023-12-31"]
    parts = parts_of(log(4, day=days), tmp_path / "data", Split((0.5, 0.25, 0.25), by="day"))
    assert parts == {"train": [1, 3], "valid": [2], "test": [0]}


def test_a_column_that_names_the_parts(tmp_path: Path) -> None:
    names = ["test", "train", "valid", "train", "train", "test"]
    assert parts_of(log(6, part=names), tmp_path / "data", Split(by="part")) == {
        "train": [1, 3, 4],
        "valid": [2],
        "test": [0, 5],
    }


def test_the_column_of_the_split_is_no_field(tmp_path: Path) -> None:
    table = log(60, part=["train", "train", "valid"] * 20, x=["a", "b", "c"] * 20)
    facts = prepare({"train": lambda: chunked(table)}, tmp_path / "data", "click", split=Split(by="part"))
    assert list(facts["fields"]) == ["x"]
    assert any("column 'part' is no field" in note for note in facts["notes"])


@pytest.mark.parametrize(
    ("shares", "seed"),
    [
        ((0.5, 0.5, 0.5), 0),
        ((1.5, -0.5, 0.0), 0),
        ((0.0, 0.5, 0.5), 0),
        ((float("nan"), 0.5, 0.5), 0),
        ((1.0, 0, 0), -1),
    ],
)
def test_impossible_splits(shares: tuple[float, float, float], seed: int) -> None:
    with pytest.raises(ConfigError, match=r"--split needs three shares|--seed must be 0 or more"):
        Split(shares, seed=seed)


def test_a_missing_column_of_the_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--split-by column 'day' is missing; the file has: n, click"):
        parts_of(log(9), tmp_path / "data", Split(by="day"))
    assert list(tmp_path.iterdir()) == []


def test_given_parts(tmp_path: Path) -> None:
    table = log(30)
    sources = {
        "train": lambda: chunked(table.slice(0, 20), 6),
        "valid": lambda: chunked(table.slice(20, 4)),
        "test": lambda: chunked(table.slice(24)),
    }
    facts = prepare(sources, tmp_path / "data", "click", SCHEMA, Split((0.1, 0.8, 0.1)))
    parts = {name: (part.ids[:, 0] - 2).tolist() for name, part in Dataset.open(tmp_path / "data").parts.items()}
    assert parts == {"train": list(range(20)), "valid": [20, 21, 22, 23], "test": list(range(24, 30))}
    assert facts["rows"] == {"train": 20, "valid": 4, "test": 6}
    assert facts["positive_rate"]["valid"] == 0.25


# What is fitted.


def test_vocabularies_and_thresholds_come_from_training_rows_only(tmp_path: Path) -> None:
    table = log(
        9,
        part=["train"] * 4 + ["valid"] * 3 + ["test"] * 2,
        word=["a", "a", "b", "b", "z", "z", "z", "y", "y"],
        price=[1.0, 2.0, 3.0, 4.0, 100.0, 200.0, 300.0, 400.0, 500.0],
        tags=["p", "q", "p", "q", "p|q|r|s", "r", "r", "r", "r"],
    )
    fields = Field("word"), Field("price", "numeric"), Field("tags", "set")
    out = tmp_path / "data"
    prepare({"train": lambda: chunked(table)}, out, "click", Schema("click", fields), Split(by="part"))
    word, price, tags = Encoder.load(out / "encoder", Schema.load(out / "schema.toml")).codes
    assert list(word.vocabulary) == ["a", "b"]
    assert price.thresholds.tolist() == [1, 2, 3]
    assert (tags.texts, tags.width) == (["p", "q"], 1)
    assert Dataset.open(out).parts["valid"].ids[0].tolist() == [1, 5, 2]


def test_prepared_ids_are_those_of_the_transform(tmp_path: Path, small_log: Path) -> None:
    """Of all parts, in the order of the file."""
    out = tmp_path / "data"
    prepare({"train": lambda: formats.read([small_log])}, out, "click", split=Split((0.5, 0.3, 0.2), by="row"))
    raw = pa.concat_tables(formats.read([small_log]))
    found = Dataset.open(out).with_ranks
    encoder = Encoder.load(out / "encoder", found.schema)
    assert found.layout == encoder.layout
    stacked: NDArray[np.int32] = np.concatenate([part.ids for part in found.parts.values()])
    np.testing.assert_array_equal(stacked, encoder.transform(raw))
    labels = np.concatenate([part.labels for part in found.parts.values()])
    np.testing.assert_array_equal(labels, read_labels(raw["click"]))


def test_a_schema_is_written_edited_and_used(tmp_path: Path, small_log: Path) -> None:
    source = {"train": lambda: formats.read([small_log])}
    facts = prepare(source, tmp_path / "one", "click")
    assert {name: field["kind"] for name, field in facts["fields"].items()} == {
        "user": "categorical",
        "price": "numeric",
        "tags": "set",
    }
    written = tmp_path / "one" / "schema.toml"
    again = prepare(source, tmp_path / "two", "click", Schema.load(written))
    assert again["fields"] == facts["fields"]
    assert Dataset.open(tmp_path / "one").fingerprint == Dataset.open(tmp_path / "two").fingerprint
    text = written.read_text().replace('kind = "numeric"', 'kind = "numeric"\nmax_buckets = 3')
    edited = Schema.from_toml(
        text.replace('name = "user"\nkind = "categorical"', 'name = "user"\nhash_buckets = 7'), "x"
    )
    facts = prepare(source, tmp_path / "three", "click", edited)
    assert facts["fields"]["price"]["size"] == 5
    assert facts["fields"]["user"]["size"] == 9
    assert Schema.load(tmp_path / "three" / "schema.toml") == edited


def test_columns_beyond_the_schema_are_left_alone(tmp_path: Path) -> None:
    table = log(9, extra=[["odd"]] * 9)
    assert parts_of(table, tmp_path / "data", Split((1.0, 0.0, 0.0))) == {"train": list(range(9))}


# Labels and weights.


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 0, 1]),
        pa.array([True, False, True]),
        pa.array([1.0, 0.0, 1.0], pa.float32()),
        pa.array(["1", "0", "1"], pa.string_view()),
        pa.array(["1.0", "0.0", "1"]),
        pa.array(["true", "false", "True"]),
        pa.array(["1", "0", "1"]).dictionary_encode(),
    ],
)
def test_forms_of_labels(column: pa.Array) -> None:
    assert read_labels(pa.chunked_array([column])).tolist() == [1, 0, 1]


@pytest.mark.parametrize(("wrong", "shown"), [("2", "'2'"), ("yes", "'yes'"), ("-1", "'-1'"), (None, "nothing")])
def test_other_labels_are_refused_with_their_row(tmp_path: Path, wrong: str | None, shown: str) -> None:
    table = pa.table({"n": range(20), "click": [*["0", "1"] * 7, wrong, *["1"] * 5]})
    with pytest.raises(DataError, match=rf"label 'click' must be 0 or 1, found {shown} \(the train rows, row 15\)"):
        parts_of(table, tmp_path / "data", size=4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [0, 1])
def test_a_constant_label(tmp_path: Path, value: int) -> None:
    table = pa.table({"n": range(9), "click": [value] * 9})
    with pytest.raises(DataError, match=f"label 'click' is always {value} in the 9 training rows"):
        parts_of(table, tmp_path / "data", Split((1.0, 0.0, 0.0)))


def test_weights(tmp_path: Path) -> None:
    table = log(9, w=["1", "0", "2.5", "1", "1", "1", "1", "1", "7"], x=list("aabbccaab"))
    split = Split((0.5, 0.5, 0.0), by="row")
    prepare({"train": lambda: chunked(table, 2)}, tmp_path / "data", "click", split=split, weight="w")
    found = Dataset.open(tmp_path / "data")
    assert found.schema.weight == "w"
    assert "w" not in found.schema.names
    weights = [part.weights for part in found.parts.values()]
    assert np.concatenate([w for w in weights if w is not None]).tolist() == [1, 0, 2.5, 1, 1, 1, 1, 1, 7]


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf", "x", None])
def test_impossible_weights(tmp_path: Path, wrong: str | None) -> None:
    table = log(9, w=["1"] * 5 + [wrong] + ["1"] * 3)
    with pytest.raises(
        DataError, match=r"weights must be numbers of 0 or more, found .* in 'w' \(the train rows, row 6\)"
    ):
        prepare({"train": lambda: chunked(table, 4)}, tmp_path / "data", "click", SCHEMA, weight="w")


# What is refused, and what is left behind: nothing.


@pytest.mark.parametrize("name", ["click", "w"])
def test_missing_label_or_weight_columns(tmp_path: Path, name: str) -> None:
    table = log(9, w=[1] * 9).drop_columns([name])
    with pytest.raises(DataError, match=f"column '{name}' is missing; there are: n, .*the train rows"):
        prepare({"train": lambda: chunked(table)}, tmp_path / "data", "click", SCHEMA, weight="w")
    assert list(tmp_path.iterdir()) == []


def test_a_column_of_the_schema_is_missing_in_one_part(tmp_path: Path) -> None:
    schema = Schema("click", (NUMBER, Field("x")))
    full = log(9, x=["a"] * 9)
    sources = {"train": lambda: chunked(full), "valid": lambda: chunked(full.drop_columns(["x"]))}
    with pytest.raises(DataError, match=r"column 'x' is missing; .*the valid rows"):
        prepare(sources, tmp_path / "data", "click", schema)
    with pytest.raises(DataError, match="column 'x' is missing"):
        prepare(sources, tmp_path / "data", "click")
    assert list(tmp_path.iterdir()) == []


def test_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no training rows"):
        parts_of(log(0), tmp_path / "data")


def test_only_identifiers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column is left to predict 'click' from: column 'n' has another value"):
        parts_of(log(60), tmp_path / "data", schema=None)


def test_text_in_a_numeric_field(tmp_path: Path) -> None:
    table = log(9).set_column(0, "n", pa.array([*"01234567", "eight"]))
    with pytest.raises(DataError, match="field 'n' is numeric, found 'eight'"):
        parts_of(table, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_reserved_names(tmp_path: Path) -> None:
    table = log(9, __label__=["x"] * 9)
    with pytest.raises(DataError, match="the name '__label__' is taken"):
        parts_of(table, tmp_path / "data", schema=None)


def test_files_whose_types_differ(tmp_path: Path) -> None:
    """Narrow and wide integers, and files without a value, go together; numbers and words do not."""
    kinds = [pa.array([1, 2, 3, 4]), pa.array([5, 6, 7, 8], pa.int8()), pa.nulls(4)]
    for number, column in enumerate([*kinds, pa.array(["a", "b", "c", "d"])]):
        parquet.write_table(pa.table({"x": column, "click": [0, 1, 0, 1]}), tmp_path / f"{number}.parquet")
    schema = Schema("click", (Field("x", min_count=1),))

    def prepared(*numbers: int) -> list[int]:
        paths = [tmp_path / f"{number}.parquet" for number in numbers]
        every = Split((1.0, 0.0, 0.0))
        prepare({"train": lambda: formats.read(paths)}, tmp_path / "data", "click", schema, every, force=True)
        return Dataset.open(tmp_path / "data").parts["train"].ids[:, 0].tolist()

    assert prepared(0, 1, 2) == [2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0]
    assert prepared(2, 0, 1) == [0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(
        DataError, match=r"column 'x' must have one type in all files, found int64 and string \(the train rows\)"
    ):
        prepared(0, 3)


def test_force(tmp_path: Path) -> None:
    out = tmp_path / "data"
    source = {"train": lambda: chunked(log(9))}
    prepare(source, out, "click", SCHEMA)
    before = (out / "data.json").read_bytes()
    with pytest.raises(FieldwiseError, match=r"data is already there; .*--force"):
        prepare(source, out, "click", SCHEMA)
    with pytest.raises(DataError):
        prepare(source, out, "nothing", SCHEMA, force=True)
    assert (out / "data.json").read_bytes() == before
    prepare(source, out, "click", SCHEMA, Split(seed=5), force=True)
    assert (out / "data.json").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_what_a_prepared_folder_holds(tmp_path: Path) -> None:
    steps: list[str] = []
    source = {"train": lambda: chunked(log(), 100)}
    facts = prepare(source, tmp_path / "data", "click", SCHEMA, progress=lambda step, rows: steps.append(step))
    names = {
        path.relative_to(tmp_path / "data").as_posix() for path in (tmp_path / "data").rglob("*") if path.is_file()
    }
    arrays = {f"{part}/{name}.npy" for part in ("train", "valid", "test") for name in ("ids", "labels")}
    assert names == arrays | {"schema.toml", "data.json", "encoder/vocabulary.parquet", "encoder/encoder.json"}
    assert set(steps) == {"reading", "fitting", "encoding"}
    json.dumps(facts, allow_nan=False)


def test_tables_of_python(tmp_path: Path) -> None:
    rows = [{"click": n % 2, "x": "ab"[n % 2], "tags": ["p", "q"][: n % 3]} for n in range(60)]
    facts = prepare({"train": lambda: iter([as_table(rows)])}, tmp_path / "data", "click")
    assert {name: field["kind"] for name, field in facts["fields"].items()} == {"x": "categorical", "tags": "set"}
