"""Studies: what they claim can fail, they go on after a kill, and each follows its specification in the small."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fieldwise import cli, models
from fieldwise.config.errors import ConfigError, FieldwiseError, TrainingError
from fieldwise.config.files import held_folder
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.schema import Layout
from fieldwise.data.world.sequential import SequentialWorld
from fieldwise.nn.embedding import Table
from fieldwise.optim.adam import Adam
from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies import (
    coupled_gradient,
    fig8,
    fig9,
    fig10,
    fig20,
    history_fields,
    kernels,
    layer_norm,
    one_gradient,
    paper_page,
    parity,
    registry,
    runner,
    seeds,
    sequence,
    sources,
    table10,
    table11,
)
from fieldwise.studies.study import Case, Plan, Results, Setup, Study, Verdict

DOCS = Path(__file__).parents[2] / "docs"
FAST = {"train.epochs": 1, "train.batch_size": 100}


def drawn(rows: int = 600) -> pa.Table:
    rng = np.random.default_rng(1)
    fields = {name: rng.integers(0, 6, rows) for name in ("a", "b")}
    click = (rng.random(rows) < np.where(fields["a"] > 2, 0.7, 0.3)).astype(np.int8)
    parts = sources.parts_of((rows - 200, 100, 100))
    return pa.table({"click": click, **fields, sources.PART: parts})


def plan(setup: Setup) -> Plan:
    cases = [
        Case({"model": model, "lr": lr}, "drawn", {"model.name": model, "train.lr": lr, **FAST}, seed)
        for seed in range(setup.seeds)
        for model, lr in (("lr", 0.01), ("fm", 0.01))
    ]
    return Plan({"drawn": sources.codes(drawn)}, cases)


def claims(results: Results) -> list[Verdict]:
    return [
        Verdict("fm is above chance", results.mean("auc", model="fm") - 0.5, results.seeds),
        Verdict("lr is far above itself", results.mean("auc", model="lr") - 2, results.seeds),
    ]


TOY = Study(
    id="toy",
    paper="A toy",
    asks="Does it run?",
    keys=("model", "lr"),
    columns=(Column("auc", "AUC", ".4f", None, "auc_sd"), Column("twice", "Twice", ".2f")),
    plan=plan,
    look=lambda case, run: {"twice": 2.0, "_hidden": [1]},
    claims=claims,
    draw=lambda results: plots.curves({"one": ([1, 2], [3, 4])}, "x", "y"),
    seeds={"small": 2, "medium": 2, "paper": 2},
)


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_study_leaves_table_figure_and_verdicts_and_goes_on(tmp_path: Path):
    found = runner.run_study(TOY, tmp_path, workers=1)
    folder = tmp_path / "toy" / "small"
    assert {"table.md", "table.csv", "runs.csv", "figure.svg", "figure.png", "verdicts.txt", "result.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert [line[:4] for line in found["lines"]] == ["PASS", "FAIL"]
    assert (folder / "verdicts.txt").read_text().splitlines() == found["lines"]
    assert "(2 seeds)" in found["lines"][0]
    with (folder / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["seed"], row["twice"]) for row in rows] == [
        (model, seed, "2.0") for seed in "01" for model in ("lr", "fm")
    ]
    assert "_hidden" not in rows[0]
    done = sorted(folder.glob("runs/*/*/DONE"))
    times = [path.stat().st_mtime_ns for path in done]
    # One run is lost; the rest is kept as it is.
    shutil.rmtree(done[0].parent)
    data = (folder / "data" / "drawn" / "data.json").stat().st_mtime_ns
    again = runner.run_study(TOY, tmp_path, workers=1)
    assert (again["rows"], again["lines"]) == (found["rows"], found["lines"])
    assert [path.stat().st_mtime_ns for path in done][1:] == times[1:]
    assert (folder / "data" / "drawn" / "data.json").stat().st_mtime_ns == data
    more = runner.run_study(TOY, tmp_path, seeds=3, workers=1)
    assert more["seeds"] == 3


def test_studies_share_their_worlds_and_keep_no_weights(tmp_path: Path):
    """The same world, asked for by two studies under different names, is made once; their runs keep no bundle, unless
    the study reads weights or another run starts from them."""

    def asked(name: str) -> Any:
        def plan(setup: Setup) -> Plan:
            first = Case({"model": "fm"}, name, {"model.name": "fm", **FAST})
            later = Case({"model": "fnn"}, name, {"model.name": "fnn", "model.hidden": [4], **FAST}, start="fm")
            return Plan({name: sources.world("demo", 600)}, [first, later])

        return plan

    one, other = (replace(TOY, id=name, keys=("model",), plan=asked(name), claims=lambda _: []) for name in "ab")
    runner.run_study(one, tmp_path, seeds=1, workers=1)
    (world,) = (tmp_path / "data").iterdir()
    made = (world / "data.json").stat().st_mtime_ns
    runner.run_study(replace(other, weights=True), tmp_path, seeds=1, workers=1)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [world.name]
    assert (world / "data.json").stat().st_mtime_ns == made
    assert (tmp_path / "b" / "small" / "data" / "b").resolve() == world.resolve()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/small/runs/*/seed0/bundle")) == [
        "a/small/runs/fm/seed0/bundle",
        "b/small/runs/fm/seed0/bundle",
        "b/small/runs/fnn/seed0/bundle",
    ]
    assert not list(tmp_path.glob("*/small/runs/*/seed0/checkpoint"))


@pytest.mark.parametrize("other", [{"rows": 601}, {"seed": 1}, {"rate": 0.1}, {"networks": 0.0}, {"active": 0.9}])
def test_other_worlds_have_other_names(other: dict[str, Any]):
    usual = {"kind": "demo", "rows": 600}
    assert sources.world(**usual).name == sources.world(**usual).name  # type: ignore[arg-type,attr-defined]
    assert sources.world(**usual).name != sources.world(**(usual | other)).name  # type: ignore[arg-type,attr-defined]


def test_a_run_that_fails_is_a_result(tmp_path: Path):
    def broken(setup: Setup) -> Plan:
        whole = plan(setup)
        bad = replace(whole.cases[0], settings={**whole.cases[0].settings, "train.lr": 1e30, "model.name": "fm"})
        return Plan(whole.sources, [replace(bad, keys={"model": "lr", "lr": 1e30}), whole.cases[1]])

    found = runner.run_study(replace(TOY, plan=broken), tmp_path, seeds=1, workers=1)
    assert len(found["failed"]) == 1
    assert "1 of 1 runs failed (the loss" in found["failed"][0]
    assert [verdict["outcome"] for verdict in found["verdicts"]] == ["UNDECIDED", "UNDECIDED"]
    assert found["verdicts"][1]["margin"] is None


def test_another_folder_of_data_is_another_study(tmp_path: Path):
    runner.run_study(TOY, tmp_path / "out", seeds=1, workers=1)
    (tmp_path / "data").mkdir()
    with pytest.raises(TrainingError, match="begun with other --data"):
        runner.run_study(TOY, tmp_path / "out", data=tmp_path / "data", seeds=1, workers=1)
    with pytest.raises(TrainingError, match="--device"):
        runner.run_study(TOY, tmp_path / "out", seeds=1, workers=1, device="auto")
    with pytest.raises(ConfigError, match="device must be cpu, cuda or auto, found 'gpu'"):
        runner.run_study(TOY, tmp_path / "new", device="gpu")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match="--data takes a folder, found none"):
        runner.run_study(TOY, tmp_path / "out", data=tmp_path / "none")
    with pytest.raises(ConfigError, match="unknown size 'tiny'"):
        runner.run_study(TOY, tmp_path / "out", size="tiny")
    with pytest.raises(ConfigError, match="--seeds must be at least 1, found 0"):
        runner.run_study(TOY, tmp_path / "out", seeds=0)


def test_a_study_that_another_process_runs_is_left_to_it(tmp_path):
    folder = tmp_path / TOY.id / "small"
    with (
        held_folder(folder, "busy"),
        pytest.raises(FieldwiseError, match=r"another process .* is at the study"),
    ):
        runner.run_study(TOY, tmp_path, seeds=1, workers=1)
    assert not folder.exists()


def test_means_need_every_seed():
    results = Results(
        [{"m": 1, "seed": 0, "auc": 0.5}, {"m": 1, "seed": 1, "auc": 0.7}, {"m": 2, "seed": 0, "failed": ""}]
    )
    assert results.mean("auc", m=1) == pytest.approx(0.6)
    assert np.isnan(results.mean("auc", m=2))
    assert np.isnan(results.mean("auc", m=3))
    assert results.different("m") == [1, 2]
    assert not Verdict("no number", float("nan")).passed
    assert Verdict("equal", 0.0, strict=False).passed
    assert not Verdict("equal", 0.0).passed


def test_a_margin_within_two_standard_errors_of_the_seeds_is_undecided():
    def claims(results: Results) -> list[Verdict]:
        wide, narrow = results.mean("wide"), results.mean("narrow")
        areas = results.values("wide")
        spread = max(areas) - min(areas) if len(areas) > 1 else float("nan")
        return [
            Verdict("wide", wide, results.seeds),
            Verdict("narrow", narrow, results.seeds),
            Verdict("below", -narrow, results.seeds),
            Verdict("of all seeds together", 1 - spread, results.seeds),
        ]

    study = replace(TOY, claims=claims)
    rows = [{"seed": seed, "wide": wide, "narrow": 0.01} for seed, wide in enumerate((0.03, -0.01, 0.01))]
    found = study.verdicts(Results(rows))
    assert [verdict.outcome for verdict in found] == ["UNDECIDED", "PASS", "FAIL", "PASS"]
    assert found[0].error == pytest.approx(0.02 / 3**0.5)
    assert "margin +0.01 +- 0.012 (3 seeds)" in str(found[0])
    assert [verdict.outcome for verdict in study.verdicts(Results(rows[:1]))][:3] == ["UNDECIDED"] * 3
    computed = replace(study, plan=None, compute=lambda setup: rows)
    assert [verdict.outcome for verdict in computed.verdicts(Results(rows[:1]))][:3] == ["PASS", "PASS", "FAIL"]


def test_a_spread_over_seeds_has_a_standard_error_too():
    def claims(results: Results) -> list[Verdict]:
        return [Verdict("it varies less than .02", 0.02 - float(np.std(results.values("auc"))), results.seeds)]

    study = replace(TOY, claims=claims)
    for values, outcome in (((0.5, 0.51, 0.505), "PASS"), ((0.5, 0.53, 0.505), "UNDECIDED")):
        (found,) = study.verdicts(Results([{"seed": seed, "auc": value} for seed, value in enumerate(values)]))
        assert found.outcome == outcome
        assert found.error is not None
        assert found.error > 0.001


def test_a_page_says_why_a_claim_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = replace(TOY, compute=lambda setup: [{"model": "lr", "auc": 0.5}], plan=None, look=None)
    study = replace(study, claims=lambda results: [Verdict("one holds", 1.0), Verdict("two does not", -1.0)])
    monkeypatch.setattr(registry, "every", lambda: [study])
    runner.run_study(study, tmp_path / "out")
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "reasons.toml").write_text(f'[{study.id}]\ntwo = "Because."\n')
    paper_page.write(tmp_path / "out", tmp_path / "paper.md")
    page = (tmp_path / "paper.md").read_text()
    assert "- FAIL  two does not: margin -1 (1 seed)<br>Because.\n" in page
    assert page.count("Because.") == 1


def test_our_page_is_made_of_what_is_kept(tmp_path: Path):
    shutil.copytree(DOCS / "paper", tmp_path / "paper")
    paper_page.write(tmp_path / "no studies", tmp_path / "paper.md")
    assert (tmp_path / "paper.md").read_text() == (DOCS / "paper.md").read_text()
    kept = [json.loads(file.read_text()) for file in (DOCS / "paper").glob("*.json")]
    assert all((DOCS / record["figure"]).exists() for record in kept if record["figure"])
    begun = {(record["study"], verdict["claim"]) for record in kept for verdict in record["verdicts"]}
    for name, reasons in tomllib.loads((DOCS / "paper" / "reasons.toml").read_text()).items():
        for start in reasons:
            assert any(study == name and claim.startswith(start) for study, claim in begun), (name, start)


def test_a_page_shows_what_was_run_and_says_what_was_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("study", "fig9", "--out", tmp_path / "out") == 0
    assert run("study", "page", "--out", tmp_path / "out", "--page", tmp_path / "docs" / "paper.md", "--json") == 0
    found = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert found["run"] == ["fig9"]
    page = (tmp_path / "docs" / "paper.md").read_text()
    assert "| 3 PASS | small, 1 |" in page
    assert "Of 3 verdicts: 3 PASS, 0 FAIL, 0 UNDECIDED." in page
    assert "- PASS  a sparse update moves no row that is not in the batch" in page
    assert "| [Figure 8](#fig8) |" in page
    assert "| not run yet |  |" in page
    figure = next((tmp_path / "docs" / "figures").iterdir())
    assert figure.stem == "fig9-small"
    assert figure.name in page
    assert figure.stat().st_size < 200_000
    assert all(study.says for study in registry.every() if study.paper.startswith(("Figure", "Table")))
    assert run("study", "fig9", "--page", tmp_path / "x.md") == 2


def test_every_study_is_listed_and_whole(capsys: pytest.CaptureFixture[str]):
    studies = registry.every()
    assert [study.id for study in studies] == list(registry.IDS)
    for study in studies:
        assert (study.plan is None) != (study.compute is None)
        assert set(study.seeds) == {"small", "medium", "paper"}
    assert run("study", "list") == 0
    shown = capsys.readouterr().out
    assert all(study.id in shown for study in studies)
    assert run("study", "fig21") == 2
    assert "unknown study 'fig21'; did you mean" in capsys.readouterr().err


def test_figures_8_and_9_come_out_and_another_adam_fails_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("fig8", "fig9"):
        assert run("study", name, "--out", tmp_path, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert all(verdict["outcome"] == "PASS" for verdict in found["verdicts"]), found["lines"]
        for ending in ("svg", "png"):
            assert (tmp_path / name / "small" / f"figure.{ending}").stat().st_size < 200_000
    monkeypatch.setattr(one_gradient, "Adam", partial(Adam, betas=(0.8, 0.999)))
    assert not fig8.claims(Results(fig8.compute(Setup())))[0].passed
    assert not fig9.claims(Results(fig9.compute(Setup())))[0].passed


def test_figure_10_measures_what_it_says(monkeypatch: pytest.MonkeyPatch):
    q = np.arange(1, 31) / np.arange(1, 31).sum()
    found = fig10.samples(q, np.random.default_rng(0), 4000)
    assert all(len(set(row)) == fig10.VALUES for row in found.tolist())
    shares = np.bincount(found.ravel(), minlength=30) / found.size
    assert [*pairwise(shares[::6])] == sorted(pairwise(shares[::6]))
    values = np.array([0, 0, 1, 3])
    expected = sum(
        p * np.log((p + 1e-8) / (w + 1e-8)) for p, w in zip((0.5, 0.25, 0.0, 0.25), (0.1, 0.2, 0.3, 0.4), strict=True)
    )
    assert fig10.divergence(values, np.array([0.1, 0.2, 0.3, 0.4])) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr(fig10, "SIZES", (1000, 2000))
    monkeypatch.setattr(fig10, "BATCHES", (100, 400))
    results = Results(fig10.compute(Setup()))
    assert [verdict.passed for verdict in fig10.claims(results)] == [True, True, True]
    # The pilot's figures for N = 1000 and batches of 100.
    pilot = {0.0: 0.51, 0.1: 0.56, 0.3: 0.67, 0.5: 0.9, 0.7: 1.25}
    for drop, expected in pilot.items():
        assert results.mean("kl", N=1000, batch=100, drop=drop) == pytest.approx(expected, rel=0.06)


def test_table_10_counts_twelve_models_and_times_steps(monkeypatch: pytest.MonkeyPatch):
    millions = {shown: table10.counted(name, settings) / 1e6 for shown, (name, settings, _) in table10.SETTINGS.items()}
    rows = [
        {"model": shown, "millions": millions[shown], "expected": e} for shown, (_, _, e) in table10.SETTINGS.items()
    ]
    times = dict.fromkeys(millions, 10.0) | {"lr": 1.0, "kfm": 40.0}
    timed = [row | {"milliseconds": times[str(row["model"])]} for row in rows]
    timed.append({"model": table10.VECTORS[0], "millions": 21.0, "milliseconds": 12.0})
    assert [verdict.passed for verdict in table10.claims(Results(timed))] == [True] * 4
    timed[4]["millions"] = 21.0  # FM for KFM
    assert not table10.claims(Results(timed))[0].passed
    monkeypatch.setattr(table10, "LAYOUT", Layout.of((7,) * 5))
    before = torch.get_num_threads()
    found = table10.compute(Setup())
    assert torch.get_num_threads() == before
    assert len(found) == 13
    assert all(row["milliseconds"] > 0 for row in found)


def test_figure_20_labels_are_those_of_a_poly2_function(tmp_path: Path):
    table = fig20.poly2(80, True, 1000, seed=0)
    assert table.num_rows == 1300
    assert np.mean(table["click"].to_numpy()) == pytest.approx(0.5, abs=0.01)
    assert set(table["f0"].to_pylist()) == {0, 1}
    sparse = fig20.poly2(200, False, 1000, seed=0)
    sizes = [len(set(sparse[f"f{field}"].to_pylist())) for field in range(40)]
    assert 1 <= min(sizes) < max(sizes) <= 10
    made = fig20.plan(Setup())
    assert [(case.keys["N"], case.keys["model"]) for case in made.cases[:5]] == [(n, "3 x 128") for n in fig20.SPARSITY]
    sources.codes(lambda: table)(tmp_path / "data")
    dataset = Dataset.open(tmp_path / "data")
    assert {name: part.rows for name, part in dataset.parts.items()} == {"train": 1000, "valid": 100, "test": 200}
    assert dataset.layout.fields == 40


def fig20_results(areas: list[float], nets: dict[str, float]) -> Results:
    rows = [{"part": "a", "N": n, "model": "3 x 128", "auc": a} for n, a in zip(fig20.SPARSITY, areas, strict=True)]
    return Results(rows + [{"part": "b", "N": 400, "model": name, "auc": a} for name, a in nets.items()])


def test_figure_20_can_fail():
    nets = {"1 x 128": 0.80, "1 x 512": 0.86, "3 x 128": 0.84, "poly-2": 0.93}
    pilot = fig20.claims(fig20_results([0.921, 0.846, 0.806, 0.768, 0.738], nets))
    assert [verdict.passed for verdict in pilot] == [True, True, False]
    other = fig20.claims(fig20_results([0.9, 0.8, 0.81, 0.7, 0.6], nets | {"poly-2": 0.88}))
    assert [verdict.passed for verdict in other] == [False, False, False]


def history_results(with_history: dict[str, float], without: dict[str, float], data: str = "repeat") -> Results:
    rows = []
    for kind, areas in ((history_fields.WITH, with_history), (history_fields.WITHOUT, without)):
        for model, area in areas.items():
            facts = {"auc": area, "log_loss": 1 - area, "valid_log_loss": 1 - area}
            rows.append({"data": data, "model": model, "history": kind, "seed": 0, **facts})
    return Results(rows)


def test_the_history_study_judges_the_best_of_validation():
    verdicts = history_fields.claims(history_results({"lr": 0.7, "pin": 0.75}, {"lr": 0.6, "pin": 0.7}))
    assert [verdict.passed for verdict in verdicts] == [True, True]
    assert "pin 0.2500 against pin 0.3000" in verdicts[0].words
    verdicts = history_fields.claims(history_results({"lr": 0.7, "pin": 0.65}, {"lr": 0.6, "pin": 0.68}))
    assert [verdict.passed for verdict in verdicts] == [True, False]
    frappe = history_fields.claims(history_results({"lr": 0.99, "pin": 0.995}, {"lr": 0.93, "pin": 0.98}, "frappe"))
    assert [verdict.passed for verdict in frappe] == [True, True, True]


def test_the_history_study_has_thirteen_models_twice_and_takes_real_data(tmp_path: Path):
    pytest.importorskip("xgboost")
    made = history_fields.plan(Setup())
    assert len(made.cases) == 2 * 13
    assert set(made.sources) == {"repeat-without-0", "repeat-with-history-0"}
    write_real(tmp_path / "real")
    made = history_fields.plan(Setup(data=tmp_path / "real"))
    assert len(made.sources) == 12
    for name in ("frappe", "frappe-grouped", "criteo", "avazu", "amazon"):
        for kind in ("without", "with-history"):
            made.sources[f"{name}-{kind}-0"](tmp_path / name / kind)
        plain, past = (Dataset.open(tmp_path / name / kind) for kind in ("without", "with-history"))
        assert past.layout.fields > plain.layout.fields
        assert [part.rows for part in past.parts.values()] == [part.rows for part in plain.parts.values()]
    (tmp_path / "real" / "amazon" / "amazon.csv").unlink()
    (tmp_path / "real" / "amazon").rmdir()
    assert "amazon-without-0" not in history_fields.plan(Setup(data=tmp_path / "real")).sources


def write_real(folder: Path, rows: int = 300) -> None:
    """Files in the layouts of the real data sets, with random contents."""
    rng = np.random.default_rng(0)

    def lines(names: list[str], cells: Any, header: bool, separator: str = ",") -> str:
        body = [separator.join(str(cells(name, row)) for name in names) for row in range(rows)]
        return "\n".join([separator.join(names)] * header + body) + "\n"

    def number(name: str, row: int) -> Any:
        if name in ("label", "click", "ACTION"):
            return int(rng.integers(2))
        return 14102100 + row // 20 if name == "hour" else int(rng.integers(20))

    context = ["user", "item", *sources.CONTEXT]
    avazu = ["id", "click", "hour", "site_id", "app_id", "device_ip", *(f"C{i}" for i in range(14, 22))]
    amazon = ["ACTION", "RESOURCE", "MGR_ID", "ROLE_DEPTNAME", "ROLE_TITLE"]
    criteo = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    files = {f"frappe/{part}.csv": lines(["label", *context], number, True) for part in ("train", "valid", "test")}
    files |= {"avazu20k/avazu20k.csv": lines(avazu, number, True), "amazon/amazon.csv": lines(amazon, number, True)}
    files["criteo80k/criteo80k.tsv"] = lines(criteo, number, False, "\t")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_toy_of_coupled_gradients(tmp_path: Path):
    table = coupled_gradient.toy(4000, 0)
    assert table.column_names == ["click", "gender", "city", "weekday", sources.PART]
    product = np.outer([1.0, -1.0], [2.0, -2.0])
    assert coupled_gradient.interaction(product + [[5.0], [1.0]] + [[7.0, 3.0]]) == pytest.approx(2.0)

    def small(setup: Setup) -> Plan:
        whole = coupled_gradient.plan(setup)
        made = {name: sources.codes(lambda: table) for name in whole.sources}
        return Plan(made, [replace(case, settings={**case.settings, "train.epochs": 1}) for case in whole.cases])

    found = runner.run_study(replace(coupled_gradient.STUDY, plan=small), tmp_path, seeds=1, workers=1)
    assert [row["model"] for row in found["rows"]] == ["fm", "ffm", "kfm"]
    assert all(row["relative"] == pytest.approx(row["idle"] / row["active"]) for row in found["rows"])
    assert len(found["lines"]) == 2
    rows = [
        {"model": model, "seed": 0, "relative": value} for model, value in {"fm": 0.4, "ffm": 0.1, "kfm": 0.3}.items()
    ]
    assert [verdict.passed for verdict in coupled_gradient.claims(Results(rows))] == [False, True]


def test_a_parity_is_one_and_its_gradient_tells_less_the_larger_it_is():
    table = parity.parity(3, 2000, 0)
    bits = np.stack([table[f"f{field}"].to_numpy() for field in range(parity.FIELDS)])
    labels = table["click"].to_numpy()
    flips = [np.mean((bits[list(chosen)].sum(0) % 2) == labels) for chosen in combinations(range(parity.FIELDS), 3)]
    assert max(flips) == 1.0
    assert sorted(flips)[-2] < 0.6
    found = [parity.gradient_variance(size, 0, rows=40_000, targets=20) for size in (1, 2, 4)]
    assert found == sorted(found, reverse=True)
    # Of one field there are 30 hypotheses, of four 27,405: what chance makes common to two halves is far below both.
    assert 0.002 < found[0] < 1 / 30
    assert abs(found[2]) < 1e-5
    areas = {2: 0.99, 4: 0.6, 8: 0.5}
    rows = [
        {"model": "fnn", "size": size, "seed": 0, "auc": area, "gradient_variance": size**-8}
        for size, area in areas.items()
    ]
    assert [verdict.passed for verdict in parity.claims(Results(rows))] == [True] * 5
    rows[2]["auc"] = 0.8
    assert [verdict.passed for verdict in parity.claims(Results(rows))] == [True, False, False, True, True]
    rows[2]["gradient_variance"] = rows[0]["gradient_variance"] / 10
    assert not parity.claims(Results(rows))[4].passed


def test_stability_counts_what_diverged_first():
    def rows(areas: dict[str, list[float | None]]) -> Results:
        return Results(
            [
                {"norm": norm, "seed": seed} | ({"failed": "nan"} if area is None else {"auc": area})
                for norm, values in areas.items()
                for seed, area in enumerate(values)
            ]
        )

    calm = {"none": [None, 0.7], "layer": [0.70, 0.72], "fused": [0.72, 0.73], "fused-per-pair": [0.7, 0.7]}
    assert [verdict.passed for verdict in layer_norm.claims(rows(calm))] == [True, True, True]
    wild = calm | {"fused": [0.6, 0.73]}
    assert [verdict.passed for verdict in layer_norm.claims(rows(wild))] == [False, True, False]
    assert [case.settings["model.subnet_norm"] for case in layer_norm.plan(Setup()).cases] == list(layer_norm.NORMS)


def test_kernels_and_seeds_can_fail():
    facts = {"num": (0.70, 300.0), "vec": (0.71, 200.0), "mat": (0.7095, 100.0)}
    rows = [{"kernel": kernel, "seed": 0, "auc": auc, "rows_per_s": speed} for kernel, (auc, speed) in facts.items()]
    assert [verdict.passed for verdict in kernels.claims(Results(rows))] == [True, True]
    rows[2] |= {"auc": 0.70, "rows_per_s": 250.0}
    assert [verdict.passed for verdict in kernels.claims(Results(rows))] == [False, False]
    areas = {"pin": (0.800, 0.801), "lr": (0.7, 0.7), "fm": (0.78, 0.78), "fnn": (0.79, 0.79), "deepfm": (0.77, 0.77)}
    rows = [
        {"model": model, "seed": seed, "auc": auc, "valid_log_loss": 1 - auc}
        for model, values in areas.items()
        for seed, auc in enumerate(values)
    ]
    assert [verdict.passed for verdict in seeds.claims(Results(rows))] == [True]
    rows[0]["auc"] = 0.79
    assert [verdict.passed for verdict in seeds.claims(Results(rows))] == [False]


def test_table_11_counts_models():
    made = table11.plan(Setup())
    assert len(made.cases) == 12 * 4
    rows = []
    for case in made.cases:
        broken = case.keys["eps"] == 1e-2 and case.keys["model"] in table11.SHALLOW
        auc = 0.6 if broken else 0.75 if case.keys["eps"] == 1e-4 else 0.74
        rows.append({**case.keys, "seed": 0, "auc": auc, "valid_log_loss": 1 - auc})
    assert [verdict.passed for verdict in table11.claims(Results(rows))] == [True, True]
    for row in rows:
        row["valid_log_loss"] = row["eps"]
    assert [verdict.passed for verdict in table11.claims(Results(rows))] == [True, False]


@pytest.mark.parametrize("name", [name for name in registry.IDS if registry.named(name).plan])
def test_the_settings_of_every_case_are_known(name: str):
    """A misspelt option would show only after an hour of training."""
    study = registry.named(name)
    assert study.plan is not None
    for size in ("small", "medium"):
        made = study.plan(Setup(size, 1))
        assert {case.data for case in made.cases} == set(made.sources)
        for case in made.cases:
            config = load_config(base={"seed": 0, "device": "cpu", **case.settings})
            model = models.build(config.model, Layout.of((3,) * 8), config.options)
            for table in (part for part in getattr(model, "modules", list)() if isinstance(part, Table)):
                table.start(config.train.init, config.train.init_scale)
        assert len({case.name for case in made.cases}) == len(made.cases)


def test_the_sequence_study_judges_by_the_truth(tmp_path: Path):
    def results(din: float) -> Results:
        losses = {("fm", "without"): 0.65, ("fnn", "without"): 0.64, ("pin", "without"): 0.66}
        losses |= {(name, "with"): 0.5 for name in sequence.POOLED} | {("din", "with"): din, ("pin mean", "with"): 0.6}
        rows = [
            {"model": model, "past": past, "log_loss": loss, "valid_log_loss": loss, "oracle": 0.44, "seed": 0}
            for (model, past), loss in losses.items()
        ]
        return Results(rows)

    assert [verdict.passed for verdict in sequence.claims(results(0.5))] == [True, True, True]
    assert [verdict.passed for verdict in sequence.claims(results(0.56))] == [False, True, True]
    assert [verdict.passed for verdict in sequence.claims(results(0.43))] == [True, True, False]
    made = sequence.plan(Setup())
    assert (len(made.cases), set(made.sources)) == (8, {"without-0", "with-0"})
    sequence.source(600, 0, True)(tmp_path / "with")
    data = Dataset.open(tmp_path / "with")
    assert data.names[-2:] == ["item by user", "category by user"]
    (tmp_path / "report.json").write_text(json.dumps({"data": str(tmp_path / "with")}))
    truth = SequentialWorld(0).log(600, 0).probability[-data.parts["test"].rows :]
    clicks = data.parts["test"].labels
    found = sequence.look(made.cases[0], tmp_path)["oracle"]
    assert found == pytest.approx(-np.log(np.where(clicks, truth, 1 - truth)).mean())


@pytest.mark.parametrize("model", ["lr", "symmetric"])
def test_every_kind_of_model_trains_in_a_study(tmp_path: Path, model: str):
    def small(setup: Setup) -> Plan:
        own = {"model.rounds": 3} if model == "symmetric" else FAST
        cases = [Case({"model": model, "lr": 0}, "drawn", {"model.name": model, **own}, seed) for seed in range(2)]
        return Plan({"drawn": sources.codes(drawn)}, cases)

    study = replace(TOY, plan=small, claims=lambda results: [Verdict("it is", results.mean("auc"), 2)])
    assert runner.run_study(study, tmp_path, workers=1)["failed"] == []
