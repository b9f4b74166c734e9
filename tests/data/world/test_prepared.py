"""A log that goes straight to ids is, byte for byte, what `prepare` makes of its text."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from fieldwise import cli
from fieldwise.config.errors import ConfigError, DataError, FieldwiseError
from fieldwise.data.encode import prepare as text_path
from fieldwise.data.encode.split import Split
from fieldwise.data.world import World, prepared, world
from fieldwise.data.world.prepared import prepare_log, values_shown

RATES = {"criteo": 0.5, "avazu": 0.17, "ipinyou": 0.03, "appstore": 0.05, "demo": 0.2, "repeat": 0.2}
ROWS = 4_321


def run(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    return end.value.code


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    """Several blocks, and a sample that ends within one of them."""
    monkeypatch.setattr(world, "BLOCK", 1_000)
    for module in (text_path, prepared):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 1_900)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def both(tmp_path: Path, kind: str, seed: int, threads: int, split: Split | None = None) -> list[dict[str, bytes]]:
    """The folders of the text and of the codes."""
    made = World(kind, seed, RATES[kind])
    table = made.log(ROWS, seed + 5).table
    found = [
        text_path.prepare({"train": lambda: iter([table])}, tmp_path / "text", "click", split=split),
        prepare_log(made, made.span(ROWS, seed + 5), tmp_path / "ids", split, threads=threads),
    ]
    assert {**found[0], "data": ""} == {**found[1], "data": ""}
    return [files(tmp_path / name) for name in ("text", "ids")]


@pytest.mark.parametrize(
    ("kind", "seed", "threads"),
    [(kind, seed, 1 + 2 * seed) for kind, seed in itertools.product(("criteo", "avazu", "ipinyou", "appstore"), (0, 1))]
    + [("demo", 2, 2), ("repeat", 0, 2)],
)
def test_the_folder_is_that_of_the_text(tmp_path: Path, kind: str, seed: int, threads: int):
    text, ids = both(tmp_path, kind, seed, threads)
    assert {"data.json", "schema.toml", "encoder/vocabulary.parquet", "train/ids.npy", "test/labels.npy"} <= set(ids)
    assert text == ids


@pytest.mark.parametrize("split", [Split(by="row"), Split((0.9, 0.0, 0.1), seed=4), Split((1.0, 0.0, 0.0))])
def test_it_is_also_with_another_split(tmp_path: Path, split: Split):
    text, ids = both(tmp_path, "appstore", 1, 2, split)
    assert text == ids


def test_it_is_also_by_way_of_a_csv_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = ["simulate", "--kind", "demo", "--rows", "3000", "--seed", "3", "--first-day", "2", "--out"]
    assert run([*log, str(tmp_path / "log.csv")]) == 0
    prepare = ["prepare", str(tmp_path / "log.csv"), "--label", "click", "--history", "none", "--out"]
    assert run([*prepare, str(tmp_path / "text")]) == 0
    assert run([*log, str(tmp_path / "ids"), "--layout", "ids", "--threads", "2"]) == 0
    assert "next: fieldwise train" in capsys.readouterr().out
    assert files(tmp_path / "text") == files(tmp_path / "ids")


def test_many_threads_leave_what_one_does(tmp_path: Path):
    made = World("avazu", 1)
    for threads in (1, 2, 7):
        prepare_log(made, made.span(ROWS), tmp_path / str(threads), threads=threads)
    assert files(tmp_path / "1") == files(tmp_path / "2") == files(tmp_path / "7")


def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path):
    made, out = World("demo"), tmp_path / "data"
    with pytest.raises(ConfigError, match="split at random or by row, found user"):
        prepare_log(made, made.span(100), out, Split(group=("user",)))
    with pytest.raises(ConfigError, match="--threads takes a number of threads"):
        prepare_log(made, made.span(100), out, threads=-1)
    rare = World("demo", base_rate=1e-9)
    with pytest.raises(DataError, match="label 'click' is always 0 in the"):
        prepare_log(rare, rare.span(100), out)
    with pytest.raises(DataError, match="there are no training rows"):
        prepare_log(made, made.span(1), out, Split((0.01, 0.0, 0.99)))
    assert not list(tmp_path.iterdir())
    prepare_log(made, made.span(300), out)
    with pytest.raises(FieldwiseError, match="already there"):
        prepare_log(made, made.span(300), out)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--layout", "ids", "--truth"], "--layout ids has no column for --truth"),
        (["--threads", "2"], "--threads is for --layout ids"),
        (["--layout", "id"], "--layout takes plain, raw or ids"),
    ],
)
def test_options_that_do_nothing_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], options, rule):
    assert run(["simulate", "--rows", "100", "--out", str(tmp_path / "log.csv"), *options]) == 2
    assert rule in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", RATES)
def test_blocks_are_the_same_in_any_order_and_have_the_plain_truth(kind: str):
    made = World(kind, 2)
    span = made.span(3_500, 7)
    blocks = {start: made.block(span, start) for start in reversed(span.starts)}
    log = made.log(3_500, 7)
    for start, block in blocks.items():
        rows = slice(start, start + 1_000)
        assert np.array_equal(block.clicks, log.table["click"].to_numpy()[rows])
        again = made.codes(span, start)
        assert all(np.array_equal(again[name], code) for name, code in block.codes.items())
        plain = made.probability(log.table[rows])
        np.testing.assert_allclose(block.probability, plain, atol=1e-6)


@pytest.mark.parametrize("kind", ["avazu", "appstore", "demo"])
def test_values_are_counted_as_in_the_text(kind: str):
    made = World(kind, 1, RATES[kind])
    table = made.log(ROWS).table
    sets = [name for name, column in made.columns.items() if column.style == "set"]
    cells = {name: table[name] for name in made.columns}
    cells |= {name: pc.list_flatten(pc.split_pattern(table[name], "|")) for name in sets}
    shown, positives = values_shown(made, made.span(ROWS))
    assert shown == {name: pc.count_distinct(column).as_py() for name, column in cells.items()}
    assert positives == pc.sum(table["click"]).as_py()
