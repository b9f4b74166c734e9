"""A user's mistake: one line that says what, where and the way out; exit code 2; nothing half-written."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fieldwise import cli
from fieldwise.config.errors import DataError
from fieldwise.data import dataset
from fieldwise.data.read import streams
from tests.conftest import Trained

Fails = Callable[..., str]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must fail and returns its one line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        lines = printed.err.splitlines()
        assert (end.value.code, len(lines)) == (2, 1), printed.err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in printed.err + printed.out
        return lines[0]

    return run


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where commands write to; what lies beside it in its own folder shows what they left behind."""
    (tmp_path / "results").mkdir()
    return tmp_path / "results" / "out"


def left(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir())


def save(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


GOOD = "click,user\n" + "0,a\n1,b\n" * 20
WEIGHTED = "click,user,w\n" + "0,a,1\n1,b,2\n" * 20

# Files that `prepare` refuses: name, content, what the line says.
FILES: list[tuple[str, str | bytes, str]] = [
    (
        "a.csv",
        GOOD.replace("click", "clack"),
        "column 'click' is missing; did you mean 'clack'? there are: clack, user (FILE)",
    ),
    ("a.csv", GOOD.replace("1,", "0,"), "label 'click' is always 0"),
    ("a.csv", GOOD.replace("0,", "1,"), "label 'click' is always 1"),
    ("a.csv", GOOD + "2,a\n", "label 'click' must be 0 or 1, found '2' (FILE, line 42)"),
    ("a.csv", GOOD + ",a\n", "label 'click' must be 0 or 1, found nothing (FILE, line 42)"),
    ("a.csv", GOOD + "1,a,x\n" + GOOD[11:], "expected 2 columns, found 3 (FILE, line 42)"),
    ("a.csv", GOOD + "1\n", "expected 2 columns, found 1 (FILE, line 42)"),
    ("a.csv", GOOD + '1,"a\n', "a quoted cell is never closed (FILE, line 42)"),
    ("a.csv", GOOD + '1,"a"b\n', "a quoted cell is never closed, text follows its closing quote"),
    ("a.csv", GOOD.encode() + b"1,\xff\n", "cannot read the file"),
    ("a.csv", "", "the file is empty"),
    ("a.csv", "click,user\n", "there are no training rows: the file has none, or the split leaves none (FILE)"),
    ("a.csv", "click,click\n0,1\n", "must name each column once, found 'click' 2 times"),
    (
        "a.csv.gz",
        gzip.compress(np.random.default_rng(0).bytes(9999).hex("\n", 1).encode(), mtime=0)[:9000],
        "damaged or cut off",
    ),
    ("a.csv.gz", gzip.compress(GOOD.encode(), mtime=0)[:15], "cannot read the file"),
    ("a.parquet", "PAR1", "not a readable parquet file"),
    ("a.libsvm", "1 3\n", "expected feature:value, found '3' (FILE, line 1)"),
    ("a.csv.gz", b"\xf9" + GOOD.encode(), "found other bytes (b'\\xf9click,u'), and no gzip file in spite of its name"),
    ("a.csv.gz", b"PK\x03\x04\xff", "found a zip archive, as Excel files are too (FILE)"),
    ("a.csv", GOOD.encode("utf-16"), "found UTF-16 text (FILE)"),
    ("a.csv", GOOD.encode() + b"1,\xe9\n", "expected UTF-8 text, found byte 0xe9 (FILE); save it as UTF-8"),
    ("a.csv", GOOD.replace(",", " "), "there are: click user (FILE); is that one column? --separator says"),
    (
        "a.csv",
        "click,id\n" + "".join(f"{n % 2},u{n}\n" for n in range(60)),
        "no column is left to predict 'click' from",
    ),
    ("a.csv", ",click\nx,0\n" * 5, "the first column has no name and does not number the rows, found 'x' in it"),
    ("a.csv", "click,user,\n" + "0,a,\n1,b,\n" * 9, "an empty name (column 3, FILE); give it a unique name there"),
    ("a.csv", "0,3,3\n1,2,2\n", "(column 2, FILE); a file without a header ends in .txt"),
    ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "not a readable parquet file: it is packed once more; unpack it"),
    ("a.docx", GOOD, "a file must end in .csv, .tsv, .txt, .parquet, .libsvm or .libffm"),
]


