"""Maps of field pairs against slow loops, and what leaving pairs out costs where the truth is planted."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from fieldwise import cli, models
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import DataError
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.schema import Layout
from fieldwise.evaluation import pair_maps
from fieldwise.evaluation import pair_strength as strengths
from fieldwise.nn.model import Model
from fieldwise.reporting import pair_report
from fieldwise.reporting.report import write_report
from fieldwise.studies import sources
from fieldwise.train.loop import train
from tests.conftest import Trained

LAYOUT = Layout((5, 4, 7, 3), (1, 3, 1, 1))
ACTIVE = {(0, 1), (2, 3), (1, 4)}


def some_ids(rows: int = 50) -> Any:
    rng = np.random.default_rng(3)
    ids = np.stack([rng.integers(0, LAYOUT.sizes[f], rows) for f in LAYOUT.column_fields], axis=1)
    ids[::2, 3] = -1
    return ids.astype(np.int32)


def built(name: str, **settings: Any) -> Model:
    torch.manual_seed(0)
    model = models.build(name, LAYOUT, settings)
    assert isinstance(model, Model)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(0, 0.5)
    return model.double().eval()


def slow_product(name: str, model: Model, v: np.ndarray, i: int, j: int) -> float:
    """The product of two fields' vectors in float64, one pair by itself."""
    if name == "ffm":
        parts = v.reshape(4, 3, -1)
        return float(parts[i, j - 1] @ parts[j, i])
    if name == "kfm":
        kernel = dict(model.named_parameters())["branches.0.interaction.kernel.entries"].detach().numpy()
        return float(v[i] @ kernel[list(combinations(range(4), 2)).index((i, j))] @ v[j])
    return float(v[i] @ v[j])


