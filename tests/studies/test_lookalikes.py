"""Studies on look-alikes: their claims can fail, runs are shared between them, and the figures of gradients measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fieldwise import models
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.schema import Layout
from fieldwise.data.world import World
from fieldwise.studies import (
    criteo_challenge,
    fig7,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    fig16,
    fig17,
    fig18,
    fig19,
    lookalikes,
    registry,
    runner,
    sources,
    table4,
    table6,
    table7,
    table8,
    table9,
)
from fieldwise.studies.study import SIZES, Case, Plan, Results, Row, Setup, Verdict, highest, mostly

FAST = {"train.epochs": 1, "train.batch_size": 100}


def drawn(rows: int = 600) -> pa.Table:
    rng = np.random.default_rng(1)
    fields = {name: rng.integers(0, 6, rows) for name in "abc"}
    click = (rng.random(rows) < np.where(fields["a"] > 2, 0.7, 0.3)).astype(np.int8)
    return pa.table({"click": click, **fields, sources.PART: sources.parts_of((rows - 200, 100, 100))})


def tiny(whole: Plan) -> Plan:
    """The same cases on a few drawn rows."""
    cases = [replace(case, settings={**case.settings, **FAST}) for case in whole.cases]
    return Plan({name: sources.codes(drawn) for name in whole.sources}, cases)


def passed(verdicts: list[Verdict]) -> list[bool]:
    return [verdict.passed for verdict in verdicts]


def test_a_claim_on_most_sets_has_the_margin_of_the_last_that_it_needs():
    margins = {"a": 0.3, "b": -0.1, "c": 0.1, "d": 0.2}
    assert mostly("x", margins, 1).margin == 0.1
    assert mostly("x", margins, 1, needed=4).margin == -0.1
    assert np.isnan(mostly("x", margins | {"b": float("nan")}, 1, needed=4).margin)
    assert mostly("x", {"a": 1.0}, 1).claim == "x, on a"


def table6_rows(**changed: float) -> Results:
    auc = {"lr": 0.70, "gbdt": 0.71, "fm": 0.72, "ffm": 0.73, "ccpm": 0.73, "fnn": 0.74, "afm": 0.72, "deepfm": 0.74}
    auc |= {"kfm": 0.735, "nifm": 0.73, "ipnn": 0.75, "kpnn": 0.751, "pin": 0.7505}
    return Results(
        [
            {"data": data, "model": model, "seed": 0, "auc": area + (changed.get(model, 0) if data != "criteo" else 0)}
            for data in lookalikes.SETS
            for model, area in auc.items()
        ]
    )


def test_table_6_fails_with_fm_for_kfm_and_pin_without_products():
    assert passed(table6.claims(table6_rows())) == [True] * 5
    assert passed(table6.claims(table6_rows(kfm=-0.015))) == [True, False, True, True, True]
    assert passed(table6.claims(table6_rows(pin=-0.02))) == [True, True, True, False, False]


def test_a_run_that_failed_is_never_passed_over():
    rows = table6_rows().rows
    for row in rows:
        if row["model"] in ("nifm", "kpnn") and row["data"] in ("avazu", "criteo"):
            row |= {"auc": None, "failed": "the loss is not a number"}
    assert passed(table6.claims(Results(rows))) == [True, True, False, False, False]
    blocks = {m: {"_blocks": [0.5, 0.4]} if m != "pin" else {"failed": ""} for m in (*table8.OTHERS, *table8.PNNS)}
    found = table8.derive(Results([{"data": "avazu", "model": m, "seed": 0, **b} for m, b in blocks.items()]))
    assert [row["p"] is None for row in found] == [False] * 6 + [True] * 3
    assert not any(passed(table8.claims(Results(found))))
    assert highest([1.0, 3.0]) == 3.0


def test_the_user_s_own_prepared_rows_are_taken(tmp_path: Path):
    sources.codes(drawn)(tmp_path / "real" / "avazu")
    made = table7.plan(Setup(data=tmp_path / "real"))
    made.sources["avazu-0"](tmp_path / "study" / "avazu-0")
    assert Dataset.open(tmp_path / "study" / "avazu-0").parts["train"].rows == 400


def test_tables_7_and_9_can_fail():
    def rows(kfm: float) -> Results:
        area = {("kfm", "fixed"): 0.7, ("kfm", "adaptive"): kfm, ("nifm", "fixed"): 0.7, ("nifm", "adaptive"): 0.701}
        return Results(
            [
                {
                    "model": m,
                    "vectors": v,
                    "seed": 0,
                    "auc": a,
                    "parameters": 5 - (v == "adaptive"),
                    "rows_per_s": len(v),
                }
                for (m, v), a in area.items()
            ]
        )

    assert passed(table7.claims(rows(0.7))) == [True, False, True, False, True, True, True, False]
    assert passed(table7.claims(rows(0.69)))[0] is False

    def runs(pin: float) -> Results:
        facts = {"data": "avazu", "seed": 0}
        found: list[Row] = [{"study": "table6", "model": m, "auc": 0.70, "valid_log_loss": 0.5} for m in table9.MODELS]
        for k, loss in ((4, 0.49), (8, 0.48), (16, 0.6)):
            area = {"fnn": 0.71, "deepfm": 0.72, "pin": pin}
            found += [
                {"study": "fig11", "model": m, "k": k, "auc": area[m] + k / 1e4, "valid_log_loss": loss}
                for m in table9.MODELS
            ]
        return Results([row | facts for row in found])

    best = table9.derive(runs(0.73))
    assert [row["auc"] for row in best] == pytest.approx([0.7108, 0.7208, 0.7308])
    assert passed(table9.claims(Results(best))) == [True, True]
    assert passed(table9.claims(Results(table9.derive(runs(0.69))))) == [False, False]


def test_table_8_takes_the_runs_of_table_6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    models = ("fnn", "ccpm", "deepfm", "ipnn", "kpnn", "pin")

    def small(setup: Setup) -> Plan:
        case = {m: lookalikes.settings(m, "appstore", "small", hidden=(8,)) | FAST for m in models}
        shapes = {"model.subnet": [4, 1]}
        cases = [
            Case({"data": "appstore", "model": m}, "rows", s | (shapes if m == "pin" else {})) for m, s in case.items()
        ]
        return Plan({"rows": sources.codes(drawn)}, cases)

    monkeypatch.setattr(table6, "plan", small)
    found = runner.run_study(table8.STUDY, tmp_path, seeds=1, workers=1)
    assert len(found["rows"]) == len(found["lines"]) == 9
    assert found["rows"][0]["blocks"] == 100
    done = sorted((tmp_path / "table6").rglob("DONE"))
    assert len(done) == 6
    times = [path.stat().st_mtime_ns for path in done]
    judged = runner.run_study(
        replace(table6.STUDY, plan=small, claims=lambda results: []), tmp_path, seeds=1, workers=1
    )
    assert [row["model"] for row in judged["rows"]] == list(models)
    assert [path.stat().st_mtime_ns for path in done] == times


def test_table_8_asks_for_the_right_direction():
    rng = np.random.default_rng(0)

    def runs(worse: float) -> Results:
        return Results(
            [
                {"data": data, "model": m, "seed": 0, "_blocks": (0.5 + 0.01 * rng.random(100) + loss).tolist()}
                for data in lookalikes.SETS
                for m, loss in (dict.fromkeys(table8.OTHERS, 0.0) | dict.fromkeys(table8.PNNS, worse)).items()
            ]
        )

    assert all(passed(table8.claims(Results(table8.derive(runs(-0.02))))))
    assert not any(passed(table8.claims(Results(table8.derive(runs(0.02))))))


def test_figure_14_starts_from_the_fm_of_its_seed(tmp_path: Path):
    study = replace(fig14.STUDY, plan=lambda setup: tiny(fig14.plan(setup)))
    found = runner.run_study(study, tmp_path, seeds=1, workers=1)
    assert not found["failed"]
    configs = [path.read_text() for path in sorted(tmp_path.rglob("runs/*/seed0/config.toml"))]
    assert sum("avazu-fm-random" in text for text in configs) == 2
    rows = [
        {"data": "a", "model": m, "start": s, "seed": 0, "auc": 0.7 + (s != fig14.RANDOM) * gain}
        for m, gain in {"fnn": 0.01, "afm": 0.02}.items()
        for s in (fig14.RANDOM, fig14.FM)
    ]
    assert passed(fig14.claims(Results(rows))) == [False]
    rows[1]["auc"] = 0.69
    assert passed(fig14.claims(Results(rows))) == [True]


def test_figures_11_and_12_can_fail():
    def sizes(fm: float, pin: float) -> Results:
        last = {"fm": fm, "fnn": 0.7, "deepfm": 0.7, "pin": pin}
        return Results(
            [
                {"data": d, "model": m, "k": k, "seed": 0, "auc": last[m] if k == 32 else 0.7}
                for d in ("avazu", "appstore")
                for m in fig11.MODELS
                for k in fig11.DIMS
            ]
        )

    assert passed(fig11.claims(sizes(0.69, 0.71))) == [True, True]
    assert passed(fig11.claims(sizes(0.71, 0.70))) == [False, False]

    def shapes(narrow: float, wide: float) -> Results:
        gap = {20: narrow, 320: wide}
        return Results(
            [
                {
                    "data": "appstore",
                    "model": m,
                    "width": w,
                    "depth": d,
                    "seed": 0,
                    "auc": 0.7 + (m == "pin") * gap.get(w, 0.01),
                }
                for m in fig12.MODELS
                for w, d in fig12.SIZES["small"][1]
            ]
        )

    assert passed(fig12.claims(shapes(0.03, 0.01))) == [True, True]
    assert passed(fig12.claims(shapes(0.0, -0.01))) == [False, True]
    assert passed(fig12.claims(shapes(0.01, 0.02))) == [True, False]


def test_figures_16_to_18_can_fail():
    def penalties(avazu: float, appstore: float) -> Results:
        best = {"avazu": avazu, "appstore": appstore}
        return Results(
            [
                {"data": d, "l2": value, "seed": 0, "auc": 0.7 + 0.01 * (value == b)}
                for d, b in best.items()
                for value in fig16.grid(d)
            ]
        )

    assert passed(fig16.claims(penalties(1e-6, 5e-3))) == [True, True]
    assert passed(fig16.claims(penalties(1e-4, 0.0))) == [False, False]

    def activations(relu: float, tanh: float) -> Results:
        area = {"relu": relu, "tanh": tanh, "elu": 0.70, "selu": 0.701}
        return Results(
            [
                {"activation": a, "norm": n, "seed": 0, "auc": area[a] + 0.01 * (n == "layer")}
                for a in fig17.ACTIVATIONS
                for n in fig17.NORMS
            ]
        )

    assert passed(fig17.claims(activations(0.72, 0.7))) == [True, True, True]
    assert passed(fig17.claims(activations(0.7, 0.71))) == [False, False, True]

    def drops(plain: tuple[float, float], normed: tuple[float, float]) -> Results:
        cost = {("none", 50): plain[0], ("none", 200): plain[1], ("layer", 50): normed[0], ("layer", 200): normed[1]}
        return Results(
            [
                {"norm": n, "batch": b, "drop": d, "seed": 0, "auc": 0.7 - d * c}
                for (n, b), c in cost.items()
                for d in fig18.DROPS
            ]
        )

    assert passed(fig18.claims(drops((0.2, 0.1), (0.05, 0.05)))) == [True, True, True]
    assert passed(fig18.claims(drops((-0.1, 0.1), (0.2, 0.2)))) == [False, False, False]


def test_figure_19_finds_planted_pairs(monkeypatch: pytest.MonkeyPatch):
    class Planted:
        active_pairs = (("a", "b"), ("c", "d"))

    monkeypatch.setattr(fig19, "World", lambda kind, seed: Planted())
    right = np.zeros((4, 4))
    right[0, 1] = right[1, 0] = right[2, 3] = right[3, 2] = 1.0
    assert fig19.detection(right, list("abcd"), 0) == 1.0
    assert fig19.bar_score(right) == pytest.approx(1 / 3)
    assert fig19.bar_score(np.ones((4, 4)) - np.eye(4)) == 1.0
    rows = [
        {"model": m, "seed": 0, **{f"{n}_bar": bar for n in fig19.MAPS}, **{f"{n}_auc": 1 - bar for n in fig19.MAPS}}
        for m, bar in {"fm": 0.5, "ffm": 0.4, "kfm": 0.2}.items()
    ]
    assert all(passed(fig19.claims(Results(rows))))
    assert not any(
        passed(fig19.claims(Results([{**row, "model": m} for row, m in zip(rows, ("kfm", "ffm", "fm"), strict=True)])))
    )


def test_figure_19_reads_maps_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Planted:
        active_pairs = (("a", "b"),)

    monkeypatch.setattr(fig19, "World", lambda kind, seed: Planted())
    found = runner.run_study(
        replace(fig19.STUDY, plan=lambda setup: tiny(fig19.plan(setup))), tmp_path, seeds=1, workers=1
    )
    assert len(found["lines"]) == 9
    assert all(0 < row["terms_bar"] <= 1 for row in found["rows"])


def test_the_challenge_scales_as_its_recipe_divides(tmp_path: Path):
    """With F fields, vectors 1/sqrt(F) as large give products 1/F as large, which is what input_norm does."""
    ffm, kfm = criteo_challenge.MODELS["ffm"], criteo_challenge.MODELS["kfm"]
    assert (kfm["train.init_scale"] / ffm["train.init_scale"]) ** 2 == pytest.approx(1 / criteo_challenge.FIELDS)
    assert kfm["train.lr"] / ffm["train.lr"] == pytest.approx(criteo_challenge.FIELDS**-0.5)
    study = replace(criteo_challenge.STUDY, plan=lambda setup: tiny(criteo_challenge.plan(setup)))
    found = runner.run_study(study, tmp_path, seeds=1, workers=1)
    assert all(row["plain_loss"] > 0 for row in found["rows"])

    def rows(loss: float, shifted: float) -> Results:
        return Results(
            [
                {"model": "ffm", "seed": 0, "log_loss": 0.5, "plain_loss": 0.5, "parameters": 10},
                {"model": "kfm", "seed": 0, "log_loss": loss, "plain_loss": shifted, "parameters": 2.5},
            ]
        )

    assert passed(criteo_challenge.claims(rows(0.5, 0.5))) == [True, True, True]
    assert passed(criteo_challenge.claims(rows(0.51, 0.50))) == [False, True, False]


class Small:
    """Rows instead of iPinYou's look-alike: rare positives."""

    def __init__(self, setup: Setup) -> None:
        import torch

        from fieldwise.data.schema import Layout

        rng = np.random.default_rng(0)
        self.layout = Layout.of((5, 5, 5))
        self.ids = torch.tensor(rng.integers(0, 5, (2000, 3)), dtype=torch.int32)
        self.labels = torch.tensor((rng.random(2000) < 0.03).astype(np.float32))


