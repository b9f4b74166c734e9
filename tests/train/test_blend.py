"""Several models as one: the fit of the weights, the run folder, and that every verb takes it like any other."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.optimize import minimize

from fieldwise import cli
from fieldwise.bundle import bundle, calibration
from fieldwise.bundle.members import Blend
from fieldwise.bundle.predictor import Predictor
from fieldwise.bundle.scoring import score
from fieldwise.config.errors import BundleError, ConfigError, FieldwiseError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.read import formats
from fieldwise.data.schema import Field, HistorySettings, Schema
from fieldwise.evaluation import metrics
from fieldwise.train.blend import blend
from fieldwise.train.estimator import Classifier
from fieldwise.train.loop import train


def cli_run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


def problem(seed, members=3, rows=400):
    """Labels, the logits of a few models of which some are noise and some fall, and weights."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=rows) * random.choice([0.5, 2])
    slopes = random.choice([-1, 0, 0.5, 1, 2], size=members)
    logits = slopes[:, None] * truth + random.normal(size=(members, rows)) * random.choice([0.1, 1])
    labels = (random.random(rows) < metrics.sigmoid(truth - random.choice([0, 2]))).astype(float)
    return labels, logits, random.choice([0.0, 1.0, 2.0], size=rows)


def objective(at, labels, logits, weights):
    """What the weights at[1:] and the shift at[0] cost, row by row."""
    members = len(logits)
    total = sum(((weight - 1 / members) * members / calibration.WEIGHT_SD) ** 2 for weight in at[1:]) / 2
    total += (sum(at[1:]) - 1) ** 2 / calibration.SUM_SD**2 / 2
    for row, label in enumerate(labels):
        logit = at[0] + sum(weight * own[row] for weight, own in zip(at[1:], logits, strict=True))
        total += weights[row] * (np.logaddexp(0, logit) - label * logit)
    return total


@pytest.mark.parametrize("seed", range(8))
def test_weights_are_those_of_a_slow_twin(seed):
    labels, logits, weights = problem(seed, members=2 + seed % 3, rows=60)
    found, shift = calibration.stack(labels, logits, weights)
    bounds = [(None, None), *[(0, None)] * len(logits)]
    start = [0.0, *[1 / len(logits)] * len(logits)]
    twin = minimize(objective, start, (labels, logits, weights), "L-BFGS-B", bounds=bounds, options={"ftol": 1e-14})
    if not twin.x[1:].any():
        np.testing.assert_array_equal(found, start[1:])
    else:
        np.testing.assert_allclose([shift, *found], twin.x, atol=1e-4)
        assert objective([shift, *found], labels, logits, weights) <= twin.fun + 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_weights_are_not_negative_and_nothing_near_is_better(seed):
    labels, logits, weights = problem(seed, members=2 + seed % 4)
    found, shift = calibration.stack(labels, logits, weights)
    assert (found >= 0).all()
    assert found.any()

    inputs, pull = np.vstack([np.ones(len(labels)), logits]), (len(logits) / calibration.WEIGHT_SD) ** 2
    p = metrics.sigmoid(shift + found @ logits)
    away = pull * (found - 1 / len(logits)) + (found.sum() - 1) / calibration.SUM_SD**2
    gradient = inputs @ (weights * (p - labels)) + np.array([0, *away])
    assert abs(gradient[0]) < 1e-4
    if not np.array_equal(found, np.full(len(logits), 1 / len(logits))):
        assert np.abs(gradient[1:][found > 0]).max() < 1e-4
        assert (gradient[1:][found == 0] >= 0).all()


def test_a_blend_is_no_worse_than_its_best_member_on_the_rows_it_is_fitted_on():
    for seed in range(20):
        labels, logits, weights = problem(seed, rows=4000)
        found, shift = calibration.stack(labels, logits, weights)
        ours = metrics.log_loss(labels, metrics.sigmoid(shift + found @ logits), weights)
        # A member alone has a weight of 1, far from the average; that it is drawn there costs next to nothing.
        alone = min(metrics.log_loss(labels, metrics.sigmoid(own), weights) for own in logits)
        assert ours <= alone + 1e-9


