"""Raw public layouts, simulated, go through every recipe to the fields of the world they were drawn from, and back."""

from __future__ import annotations

import bz2
import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise import cli
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import DataError
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.kind import FIRST, MISSING, PAD
from fieldwise.data.read import streams
from fieldwise.data.recipes import RECIPES, avazu, find, ipinyou
from fieldwise.data.recipes.asked import Asked, plan_of
from fieldwise.data.recipes.raw_columns import Reader, count_labels, rows_of
from fieldwise.data.schema import Schema
from fieldwise.data.world import World
from fieldwise.data.world.layouts import KINDS, Simulation, write_raw

ROWS = 2000
RATES = {"ipinyou": 0.1, "criteo-1tb": 0.1, "appstore": 0.2}
FOLDERS = [kind for kind, (_, in_folder) in KINDS.items() if in_folder]
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated files of every kind, by the kind's name."""
    folder = tmp_path_factory.mktemp("raw")
    for kind in KINDS:
        write_raw(kind, Simulation(ROWS, 3, RATES.get(kind)), folder / kind)
    return folder


@pytest.fixture(scope="module")
def avazu_run(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of Avazu's rows. Do not write into it."""
    folder = tmp_path_factory.mktemp("avazu")
    prepare = ["prepare", str(raw / "avazu"), "--recipe", "avazu", "--out", str(folder / "data"), "--json"]
    train = ["train", str(folder / "data"), "--model", "lr", "--set", "train.epochs=1", "--out", str(folder / "run")]
    for arguments in (prepare, train):
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == 0
    return folder / "run"


def table_of(name: str, *paths: Path, columns: list[str] | None = None) -> pa.Table:
    return pa.concat_tables(Reader(find(name)).rows(paths, columns))


def world_rows(kind: str, days: range) -> pa.Table:
    """The plain rows that a folder of days was written from."""
    world = World(kind, 3, RATES.get(kind))
    return pa.concat_tables(world.log(ROWS // 10, 3, day, day).table for day in days)


# What recipes make of the files is what the world drew.


def test_criteo_is_the_worlds_log(raw: Path) -> None:
    plain = World("criteo", 3).log(ROWS, 3).table
    found = table_of("criteo", raw / "criteo")
    assert found.column_names[1:] == plain.column_names[1:]
    for one, other in zip(found.columns, plain.columns, strict=True):
        assert one.to_pylist() == other.cast(pa.string()).to_pylist()


def test_avazu_has_its_hours_in_three(raw: Path) -> None:
    plain = World("avazu", 3).log(ROWS, 3).table
    found = table_of("avazu", raw / "avazu")
    assert found["site_id"].to_pylist() == plain["site_id"].to_pylist()
    stamps = plain["hour"].to_pylist()
    assert found["hour_of_day"].to_pylist() == [stamp % 100 for stamp in stamps]
    assert found["day"].to_pylist() == [stamp // 100 % 100 for stamp in stamps]
    # 21 October 2014 was a Tuesday.
    assert found["weekday"].to_pylist() == [(stamp // 100 % 100 - 21 + 1) % 7 for stamp in stamps]
    assert len(find("avazu").fields) == 24


def test_ipinyou_joins_clicks_and_keeps_the_worlds_fields(raw: Path) -> None:
    parts = plan_of(Asked([raw / "ipinyou"], recipe="ipinyou"))[1].parts
    assert [len(paths) for paths in parts.values()] == [7, 3]
    for part, days in (("train", range(7)), ("test", range(7, 10))):
        plain, found = (
            world_rows("ipinyou", days),
            table_of("ipinyou", *sorted(parts[part], key=lambda path: path.name)),
        )
        assert found["click"].to_pylist() == plain["click"].to_pylist()
        for name in ("weekday", "hour", "region", "city", "domain", "slotid", "slotwidth", "creative", "advertiser"):
            assert found[name].cast(pa.string()).to_pylist() == plain[name].cast(pa.string()).to_pylist(), name
    assert sum(plain["click"].to_pylist()) > 10


def test_ipinyou_prices_and_agents_have_the_papers_buckets(raw: Path, tmp_path: Path, run: Run) -> None:
    facts = run("prepare", raw / "ipinyou", "--recipe", "ipinyou", "--out", tmp_path / "data")
    # Five buckets, missing and other; no other field has lost or gained ids by the way.
    assert facts["fields"]["slotprice"]["size"] == 7
    assert list(facts["fields"]) == [field.name for field in ipinyou.IPINYOU.fields]
    assert set(facts["rows"]) == {"train", "valid", "test"}
    assert facts["rows"]["test"] == 600
    assert facts["rows"]["train"] + facts["rows"]["valid"] == 1400


def test_days_without_a_click(tmp_path: Path) -> None:
    write_raw("ipinyou", Simulation(20, 0, 0.001), tmp_path / "raw")
    assert any(path.stat().st_size == 0 for path in (tmp_path / "raw").rglob("clk.*"))
    found = table_of("ipinyou", *(tmp_path / "raw").rglob("imp.*"))
    assert found["click"].to_pylist() == [0] * 14


def test_whatever_bytes_a_browser_sent(raw: Path, tmp_path: Path) -> None:
    shutil.copytree(raw / "ipinyou" / "training2nd", tmp_path / "logs")
    log = tmp_path / "logs" / "imp.20130602.txt"
    log.write_bytes(log.read_bytes().replace(b"Mozilla", b'Moz\xff\xfe"lla', 3))
    found = table_of("ipinyou", log)
    assert found.select(["click", "useragent"]).equals(
        table_of("ipinyou", raw / "ipinyou" / "training2nd" / log.name).select(["click", "useragent"])
    )


def test_a_chunk_of_missing_values_has_the_columns_type() -> None:
    made = find("ipinyou").with_derived(pa.table({"timestamp": ["?"], "user_agent": pa.array([None], pa.string())}))
    assert [made[name].type for name in ("weekday", "hour", "useragent")] == [pa.int64(), pa.int64(), pa.string()]


def test_files_beside_others_may_be_named(raw: Path) -> None:
    files = [raw / "movielens-1m" / name for name in ("movies.dat", "ratings.dat", "users.dat")]
    assert plan_of(Asked(files, recipe="movielens-1m"))[1].parts == {"train": files[1:2]}
    held = plan_of(Asked(files, test=files[1], recipe="movielens-1m"))[1].parts
    assert held == {"train": files[1:2], "test": files[1:2]}


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("Mozilla/5.0 (Windows NT 6.1) AppleWebKit Chrome/27.0 Safari/537.36", "windows_chrome"),
        ("Mozilla/4.0 (compatible; MSIE 8.0; Windows NT 5.1; TheWorld)", "windows_theworld"),
        ("Mozilla/5.0 (Linux; U; Android 4.0) Safari", "android_safari"),
        ("Opera/9.8", "other_opera"),
        ("curl", "other_other"),
    ],
)
def test_agents(agent: str, expected: str) -> None:
    assert ipinyou.os_browser(agent) == expected


def test_a_stamp_that_is_none_is_missing() -> None:
    rows = pa.table({"hour": ["14102100", "", None, "14139900", "later"]})
    made = avazu.AVAZU.with_derived(rows)
    assert made["weekday"].to_pylist() == [1, None, None, None, None]
    assert made["hour_of_day"].to_pylist() == [0, None, None, 0, None]


def test_movielens_joins_and_splits_genres(raw: Path, tmp_path: Path, run: Run) -> None:
    found = table_of("movielens-1m", raw / "movielens-1m" / "ratings.dat")
    films = dict(line.split("::", 1) for line in (raw / "movielens-1m/movies.dat").read_text("latin-1").splitlines())
    users = dict(line.split("::", 1) for line in (raw / "movielens-1m/users.dat").read_text("latin-1").splitlines())
    rows = [line.split("::") for line in (raw / "movielens-1m/ratings.dat").read_text().splitlines()]
    for row, (user, film, rating, _) in zip(found.to_pylist(), rows, strict=True):
        assert row["liked"] == int(int(rating) >= 4)
        assert f"{row['title']}::{row['genres']}" == films[film]
        assert f"{row['gender']}::{row['age']}::{row['occupation']}::{row['zip']}" == users[user]
    facts = run("prepare", raw / "movielens-1m", "--recipe", "movielens-1m", "--out", tmp_path / "data")
    assert facts["fields"]["genres"] == {"kind": "set", "size": 20}


def test_both_movielens_have_the_same_rows(raw: Path) -> None:
    names = ["user", "movie", "liked", "timestamp", "gender", "age", "occupation", "zip", "title"]
    files = raw / "movielens-1m" / "ratings.dat", raw / "movielens-100k" / "u.data"
    large, small = (table_of(file.parent.name, file) for file in files)
    assert large.select(names).equals(small.select(names))
    for one, other in zip(large["genres"].to_pylist(), small["genres"].to_pylist(), strict=True):
        assert sorted(one.split("|")) == sorted(other.split("|"))
    (raw / "short").mkdir()
    for name in ("u.data", "u.user"):
        shutil.copy(raw / "movielens-100k" / name, raw / "short")
    (raw / "short" / "u.item").write_text("1|Film\n")
    with pytest.raises(DataError, match=r"expected 24 columns \(movie, title, .*\) between '\|', found 2"):
        table_of("movielens-100k", raw / "short" / "u.data")


@pytest.mark.parametrize(("kind", "name"), [("movielens-1m", "ratings.dat"), ("movielens-100k", "u.data")])
def test_what_a_user_rated_before(kind: str, name: str, raw: Path, tmp_path: Path, run: Run) -> None:
    asked = ["--split-by", "timestamp", "--sequence", "movie by user last 5 responses view rolling"]
    run("prepare", raw / kind, "--recipe", kind, *asked, "--out", tmp_path / "data")
    data = Dataset.open(tmp_path / "data")
    film = Encoder.load(tmp_path / "data" / "encoder", data.schema).codes[1]
    expected, before = [], dict[str, list[tuple[int, int]]]()
    for row in table_of(kind, raw / kind / name).to_pylist():  # in the order of time
        seen = before.setdefault(row["user"], [])
        expected.append(seen[::-1][:5])
        seen.append((int(film.ids([row["movie"]])[0]), FIRST + row["liked"]))
    found = []
    for part in data.parts.values():
        both = (
            part.ids[:, data.layout.columns_of([data.names.index(f"{of} by user")])] for of in ("movie", "response")
        )
        found += [[*zip(*places, strict=True)] for places in zip(*map(np.ndarray.tolist, both), strict=True)]
    unused = [(MISSING, MISSING)], (PAD, PAD)
    assert found == [(seen or unused[0]) + [unused[1]] * (5 - len(seen or unused[0])) for seen in expected]
    run("train", tmp_path / "data", "--model", "din", "--set", "train.epochs=1", "--out", tmp_path / "run")
    run("predict", tmp_path / "run", raw / kind / name, "-o", tmp_path / "p.csv")
    run(
        "predict", tmp_path / "run", without_label(kind, raw / kind / name, tmp_path / "bare"), "-o", tmp_path / "q.csv"
    )
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "q.csv").read_text()


def test_criteo_1tb_is_balanced_day_by_day(raw: Path, tmp_path: Path, run: Run) -> None:
    facts = run("prepare", raw / "criteo-1tb", "--recipe", "criteo-1tb", "--out", tmp_path / "data")
    positives = {day: count_labels(raw / "criteo-1tb" / f"day_{day}", "\t") for day in range(6, 14)}
    assert all(rows == ROWS // 8 for _, rows in positives.values())
    assert facts["rows"]["test"] == pytest.approx(2 * positives[13][0], abs=20)
    assert facts["positive_rate"]["test"] * facts["rows"]["test"] == pytest.approx(positives[13][0])
    trained = sum(facts["rows"][part] * facts["positive_rate"][part] for part in ("train", "valid"))
    assert trained == pytest.approx(sum(positives[day][0] for day in range(6, 13)))
    assert 0.4 < facts["positive_rate"]["train"] < 0.6
    thinned = run(
        "prepare", raw / "criteo-1tb", "--recipe", "criteo-1tb", "--keep-negatives", 0.5, "--out", tmp_path / "b"
    )
    assert thinned["rows"]["test"] == ROWS // 8
    assert thinned["negatives_kept"] == 0.5


def test_labels_are_counted_across_blocks(tmp_path: Path) -> None:
    text = b"1\t2\n0\t1\n1\t1\n\n1\tx"
    (tmp_path / "a").write_bytes(text)
    assert count_labels(tmp_path / "a", "\t") == (3, 5)


def test_the_challenge_has_69_fields(raw: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("xgboost")
    facts = run("prepare", raw / "criteo", "--recipe", "criteo-challenge", "--out", tmp_path / "data")
    assert len(facts["fields"]) == 69
    schema = Schema.load(tmp_path / "data" / "schema.toml")
    assert {field.shared_ids for field in schema.fields if field.kind == "categorical"} == {1_000_000}
    fewer = run("prepare", raw / "criteo", "--recipe", "criteo-challenge", "--gbdt-leaves", 0, "--out", tmp_path / "b")
    assert len(fewer["fields"]) == 39


# From raw files to predictions on raw files.


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_prepare_train_predict_evaluate(kind: str, raw: Path, tmp_path: Path, run: Run) -> None:
    facts = run("prepare", raw / kind, "--recipe", kind, "--out", tmp_path / "data")
    assert any(f"recipe {kind}" in note for note in facts["notes"]) == bool(find(kind).rows)
    run("train", tmp_path / "data", "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run")
    parts = plan_of(Asked([raw / kind], recipe=kind))[1].parts
    labelled = parts.get("test", parts["train"])[0]
    measured = run("evaluate", tmp_path / "run", labelled)
    predicted = run("predict", tmp_path / "run", labelled, "-o", tmp_path / "p.csv")
    assert measured["rows"] == predicted["rows"] > 0
    # The same rows without their label.
    bare = without_label(kind, labelled, tmp_path / "bare")
    run("predict", tmp_path / "run", bare, "-o", tmp_path / "q.csv")
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "q.csv").read_text()


def without_label(kind: str, path: Path, folder: Path) -> Path:
    """The file as its owners publish rows whose label is not known."""
    folder.mkdir()
    for name in ("users.dat", "movies.dat", "u.user", "u.item"):
        if path.with_name(name).exists():
            shutil.copy(path.with_name(name), folder)
    column = {"movielens-1m": 2, "movielens-100k": 2, "avazu": 1, "ipinyou": 24}.get(kind, 0)
    delimiter = {"movielens-1m": "::", "avazu": ",", "appstore": ","}.get(kind, "\t")
    lines = [line.split(delimiter) for line in path.read_text("latin-1").splitlines()]
    last = column + 2 if kind == "ipinyou" else column + 1
    cut = [delimiter.join(line[:column] + line[last:]) for line in lines]
    (folder / path.name).write_text("\n".join(cut) + "\n", "latin-1")
    return folder / path.name


def test_one_raw_row_from_python_equals_the_file(raw: Path, avazu_run: Path) -> None:
    predictor = Predictor.load(avazu_run)
    header, *lines = [line.split(",") for line in (raw / "avazu").read_text().splitlines()[:20]]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    from_file = pa.concat_tables(predictor.annotate(rows_of(predictor.schema, raw / "avazu")))["probability"]
    assert predictor.predict(rows).tolist() == from_file.to_pylist()[: len(rows)]
    assert predictor.predict([{"site_id": "x"}]).shape == (1,)


def test_what_predict_kept_can_be_predicted_again(raw: Path, avazu_run: Path, tmp_path: Path, run: Run) -> None:
    run("predict", avazu_run, raw / "avazu", "-o", tmp_path / "kept.csv", "--keep")
    run("predict", avazu_run, tmp_path / "kept.csv", "-o", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text().split()[1:] == [
        line.rpartition(",")[2] for line in (tmp_path / "kept.csv").read_text().split()[1:]
    ]


def test_a_new_day_goes_on_with_the_recipe(raw: Path, avazu_run: Path, tmp_path: Path, run: Run) -> None:
    facts = run("prepare", raw / "avazu", "--continue-from", avazu_run, "--out", tmp_path / "next")
    assert set(facts["fields"]) == {field.name for field in avazu.AVAZU.fields}
    assert not any("published" in note for note in facts["notes"])


def test_sparse_files_of_any_name(tmp_path: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{rng.integers(2)} {rng.integers(5)}:1 {10 + rng.integers(5)}:1" for _ in range(200)]
    (tmp_path / "train.yx").write_text("\n".join(lines))
    facts = run("prepare", tmp_path / "train.yx", "--recipe", "libsvm", "--out", tmp_path / "data")
    assert list(facts["fields"]) == ["f0", "f1"]
    run("train", tmp_path / "data", "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run")
    assert run("predict", tmp_path / "run", tmp_path / "train.yx", "-o", tmp_path / "p.csv")["rows"] == 200
    fields = [line.replace(" ", " 0:", 1) for line in lines]
    (tmp_path / "train.fields").write_text("\n".join(fields).replace(":1 1", ":1 1:1"))
    facts = run("prepare", tmp_path / "train.fields", "--recipe", "libffm", "--out", tmp_path / "data2")
    assert list(facts["fields"]) == ["f0", "f1"]


# The user's options have the last word; packing and chunks do not matter.


def test_options_override_the_recipe(raw: Path, tmp_path: Path, run: Run) -> None:
    said = ["prepare", raw / "criteo", "--recipe", "criteo"]
    facts = run(*said, "--split", "0.5,0.2,0.3", "--drop", "C26", "--out", tmp_path / "a")
    assert list(facts["rows"].values()) == [1000, 400, 600]
    assert len(facts["fields"]) == 38
    facts = run(*said, "--split-by", "none", "--history", "C1", "--history-set", "time=row", "--out", tmp_path / "b")
    assert facts["rows"]["train"] not in (1600, 0)
    assert "C1:rate" in facts["fields"]
    facts = run("prepare", raw / "avazu", "--recipe", "avazu", "--split-by", "hour", "--out", tmp_path / "c")
    assert facts["rows"]["test"] == pytest.approx(ROWS * 0.2, abs=50)
    written = (tmp_path / "a" / "schema.toml").read_text().replace("min_count = 20", "min_count = 5")
    (tmp_path / "schema.toml").write_text(written)
    more = run("prepare", raw / "criteo", "--schema", tmp_path / "schema.toml", "--out", tmp_path / "d")
    assert more["fields"]["C1"]["size"] > facts["fields"].get("C1", {"size": 0})["size"]


def test_parts_by_name_give_way_to_a_split(raw: Path, tmp_path: Path, run: Run) -> None:
    said = ["prepare", raw / "ipinyou", "--recipe", "ipinyou"]
    facts = run(*said, "--split", "0.8,0.1,0.1", "--out", tmp_path / "a")
    assert sum(facts["rows"].values()) == ROWS
    assert facts["rows"]["test"] == pytest.approx(200, abs=60)
    facts = run(*said, "--split", "0.5,0.5,0", "--out", tmp_path / "b")
    assert facts["rows"]["test"] == 600
    assert facts["rows"]["valid"] == pytest.approx(700, abs=90)


def test_packing_does_not_matter(raw: Path, tmp_path: Path) -> None:
    plain = (raw / "criteo").read_bytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(plain, mtime=0))
    (tmp_path / "a.bz2").write_bytes(bz2.compress(plain))
    expected = table_of("criteo", raw / "criteo")
    for name in ("a.gz", "a.bz2"):
        assert table_of("criteo", tmp_path / name).equals(expected)
    header = table_of("avazu", raw / "avazu")
    (tmp_path / "train.gz").write_bytes(gzip.compress((raw / "avazu").read_bytes(), mtime=0))
    assert table_of("avazu", tmp_path / "train.gz").equals(header)


def test_chunks_do_not_matter(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = [raw / "criteo-1tb" / f"day_{day}" for day in (6, 7)]
    reader = Reader(find("criteo-1tb"), balance=True, seed=5)
    whole = pa.concat_tables(reader.rows(days)).combine_chunks()
    monkeypatch.setattr(streams, "CHUNK_ROWS", 100)
    assert pa.concat_tables(reader.rows(days)).combine_chunks().equals(whole)


def test_only_what_is_needed_is_read(raw: Path) -> None:
    found = table_of("ipinyou", raw / "ipinyou/training2nd/imp.20130602.txt", columns=["click", "useragent"])
    assert found.column_names == ["click", "useragent"]


def test_complete_files_pass_without_a_word(raw: Path) -> None:
    reader = Reader(find("criteo"))
    list(reader.rows([raw / "criteo"]))
    assert "train 2,000 of 45,840,617" in reader.notes({"train": [raw / "criteo"]})[0]
    whole = Reader(find("amazon"))
    whole.counts[Path("train.csv")] = 32_769
    assert whole.notes({"train": [Path("train.csv")]}) == []


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipes_are_shown(name: str, capsys: pytest.CaptureFixture[str], run: Run) -> None:
    (shown,) = run("recipes", name)["recipes"]
    assert shown["name"] == name
    assert shown["title"]
    assert shown["link"]
    assert shown["terms"]
    with pytest.raises(SystemExit):
        cli.main(["recipes", name])
    assert shown["title"] in capsys.readouterr().out


def test_all_recipes_are_listed(run: Run) -> None:
    assert [recipe["name"] for recipe in run("recipes")["recipes"]] == list(RECIPES)


def test_no_label_no_preparation(raw: Path, tmp_path: Path) -> None:
    bare = without_label("criteo", raw / "criteo", tmp_path / "bare")
    with pytest.raises(DataError, match="found no label 'label'"):
        plan_of(Asked([bare], recipe="criteo"))


def test_a_validation_part_beside_given_test_rows(raw: Path, tmp_path: Path, run: Run) -> None:
    """Without a recipe too: the training rows are split into training and validation rows."""
    path = shutil.copy(raw / "appstore", tmp_path / "a.csv")
    said = ["prepare", path, "--test", path, "--label", "click"]
    facts = run(*said, "--out", tmp_path / "a")
    assert facts["rows"]["test"] == ROWS == facts["rows"]["train"] + facts["rows"]["valid"]
    assert 0.05 < facts["rows"]["valid"] / ROWS < 0.15
    assert any(note.startswith("the validation part is 10% of the training rows") for note in facts["notes"])
    facts = run(*said, "--split", "0.8,0.2,0", "--split-group", "user", "--out", tmp_path / "b")
    assert facts["rows"]["test"] == ROWS == facts["rows"]["train"] + facts["rows"]["valid"]


def test_libsvm_rows_scaled_to_unit_length_are_categories(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("+1 3:0.5 7:0.5\n-1 4:0.5 7:0.5\n")
    assert table_of("libsvm", tmp_path / "a").to_pydict() == {"label": ["1", "0"], "f0": ["3", "4"], "f1": ["7", "7"]}
    (tmp_path / "a").write_text("+1 3:0.5 7:0.5\n-1 4:0.5 7:0.25\n")
    with pytest.raises(
        DataError, match=r"a category has value 1, a number has one feature, found '4:0.5' \(.*line 2\)"
    ):
        table_of("libsvm", tmp_path / "a")
