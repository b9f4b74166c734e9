"""The README.md of a bundle: written with it, read by people alone."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fieldwise.bundle import bundle
from fieldwise.bundle.card import FILE
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.schema import Field, Schema
from fieldwise.evaluation.metrics import standard_errors
from fieldwise.export.export import export
from fieldwise.train.blend import blend
from fieldwise.train.loop import train
from tests.conftest import Trained


def test_a_card_says_how_good_the_model_is_and_how_to_load_it(trained: Trained) -> None:
    text = (trained.run / "bundle" / FILE).read_text(encoding="utf-8")
    report = json.loads((trained.run / "report.json").read_text())
    auc, error = report["test"]["auc"], report["errors"]["auc"]
    assert f"| AUC | {auc:.5f} | {auc - 1.96 * error:.5f} to {min(1.0, auc + 1.96 * error):.5f} |" in text
    assert re.findall(r"^#+ (.*)", re.sub(r"```.*?```", "", text, flags=re.S), re.M) == [
        "fm: the probability of `click`",
        "How good it is",
        "Calibration",
        "Data",
        "Fields",
        "Model",
        "How to load it",
    ]
    began = datetime.fromtimestamp((trained.run / "identity.json").stat().st_mtime, UTC).date()
    assert f"Trained on {began} with fieldwise" in text
    assert f"- train rows: {report['part_rows']['train']}" in text
    assert "| tags | set |  |" in text
    program = re.findall(r"```python\n(.*?)```", text, re.S)[0].replace("THIS FOLDER", str(trained.run / "bundle"))
    found: dict[str, object] = {"rows": [{"user": "u1"}, {"price": 0.3}]}
    exec(program, found)
    assert np.shape(found["probabilities"]) == (2,)


@pytest.mark.parametrize("fate", ["edited", "gone"])
def test_a_bundle_opens_without_its_card_and_after_an_edit(trained: Trained, tmp_path: Path, fate: str) -> None:
    shutil.copytree(trained.run / "bundle", tmp_path / "bundle")
    card = tmp_path / "bundle" / FILE
    if fate == "gone":
        card.unlink()
    else:
        card.write_text("Owner: the search team.\n", encoding="utf-8")
    export(tmp_path / "bundle", tmp_path / "served")
    assert (tmp_path / "served" / FILE).exists() == (fate == "edited")
    assert len(Predictor.load(tmp_path / "bundle").predict([{"user": "u1"}])) == 1


def test_a_blend_has_a_card_with_its_members(trained: Trained, tmp_path: Path) -> None:
    train(load_config(overrides=["model.name=lr", "train.epochs=1", "device=cpu"]), trained.data, tmp_path / "lr")
    blend([trained.run, tmp_path / "lr"], tmp_path / "both", pairs=False)
    text = (tmp_path / "both" / "bundle" / FILE).read_text(encoding="utf-8")
    assert re.search(r"- fm, weight 0\.\d+\n- lr, weight", text)
    assert "train rows" not in text
    assert (tmp_path / "both" / "bundle" / "members" / "1" / FILE).exists()


def test_names_of_any_kind_stay_in_their_cells(trained: Trained, tmp_path: Path) -> None:
    own = bundle.load(trained.run)
    (tmp_path / "schema.toml").write_text(Schema("y`", (Field("a|b\nc"), Field("d"))).to_toml(), encoding="utf-8")
    sources = {"schema.toml": tmp_path / "schema.toml", "encoder": trained.data / "encoder"}
    model = own.blend.members[0].model
    bundle.write(tmp_path / "bundle", own.config, sources, model, own.calibration, {"test": {"auc": 0.5}})
    text = (tmp_path / "bundle" / FILE).read_text(encoding="utf-8")
    assert "| a\\|b c | categorical |  |\n" in text
    assert "# fm: the probability of `y'`\n\nTrained with fieldwise" in text


@pytest.mark.parametrize("weighted", [False, True])
def test_standard_errors_are_those_of_delong_pair_by_pair(weighted: bool) -> None:
    random = np.random.default_rng(3)
    labels, p = random.integers(0, 2, 60), np.round(random.random(60), 1)
    # A weight of 2 counts as a row that is there twice, but not as two rows that agree.
    weights = np.where(np.arange(60) % 3 == 0, 2.0, 1.0) if weighted else np.ones(60)
    wins = (p[labels == 1][:, None] > p[labels == 0]) + 0.5 * (p[labels == 1][:, None] == p[labels == 0])
    w1, w0 = weights[labels == 1], weights[labels == 0]
    area = w1 @ wins @ w0 / w1.sum() / w0.sum()
    ours = (((wins @ w0 / w0.sum() - area) * w1) ** 2).sum() / w1.sum() ** 2
    theirs = (((w1 @ wins / w1.sum() - area) * w0) ** 2).sum() / w0.sum() ** 2
    found = standard_errors(labels, np.clip(p, 0.01, 0.99), weights if weighted else None)
    assert found["auc"] == pytest.approx(np.sqrt(ours + theirs))
    assert standard_errors(np.ones(4), np.full(4, 0.5)) == {}