@pytest.mark.parametrize(("name", "content", "message"), FILES)
def test_files(fails: Fails, tmp_path: Path, out: Path, name: str, content: str | bytes, message: str) -> None:
    path = save(tmp_path / name, content)
    line = fails("prepare", path, "--label", "click", "--out", out)
    assert message.replace("FILE", str(path)) in line
    assert left(out) == []


def test_columns_of_one_name_in_a_parquet_file(fails: Fails, tmp_path: Path, out: Path) -> None:
    columns = [pa.array([0, 1] * 9), pa.array(["a", "b"] * 9), pa.array(["a", "b"] * 9)]
    parquet.write_table(pa.Table.from_arrays(columns, names=["click", "user", "user"]), tmp_path / "a.parquet")
    line = fails("prepare", tmp_path / "a.parquet", "--label", "click", "--out", out)
    assert f"each column needs a unique name, found 'user' 2 times ({tmp_path / 'a.parquet'})" in line


def test_folders_where_files_are_meant(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    folder = tmp_path / "logs.csv"
    folder.mkdir()
    assert f"found a folder ({folder}); there is no file in it" in fails(
        "prepare", folder, "--label", "click", "--out", out
    )
    good = save(folder / "a.csv", GOOD)
    found = f"expected a file, found a folder ({folder}); name the files in it, such as {good}"
    assert found in fails("prepare", folder, "--label", "click", "--out", out)
    assert found in fails("prepare", good, "--valid", folder, "--label", "click", "--out", out)
    assert found in fails("predict", trained.run, folder, "-o", out.with_suffix(".csv"))
    line = fails("predict", trained.run, trained.log, "-o", folder)
    assert f"expected the name of a file to write, found a folder ({folder}); name a file in it" in line
    assert f"cannot make the folder {good}" in fails("prepare", good, "--label", "click", "--out", good / "x")
    assert left(out) == []


@pytest.mark.parametrize("option", ["", "--valid", "--test"])
def test_a_missing_file(fails: Fails, tmp_path: Path, out: Path, option: str) -> None:
    good, missing = save(tmp_path / "a.csv", GOOD), tmp_path / "nothing.csv"
    files = [good, option, missing] if option else [missing]
    assert f"no such file: {missing}" in fails("prepare", *files, "--label", "click", "--out", out)
    assert left(out) == []


def test_files_of_other_columns(fails: Fails, tmp_path: Path, out: Path) -> None:
    one, other = save(tmp_path / "a.csv", GOOD), save(tmp_path / "b.csv", GOOD.replace("user", "item"))
    line = fails("prepare", one, other, "--label", "click", "--out", out)
    assert f"files must have the same columns, found a difference in item ({one}, {other})" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label", ""], "--label is missing"),
        (["--label", "click", "--split", "0.8,0.2"], "--split takes three shares such as 0.8,0.1,0.1, found '0.8,0.2'"),
        (["--label", "click", "--split", "a,b,c"], "--split takes three shares"),
        (["--label", "click", "--split", "0.8,0.8,0.8"], "--split needs three shares that sum to 1"),
        (["--label", "click", "--split", "nan,0.1,0.1"], "--split needs three shares that sum to 1"),
        (["--label", "click", "--split-by", "day"], "--split-by column 'day' is missing; the file has: click, user"),
        (["--label", "click", "--seed", "-1"], "--seed must be 0 or more, found -1"),
        (["--label", "click", "--seed", "x"], "Invalid value for '--seed'"),
        (["--label", "click", "--weight", "w"], "column 'w' is missing; there are: click, user"),
        (
            ["--label", "click", "--drop", "usr"],
            "--drop: unknown column 'usr'; did you mean 'user'? available: click, ",
        ),
        (
            ["--label", "click", "--weight", "user"],
            "there is no column beside 'click' to predict it from",
        ),
        (["--label", "click", "--schema", "nothing.toml"], "cannot read the schema"),
        (["--label", "click", "--lable", "x"], "No such option"),
    ],
)
def test_options_of_prepare(fails: Fails, tmp_path: Path, out: Path, options: list[str], message: str) -> None:
    assert message in fails("prepare", save(tmp_path / "a.csv", GOOD), *options, "--out", out)
    assert left(out) == []