def test_figures_7_and_15_watch_gradients(monkeypatch: pytest.MonkeyPatch):
    from fieldwise.studies.gradients import Watched

    small = type("Watched", (Small,), {"train": Watched.train})
    for module in (fig7, fig15):
        monkeypatch.setattr(module, "Watched", small)
        monkeypatch.setattr(module, "SIZES", {"small": (100, 200)})
    logits = Results(fig7.compute(Setup()))
    assert len(logits.rows) == 6
    assert all(row["first"] > 0.4 and row["slope"] < 0 for row in logits.rows)
    assert len(fig7.claims(logits)) == 3
    shares = Results(fig15.compute(Setup()))
    last = [shares.mean("last", eps=eps, times=1) for eps in fig15.EPSILONS]
    assert last == sorted(last)
    assert fig15.threshold(1e-8, 1) == pytest.approx(1e-8)
    assert fig15.threshold(1e-8, 10_000) == pytest.approx(3.162e-7, rel=1e-3)
    rows = [
        {"eps": e, "times": 1, "seed": 0, "last": v} for e, v in zip(fig15.EPSILONS, (0.5, 0.4, 0.3, 0.2), strict=True)
    ]
    assert passed(fig15.claims(Results(rows))) == [False, False, False]


def test_figure_13_counts_days():
    def days(rise: float) -> Results:
        return Results(
            [
                {"day": d, "seed": 0, "improvement": rise if d < 12 else -rise, "expected": rise, "oracle": 0.5}
                for d in range(14)
            ]
        )

    assert passed(fig13.claims(days(0.2))) == [True, True, True]
    assert passed(fig13.claims(days(-0.2))) == [False, False, True]
    assert passed(fig13.claims(days(0.6)))[2] is False


