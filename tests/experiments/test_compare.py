"""Models times seeds into one table, whatever happens on the way."""

import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fieldwise import cli
from fieldwise.bundle.predictions import Predictions
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError
from fieldwise.config.files import held_folder
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World
from fieldwise.evaluation.significance import compare_pairs
from fieldwise.experiments import compare, entrants
from fieldwise.later_models import LATER
from fieldwise.models import registry

RECIPES = {
    "lr": "[train]\nepochs = 2\n",
    "fm": "[model]\ndim = 4\n\n[train]\nepochs = 4\nlr = 0.01\ncheckpoint_minutes = 0.0\n",
    "kfm": "[model]\ndim = 4\n\n[train]\nepochs = 1\n",
    "gbdt": "[model]\nrounds = 5\n",
}
CLOCK = {"rows_per_s", "seconds", "times", "out", "bundle"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "clicks"
    log = World("demo").log(2000).table
    prepare({"train": lambda: iter([log])}, folder, "click")
    return folder


@pytest.fixture
def recipes(tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    for model, text in RECIPES.items():
        (folder / f"{model}.toml").write_text(text)
    return folder


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


def plain(found):
    """A comparison without what the clock decides."""
    if isinstance(found, list):
        return [plain(item) for item in found]
    return {k: plain(v) for k, v in found.items() if k not in CLOCK} if isinstance(found, dict) else found


def stamps(out):
    """When the files of each finished run were last written."""
    names = ("DONE", "report.json", "log.jsonl", "predictions.parquet", "bundle/bundle.json")
    return {path.parent: [(path.parent / n).stat().st_mtime_ns for n in names] for path in out.glob("*/*/DONE")}


def test_the_table_holds_means_deviations_and_tests(data, recipes, tmp_path, capsys):
    pytest.importorskip("xgboost")
    out = tmp_path / "out"
    arguments = ["compare", data, "--models", "lr, kfm,fm,gbdt", "--seeds", 2, "--recipes", recipes, "--out", out]
    assert run(*arguments, "--device", "cpu", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["model"]: row for row in found["models"]}
    assert set(rows) == {"lr", "kfm", "fm", "gbdt"}
    losses = [row["log_loss"] for row in found["models"]]
    assert losses == sorted(losses)
    for model, row in rows.items():
        reports = [json.loads((out / model / f"seed{seed}" / "report.json").read_text()) for seed in (0, 1)]
        assert [report["seed"] for report in reports] == [0, 1]
        tested = [report["test"] for report in reports]
        assert row["auc"] == pytest.approx(statistics.fmean(t["auc"] for t in tested))
        assert row["log_loss"] == pytest.approx(statistics.fmean(t["log_loss"] for t in tested))
        spread = statistics.stdev(t["log_loss"] for t in tested)
        assert row["log_loss_sd"] == pytest.approx(spread)
        assert row["calibration"] == pytest.approx(statistics.fmean(t["calibration"] for t in tested))
        assert row["seconds"] == pytest.approx(statistics.fmean(report["seconds"] for report in reports))
    assert "dim = 4" in (out / "fm" / "seed1" / "config.toml").read_text()
    baseline = min(("lr", "fm", "gbdt"), key=lambda model: rows[model]["log_loss"])
    assert found["baseline"] == baseline
    assert rows[baseline]["verdict"] is None
    named = {model: [Predictions.load(out / model / f"seed{seed}") for seed in (0, 1)] for model in rows}
    for model in set(rows) - {baseline}:
        expected = compare_pairs(named, [(model, baseline)])["pairs"][0]["log_loss"]
        assert rows[model]["p"] == expected["p"]
        assert rows[model]["verdict"] == f"{expected['verdict']}, p = {expected['p']:.2g}"
        assert (rows[model]["blocks_better"], rows[model]["blocks"]) == (expected["better"], 50)

    table = (out / "table.md").read_text()
    best = found["models"][0]
    assert f"**{best['log_loss']:.5f} ± {best['log_loss_sd']:.5f}**" in table
    assert f"Against {baseline}" in table
    assert "over 2 seeds" in table
    with (out / "table.csv").open() as file:
        written = {row["model"]: row for row in csv.DictReader(file)}
    assert float(written["fm"]["auc_sd"]) == rows["fm"]["auc_sd"]
    page = (out / "index.html").read_text()
    for words in ("4 models on clicks", "Seeds", "Is the difference real?", "Training curves", "Settings"):
        assert words in page
    assert f"--recipes {recipes}" in page
    assert page.count("<svg") == 3

    before = stamps(out)
    assert len(before) == 8
    assert run(*arguments, "--device", "cpu") == 0
    printed = capsys.readouterr()
    assert f"{best['log_loss']:.5f} ± {best['log_loss_sd']:.5f}" in printed.out
    assert max(map(len, printed.out.splitlines()[:6])) <= 80
    assert "8 of 8 runs" in printed.err
    assert stamps(out) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_the_middle_and_given_again(data, recipes, tmp_path, capsys, workers):
    # FM would be done before anybody could kill it.
    (recipes / "kfm.toml").write_text(RECIPES["fm"])
    shared = ["compare", data, "--models", "lr,kfm", "--seeds", 2, "--recipes", recipes, "--device", "cpu", "--json"]
    assert run(*shared, "--out", tmp_path / "whole") == 0
    whole = json.loads(capsys.readouterr().out)
    out = tmp_path / "killed"
    arguments = [*shared, "--out", out, "--jobs", workers]
    process = subprocess.Popen([sys.executable, "-m", "fieldwise", *map(str, arguments)], stdout=subprocess.DEVNULL)
    while process.poll() is None and not (
        (out / "lr" / "seed0" / "DONE").exists() and list(out.glob("kfm/seed0/checkpoint/0*"))
    ):
        time.sleep(0.01)
    children = [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(children) >= (workers if workers > 1 else 0)
    await_end(children)
    assert not (out / "table.md").exists()
    before = stamps(out)
    assert before
    assert run(*arguments) == 0
    again = json.loads(capsys.readouterr().out)
    after = stamps(out)
    assert {run: after[run] for run in before} == before
    assert len(after) == 4
    assert plain(again) == plain(whole)


def await_end(processes):
    """Waits until the processes of a killed parent are gone, as they must be before another takes their place."""
    deadline = time.monotonic() + 60
    for process in processes:
        status = Path(f"/proc/{process}/stat")
        while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, "a child outlives its parent"
            time.sleep(0.05)


def test_a_model_that_fails_is_named_after_the_others_are_kept(data, recipes, tmp_path, capsys):
    out = tmp_path / "out"
    (recipes / "fm.toml").write_text("[train]\nlearning_rate = 0.1\n")
    arguments = ["compare", data, "--models", "fm,lr", "--seeds", 2, "--recipes", recipes, "--out", out, "--json"]
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert "fm failed: unknown train setting 'learning_rate'" in line
    assert str(out / "table.md") in line
    assert "| lr |" in (out / "table.md").read_text()
    assert "fm" not in (out / "table.md").read_text()
    before = stamps(out)
    assert {path.parent.name for path in before} == {"lr"}
    (recipes / "fm.toml").write_text(RECIPES["fm"])
    assert run(*arguments) == 0
    assert [row["seeds"] for row in json.loads(capsys.readouterr().out)["models"]] == [2, 2]
    assert {run: after for run, after in stamps(out).items() if run in before} == before
    (recipes / "lr.toml").write_text("[train]\nepochs = 3\n")
    assert run(*arguments) == 2
    line = capsys.readouterr().err
    assert "lr failed: --resume needs the run's own settings, found others" in line
    assert stamps(out).keys() >= before.keys()


def test_mistakes_are_one_line_before_anything_is_trained(data, tmp_path, capsys):
    out = tmp_path / "out"
    for arguments, message in (
        ([data, "--models", "lr,pnn"], "unknown model 'pnn'; did you mean 'kpnn'?"),
        ([data, "--models", "lr", "--seeds", 0], "--seeds must be at least 1, found 0"),
        ([data, "--models", "lr", "--jobs", 0], "--jobs must be at least 1, found 0"),
        ([data, "--models", "lr", "--recipes", tmp_path / "none"], "--recipes takes a folder"),
        ([data, "--models", "lr", "--device", "tpu"], "device must be cpu, cuda or auto, found 'tpu'"),
        ([tmp_path, "--models", "lr"], "not a folder that `fieldwise prepare` wrote"),
    ):
        assert run("compare", *arguments, "--out", out, "--json") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
        assert not out.exists()


def test_what_fails_all_models_alike_is_said_once(data, recipes, tmp_path, capsys):
    for model in ("lr", "fm"):
        (recipes / f"{model}.toml").write_text('[train]\noptimizer = "adm"\n')
    command = ("compare", data, "--models", "lr,fm", "--recipes", recipes, "--out", tmp_path / "out")
    assert run(*command, "--json") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: lr, fm failed: unknown optimizer 'adm'; did you mean 'adam'?")
    assert line.count("optimizer") == 1
    assert not (tmp_path / "out").exists()


def test_trees_are_left_out_where_xgboost_is_missing(monkeypatch):
    found, notes = entrants.entrants("lr,fm,lr", Path("data"))
    assert ([entrant.name for entrant in found], notes) == (["lr", "fm"], [])
    monkeypatch.setattr(entrants.importlib.util, "find_spec", lambda name: None)
    found, notes = entrants.entrants("all", Path("data"))
    assert {entrant.name for entrant in found} == set(registry()) - {"gbdt"}
    assert [note.split(":")[0] for note in notes] == ["gbdt is left out"]


def test_without_a_baseline_or_with_one_seed_there_is_less_to_say(data, recipes, tmp_path):
    found = compare.compare(entrants.entrants("kfm", data)[0], data, tmp_path / "out", 1, recipes, "cpu")
    assert (found["baseline"], found["models"][0]["verdict"], found["models"][0]["log_loss_sd"]) == ("", None, None)
    table = (tmp_path / "out" / "table.md").read_text()
    assert "Against" not in table
    assert "±" not in table
    assert table.splitlines()[-1].startswith("One seed on ")
    assert "Is the difference real?" not in (tmp_path / "out" / "index.html").read_text()


def test_every_registered_model_of_the_paper_is_a_baseline_or_a_proposal():
    later = {"din", "bst", *(build.__name__ for build in LATER)}
    assert set(registry()) - later == {*compare.BASELINES, "kfm", "nifm", "ipnn", "kpnn", "pin"}


def test_field_stands_for_the_models_since_the_paper(data):
    named = [entrant.name for entrant in entrants.entrants("lr,field,dcnv2", data)[0]]
    assert named == ["lr", "ipnn", *(build.__name__ for build in LATER)]


def test_a_blend_has_a_line_of_its_own(data, recipes, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["compare", data, "--models", "fm,lr", "--seeds", 2, "--recipes", recipes, "--out", out, "--json"]
    for _ in range(2):
        assert run(*arguments, "--device", "cpu", "--blend", "lr,fm") == 0
        found = json.loads(capsys.readouterr().out)
        rows = {row["model"]: row for row in found["models"]}
        assert set(rows) == {"lr", "fm", "blend"}
        assert rows["blend"]["seeds"] == 2
        assert found["baseline"] in ("lr", "fm")
    report = json.loads((out / "blend" / "seed1" / "report.json").read_text())
    assert [member["run"] for member in report["members"]] == [str(out / m / "seed1") for m in ("lr", "fm")]
    seeds = [json.loads((out / "blend" / f"seed{s}" / "report.json").read_text())["test"]["log_loss"] for s in (0, 1)]
    assert rows["blend"]["log_loss"] == pytest.approx(np.mean(seeds))
    assert "--models fm,lr" in (out / "index.html").read_text()
    assert "| blend" in (out / "table.md").read_text()


@pytest.mark.parametrize(("text", "words"), [("pin,lr", "found 'pin'"), ("lr", "at least two")])
def test_a_blend_is_of_models_in_the_comparison(text, words):
    with pytest.raises(ConfigError, match=words):
        compare.members_named(text, ["lr", "fm"])
    assert compare.members_named("all", ["lr", "fm"]) == ["lr", "fm"]
    assert compare.members_named("", ["lr", "fm"]) == []


def test_the_usual_models_read_rates_where_they_are_and_the_best_predicts(recipes, tmp_path, capsys):
    log = World("demo").log(2000).table
    data, out = tmp_path / "clicks", tmp_path / "out"
    prepare({"train": lambda: iter([log])}, data, "click", keep_rows=True)
    found, _ = entrants.entrants("", data)
    assert [(entrant.name, entrant.data) for entrant in found] == [
        ("gbdt-rates", data / "rates"),
        ("symmetric-order", data / "order"),
        ("symmetric", data),
        ("lr", data),
    ]
    assert not (data / "rates").exists()
    chosen = ["--models", "gbdt-rates,fm", "--blend", "all", "--seeds", 2]
    assert run("compare", data, *chosen, "--recipes", recipes, "--out", out, "--json") == 0
    # What these models read was made, and removed again; it comes back where somebody reads it.
    assert not any((data / name).exists() for name in ("rates", "order", "refit"))
    assert not list(out.rglob("checkpoint"))
    assert Predictor.load(out / "gbdt-rates" / "seed0").evaluate_prepared(data / "rates")["rows"] > 0
    best = json.loads(capsys.readouterr().out)["best"]
    losses = {
        name: np.mean(
            [json.loads((out / name / f"seed{s}" / "report.json").read_text())["cross_fitted"] for s in (0, 1)]
        )
        for name in ("gbdt-rates", "fm", "blend")
    }
    doubts = [json.loads((out / "blend" / f"seed{s}" / "report.json").read_text())["cross_fitted_se"] for s in (0, 1)]
    ranks = losses | {"blend": losses["blend"] - max(doubts)}
    assert best["model"] == min(ranks, key=ranks.get)
    assert best["valid_log_loss"] == pytest.approx(losses[best["model"]])
    assert len(Predictor.load(out / "best").predict(log.slice(0, 5))) == 5
    page = (out / "index.html").read_text()
    assert "--models gbdt-rates,fm" in page
    assert "--blend gbdt-rates,fm" in page


def test_train_makes_the_folder_that_it_reads(tmp_path):
    log = World("demo").log(500).table
    prepare({"train": lambda: iter([log])}, tmp_path / "data", "click", keep_rows=True)
    folder = tmp_path / "data" / "order"
    assert run("train", folder, "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run", "--json") == 0
    assert Dataset.open(folder).names[-1].endswith(":rate")
    assert len(Predictor.load(tmp_path / "run").predict(log.slice(0, 5))) == 5


@pytest.fixture(scope="module")
def data_to_refit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refit") / "clicks"
    log = World("demo").log(2000).table
    prepare({"train": lambda: iter([log])}, folder, "click", keep_rows=True)
    return folder


def test_the_best_learns_the_test_rows_in_the_end(data_to_refit, recipes, tmp_path, capsys):
    """What predicts is trained on the folder `refit`; the table stays that of the runs without a test row."""
    chosen = ["compare", data_to_refit, "--models", "lr-rates,fm", "--blend", "all", "--seeds", 2, "--recipes", recipes]
    assert run(*chosen, "--out", tmp_path / "plain", "--no-refit", "--json") == 0
    plain_found = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "plain" / "refit").exists()
    out = tmp_path / "out"
    assert run(*chosen, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert plain(found["models"]) == plain(plain_found["models"])
    rows = {name: Dataset.open(made(data_to_refit / name)).parts["train"].rows for name in (".", "refit")}
    assert found["best"]["refit_rows"] == rows["refit"] > rows["."]
    report = json.loads((out / "best" / "report.json").read_text())
    assert "test" not in report
    assert found["best"]["refit_valid_log_loss"] == report["cross_fitted"]
    assert [member["run"] for member in report["members"]] == [
        str(out / "refit" / run) for run in found["best"]["runs"]
    ]
    folders = {"lr": data_to_refit / "refit" / "rates", "fm": data_to_refit / "refit"}
    assert [Path(member["data"]) for member in report["members"]] == [folders[m["model"]] for m in report["members"]]
    assert len(Predictor.load(out / "best").predict(World("demo").log(5).table)) == 5
    before = {path: path.stat().st_mtime_ns for path in (out / "refit").rglob("DONE")}
    assert run(*chosen, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["best"] == found["best"]
    assert before == {path: path.stat().st_mtime_ns for path in (out / "refit").rglob("DONE")}


def test_members_that_weigh_nothing_are_not_trained_again(data_to_refit, tmp_path):
    members = [
        {"run": str(tmp_path / "fm" / "seed0"), "weight": 0.7},
        {"run": str(tmp_path / "lr" / "seed0"), "weight": 0.0},
    ]
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "report.json").write_text(json.dumps({"members": members}))
    assert entrants._runs(tmp_path / "best") == [tmp_path / "fm" / "seed0"]
    names = ("fm", "lr-rates", "gbdt-rates")
    jobs = [entrants._entrant(name, data_to_refit).job(0, tmp_path, None, "") for name in names]
    for job in jobs:
        job.out.mkdir(parents=True)
        (job.out / "report.json").write_text(json.dumps({"best_epoch": 10}))
    more = entrants.again({"runs": ["lr-rates/seed0"]}, jobs, data_to_refit, tmp_path)
    assert [(job.data, job.out) for job in more] == [
        (data_to_refit / "refit" / "rates", tmp_path / "refit" / "lr-rates" / "seed0")
    ]
    # Nothing is trained only to be dropped: as many epochs as were best, and a few more trees for more rows.
    assert more[0].settings["train.epochs"] == 10
    trees = entrants.again({"runs": ["gbdt-rates/seed0"]}, jobs, data_to_refit, tmp_path)
    assert trees[0].settings["model.rounds"] == 11


def test_a_run_that_fails_in_the_end_leaves_the_best_as_it_was(data_to_refit, recipes, tmp_path, capsys, monkeypatch):
    whole = compare.run_all

    def once(jobs, *more):
        return whole(jobs, *more) if "refit" not in jobs[0].out.parts else {"lr": "the disk is full"}

    monkeypatch.setattr(compare, "run_all", once)
    out = tmp_path / "out"
    chosen = ["compare", data_to_refit, "--models", "lr", "--seeds", 1, "--recipes", recipes]
    assert run(*chosen, "--out", out) == 2
    assert "lr failed: the disk is full" in capsys.readouterr().err
    rows = World("demo").log(20).table
    alone, best = (Predictor.load(folder).predict(rows) for folder in (out / "lr" / "seed0", out / "best"))
    np.testing.assert_array_equal(alone, best)


def test_one_run_is_the_best_by_itself(data, recipes, tmp_path, capsys):
    out = tmp_path / "out"
    for _ in range(2):
        assert run("compare", data, "--models", "lr", "--seeds", 1, "--recipes", recipes, "--out", out, "--json") == 0
        assert json.loads(capsys.readouterr().out)["best"]["model"] == "lr"
    rows = World("demo").log(20).table
    alone, best = (Predictor.load(folder).predict(rows) for folder in (out / "lr" / "seed0", out / "best"))
    np.testing.assert_array_equal(alone, best)


def test_rates_that_are_not_there(data, capsys, tmp_path):
    assert [entrant.name for entrant in entrants.entrants("", data)[0]] == ["symmetric", "gbdt", "lr"]
    assert run("compare", data, "--models", "lr-rates", "--out", tmp_path / "out") == 2
    assert "'lr-rates' reads the folder" in capsys.readouterr().err


def test_more_rows_have_networks_too_after_lr_which_spares_fm_most_of_its_epochs(data, monkeypatch):
    monkeypatch.setattr(entrants, "VERY_FEW", 100)
    named = [entrant.name for entrant in entrants.entrants("", data)[0]]
    assert named == ["symmetric", "gbdt", "lr", "fm", "ipnn", "fnn"]


def test_very_few_rows_of_many_ids_have_networks_too(data, monkeypatch):
    """LR on them is no fit at once, and products of ids say what trees do not."""
    monkeypatch.setattr(entrants, "affordable", lambda layout, rows, share: False)
    assert [entrant.name for entrant in entrants.entrants("", data)[0]][-4:] == ["fm", "lr", "ipnn", "fnn"]


def test_a_second_comparison_in_the_same_folder_is_refused(data, tmp_path, capsys):
    with held_folder(tmp_path / "out", "comparing"):
        assert run("compare", data, "--models", "lr", "--seeds", 1, "--out", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"error: another process (pid {os.getpid()}) is comparing models in {tmp_path / 'out'}; wait"
    )
    assert not (tmp_path / "out").exists()


def test_a_model_that_failed_and_was_mended_is_trained_anew(data, recipes, tmp_path, capsys):
    """`mend it and give the same command again` holds for a loss that was no number."""
    command = ("compare", data, "--models", "fm", "--seeds", 1, "--recipes", recipes, "--out", tmp_path / "out")
    good = (recipes / "fm.toml").read_text()
    (recipes / "fm.toml").write_text('[model]\ndim = 4\n[train]\noptimizer = "sgd"\nlr = 1e30\n')
    assert run(*command) == 2
    (recipes / "fm.toml").write_text(good)
    capsys.readouterr()
    assert run(*command, "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["model"] == "fm"


def test_a_comparison_passes_the_warnings_of_its_runs_on(data, recipes, tmp_path, capsys):
    (recipes / "lr.toml").write_text("[train]\nepochs = 1\nlr = 1e-12\nbase_rate_start = false\n")
    command = ("compare", data, "--models", "lr", "--seeds", 1, "--recipes", recipes, "--out", tmp_path / "out")
    assert run(*command, "--no-refit") == 0
    assert "warning: lr seed 0: validation log loss is 0.69" in capsys.readouterr().err


def test_data_of_one_class_are_refused_before_a_folder_is_made(data, tmp_path, capsys):
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    labels = np.load(copy / "valid" / "labels.npy")
    np.save(copy / "valid" / "labels.npy", np.ones_like(labels))
    for verb in ("compare", "tune"):
        options = ("--models", "lr") if verb == "compare" else ("--model", "lr")
        assert run(verb, copy, *options, "--out", tmp_path / "out") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(
            f"error: validation rows must be of both classes, found {len(labels):,} of {len(labels):,}"
        )
        assert not (tmp_path / "out").exists()


def test_few_ids_have_an_lr_that_is_fitted_at_once(tmp_path):
    """Beside trees alone where rows are very few; a refit gives it no epochs, of which it has none."""
    random = np.random.default_rng(0)
    shop, price = random.choice(["a", "b", "c"], 2000), random.normal(size=2000)
    click = (random.random(2000) < 1 / (1 + np.exp(-price - (shop == "a")))).astype(int)
    log = pa.table({"click": click, "shop": shop, "price": price})
    prepare({"train": lambda: iter([log])}, tmp_path / "data", "click", keep_rows=True)
    found, _ = entrants.entrants("", tmp_path / "data")
    names = [entrant.name for entrant in found]
    assert names == ["gbdt-rates", "symmetric-order", "symmetric", "lr"]
    linear = found[names.index("lr")]
    assert linear.data == tmp_path / "data"
    job = linear.job(0, tmp_path / "runs", None, "cpu")
    assert job.settings["train.optimizer"] == "newton"
    assert job.attempt() == ""
    (again,) = entrants.again({"runs": ["lr/seed0"]}, [job], tmp_path / "data", tmp_path / "runs")
    assert again.attempt() == ""
    rows = [json.loads((one.out / "report.json").read_text())["part_rows"]["train"] for one in (job, again)]
    assert rows == [1600, 1800]