def test_models_that_fall_and_one_class_alone_leave_the_plain_average():
    random = np.random.default_rng(0)
    truth = random.normal(size=2000)
    labels = (random.random(2000) < metrics.sigmoid(truth)).astype(float)
    weights, shift = calibration.stack(labels, np.stack([-truth, -2 * truth]))
    np.testing.assert_array_equal(weights, [0.5, 0.5])
    assert metrics.sigmoid(shift - 1.5 * truth).mean() == pytest.approx(labels.mean(), rel=1e-6)
    weights, shift = calibration.stack(np.ones(10), random.normal(size=(4, 10)))
    assert (weights.tolist(), shift) == ([0.25] * 4, 0.0)


class Runs:
    """Runs on the small log: an FM and trees on its ids, an LR that also sees history, from another prepared folder."""

    def __init__(self, folder, trained):
        self.log, self.data, self.fm = trained.log, trained.data, trained.run
        self.past = folder / "past"
        source = {"train": lambda: formats.read([trained.log])}
        prepare(source, self.past, "click", history=HistorySettings(("user", "user*tags")))
        self.lr, self.trees = folder / "lr", folder / "trees"
        chosen = ["device=cpu", "train.epochs=2", "train.batch_size=50", "train.lr=0.01"]
        train(load_config(overrides=[*chosen, "model.name=lr"]), self.past, self.lr)
        trees = ["model.name=gbdt", "model.rounds=15", "model.depth=3", "model.threads=1"]
        train(load_config(overrides=trees), self.data, self.trees)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, trained):
    return Runs(tmp_path_factory.mktemp("members"), trained)


@pytest.fixture(scope="module")
def blended(runs, tmp_path_factory):
    """A blend of all three, with two encoders. Do not write into it: copy it."""
    out = tmp_path_factory.mktemp("blended") / "run"
    blend([runs.fm, runs.lr, runs.trees], out)
    return out


def rows_of(log):
    return pa.concat_tables(formats.read([log]))


def raw_logits(run, rows):
    """The logits of one member on raw rows, by its own encoder and model."""
    own = bundle.load(run)
    return own.logits(own.encoder.transform(rows)).astype(np.float64) + own.calibration.offset


def test_a_raw_row_gets_the_combination_of_its_members(runs, blended):
    rows = rows_of(runs.log)
    values = json.loads((blended / "bundle" / "blend.json").read_text())
    logits = sum(
        weight * raw_logits(run, rows)
        for weight, run in zip(values["weights"], (runs.fm, runs.lr, runs.trees), strict=True)
    )
    opened = bundle.load(blended)
    expected = opened.calibration.probabilities(logits + values["shift"])
    predictor = Predictor.load(blended)
    np.testing.assert_allclose(predictor.predict(rows), expected, rtol=0, atol=1e-12)
    one = {name: rows[name][7].as_py() for name in ("user", "price", "tags")}
    np.testing.assert_allclose(predictor.predict([one]), predictor.predict(rows.slice(7, 1)), rtol=0, atol=1e-12)
    assert 0 < predictor.predict([{"user": "never seen"}])[0] < 1


def test_the_run_folder_is_like_any_other(runs, blended):
    report = json.loads((blended / "report.json").read_text())
    assert (report["model"], report["calibration"]) == ("blend", "platt")
    assert {"config.toml", "log.jsonl", "bundle", "report.json", "predictions.parquet", "DONE"} <= set(
        os.listdir(blended)
    )
    assert [member["model"] for member in report["members"]] == ["fm", "lr", "gbdt"]
    assert [member["run"] for member in report["members"]] == [str(runs.fm), str(runs.lr), str(runs.trees)]
    assert [member["data"] for member in report["members"]] == [str(runs.data), str(runs.past), str(runs.data)]
    assert all(member["weight"] >= 0 for member in report["members"])
    sizes = [json.loads((run / "report.json").read_text())["parameters"] for run in (runs.fm, runs.lr, runs.trees)]
    assert report["parameters"] == sum(sizes) + 3
    valid = Dataset.open(runs.data).parts["valid"]
    own = metrics.log_loss(valid.labels, metrics.sigmoid(score(bundle.load(runs.fm).model, valid.ids)))
    assert report["members"][0]["log_loss"] == pytest.approx(own)
    assert report["test"]["rows"] == Dataset.open(runs.data).parts["test"].rows
    assert not list(blended.parent.glob(".*"))


