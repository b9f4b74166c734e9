"""csv -> prepare -> train -> bundle -> predict, and the same row everywhere."""

import json

import numpy as np
import pandas
import polars
import pyarrow.parquet as pq
import pytest

from fieldwise import Predictor, cli
from fieldwise.config.errors import DataError
from fieldwise.data.read import formats


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    assert run("simulate", "--kind", "demo", "--rows", 4000, "--seed", 3, "--out", folder / "log.csv") == 0
    assert run("prepare", folder / "log.csv", "--label", "click", "--out", folder / "data") == 0
    fast = [
        "--set",
        "train.epochs=2",
        "--set",
        "model.dim=4",
        "--set",
        "model.hidden=[16]",
        "--set",
        "model.subnet=4,2",
    ]
    assert run("train", folder / "data", "--model", "pin", *fast, "--out", folder / "run", "--seed", 1) == 0
    return folder


def test_every_verb_answers_in_json(walk, capsys):
    capsys.readouterr()
    assert run("evaluate", walk / "run", walk / "log.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"auc", "log_loss", "rig", "calibration", "rows"} <= found.keys()
    assert found["rows"] == 4000
    assert run("models", "--json") == 0
    assert "pin" in [model["name"] for model in json.loads(capsys.readouterr().out)["models"]]
    assert run("report", walk / "run", "-o", walk / "page.html", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["model"] == "pin"


def test_the_same_row_everywhere(walk):
    """In a file, in a chunk, alone as a dict, from the bundle or the run: one probability."""
    assert run("predict", walk / "run", walk / "log.csv", "-o", walk / "p.parquet", "--keep") == 0
    assert run("predict", walk / "run" / "bundle", walk / "log.csv", "-o", walk / "p.csv") == 0
    kept = pq.read_table(walk / "p.parquet")
    written = kept["probability"].to_numpy()
    assert kept["user"].to_pylist() == polars.read_csv(walk / "log.csv")["user"].to_list()
    as_csv = np.loadtxt(walk / "p.csv", skiprows=1)
    np.testing.assert_array_equal(as_csv, written)
    predictor = Predictor.load(walk / "run")
    rows = [row for chunk in formats.read([walk / "log.csv"]) for row in chunk.slice(0, 50).to_pylist()]
    alone = np.array([predictor.predict([row])[0] for row in rows])
    np.testing.assert_allclose(alone, written[:50], rtol=2e-6)
    typed = polars.read_csv(walk / "log.csv").head(50)
    np.testing.assert_array_equal(predictor.predict(typed), predictor.predict(rows))


def test_evaluation_of_raw_rows_equals_that_of_prepared_ones(walk, capsys):
    """The same file as raw test rows and as prepared ones."""
    data = walk / "given"
    assert (
        run(
            "prepare",
            walk / "log.csv",
            "--test",
            walk / "log.csv",
            "--valid",
            walk / "log.csv",
            "--label",
            "click",
            "--schema",
            walk / "data" / "schema.toml",
            "--out",
            data,
        )
        == 0
    )
    assert run("train", data, "--model", "fm", "--set", "train.epochs=1", "--out", walk / "fm") == 0
    capsys.readouterr()
    assert run("evaluate", walk / "fm", data, "--json") == 0
    prepared = json.loads(capsys.readouterr().out)
    assert run("evaluate", walk / "fm", walk / "log.csv", "--json") == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw == prepared
    assert json.loads((walk / "fm" / "report.json").read_text())["test"] == prepared


def test_a_foreign_prepared_folder_is_refused(walk, capsys):
    assert run("simulate", "--kind", "appstore", "--rate", 0.2, "--rows", 2000, "--out", walk / "app.csv") == 0
    assert run("prepare", walk / "app.csv", "--label", "click", "--out", walk / "app") == 0
    capsys.readouterr()
    assert run("evaluate", walk / "run", walk / "app") == 2
    assert "another encoder" in capsys.readouterr().err


def test_demo_on_few_rows(tmp_path, capsys):
    assert run("demo", "--rows", 3000, "--out", tmp_path / "demo", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in first["runs"]] == ["lr", "fm", "fnn", "pin"]
    assert first["oracle"]["auc"] > max(row["auc"] for row in first["runs"])
    assert run("demo", "--rows", 3000, "--out", tmp_path / "demo", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    clock = {"rows_per_s", "seconds", "times"}
    assert [{k: v for k, v in r.items() if k not in clock} for r in first["runs"]] == [
        {k: v for k, v in r.items() if k not in clock} for r in again["runs"]
    ]
    assert (tmp_path / "demo" / "report.html").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert run("demo", "--out", tmp_path / "mine") == 2
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_help_shows_an_example(capsys):
    for verb in ("demo", "simulate", "prepare", "train", "evaluate", "predict", "models", "report", "compare"):
        assert run(verb, "--help") == 0
        assert "Example" in capsys.readouterr().out


def test_pandas_and_the_command_line_spell_values_alike(walk, tmp_path):
    """A csv that pandas wrote says True and 3.0; read back it holds booleans and numbers."""
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({"click": random.integers(0, 2, 400), "flag": random.integers(0, 2, 400) > 0})
    frame["count"] = np.where(random.random(400) < 0.1, np.nan, random.integers(0, 9, 400))
    frame.to_csv(tmp_path / "log.csv", index=False)
    assert run("prepare", tmp_path / "log.csv", "--label", "click", "--out", tmp_path / "data") == 0
    assert run("train", tmp_path / "data", "--model", "fm", "--set", "train.epochs=2", "--out", tmp_path / "run") == 0
    assert run("predict", tmp_path / "run", tmp_path / "log.csv", "-o", tmp_path / "p.csv") == 0
    written = np.loadtxt(tmp_path / "p.csv", skiprows=1)
    typed = pandas.read_csv(tmp_path / "log.csv")
    assert typed["flag"].dtype == bool
    predictor = Predictor.load(tmp_path / "run")
    np.testing.assert_array_equal(predictor.predict(typed), written)
    assert len(np.unique(written)) > 10


def test_weights_count_in_a_file_as_in_a_folder(tmp_path, capsys):
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({"click": random.integers(0, 2, 600), "user": random.integers(0, 9, 600)})
    frame["w"] = random.random(600)
    frame.to_csv(tmp_path / "log.csv", index=False)
    prepared = ["--label", "click", "--weight", "w", "--test", tmp_path / "log.csv", "--valid", tmp_path / "log.csv"]
    assert run("prepare", tmp_path / "log.csv", *prepared, "--out", tmp_path / "data") == 0
    assert run("train", tmp_path / "data", "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run") == 0
    capsys.readouterr()
    assert run("evaluate", tmp_path / "run", tmp_path / "data", "--json") == 0
    folder = json.loads(capsys.readouterr().out)
    assert run("evaluate", tmp_path / "run", tmp_path / "log.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out) == folder
    assert folder["positive_rate"] != pytest.approx(frame["click"].mean(), abs=1e-6)


def test_libffm_numbers_are_what_the_schema_says(tmp_path):
    """A file whose numbers all happen to be 1, or that has no label, is read as the training file was."""
    random = np.random.default_rng(0)
    lines = [
        f"{random.integers(0, 2)} 0:0:{random.integers(1, 90) / 10} 1:{random.integers(1, 5)}:1" for _ in range(500)
    ]
    (tmp_path / "log.ffm").write_text("\n".join(lines))
    assert run("prepare", tmp_path / "log.ffm", "--label", "label", "--out", tmp_path / "data") == 0
    assert run("train", tmp_path / "data", "--model", "fm", "--set", "train.epochs=3", "--out", tmp_path / "run") == 0
    found = []
    for text in ("1 0:0:1 1:2:1", "0:0:1 1:2:1", "1 0:0:1.0 1:2:1\n0 0:0:7.5 1:3:1"):
        (tmp_path / "new.ffm").write_text(text)
        assert run("predict", tmp_path / "run", tmp_path / "new.ffm", "-o", tmp_path / "p.csv") == 0
        found.append(np.loadtxt(tmp_path / "p.csv", skiprows=1, ndmin=1)[0])
    assert found[0] == found[1] == pytest.approx(found[2], rel=1e-6)


def test_prepared_with_other_thresholds_is_another_encoder(tmp_path, capsys):
    random = np.random.default_rng(0)
    for name, scale in (("a", 1), ("b", 1000)):
        frame = pandas.DataFrame({"x": random.random(300) * scale, "click": random.integers(0, 2, 300)})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        assert run("prepare", tmp_path / f"{name}.csv", "--label", "click", "--out", tmp_path / name) == 0
    assert run("train", tmp_path / "a", "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run") == 0
    assert run("evaluate", tmp_path / "run", tmp_path / "b") == 2
    assert "another encoder" in capsys.readouterr().err


def test_what_is_not_a_number_is_other_when_predicting(trained):
    predictor = Predictor.load(trained.run)
    odd = predictor.predict(
        [{"user": "u1", "price": "cheap", "tags": "a"}, {"user": "u1", "price": "0.5", "tags": "a"}]
    )
    assert np.isfinite(odd).all()


def test_rows_without_any_known_field_are_refused(trained):
    predictor = Predictor.load(trained.run)
    with pytest.raises(DataError, match=r"at least one field of user.*found usr \(row 2\)"):
        predictor.predict([{"user": "u1"}, {"usr": "u2"}])
    assert len(predictor.predict([])) == 0


def test_output_never_replaces_the_input(trained, capsys):
    before = trained.log.read_text()
    assert run("predict", trained.run, trained.log, "-o", trained.log) == 2
    assert "would replace the input" in capsys.readouterr().err
    assert trained.log.read_text() == before


def test_a_column_to_drop_and_the_truth(tmp_path, capsys):
    assert run("simulate", "--rows", 500, "--truth", "--out", tmp_path / "log.csv") == 0
    assert "--drop true_probability" in capsys.readouterr().out
    drop = ["--drop", "true_probability", "--drop", "day"]
    assert run("prepare", tmp_path / "log.csv", "--label", "click", *drop, "--out", tmp_path / "data", "--json") == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    assert "user" in fields
    assert not {"true_probability", "day"} & set(fields)


def test_dates_that_are_ordered_as_text_are_named(tmp_path, capsys):
    days = [f"{day:02}/11/2026" for day in range(1, 29)]
    rows = "".join(f"{n % 2},u{n % 5},{days[n % 28]}\n" for n in range(280))
    (tmp_path / "log.csv").write_text("click,user,date\n" + rows)
    split = ["--label", "click", "--split-by", "date", "--out", tmp_path / "data", "--json"]
    assert run("prepare", tmp_path / "log.csv", *split) == 0
    assert any("put in order as text" in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_nothing_said_is_help(capsys):
    assert run() == 0
    shown = capsys.readouterr()
    assert "prepare" in shown.out
    assert shown.err == ""
