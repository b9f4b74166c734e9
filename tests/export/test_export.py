"""Exported folders: for ONNX Runtime alone, in fewer bits, whole or refused; and the verb."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from fieldwise import cli, models
from fieldwise.bundle import bundle
from fieldwise.config.errors import BundleError, ConfigError, FieldwiseError
from fieldwise.export.export import export
from fieldwise.serving.engine import Engine
from tests.serving.bundles import Prepared, log


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    code: int = end.value.code
    return code


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("tables", ["fp32", "int8"])
def test_the_model_is_for_onnxruntime_alone(name: str, tables: str, everything: Prepared, tmp_path: Path) -> None:
    path = everything.bundle(name)
    export(path, tmp_path / "out", tables)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "online" / "model.onnx")
    opened = bundle.load(path)
    ids = np.ascontiguousarray(opened.encoder.transform(_table(log(40, seed=4)))[:, : opened.layout.columns])
    assert [each.name for each in session.get_inputs()] == ["ids"]
    found = session.run(None, {"ids": ids})[0]
    near, logits = 1e-5 if tables == "fp32" else 0.5, opened.model.logits(ids)
    np.testing.assert_allclose(found, logits, rtol=near, atol=near * max(1, np.abs(logits).max() / 10))
    engine = Engine.load(tmp_path / "out")
    np.testing.assert_array_equal(engine.bundle.model.logits(ids), found)


def _table(rows: list[dict[str, Any]]) -> Any:
    from fieldwise.data.read.formats import as_table

    return as_table(rows)


def test_a_damaged_network_is_refused(everything: Prepared, tmp_path: Path) -> None:
    export(everything.bundle("fm"), tmp_path / "out")
    file = tmp_path / "out" / "online" / "parts.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match="missing or damaged; export it again"):
        Engine.load(tmp_path / "out")


def test_an_exported_folder_only_serves(everything: Prepared, tmp_path: Path) -> None:
    export(everything.bundle("fm"), tmp_path / "out")
    with pytest.raises(BundleError, match="exported to serve from and has no weights for torch"):
        bundle.load(tmp_path / "out")
    with pytest.raises(BundleError, match="exported already; export the run or bundle"):
        export(tmp_path / "out", tmp_path / "again")
    with pytest.raises(FieldwiseError, match="already there"):
        export(everything.bundle("fm"), tmp_path / "out")
    export(everything.bundle("fm"), tmp_path / "out", force=True)


def test_only_known_kinds_of_tables(everything: Prepared, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown kind of tables 'int4'; .* available: fp16, fp32, int8"):
        export(everything.bundle("fm"), tmp_path / "out", "int4")
    assert not (tmp_path / "out").exists()


def test_the_verb_prints_the_difference(everything: Prepared, tmp_path: Path, capsys: Any) -> None:
    rows = log(80, seed=6)
    with (tmp_path / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    path = everything.bundle("deepfm")
    assert run("export", path, "--out", tmp_path / "out") == 2
    assert "the format to export to is missing" in capsys.readouterr().err
    command = ("export", path, "--onnx", "--out", tmp_path / "out", "--rows", tmp_path / "log.csv", "--force")
    assert run(*command, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 80
    assert found["largest_difference"] < 1e-6
    assert found["auc"]["bundle"] == found["auc"]["exported"]
    assert run(*command, "--tables", "int8") == 0
    shown = capsys.readouterr().out
    assert "probabilities differ by at most" in shown
    assert "AUC" in shown


def test_the_verb_exports_trees_too(everything: Prepared, tmp_path: Path) -> None:
    assert run("export", everything.bundle("gbdt"), "--onnx", "--out", tmp_path / "out") == 0
    assert Engine.load(tmp_path / "out").model["members"][0]["model"] == "gbdt"
