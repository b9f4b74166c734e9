"""Ids of values that have expired: their rows start anew, for whom the chain of folders says so and for nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fieldwise import cli
from fieldwise.bundle import bundle
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.lifetimes import FILE
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import FIRST, OTHER, Field, Schema
from fieldwise.models import build
from fieldwise.train.incremental import take_weights
from fieldwise.train.loop import train
from tests.test_contract import LAYOUTS, drawn_ids, made
from tests.test_resume import KillAt, Killed
from tests.train.test_incremental import FM, OPTIMIZERS, continued, state_of

RATES = {"old": 0.9, "late": 0.8, "a": 0.1, "b": 0.4, "new": 0.6, "newer": 0.2}
SCHEMA = Schema("click", (Field("item"), Field("colour")))
# Which items each folder has: `old` expires in the third one, where `new` and `newer` come.
FOLDERS = (("old", "a", "b"), ("late", "a", "b"), ("new", "newer", "a", "b"))


def clicks(items: tuple[str, ...], seed: int, rows: int = 400) -> pa.Table:
    random = np.random.default_rng(seed)
    chosen = [items[place] for place in random.integers(0, len(items), rows)]
    label = (random.random(rows) < [RATES[item] for item in chosen]).astype(int)
    return pa.table({"click": label, "item": chosen, "colour": [("red", "blue")[row % 2] for row in range(rows)]})


def prepared(
    folder: Path, number: int, run: Path | None = None, seed: int = 0, items: tuple[str, ...] = ()
) -> dict[str, Any]:
    log = clicks(items or FOLDERS[number], 10 * number + seed)
    known = bundle.load_encoder(run) if run else None
    more: dict[str, Any] = {} if known else {"schema": SCHEMA, "expire_after": ("1",)}
    return prepare({"train": lambda: iter([log])}, folder, "click", split=Split(), known=known, **more)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folders of a chain, data0 to data2, and FMs on the first two, run0 and run1."""
    folder = tmp_path_factory.mktemp("chain")
    for number in range(3):
        facts = prepared(folder / f"data{number}", number, folder / f"run{number - 1}" if number else None)
        if number < 2:
            start = continued(folder / "run0") if number else load_config(base={**FM, "train.epochs": 15})
            train(start, folder / f"data{number}", folder / f"run{number}")
    assert (facts["new_ids"], facts["expired"]) == ({"item": 2}, {"item": 1})
    return folder


def test_the_new_value_has_the_row_of_the_old_one(chain: Path) -> None:
    codes = [bundle.load_encoder(chain / run).codes[0] for run in ("run0", "run1")]
    assert codes[0].vocabulary["old"] == codes[1].vocabulary["old"]
    facts = json.loads((chain / "data2" / "data.json").read_text())
    # One new value has its id, and the other one comes behind `late`.
    assert facts["sizes"] == [FIRST + 5, FIRST + 2]
    assert bundle.load_encoder(chain / "run1").codes[0].size == FIRST + 4


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("origin", ["run1", "run0"])
def test_weights_and_state_of_an_expired_value_start_anew(
    chain: Path, tmp_path: Path, optimizer: str, origin: str
) -> None:
    """Row by row; also where the run before last is continued."""
    chosen = {**FM, **OPTIMIZERS[optimizer]}
    train(load_config(base=chosen), chain / f"data{origin[-1]}", tmp_path / origin)
    with pytest.raises(Killed):
        train(continued(tmp_path / origin), chain / "data2", tmp_path / "next", progress=KillAt(1))
    before, after = state_of(tmp_path / origin), state_of(tmp_path / "next", "000000000000")
    old, new = Dataset.open(chain / f"data{origin[-1]}").layout, Dataset.open(chain / "data2").layout
    ids = bundle.load_encoder(chain / origin).codes[0].vocabulary
    kept = {id for text, id in ids.items() if text != "old"} | {0, OTHER}
    tables = [name for name, value in before.items() if value.dim() > 0 and len(value) == old.rows]
    assert len(tables) >= 2
    for name in tables:
        for field, size in enumerate(new.sizes):
            for id in range(size):
                row, start = after[name][new.offsets[field] + id], old.offsets[field]
                if id in kept if field == 0 else id < old.sizes[field]:
                    expected = before[name][start + id]
                else:
                    expected = before[name][start + OTHER] if name.startswith("model.") else torch.zeros_like(row)
                assert torch.equal(row, expected), (name, field, id)
    # The clocks of rows are among them where the optimiser has some.
    assert any(name.endswith("last") for name in tables) or optimizer != "paper"


def test_old_bundles_predict_what_they_did_and_new_ones_have_forgotten(chain: Path, tmp_path: Path) -> None:
    rows = [{"item": item, "colour": "red"} for item in ("old", "new", "newer", "never seen")]
    said = Predictor.load(chain / "run0").predict(rows)
    assert said[0] > said[3] + 0.1
    train(continued(chain / "run1", **{"train.epochs": 6}), chain / "data2", tmp_path / "run2")
    found = Predictor.load(tmp_path / "run2").predict(rows)
    assert found[0] == found[3]
    assert found[1] > found[0] > found[2]
    assert np.array_equal(Predictor.load(chain / "run0").predict(rows), said)
    assert Predictor.load(tmp_path / "run2").evaluate_prepared(chain / "data2")