@pytest.mark.parametrize("name", ["fm", "ffm", "kfm", "ipnn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_maps_of_mean_vectors_equal_the_slow_ones(name: str, weighted: bool):
    model, ids = built(name, dim=3), some_ids()
    table = model.embedding.tables[0].weight.detach().numpy()  # type: ignore[union-attr]
    means = []
    for field in range(4):
        columns = [c for c, own in enumerate(LAYOUT.column_fields) if own == field]
        seen = [int(value) for value in ids[:, columns].ravel() if value >= 0]
        kept = seen if weighted else range(LAYOUT.sizes[field])
        means.append(np.mean([table[LAYOUT.offsets[field] + value] for value in kept], axis=0))
    counts = pair_maps.counts_of(ids, LAYOUT) if weighted else None
    found = pair_maps.mean_map(model.float(), LAYOUT, counts)
    assert found is not None
    for i, j in combinations(range(4), 2):
        assert (
            found[i, j] == found[j, i] == pytest.approx(abs(slow_product(name, model, np.array(means), i, j)), rel=1e-4)
        )
    assert not found.diagonal().any()


def test_mean_vectors_of_different_sizes_are_those_that_rows_look_up():
    layout = Layout.of((2, 7, 3, 30))
    torch.manual_seed(0)
    model = models.build("kfm", layout, {"dim": 6, "adaptive": 1.5})
    assert isinstance(model, Model)
    found = pair_maps.mean_vectors(model, layout)
    for field, size in enumerate(layout.sizes):
        ids = torch.zeros(size, 4, dtype=torch.int32)
        ids[:, field] = torch.arange(size)
        looked_up = model.lookup(ids)["vectors"][:, field].detach().double().mean(dim=0)
        torch.testing.assert_close(found[field], looked_up)
    assert pair_maps.mean_map(model, layout) is not None


@pytest.mark.parametrize("name", ["fm", "ffm", "kfm", "nifm", "afm", "deepfm", "ipnn", "kpnn", "pin", "poly2"])
def test_pairs_add_up_and_can_be_left_out(name: str):
    model, ids = built(name), some_ids()
    check_pairs(model, ids, name)


@pytest.mark.parametrize("name", ["fm", "ffm"])
def test_pairs_of_fields_of_one_id_too(name: str, monkeypatch: pytest.MonkeyPatch):
    """Compiled loops score these models, and would know nothing of what is left out."""
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", Layout.of(LAYOUT.sizes))
    ids = np.random.default_rng(0).integers(0, LAYOUT.sizes, (50, LAYOUT.fields)).astype(np.int32)
    check_pairs(built(name), ids, name)


def check_pairs(model: Model, ids: NDArray[np.int32], name: str) -> None:
    part = pair_maps.pair_part(model)
    assert part is not None
    values = pair_maps.pair_values(part, model.lookup(torch.from_numpy(ids))["vectors"]).detach()
    assert values.shape[:2] == (50, 6)
    spread = pair_maps.variance_map(model, ids, LAYOUT)
    for number, (i, j) in enumerate(combinations(range(4), 2)):
        assert spread[i, j] == pytest.approx(float(np.sqrt(values[:, number].numpy().var(axis=0).sum())))
    before = model.logits(ids)
    with pair_maps.without_pairs(model, [1, 4], ids):
        changed = model.logits(ids)
    assert (model.logits(ids) == before).all()
    assert not np.allclose(changed, before)
    if name in ("fm", "ffm", "kfm", "nifm", "afm", "poly2"):
        terms = values[:, :, 0].numpy()
        expected = before - (terms - terms.mean(axis=0))[:, [1, 4]].sum(axis=1)
        np.testing.assert_allclose(changed, expected, rtol=1e-4, atol=1e-5)


def test_networks_without_pairs_have_none():
    for name in ("lr", "fnn", "ccpm"):
        assert pair_maps.pair_part(models.build(name, LAYOUT)) is None
    assert pair_maps.tells_pairs(models.build("pin", LAYOUT))
    assert not pair_maps.tells_pairs(models.build("kpnn", LAYOUT))


def planted(rows: int = 9000) -> pa.Table:
    """Six fields; only three of their fifteen pairs decide the label."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 6, (6, rows))
    logit = sum(2.5 * rng.standard_normal((6, 6))[codes[i], codes[j]] for i, j in sorted(ACTIVE))
    columns = {f"f{field}": codes[field] for field in range(6)}
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    return pa.table({"click": labels, **columns, sources.PART: sources.parts_of((rows - 3000, 1000, 2000))})


@pytest.mark.parametrize("name", ["kfm", "pin"])
def test_the_lowest_third_of_the_pairs_costs_little_and_the_highest_much(name: str, tmp_path: Path):
    sources.codes(planted)(tmp_path / "data")
    settings = {"model.name": name, "model.dim": 6, "train.epochs": 6, "train.lr": 0.01, "train.batch_size": 200}
    settings |= {"train.hide": False}
    settings |= {"model.hidden": [16], "model.subnet": [6, 2]} if name == "pin" else {}
    train(load_config(base={**settings, "device": "cpu"}), tmp_path / "data", tmp_path / "run")
    found = pair_report.explain(Predictor.load(tmp_path / "run"), tmp_path / "data", strength_rows=128)
    assert found["ranked_by"] == "variance"
    # What a micro network gives may vary and yet be ignored by the DNN behind it.
    strongest = [(int(row["first"][1:]), int(row["second"][1:])) for row in found["pairs"][: 5 if name == "pin" else 3]]
    assert set(strongest) >= ACTIVE
    (third,) = [row for row in found["drop_pairs"] if row["share"] == pair_report.THIRD]
    assert third["pairs"] == 5
    assert abs(third["weakest"]) < 0.02
    assert third["strongest"] > 0.15
    assert found["drop_fields"][-1]["field"] == "f5"
    assert {"mean", "weighted", "variance", "strength"} - set(found["maps"]) == (
        {"mean", "weighted"} if name == "pin" else set()
    )


def test_explain_verb(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: Any) -> int:
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        assert isinstance(end.value.code, int)
        return end.value.code

    assert run("explain", trained.run, "--rows", trained.log, "--out", tmp_path / "maps", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["maps"]) == {"mean", "weighted", "variance", "strength"}
    assert found["rows"] == 400
    names = {path.name for path in (tmp_path / "maps").iterdir()}
    assert {"explain.json", "pairs.csv", "fields.csv", "drop_pairs.csv", "mean.svg", "strength.svg"} <= names
    assert run("explain", trained.run, "--out", tmp_path / "maps") == 2
    assert run("explain", trained.run) == 0
    assert "3 pairs of 3 fields, by variance" in capsys.readouterr().out
    assert run("explain", trained.run, "--rows", tmp_path / "none.csv") == 2


def test_of_lr_the_weights_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = pa.table({"site": ["good", "bad", "new"] * 200, "y": [1, 0, 0, 1, 0, 1] * 100})
    prepare({"train": lambda: iter([rows])}, tmp_path / "data", "y")
    train(
        load_config(overrides=["model.name=lr", "train.epochs=9", "train.lr=0.05"]), tmp_path / "data", tmp_path / "run"
    )
    found = pair_report.explain(Predictor.load(tmp_path / "run"))
    weights = {row["value"]: row["weight"] for row in found["weights"]}
    assert weights["good"] > weights["new"] > weights["bad"]
    assert sorted(map(abs, weights.values()), reverse=True) == [abs(row["weight"]) for row in found["weights"]]
    assert sum(row["rows"] for row in found["weights"]) == found["rows"]
    # The bias and the weight of its one value are the logit of a row.
    opened = Predictor.load(tmp_path / "run")
    logits = opened.bundle.logits(opened.encoder.transform(pa.table({"site": ["good"]})))
    assert float(logits[0]) == pytest.approx(found["bias"] + weights["good"], abs=1e-5)
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", str(tmp_path / "run"), "--out", str(tmp_path / "explained")])
    printed = capsys.readouterr().out
    assert end.value.code == 0
    assert "site = good" in printed
    assert "lr: the logit is" in printed
    assert (tmp_path / "explained" / "weights.csv").read_text().startswith("name,field,value,weight,rows\n")


def test_too_many_fields_are_refused_before_anything_is_measured(trained: Trained, monkeypatch: pytest.MonkeyPatch):
    predictor = Predictor.load(trained.run)
    fields = predictor.bundle.own_encoder.layout.fields
    monkeypatch.setattr(pair_report, "MOST_FIELDS", fields - 1)
    monkeypatch.setattr(pair_report, "rows_of", None)
    found = f"at most {fields - 1} fields, found {fields} fields and {fields * (fields - 1) // 2} pairs of them"
    with pytest.raises(DataError, match=found):
        pair_report.explain(predictor)


def test_a_run_of_too_many_fields_has_the_pairs_of_the_strongest(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A report names the fields that it shows, and of how many they are."""
    config = load_config(overrides=["model.name=fm", "train.epochs=1", "device=cpu"])
    whole = train(config, trained.data, tmp_path / "whole")["pair_strength"]
    assert set(whole) == {"fields", "matrix"}
    monkeypatch.setattr(strengths, "MOST_PAIRED", 2)
    monkeypatch.setattr(strengths, "PAIRED", 2)
    some = train(config, trained.data, tmp_path / "some")["pair_strength"]
    assert (some["of"], len(some["fields"])) == (3, 2)
    one, other = (whole["fields"].index(name) for name in some["fields"])
    assert some["matrix"][0][1] == whole["matrix"][one][other] > 0
    write_report([tmp_path / "some"], tmp_path / "page.html")
    assert "The 2 strongest of 3 fields." in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_measures_the_pairs_of_a_run_that_left_them_out(trained: Trained, tmp_path: Path) -> None:
    """As for the runs of a comparison; without the rows there is no map, and the page is written all the same."""
    config = load_config(overrides=["model.name=fm", "train.epochs=1", "device=cpu"])
    report = train(config, trained.data, tmp_path / "run", pairs=False)
    assert "pair_strength" not in report
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "Which fields interact" in (tmp_path / "page.html").read_text(encoding="utf-8")
    file = tmp_path / "run" / "report.json"
    file.write_text(json.dumps(report | {"data": str(tmp_path / "gone")}), encoding="utf-8")
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "Which fields interact" not in (tmp_path / "page.html").read_text(encoding="utf-8")