def test_weights(fails: Fails, tmp_path: Path, out: Path) -> None:
    path = save(tmp_path / "a.csv", WEIGHTED + "1,a,-2\n")
    line = fails("prepare", path, "--label", "click", "--weight", "w", "--out", out)
    assert "weights must be numbers of 0 or more, found '-2' in 'w' (" in line
    assert f"({path}, line 42)" in line
    assert left(out) == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            'label = "click"\n[[field]]\nname = "usr"',
            "column 'usr' is missing; did you mean 'user'? there are: click, user",
        ),
        (
            'label = "click"\n[[field]]\nname = "user"\nkind = "numeric"',
            "field 'user' is numeric, found 'a' (",
        ),
        (
            'label = "click"\n[[field]]\nname = "user"\nmincount = 3',
            "unknown field setting 'mincount'; did you mean 'min_",
        ),
        ('label = "click"\n[[field]]\nname = "user"\nkind = "cat"', "unknown kind 'cat'"),
    ],
)
def test_schemas(fails: Fails, tmp_path: Path, out: Path, schema: str, message: str) -> None:
    written = save(tmp_path / "schema.toml", schema)
    assert message in fails("prepare", save(tmp_path / "a.csv", GOOD), "--schema", written, "--out", out)
    assert left(out) == []


def test_nan_and_empty_numbers_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{n % 2},{['0.5', 'NaN', '', 'nan', '1.5'][n % 5]}" for n in range(200)]
    path = save(tmp_path / "a.csv", "\n".join(["click,price", *rows]))
    with pytest.raises(SystemExit) as end:
        cli.main(["prepare", str(path), "--label", "click", "--out", str(tmp_path / "data"), "--json"])
    assert end.value.code == 0
    assert json.loads(capsys.readouterr().out)["fields"]["price"] == {"kind": "numeric", "size": 4}
    ids = np.concatenate([part.ids[:, 0] for part in dataset.Dataset.open(tmp_path / "data").parts.values()])
    assert (ids == 0).sum() == 120


def test_out_is_there(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    out.mkdir()
    save(out / "precious", "x")
    line = fails("prepare", save(tmp_path / "a.csv", GOOD), "--label", "click", "--out", out)
    assert f"{out} is already there; choose another name, or replace it (--force)" in line
    assert f"{out} already holds something" in fails("train", trained.data, "--model", "lr", "--out", out)
    assert left(out) == ["out"]
    assert (out / "precious").read_text() == "x"


# Training.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "fmm"], "unknown model 'fmm'; did you mean 'fmfm'? available: "),
        (["--model", "fm", "--set", "model.dimm=3"], "unknown option 'dimm'; did you mean 'dim'?"),
        (["--model", "fm", "--set", "train.lrr=1"], "unknown train setting 'lrr'; did you mean 'lr'?"),
        (["--model", "fm", "--set", "train.lr"], "--set takes KEY=VALUE, such as train.lr=3e-4, found 'train.lr'"),
        (["--model", "fm", "--set", "train.lr=fast"], "train.lr must be a number, found 'fast'"),
        (["--model", "fm", "--set", "train.epochs=0"], "train.epochs must be at least 1, found 0"),
        (["--model", "fm", "--set", "train.schedule=cosin"], "unknown schedule 'cosin'; did you mean 'cosine'?"),
        (
            ["--model", "lr", "--set", "train.optimizer=ftrl", "--set", "train.schedule=cosine"],
            "ftrl needs the constant schedule without warmup",
        ),
        (
            ["--model", "fm", "--set", "model.adaptive=nan"],
            "adaptive 0 or more, found 32 and nan",
        ),
        (["--model", "fm", "--seed", "-1"], "seed must be a whole number of 0 or more, found -1"),
        (["--model", "fm", "--config", "nothing.toml"], "cannot read the config"),
    ],
)
def test_options_of_train(fails: Fails, out: Path, trained: Trained, options: list[str], message: str) -> None:
    assert message in fails("train", trained.data, *options, "--out", out)
    assert left(out) == []