def test_ids_that_moved_without_a_word_of_the_chain_are_refused(chain: Path, tmp_path: Path) -> None:
    """A brother of the second run gave the ids to other values, as has a chain that begins elsewhere."""
    prepared(tmp_path / "data1", 1, chain / "run0", items=("new", "a", "b"))
    train(continued(chain / "run0"), tmp_path / "data1", tmp_path / "brother")
    prepared(tmp_path / "data0", 0, items=("a", "b", "late"))
    train(load_config(base=FM), tmp_path / "data0", tmp_path / "stranger")
    for run in ("brother", "stranger"):
        with pytest.raises(ConfigError, match="field 'item' has other ids there; prepare the new rows with") as error:
            train(continued(tmp_path / run), chain / "data2", tmp_path / "next")
        assert "\n" not in str(error.value)
    (chain / "data2" / "encoder" / FILE).rename(tmp_path / FILE)
    try:
        with pytest.raises(ConfigError, match="field 'item' has other ids there"):
            train(continued(chain / "run1"), chain / "data2", tmp_path / "next")
    finally:
        (tmp_path / FILE).rename(chain / "data2" / "encoder" / FILE)
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize(
    ("old", "new", "renewed", "right"),
    [
        (["a", "b"], ["a", "b", "c"], "001", True),
        (["a", "b"], ["b", "a"], "00", False),
        (["a", "b"], ["a", "c"], "00", False),
        (["a", "b"], ["a", "c"], "01", True),
        (["a", "b"], ["a", ""], "00", False),
        (["a", "b"], ["a", ""], "01", True),
        (["a", "b"], ["b", "c"], "10", False),
        (["a", "b"], ["b", "c"], "11", True),
        (["a", ""], ["a", "c"], "00", False),
        (["a", ""], ["a", "c"], "01", True),
        (["a", "b"], ["a"], "1", False),
    ],
)
def test_what_may_become_of_ids(old: list[str], new: list[str], renewed: str, right: bool) -> None:
    field = Field("x")
    now = field.words(new, FIRST + 2 if len(new) > 2 else 0)
    assert now.lives_on(field.words(old), np.array([mark == "1" for mark in renewed])) == right


@pytest.mark.parametrize("name", ["fm", "ffm", "pin", "deepfm", "din", "dcn"])
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("adaptive", [0.0, 2.0])
def test_an_id_that_was_given_up_scores_as_other(name: str, kind: str, adaptive: float) -> None:
    """In fields of all sorts, and in tables of some fields alone; what shares the ids of a field gives them up too."""
    layout = LAYOUTS[kind]
    try:
        chosen = {"adaptive": adaptive} if adaptive else {}
        origin = made(name, layout, **chosen).eval()
    except (ConfigError, KeyError):
        pytest.skip("there is no such model, or it has no vectors of different sizes")
    # Anchors of a number are no values, and never given up.
    gone = [np.array([] if f in layout.ordered else [n - 1], dtype=np.int32) for f, n in enumerate(layout.sizes)]
    model = made(name, layout, seed=1, **chosen).eval()
    take_weights(model, layout, origin, gone)
    ids = drawn_ids(layout)
    last = torch.tensor([-2 if f in layout.ordered else layout.sizes[f] - 1 for f in layout.column_fields])
    assert torch.equal(model(ids), origin(torch.where(ids == last, OTHER, ids)))


def test_rows_of_pairs_cannot_forget_values() -> None:
    layout = LAYOUTS["plain"]
    origin = build("poly2", layout)
    nothing = [np.empty(0, dtype=np.int32)] * layout.fields
    take_weights(build("poly2", layout), layout, origin, nothing)
    with pytest.raises(ConfigError, match="this model has rows of pairs of values, some of which expired; train anew"):
        take_weights(build("poly2", layout), layout, origin, [np.array([2]), *nothing[1:]])


def test_the_command_line(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa.csv.write_csv(clicks(FOLDERS[2], 20), tmp_path / "log.csv")

    def run(*words: Any) -> str:
        with pytest.raises(SystemExit) as end:
            cli.main([str(word) for word in words])
        shown = capsys.readouterr()
        assert end.value.code == (2 if shown.err.startswith("error") else 0), shown.err
        return shown.err if end.value.code else shown.out

    more = (tmp_path / "log.csv", "--continue-from", chain / "run1", "--split-by", "none", "--out")
    told = run("prepare", *more, tmp_path / "data")
    assert "new ids, in place of expired values, and behind the old ones: item 2" in told
    assert "expired: item 1" in told
    kept = run("prepare", *more, tmp_path / "kept", "--expire-after", "5")
    assert "new ids, behind the old ones: item 2" in kept
    assert "expired" not in kept
    assert "found 'a month'" in run("prepare", *more, tmp_path / "no", "--expire-after", "a month")
    assert "cannot expire" not in run("prepare", *more, tmp_path / "one", "--expire-after", "item=5")
    facts = json.loads(run("prepare", *more, tmp_path / "json", "--json"))
    assert facts["expired"] == {"item": 1}


def test_a_server_does_without_what_is_remembered(chain: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from fieldwise.export.export import export

    export(chain / "run1", tmp_path / "served")
    assert (chain / "run1" / "bundle" / "encoder" / FILE).is_file()
    assert not list(tmp_path.rglob(FILE))
    assert bundle.checked(tmp_path / "served")


def test_averaged_weights_start_anew_too(chain: Path, tmp_path: Path) -> None:
    train(load_config(base={**FM, "train.average": 1.0}), chain / "data1", tmp_path / "one")
    with pytest.raises(Killed):
        train(continued(tmp_path / "one"), chain / "data2", tmp_path / "two", progress=KillAt(1))
    weights, found = bundle.load(tmp_path / "one").model.state_dict(), state_of(tmp_path / "two", "000000000000")
    id = bundle.load_encoder(tmp_path / "one").codes[0].vocabulary["old"]
    for name, value in weights.items():
        if value.dim() == 2:
            assert torch.equal(found[f"model.{name}"][id], value[OTHER])
            assert torch.equal(found[f"average.{name}"][id], value[OTHER])