def test_table_4_counts_what_is_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookalikes, "SETS", ("appstore",))
    monkeypatch.setattr(lookalikes, "ROWS", {"small": {"appstore": 20_000}})
    (row,) = table4.compute(Setup())
    table = World("appstore", 0, 0.05).log(20_000).table
    tags = {tag for cell in table["tags"].to_pylist() if cell for tag in cell.split("|")}
    others = sum(
        len(set(table[name].to_pylist()) - {None}) for name in table.column_names if name not in ("tags", "click")
    )
    assert row["categories"] == len(tags) + others
    assert passed(table4.claims(Results([row])))[:2] == [True, True]
    assert passed(table4.claims(Results([row | {"fields": 8, "positive": 0.2}])))[:2] == [False, False]


def test_small_studies_fit_into_two_hours():
    minutes: Any = sum(study.budget for study in registry.every())
    assert minutes <= 2 * 120


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("data", lookalikes.SETS)
def test_every_recipe_is_a_config_of_its_model(data: str, size: str):
    for model in lookalikes.MODELS:
        found = lookalikes.settings(model, data, size)
        config = load_config(base=found)
        assert config.model == model
        with torch.device("meta"):
            models.build(model, Layout.of([50] * 9), config.options)


def test_recipes_have_the_shapes_of_table_5():
    dims = {"criteo": 20, "avazu": 40, "ipinyou": 20, "appstore": 10}
    layers = {"criteo": [700] * 5, "avazu": [500] * 5, "ipinyou": [300] * 3, "appstore": [400] * 3}
    for data in lookalikes.SETS:
        for model in ("fnn", "deepfm", "ipnn", "kpnn", "pin"):
            found = lookalikes.settings(model, data, "paper")
            assert (found["model.dim"], found["model.hidden"]) == (dims[data], layers[data])
        assert lookalikes.settings("nifm", data, "medium")["model.subnet"] == [2 * dims[data], 1]
    assert lookalikes.settings("pin", "criteo", "paper")["model.subnet"] == [40, 5]
    assert lookalikes.settings("fm", "criteo", "medium", dim=80)["model.dim"] == 80
    assert lookalikes.settings("fnn", "criteo", "small")["model.hidden"] == [140] * 3