def test_an_unknown_key_in_a_recipe(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    recipe = save(tmp_path / "recipe.toml", '[model]\nname = "fm"\n[train]\nlearning_rat = 1\n')
    line = fails("train", trained.data, "--config", recipe, "--out", out)
    assert "unknown train setting 'learning_rat'" in line
    assert str(recipe) in line
    assert left(out) == []


def test_a_part_of_one_class(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    """Refused before anything is trained, and in a search too."""
    copy = tmp_path / "data"
    shutil.copytree(trained.data, copy)
    labels = np.load(copy / "valid" / "labels.npy")
    np.save(copy / "valid" / "labels.npy", np.zeros_like(labels))
    for verb in ("train", "tune"):
        line = fails(verb, copy, "--model", "lr", "--out", out)
        assert f"validation rows must be of both classes, found 0 of {len(labels)} positive" in line
        assert str(copy) in line
    assert left(out) == []


def test_a_folder_that_was_not_prepared(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    assert "not a folder that `fieldwise prepare` wrote" in fails("train", tmp_path, "--model", "lr", "--out", out)
    copy = tmp_path / "data"
    shutil.copytree(trained.data, copy)
    ids = copy / "train" / "ids.npy"
    save(ids, ids.read_bytes()[:-100])
    assert "not a folder that `fieldwise prepare` wrote" in fails("train", copy, "--model", "lr", "--out", out)
    assert left(out) == []


def damaged(data: Path, copy: Path, part: str, change: Callable[[Any], Any]) -> Path:
    """A copy of a prepared folder with other ids."""
    shutil.copytree(data, copy)
    ids = copy / part / "ids.npy"
    np.save(ids, change(np.load(ids)))
    return copy


def test_a_folder_without_its_encoder_is_refused_before_training(
    fails: Fails, tmp_path: Path, out: Path, trained: Trained
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(trained.data, copy)
    shutil.rmtree(copy / "encoder")
    line = fails("train", copy, "--model", "lr", "--out", out)
    assert f"not a folder that `fieldwise prepare` wrote: there is no {copy / 'encoder'} ({copy})" in line
    assert left(out) == []


def test_ids_of_another_kind_are_refused(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    copy = damaged(trained.data, tmp_path / "data", "train", lambda ids: ids.astype(np.float64))
    assert "part 'train' is damaged: " in fails("train", copy, "--model", "lr", "--out", out)
    assert left(out) == []


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_ids_outside_of_their_field_are_one_line(
    fails: Fails, tmp_path: Path, out: Path, trained: Trained, part: str
) -> None:
    copy = damaged(trained.data, tmp_path / "data", part, lambda ids: ids + 10**6)
    settings = ["--set", "train.epochs=1", "--json"]
    line = fails("train", copy, "--model", "fnn", "--set", "model.hidden=[4]", *settings, "--out", out)
    assert f"an id lies outside of its field: the data are damaged; prepare them anew ({copy})" in line


# Tuning.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time", "30"], "--time takes a time such as 90s, 30m or 2h, found '30'"),
        (["--time", "-5m"], "--time takes a time such as 90s, 30m or 2h, found '-5m'"),
        (["--time", "0s"], "--time takes a time such as 90s, 30m or 2h, found '0s'"),
        (["--trials", "0"], "--trials must be at least 1, found 0"),
        (["--model", "fmm"], "unknown model 'fmm'; did you mean 'fmfm'?"),
        (["--set", "model.dmi=4"], "did you mean 'dim'?"),
        (["--set", "model.dim=0"], "dim must be positive"),
        (["--set", "train.optimizer=adm"], "unknown optimizer 'adm'; did you mean 'adam'?"),
        (["--set", "train.init_from=nowhere"], "expected a run or a bundle folder"),
        (["--set", "train.lr"], "--set takes KEY=VALUE"),
        (["--model", "gbdt", "--set", "train.lr=0.1"], "train.lr has no meaning for gbdt"),
        (["--device", "tpu"], "device must be cpu, cuda or auto, found 'tpu'"),
        (["--config", "nothing.toml"], "cannot read the config"),
    ],
)
def test_options_of_tune(fails: Fails, out: Path, trained: Trained, options: list[str], message: str) -> None:
    assert message in fails("tune", trained.data, "--model", "fm", *options, "--out", out)
    assert left(out) == []


def test_where_a_study_goes(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    (tmp_path / "mine").mkdir()
    save(tmp_path / "mine" / "thesis.txt", "x")
    for folder in (tmp_path / "mine", trained.log):
        line = fails("tune", trained.data, "--model", "lr", "--out", folder)
        assert f"{folder} holds something that is no study; choose another --out" in line
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    assert "not a folder that `fieldwise prepare` wrote" in fails("tune", tmp_path, "--model", "lr", "--out", out)
    data = tmp_path / "data"
    shutil.copytree(trained.data, data)
    facts = json.loads((data / "data.json").read_text())
    save(data / "data.json", json.dumps(facts | {"rows": {"train": facts["rows"]["train"]}}))
    assert "training needs a validation part" in fails("tune", data, "--model", "lr", "--out", out)
    assert left(out) == []


def test_a_study_of_something_else(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    command = ["tune", trained.data, "--set", "train.epochs=1", "--trials", 1, "--out", out]
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in [*command, "--model", "lr"]])
    assert end.value.code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = tmp_path / "data"
    shutil.copytree(trained.data, other)
    save(other / "data.json", (other / "data.json").read_text().replace('"digest": "', '"digest": "0'))
    for arguments, what in (
        ([*command, "--model", "fm"], "another model"),
        ([*command, "--model", "lr", "--seed", 1], "other settings"),
        ([*command, "--model", "lr", "--set", "train.lr=0.002"], "other settings"),
        (["tune", other, *command[2:], "--model", "lr"], "other data"),
    ):
        assert f"the study was begun with {what}; keep to its own, or choose another" in fails(*arguments)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    save(out / "study.log", "nonsense\n" + (out / "study.log").read_text())
    assert "the study is damaged" in fails(*command, "--model", "lr")
    save(out / "identity.json", "{")
    assert "the study is damaged" in fails(*command, "--model", "lr")


def test_without_optuna(fails: Fails, out: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "tuning needs Optuna, which is not installed: pip install fieldwise[tune]" in fails(
        "tune", trained.data, "--model", "fm", "--out", out
    )
    assert left(out) == []


# Predicting and evaluating.


def test_a_missing_column(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    path = save(tmp_path / "new.csv", "click,user,tags\n1,u1,a\n")
    for arguments in (["predict", trained.run, path, "-o", out.with_suffix(".csv")], ["evaluate", trained.run, path]):
        assert f"column 'price' is missing; the file has: click, user, tags ({path})" in fails(*arguments)
    unlabelled = save(tmp_path / "unlabelled.csv", "user,price,tags\nu1,1,a\n")
    assert "column 'click' is missing" in fails("evaluate", trained.run, unlabelled)
    assert left(out) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("u1,0.5\n", "expected 3 columns, found 2 (FILE, line 2)"),
        ("", "there are no rows"),
    ],
)
def test_rows_to_predict(fails: Fails, tmp_path: Path, out: Path, trained: Trained, rows: str, message: str) -> None:
    path = save(tmp_path / "new.csv", "user,price,tags\n" + rows)
    line = fails("predict", trained.run, path, "-o", out.with_suffix(".parquet"))
    assert message.replace("FILE", str(path)) in line
    assert left(out) == []


def test_a_bad_row_far_down_leaves_no_predictions(
    fails: Fails, tmp_path: Path, out: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_ROWS", 2048)
    path = save(tmp_path / "new.csv", "user,price,tags\n" + "u1,0.5,a\n" * 9000 + "u1\n")
    old = save(out.with_suffix(".csv"), "old")
    assert f"expected 3 columns, found 1 ({path}, line 9002)" in fails("predict", trained.run, path, "-o", old)
    assert left(out) == ["out.csv"]
    assert old.read_text() == "old"


def test_never_seen_values_are_no_mistake(tmp_path: Path, trained: Trained) -> None:
    path = save(tmp_path / "new.csv", 'user,price,tags\nnever,1e300,x|y|z|w\n,,\n"\n",nan,|\n')
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", str(trained.run), str(path), "-o", str(tmp_path / "p.parquet")])
    assert end.value.code == 0
    found = parquet.read_table(tmp_path / "p.parquet")["probability"].to_numpy()
    assert len(found) == 3
    assert ((found > 0) & (found < 1)).all()


@pytest.mark.parametrize("name", ["p.docx", "p.libsvm", "p"])
def test_where_predictions_go(fails: Fails, out: Path, trained: Trained, name: str) -> None:
    assert "must end in" in fails("predict", trained.run, trained.log, "-o", out.parent / name)
    assert left(out) == []


def test_lists_do_not_fit_into_csv(fails: Fails, tmp_path: Path, out: Path, trained: Trained) -> None:
    table = pa.table({"user": ["u1"], "price": [0.5], "tags": [["a", "b"]]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    line = fails("predict", trained.run, tmp_path / "rows.parquet", "--keep", "-o", out.with_suffix(".csv"))
    assert "found lists in column 'tags'; write .parquet" in line
    assert left(out) == []


# Bundles.


def damage_cut(bundle: Path) -> None:
    weights = bundle / "weights.safetensors"
    save(weights, weights.read_bytes()[:-10])


def damage_changed(bundle: Path) -> None:
    vocabulary = bundle / "encoder" / "vocabulary.parquet"
    content = bytearray(vocabulary.read_bytes())
    content[len(content) // 2] ^= 1
    save(vocabulary, bytes(content))


def damage_missing(bundle: Path) -> None:
    (bundle / "calibration.json").unlink()


def damage_no_json(bundle: Path) -> None:
    save(bundle / "bundle.json", "{")


def damage_other_json(bundle: Path) -> None:
    save(bundle / "bundle.json", "[1]")


def damage_later_format(bundle: Path) -> None:
    facts = json.loads((bundle / "bundle.json").read_text())
    save(bundle / "bundle.json", json.dumps(facts | {"format": 99}))


def damage_empty(bundle: Path) -> None:
    shutil.rmtree(bundle)
    bundle.mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_cut, "weights.safetensors is changed or cut off"),
        (damage_changed, "encoder/vocabulary.parquet is changed or cut off"),
        (damage_missing, "calibration.json is missing"),
        (damage_no_json, "cannot read bundle.json"),
        (damage_other_json, "cannot read bundle.json: expected an object, found a list"),
        (damage_later_format, "expected a bundle of format 1, found 99"),
        (damage_empty, "expected a run or a bundle folder"),
    ],
)
def test_bundles(
    fails: Fails, tmp_path: Path, out: Path, trained: Trained, damage: Callable[[Path], None], message: str
) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(trained.run / "bundle", copy)
    damage(copy)
    commands: list[list[Any]] = [
        ["predict", copy, trained.log, "-o", out.with_suffix(".csv")],
        ["evaluate", copy, trained.log],
    ]
    for command in commands:
        line = fails(*command)
        assert message in line
        assert str(copy) in line
    assert left(out) == []


def test_foreign_folders(fails: Fails, tmp_path: Path, trained: Trained) -> None:
    for path in (tmp_path, tmp_path / "nothing", trained.log, trained.data):
        assert "expected a run or a bundle folder" in fails("evaluate", path, trained.log)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    save(foreign / "bundle.json", '{"format": 1}')
    assert "cannot read config.toml: No such file or directory" in fails("evaluate", foreign, trained.log)


def test_a_run_that_has_not_finished(fails: Fails, tmp_path: Path, trained: Trained) -> None:
    shutil.copytree(trained.run, tmp_path / "run", ignore=shutil.ignore_patterns("bundle", "DONE"))
    line = fails("evaluate", tmp_path / "run", trained.log)
    assert "the run has not finished; go on with `fieldwise train ... --resume`" in line


# A full disk.


def full(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_while_preparing(
    fails: Fails, out: Path, small_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset.ArrayFile, "append", full)
    line = fails("prepare", small_log, "--label", "click", "--out", out)
    assert line == f"error: the disk is full; free some space, or write elsewhere ({out})"
    assert left(out) == []


def test_a_disk_that_is_full_while_predicting(
    fails: Fails, out: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet.ParquetWriter, "write_table", full)
    line = fails("predict", trained.run, trained.log, "-o", out.with_suffix(".parquet"))
    assert line == f"error: the disk is full; free some space, or write elsewhere ({out.with_suffix('.parquet')})"
    assert left(out) == []


def test_files_that_may_not_grow(out: Path, trained: Trained, tmp_path: Path) -> None:
    """The kernel's own refusal, in a process of its own: no file may be longer than 2,000 bytes."""
    commands = [
        ["prepare", str(trained.log), "--label", "click", "--out", str(out)],
        ["predict", str(trained.run), str(trained.log), "--keep", "-o", f"{out}.parquet"],
        ["predict", str(trained.run), str(trained.log), "--keep", "-o", f"{out}.csv"],
        ["predict", str(trained.run), str(trained.log), "--keep", "-o", f"{out}.csv.gz"],
    ]
    script = (
        "import json, sys\nfrom fieldwise import cli\nfor command in json.loads(sys.argv[1]):\n"
        "    try:\n        cli.main(command)\n    except SystemExit as end:\n        print(end.code, file=sys.stderr)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    expected = [f"error: the disk is full; free some space, or write elsewhere ({command[-1]})" for command in commands]
    assert done.stderr.splitlines() == [line for text in expected for line in (text, "2")]
    assert left(out) == []


# The command line itself.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepar"], "No such command 'prepar'"),
        (["prepare"], "Missing argument"),
        (["models", "fmm"], "unknown model 'fmm'; did you mean 'fmfm'?"),
        (["train", "data", "--model", "fm"], "Missing option '--out'"),
    ],
)
def test_verbs(fails: Fails, arguments: list[str], message: str) -> None:
    assert message in fails(*arguments)


def test_debug_shows_where(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        cli.main(["prepare", str(tmp_path / "nothing.csv"), "--label", "x", "--out", str(tmp_path / "data"), "--debug"])
