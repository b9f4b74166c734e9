"""csv -> prepare -> train -> bundle -> predict, and the same row everywhere."""

import json

import numpy as np
import polars
import pyarrow.parquet as pq
import pytest

from fieldwise import Predictor, cli
from fieldwise.data import formats


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
    clock = {"rows_per_s", "seconds"}
    assert [{k: v for k, v in r.items() if k not in clock} for r in first["runs"]] == [
        {k: v for k, v in r.items() if k not in clock} for r in again["runs"]
    ]
    assert (tmp_path / "demo" / "report.html").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert run("demo", "--out", tmp_path / "mine") == 2
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_help_shows_an_example(capsys):
    for verb in ("demo", "simulate", "prepare", "train", "evaluate", "predict", "models", "report"):
        assert run(verb, "--help") == 0
        assert "Example" in capsys.readouterr().out