def test_held_out_metrics_are_those_of_the_combination(runs, blended):
    """On prepared rows, whose history is that of their place in the log."""
    opened = bundle.load(blended)
    for part in ("valid", "test"):
        ids = [Dataset.open(data).with_ranks.parts[part].ids for data in (runs.data, runs.past, runs.data)]
        each = [bundle.load(r).logits(i) for r, i in zip((runs.fm, runs.lr, runs.trees), ids, strict=True)]
        logits = opened.model.weights @ np.array(each, dtype=np.float64) + opened.model.shift
        labels = Dataset.open(runs.data).parts[part].labels
        expected = metrics.log_loss(labels, opened.calibration.probabilities(logits))
        assert opened.metrics[part]["log_loss"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("plain", [True, False])
def test_a_model_blended_with_itself_is_the_model(runs, plain, tmp_path):
    blend([runs.fm, runs.fm], tmp_path / "twice", plain=plain)
    rows = rows_of(runs.log)
    once, twice = Predictor.load(runs.fm), Predictor.load(tmp_path / "twice")
    weights = twice.bundle.model.weights
    assert weights[0] == pytest.approx(weights[1], abs=1e-9)
    assert (np.argsort(np.argsort(once.predict(rows))) == np.argsort(np.argsort(twice.predict(rows)))).all()
    if plain:
        assert weights.tolist() == [0.5, 0.5]
        np.testing.assert_allclose(twice.predict(rows), once.predict(rows), rtol=0, atol=1e-12)
        assert twice.bundle.metrics["test"]["log_loss"] == pytest.approx(once.bundle.metrics["test"]["log_loss"])
        assert twice.bundle.metrics["pair_strength"] == once.bundle.metrics["pair_strength"]


def test_a_column_of_the_blend_is_a_column_of_a_member(runs, tmp_path):
    """A member that reads the row's time or a column that is no field is given it."""
    blend([runs.fm, runs.lr], tmp_path / "out", plain=True)
    schema = bundle.load(tmp_path / "out").schema
    assert schema.columns == ["user", "price", "tags"]
    assert schema.label == "click"
    timed = tmp_path / "timed"
    rows = rows_of(runs.log)
    rows = rows.append_column("day", pa.array([str(n // 40) for n in range(len(rows))]))
    settings = HistorySettings(("user",), time="day")
    prepare({"train": lambda: iter([rows.drop_columns(["price"])])}, timed, "click", drop=["day"], history=settings)
    train(load_config(overrides=["model.name=lr", "device=cpu", "train.epochs=1"]), timed, tmp_path / "lr")
    blend([tmp_path / "lr", runs.fm], tmp_path / "both", plain=True)
    predictor = Predictor.load(tmp_path / "both")
    assert predictor.schema.columns == ["user", "tags", "day", "price"]
    early, late = (rows.slice(0, 9).set_column(4, "day", pa.array([day] * 9)) for day in ("0", "99"))
    logits = 0.5 * raw_logits(tmp_path / "lr", late) + 0.5 * raw_logits(runs.fm, late)
    expected = predictor.bundle.calibration.probabilities(logits)
    np.testing.assert_allclose(predictor.predict(late), expected, rtol=0, atol=1e-12)
    assert len(predictor.predict(early)) == 9


def test_offsets_of_dropped_negatives_are_part_of_the_logits(runs, tmp_path):
    source = {"train": lambda: formats.read([runs.log])}
    prepare(source, tmp_path / "half", "click", split=Split((0.8, 0.1, 0.1)), keep_negatives=0.5)
    train(load_config(overrides=["model.name=lr", "device=cpu", "train.epochs=1"]), tmp_path / "half", tmp_path / "lr")
    blend([tmp_path / "lr", runs.fm], tmp_path / "out", plain=True)
    opened = bundle.load(tmp_path / "out")
    assert opened.members[0].calibration.offset == pytest.approx(np.log(0.5))
    assert opened.calibration.offset == 0
    rows = rows_of(runs.log)
    expected = opened.calibration.probabilities((raw_logits(tmp_path / "lr", rows) + raw_logits(runs.fm, rows)) / 2)
    np.testing.assert_allclose(Predictor.load(tmp_path / "out").predict(rows), expected, rtol=0, atol=1e-12)


def test_the_strength_of_pairs_is_the_weighted_one(runs, tmp_path):
    """An LR adds its fields up, whatever its encoder, so only the FM's share is left."""
    blend([runs.fm, runs.lr], tmp_path / "out", plain=True)
    ours = json.loads((tmp_path / "out" / "report.json").read_text())["pair_strength"]
    theirs = json.loads((runs.fm / "report.json").read_text())["pair_strength"]
    past = json.loads((runs.lr / "report.json").read_text())["pair_strength"]["fields"]
    assert ours["fields"] == past
    assert ours["fields"][:3] == theirs["fields"]
    matrix = np.array(ours["matrix"])
    np.testing.assert_allclose(matrix[:3, :3], 0.5 * np.array(theirs["matrix"]), atol=2e-6)
    assert np.abs(matrix[3:]).max() < 1e-5


def test_encoders_that_differ_in_the_schema_alone_are_two(runs, tmp_path):
    """Hashed fields have no vocabulary: all that tells their encoders apart is the number of buckets."""
    tiny = ["model.name=lr", "device=cpu", "train.epochs=1"]
    for buckets in (3, 50):
        hashed = Schema("click", (Field("user", hash_buckets=buckets),))
        prepare({"train": lambda: formats.read([runs.log])}, tmp_path / f"data{buckets}", schema=hashed, label="click")
        train(load_config(overrides=tiny), tmp_path / f"data{buckets}", tmp_path / f"run{buckets}")
    both = [tmp_path / "run50", tmp_path / "run3"]
    blend(both, tmp_path / "out", plain=True)
    opened, rows = bundle.load(tmp_path / "out"), rows_of(runs.log)
    assert opened.encoder.transform(rows).shape == (len(rows), 2)
    expected = opened.calibration.probabilities(sum(raw_logits(run, rows) for run in both) / 2)
    np.testing.assert_allclose(Predictor(opened).predict(rows), expected, rtol=0, atol=1e-12)
    with pytest.raises(BundleError, match="prepared with another encoder"):
        Predictor.load(both[0]).evaluate_prepared(tmp_path / "data3")


def test_a_blend_in_a_blend_stands_for_its_members(runs, blended, tmp_path):
    report = blend([blended, runs.fm], tmp_path / "out", plain=True)
    assert [member["model"] for member in report["members"]] == ["fm", "lr", "gbdt", "fm"]
    assert [member["weight"] for member in report["members"]] == [0.25] * 4
    assert report["members"][1]["run"] == str(blended / "bundle" / "members" / "1")


def test_a_damaged_member_is_refused_with_its_path(blended, runs, tmp_path, capsys):
    for name, problem in (("weights.safetensors", "changed or cut off"), ("encoder/encoder.json", "missing")):
        copy = tmp_path / problem[:7]
        shutil.copytree(blended, copy)
        member = copy / "bundle" / "members" / "1"
        if problem == "missing":
            (member / name).unlink()
        else:
            (member / name).write_bytes((member / name).read_bytes()[:-1])
        with pytest.raises(BundleError, match=f"the bundle's {name} is {problem}.*members/1"):
            bundle.load(copy)
        assert cli_run("predict", copy, runs.log, "-o", tmp_path / "out.csv") == 2
        assert str(member) in capsys.readouterr().err
    copy = tmp_path / "exchanged"
    shutil.copytree(blended, copy)
    shutil.rmtree(copy / "bundle" / "members" / "1")
    shutil.copytree(copy / "bundle" / "members" / "0", copy / "bundle" / "members" / "1")
    with pytest.raises(BundleError, match=r"members/1/bundle\.json is changed"):
        bundle.load(copy)


def test_a_row_alone_has_the_logit_that_it_has_among_others():
    """Numpy adds eight numbers or more in another order where there is only one row."""
    random = np.random.default_rng(0)
    joint = Blend([None] * 12)
    joint.weights = random.random(12)
    each = random.normal(size=(12, 300))
    alone = [joint.weighted(each[:, [row]])[0] for row in range(300)]
    assert joint.weighted(each).tolist() == alone


def test_weights_that_do_not_fit_the_members_are_refused(tmp_path):
    (tmp_path / "blend.json").write_text('{"weights": [1, 2], "shift": 0}')
    with pytest.raises(BundleError, match="a weight for each member, found 1 members"):
        Blend([None]).load(tmp_path / "blend.json")
    (tmp_path / "blend.json").write_text('{"weights": "all"}')
    with pytest.raises(BundleError, match="weights of the blend are damaged"):
        Blend([None]).load(tmp_path / "blend.json")


def test_other_rows_are_refused(runs, tmp_path, capsys):
    swapped, shorter = tmp_path / "swapped", tmp_path / "shorter"
    shutil.copytree(runs.past, swapped)
    labels = np.load(swapped / "valid" / "labels.npy")
    np.save(swapped / "valid" / "labels.npy", labels[::-1])
    prepare({"train": lambda: formats.read([runs.log])}, shorter, "click", split=Split((0.85, 0.05, 0.1)))
    train(load_config(overrides=["model.name=lr", "device=cpu", "train.epochs=1"]), shorter, tmp_path / "lr")
    few = Dataset.open(shorter).parts["valid"].rows
    for run, data, found in (
        (runs.lr, swapped, "other labels or weights"),
        (tmp_path / "lr", shorter, f"{len(labels)} and {few} rows"),
    ):
        assert cli_run("blend", runs.fm, run, "--data", runs.data, "--data", data, "--out", tmp_path / "out") == 2
        line = capsys.readouterr().err
        assert f"same held-out rows in one order, found {found} (part 'valid' of {runs.data} and {data})" in line
        assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_other_labels_and_a_single_member_are_refused(runs, tmp_path):
    rows = rows_of(runs.log).rename_columns(["bought", "user", "price", "tags"])
    prepare({"train": lambda: iter([rows])}, tmp_path / "data", "bought")
    tiny = ["model.name=lr", "device=cpu", "train.epochs=1"]
    train(load_config(overrides=tiny), tmp_path / "data", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"predict the same label, found 'click' .* and 'bought'"):
        blend([runs.fm, tmp_path / "run"], tmp_path / "out")
    with pytest.raises(ConfigError, match="at least two runs or bundles, found 1"):
        blend([runs.fm], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"unknown train.calibration 'plat'; did you mean 'platt'"):
        blend([runs.fm, runs.lr], tmp_path / "out", calibrated="plat")


def test_prepared_folders_that_moved_are_named_in_any_order(runs, blended, tmp_path):
    members, moved = [], []
    for number, (run, data) in enumerate(((runs.fm, runs.data), (runs.lr, runs.past), (runs.trees, runs.data))):
        copy = tmp_path / f"run{number}"
        shutil.copytree(run / "bundle", copy)
        report = json.loads((copy / "metrics.json").read_text()) | {"data": str(tmp_path / "gone")}
        (copy / "metrics.json").write_text(json.dumps(report))
        facts = json.loads((copy / "bundle.json").read_text())
        facts["files"]["metrics.json"] = bundle.digest_of(copy / "metrics.json")
        (copy / "bundle.json").write_text(json.dumps(facts))
        members.append(copy)
        if not (tmp_path / data.name).exists():
            shutil.copytree(data, tmp_path / data.name)
            moved.append(tmp_path / data.name)
    with pytest.raises(
        BundleError, match=r"prepared folder .*gone of .*run0 is gone or has changed; name it with --data"
    ):
        blend(members, tmp_path / "out")
    with pytest.raises(BundleError, match=r"none of the folders .* is prepared with the encoder of .*run1"):
        blend(members, tmp_path / "out", data=moved[:1])
    for folders in (moved, moved[::-1]):
        found = blend(members, tmp_path / "out", data=folders, force=True)
        assert found["test"] == json.loads((blended / "report.json").read_text())["test"]


def test_weights_can_be_fitted_to_the_rows_of_a_later_day(runs, tmp_path):
    """A folder that was prepared with --continue-from and brought no new id has the same encoder, and other rows."""
    later, rows = tmp_path / "later", rows_of(runs.log)
    formats.write(tmp_path / "new.csv", iter([rows.slice(0, 200)]), lambda step, count: None)
    arguments = ("--continue-from", runs.fm, "--split", "0.1,0.5,0.4", "--out", later)
    assert cli_run("prepare", tmp_path / "new.csv", *arguments) == 0
    found = blend([runs.fm, runs.trees], tmp_path / "out", data=[later])
    assert found["valid"]["rows"] == Dataset.open(later).parts["valid"].rows
    assert [member["data"] for member in found["members"]] == [str(later)] * 2


def test_what_is_there_is_replaced_only_with_force_and_only_a_blend(runs, blended, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(blended, out)
    with pytest.raises(FieldwiseError, match="already there"):
        blend([runs.fm, runs.lr], out)
    assert len(blend([runs.fm, runs.lr], out, force=True)["members"]) == 2
    shutil.copytree(runs.fm, tmp_path / "fm")
    with pytest.raises(FieldwiseError, match=r"holds no bundle/blend\.json"):
        blend([runs.fm, runs.lr], tmp_path / "fm", force=True)


@pytest.mark.parametrize("last", ["bundle.json", "report.json"])
def test_a_kill_leaves_nothing_half_written(runs, tmp_path, last):
    """Dead at once while the bundle or, later, the report is written: no run folder; then the same command works."""
    out = tmp_path / "run"
    code = f"""
import os
from pathlib import Path
from fieldwise.train.blend import blend
write = Path.write_text
def dying(path, *rest, **more):
    write(path, *rest, **more)
    if {last!r} in path.name and "members" not in path.parts:
        os._exit(9)
Path.write_text = dying
blend([Path({str(runs.fm)!r}), Path({str(runs.lr)!r})], Path({str(out)!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert not out.exists()
    assert list(tmp_path.iterdir())
    blend([runs.fm, runs.lr], out)
    assert os.listdir(tmp_path) == ["run"]
    Predictor.load(out)


def test_evaluation_of_a_prepared_folder_needs_the_encoder_of_all_members(runs, blended, tmp_path, capsys):
    for data in (runs.data, runs.past):
        assert cli_run("evaluate", blended, data) == 2
        assert "prepared with another encoder; evaluate the raw file instead" in capsys.readouterr().err
    assert cli_run("evaluate", blended, runs.log, "--by", "user", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = rows_of(runs.log)
    labels = np.array(rows["click"].to_pylist(), dtype=np.int64)
    p = Predictor.load(blended).predict(rows)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, p))
    blend([runs.fm, runs.trees], tmp_path / "out")
    assert cli_run("evaluate", tmp_path / "out", runs.data, "--by", "user", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["by"]["column"] == "user"
    assert len(found["by"]["values"]) > 1
    assert found["log_loss"] == pytest.approx(bundle.load(tmp_path / "out").metrics["test"]["log_loss"])
    assert cli_run("evaluate", tmp_path / "out", runs.past) == 2


def test_the_estimator_takes_a_blend(runs, blended):
    rows = rows_of(runs.log).drop_columns(["click"])
    loaded = pickle.loads(pickle.dumps(Classifier.load(blended)))
    np.testing.assert_array_equal(loaded.predict_proba(rows)[:, 1], Predictor.load(blended).predict(rows))


def test_the_command_line_and_the_report(runs, tmp_path, capsys):
    out = tmp_path / "run"
    assert cli_run("blend", runs.fm, runs.trees, "--out", out, "--plain", "--calibration", "shift") == 0
    text = capsys.readouterr().out
    assert f"weight 0.5000  gbdt ({runs.trees}), validation log loss" in text
    assert "blend on test rows" in text
    assert bundle.load(out).calibration.kind == "shift"
    page = tmp_path / "report.html"
    assert cli_run("report", out, runs.fm, runs.trees, "--significance", "--blocks", "10", "-o", page) == 0
    html = page.read_text(encoding="utf-8")
    assert f"fieldwise blend {runs.fm} {runs.trees} --data {runs.data} --plain --calibration shift --out RUN" in html
    assert "Members and their weights: fm 0.500, gbdt 0.500." in html
    capsys.readouterr()
    assert cli_run("predict", out, runs.log, "-o", tmp_path / "p.csv") == 0
    written = [float(p) for p in rows_of(tmp_path / "p.csv")["probability"].to_pylist()]
    np.testing.assert_allclose(written, Predictor.load(out).predict(rows_of(runs.log)), rtol=1e-6)
    assert cli_run("report", out, "-o", page) == 0


def test_what_needs_a_network_or_one_encoder_says_so(runs, blended, tmp_path, capsys):
    assert cli_run("prepare", runs.log, "--continue-from", blended, "--out", tmp_path / "next") == 2
    first = blended / "bundle" / "members" / "0"
    assert f"has the encoders of its members; name one of them, such as {first}" in capsys.readouterr().err
    assert cli_run("prepare", runs.log, "--continue-from", first, "--out", tmp_path / "next") == 0
    assert cli_run("train", runs.data, "--continue-from", blended, "--out", tmp_path / "run") == 2
    assert "--continue-from needs a network, found blend" in capsys.readouterr().err
    assert cli_run("train", runs.data, "--model", "fnn", "--init-from", blended, "--out", tmp_path / "run") == 2
    assert "--init-from needs a run with embeddings, such as fm, found blend" in capsys.readouterr().err
    assert cli_run("train", runs.data, "--config", blended / "config.toml", "--out", tmp_path / "run") == 2
    assert "unknown model 'blend'" in capsys.readouterr().err
    assert Path(tmp_path / "next").is_dir()


def test_shares_are_where_weights_are_drawn_to():
    """Three runs of one model and one of another: without rows that say otherwise each model has half."""
    labels, logits, weights = problem(0, members=4, rows=60)
    shares = np.array([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    found, _ = calibration.stack(labels, logits, weights, sum_sd=1e-4, weight_sd=1e-4, shares=shares)
    np.testing.assert_allclose(found, shares, atol=1e-3)
    one_class, _ = calibration.stack(np.ones(60), logits, weights, shares=shares)
    np.testing.assert_array_equal(one_class, shares)


def test_members_of_one_model_share_what_the_model_would_weigh(runs, tmp_path):
    """Trees twice and an FM: before any row is seen the trees have a quarter each."""
    seen = []
    known = calibration.stack

    def stack(*arguments, **named):
        seen.append(named["shares"].tolist())
        return known(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "stack", stack)
        blend([runs.trees, runs.trees, runs.fm], tmp_path / "out")
    assert seen[0] == [0.25, 0.25, 0.5]
