"""Trees keep the networks' promises: the same folders, the same predictor, nothing fails on a value never seen."""

import errno
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fieldwise import Classifier, Predictor, cli, models
from fieldwise.bundle.predictions import FILE
from fieldwise.config.errors import BundleError, ConfigError, FieldwiseError, TrainingError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset, Part
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.schema import Field, Layout, Schema
from fieldwise.data.world import World
from fieldwise.nn import trees
from fieldwise.train.loop import Progress, train
from fieldwise.train.race import FILE as LOGITS

FAST = {"rounds": 30, "depth": 3, "lr": 0.3, "threads": 1}
# A category, a number and a set of up to three members.
LAYOUT = Layout((6, 12, 5), (1, 1, 3), (1,))


def settings(**changes):
    chosen = {"model.name": "gbdt", **{f"model.{key}": value for key, value in FAST.items()}}
    return load_config(base={**chosen, **changes})


def drawn(rows=600, seed=0):
    """Rows whose labels depend on category and number together, and on a member of the set."""
    rng = np.random.default_rng(seed)
    ids = np.full((rows, 5), -1, dtype=np.int32)
    ids[:, 0], ids[:, 1] = rng.integers(0, 6, rows), rng.integers(0, 12, rows)
    ids[:, 1][ids[:, 1] == 1] = 0
    for row, size in enumerate(rng.integers(0, 4, rows)):
        ids[row, 2 : 2 + max(size, 1)] = rng.choice(np.arange(1, 5), size, replace=False) if size else [0]
    logits = 2 * np.where(ids[:, 0] % 2 == 0, ids[:, 1] - 6, 6 - ids[:, 1]) / 3 + 2 * (ids[:, 2:] == 3).any(axis=1)
    return Part(ids, (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.uint8))


def grown(layout=LAYOUT, seed=0, part=None, model="gbdt", **options):
    trees = models.build(model, layout, FAST | options)
    last = list(trees.boost(part or drawn(), drawn(seed=1), seed))[-1]
    return trees, last


def test_features_are_what_the_docstring_says():
    trees = models.build("gbdt", LAYOUT, {"members": 4})
    found = trees.features(np.array([[2, 0, 3, 1, -1], [5, 11, 0, -1, -1], [1, 2, 4, -1, -1]], dtype=np.int32))
    nan = np.nan
    np.testing.assert_array_equal(found, [[2, nan, 2, 0, 1, 0, 1], [5, 11, 0, 1, 0, 0, 0], [1, 2, 1, 0, 0, 0, 0]])
    assert trees.features.kinds == ["c", "q", "q", "i", "i", "i", "i"]
    assert models.build("gbdt", LAYOUT, {"members": 0, "categories": 5}).features.kinds == ["q", "q", "q"]


def test_trees_learn_what_fields_do_together_and_what_a_set_holds():
    trees, _ = grown()
    test = drawn(2000, seed=2)
    logits = trees.logits(test.ids)
    assert ((logits > 0) == test.labels).mean() > 0.8
    without = test.ids.copy()
    without[:, 2:] = np.where(without[:, 2:] == 3, -1, without[:, 2:])
    held = (test.ids[:, 2:] == 3).any(axis=1)
    assert (logits - trees.logits(without))[held].mean() > 1


def test_a_sets_score_does_not_depend_on_the_order_of_its_members():
    trees, _ = grown()
    one, other = trees.logits(np.array([[2, 3, 1, 3, 4], [2, 3, 4, 1, 3]], dtype=np.int32))
    assert one == other


def test_a_row_alone_scores_as_among_others_and_as_while_training():
    trees, last = grown()
    ids = drawn(seed=1).ids
    together = trees.logits(ids)
    np.testing.assert_allclose(together, last, atol=1e-5)
    np.testing.assert_array_equal(np.concatenate([trees.logits(row[None]) for row in ids[:50]]), together[:50])


def test_ids_never_seen_in_training_have_a_score():
    part = drawn()
    seen = Part(part.ids[part.ids[:, 0] < 4], part.labels[part.ids[:, 0] < 4])
    trees, last = grown(part=seen)
    assert np.isfinite(last).all()
    assert np.isfinite(trees.logits(drawn(seed=3).ids)).all()


def test_keep_drops_the_later_trees_and_a_file_brings_the_rest_back(tmp_path):
    trees = models.build("gbdt", LAYOUT, FAST)
    steps = list(trees.boost(drawn(), drawn(seed=1), 0))
    leaves = trees.size
    trees.keep(7)
    np.testing.assert_allclose(trees.logits(drawn(seed=1).ids), steps[6], atol=1e-5)
    assert 7 < trees.size < leaves
    trees.save(tmp_path / trees.file)
    other = models.build("gbdt", LAYOUT, FAST)
    other.load(tmp_path / trees.file)
    np.testing.assert_array_equal(other.logits(drawn(seed=2).ids), trees.logits(drawn(seed=2).ids))
    (tmp_path / trees.file).write_bytes((tmp_path / trees.file).read_bytes()[:100])
    with pytest.raises(BundleError, match="trees are damaged"):
        other.load(tmp_path / trees.file)


def test_the_seed_decides():
    one, same, other = (grown(seed=seed, subsample=0.5)[1] for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


# Other values of options.
CHANGES = {"rounds": 9, "depth": 2, "lr": 0.1, "subsample": 0.5, "l2": 50.0, "bins": 3, "categories": 3, "members": 0}
OWN = {
    "gbdt": {"min_child_weight": 30.0, "colsample": 0.4, "colsample_node": 0.4, "onehot": 100, "cat_threshold": 1},
    "symmetric": {"random_strength": 5.0, "onehot": 0},
}


@pytest.mark.parametrize(("model", "option"), [(model, option) for model in OWN for option in CHANGES | OWN[model]])
def test_each_option_changes_the_trees(model, option):
    value = (CHANGES | OWN[model])[option]
    assert (grown(model=model)[1] != grown(model=model, **{option: value})[1]).any()


# Nothing is drawn: the same rows give the same trees.
@pytest.mark.parametrize(("model", "plain"), [("gbdt", {}), ("symmetric", {"subsample": 1.0, "random_strength": 0.0})])
def test_weighted_rows_count_by_their_weight(model, plain):
    part = drawn()
    doubled = Part(np.concatenate([part.ids, part.ids]), np.concatenate([part.labels, part.labels]))
    weighted = Part(part.ids, part.labels, np.full(part.rows, 2, dtype=np.float32))
    one, other = (grown(part=rows, model=model, **plain)[1] for rows in (weighted, doubled))
    np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize(("model", "option"), [(model, option) for model in OWN for option in models.options(model)])
def test_options_out_of_range_are_refused(model, option):
    with pytest.raises(ConfigError, match=f"model.{option} must be .*, found -1"):
        models.build(model, LAYOUT, {option: -1})


def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="model gbdt: unknown option 'dept'; did you mean 'depth'"):
        models.build("gbdt", LAYOUT, {"dept": 3})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees") / "data"
    log = World("demo").log(3000).table
    prepare({"train": lambda: iter([log])}, folder, "click")
    return folder


def test_training_stops_early_and_keeps_the_best_round(data, tmp_path):
    report = train(settings(**{"model.rounds": 200, "model.patience": 12}), data, tmp_path / "run")
    assert report["best_epoch"] + 12 == report["epochs"] < 200
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [*range(10, report["epochs"], 10), report["epochs"]]
    assert report["calibration"] == "platt"
    bundle = Predictor.load(tmp_path / "run").bundle
    assert bundle.model.booster.num_boosted_rounds() == report["best_epoch"]
    assert bundle.model.size == report["parameters"]
    again = train(settings(**{"model.rounds": 200, "model.patience": 12}), data, tmp_path / "again")
    assert again["test"] == report["test"]


class Stopped(Exception):
    pass


class Watch(Progress):
    def __init__(self, stop=0):
        self.stop, self.said, self.records = stop, [], []

    def say(self, text):
        self.said.append(text)

    def evaluated(self, record):
        self.records.append(record)
        if record["step"] == self.stop:
            raise Stopped


def test_an_unfinished_run_starts_again_and_says_so_and_a_finished_one_is_kept(data, tmp_path):
    whole = train(settings(), data, tmp_path / "whole")
    out, watch = tmp_path / "run", Watch()
    with pytest.raises(Stopped):
        train(settings(), data, out, progress=Watch(stop=20))
    with pytest.raises(TrainingError, match="already holds something"):
        train(settings(), data, out)
    with pytest.raises(TrainingError, match="settings"):
        train(settings(seed=1), data, out, resume=True)
    assert train(settings(), data, out, resume=True, progress=watch)["test"] == whole["test"]
    assert "starts again" in watch.said[0]
    assert [record["step"] for record in watch.records] == [10, 20, 30]
    assert len((out / "log.jsonl").read_text().splitlines()) == 3
    later = Watch()
    assert train(settings(), data, out, resume=True, progress=later)["test"] == whole["test"]
    assert not later.said + later.records
    assert len((out / "log.jsonl").read_text().splitlines()) == 3


def test_a_setting_of_networks_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match=r"train.lr has no meaning for gbdt, found 0.1; see `fieldwise models gbdt`"):
        train(settings(**{"train.lr": 0.1}), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert train(settings(**{"train.calibration": "none"}), data, tmp_path / "run")["calibration"] == "none"
    with pytest.raises(ConfigError, match=r"train\.tables has no meaning for gbdt, found sharded"):
        train(settings(**{"train.tables": "sharded"}), data, tmp_path / "run")


def test_without_xgboost_the_error_says_what_to_install(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(FieldwiseError, match=r"pip install fieldwise\[gbdt\]"):
        train(settings(), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert models.options("gbdt")["rounds"] == 1000


def test_hashed_fields_sets_and_numbers_from_raw_rows(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"y": int(i % 3 == 0), "a": f"a{rng.integers(900)}", "n": float(rng.random()), "s": ["x", f"m{i % 9}"][: i % 3]}
        for i in range(900)
    ]
    fields = (Field("a", hash_buckets=50_000), Field("n", "numeric"), Field("s", "set"))
    table = formats.as_table([{**row, "s": "|".join(row["s"])} for row in rows])
    prepare({"train": lambda: iter([table])}, tmp_path / "data", "y", Schema("y", fields))
    assert Dataset.open(tmp_path / "data").layout.ordered == (1,)
    for cap in (10_000, 100_000):
        train(settings(**{"model.categories": cap}), tmp_path / "data", tmp_path / f"run{cap}")
        predictor = Predictor.load(tmp_path / f"run{cap}")
        strange = [{"a": "new", "n": 1e30, "s": "never|seen"}, {"a": None, "n": None, "s": None}, {}]
        found = predictor.predict(strange)
        assert np.isfinite(found).all()
        assert found[1] == found[2]


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


def test_the_walk_through_the_command_line(tmp_path, capsys):
    log, data, out = tmp_path / "log.csv", tmp_path / "data", tmp_path / "run"
    assert run("simulate", "--kind", "demo", "--rows", 3000, "--seed", 3, "--out", log) == 0
    assert run("prepare", log, "--label", "click", "--out", data) == 0
    fast = [argument for key, value in FAST.items() for argument in ("--set", f"model.{key}={value}")]
    assert run("train", data, "--model", "gbdt", *fast, "--out", out) == 0
    names = {path.name for path in out.iterdir()}
    assert names == {"config.toml", "log.jsonl", "identity.json", "bundle", "report.json", FILE, LOGITS, "DONE"}
    assert {"trees.ubj.gz", "calibration.json", "bundle.json"} <= {path.name for path in (out / "bundle").iterdir()}
    assert run("predict", out, log, "-o", tmp_path / "p.csv") == 0
    written = np.loadtxt(tmp_path / "p.csv", skiprows=1)
    rows = next(formats.read([log])).slice(0, 50).to_pylist()
    alone = np.array([Predictor.load(out / "bundle").predict([row])[0] for row in rows[:5]])
    np.testing.assert_array_equal(alone, written[:5])
    capsys.readouterr()
    assert run("evaluate", out, data, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / "report.json").read_text())["test"]
    assert found["auc"] > 0.55
    assert run("report", out, "-o", tmp_path / "page.html", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["model"] == "gbdt"
    assert run("models", "gbdt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["options"]["rounds"] == 1000
    assert run("train", data, "--config", out / "config.toml", "--resume", "--out", out) == 0


def test_the_estimator_takes_trees():
    log = World("demo").log(2000).table.to_pandas()
    model = Classifier("gbdt", settings={f"model.{key}": value for key, value in FAST.items()})
    chance = model.fit(log.drop(columns="click"), log["click"]).predict_proba(log.head(20))
    assert chance.shape == (20, 2)
    assert model.report_["parameters"] == model.predictor.model.size > 1


def test_what_xgboost_refuses_is_one_line_and_leaves_the_folder_to_another(data, tmp_path):
    with pytest.raises(TrainingError, match=r"^XGBoost failed: .*max_bin.*; see `fieldwise models gbdt`"):
        train(load_config(base={"model.name": "gbdt", "model.bins": 10**11}), data, tmp_path / "run")
    train(load_config(base={"model.name": "gbdt", "model.rounds": 2}), data, tmp_path / "run")


def test_a_full_disk_is_named_for_trees_too(data, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FieldwiseError, match=r"the disk is full; free some space"):
        train(load_config(base={"model.name": "gbdt", "model.rounds": 2}), data, tmp_path / "run")


def test_few_numbers_have_one_thread_and_many_as_many_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [trees.threads_for(cells) for cells in (1000, 3_500_000, 10**9)] == [1, 3, 8]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert trees.threads_for(10**9) == 2


def test_one_value_at_a_time_overfits_less_on_a_category_that_says_nothing():
    """Fifty values without a meaning beside two numbers: a split by a set of them finds one that suits the rows."""
    layout = Layout((52, 34, 34), (1, 1, 1), (1, 2))

    def rows(count, seed):
        rng = np.random.default_rng(seed)
        ids = rng.integers(2, [52, 34, 34], (count, 3)).astype(np.int32)
        logits = (ids[:, 1] - 18) * (ids[:, 2] - 18) / 60 - 1
        return Part(ids, (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.uint8))

    held = rows(4000, seed=99)

    def loss(onehot):
        lost = []
        for seed in range(3):
            options = {"rounds": 60, "depth": 4, "lr": 0.1, "threads": 1, "onehot": onehot}
            model = models.build("gbdt", layout, options)
            z = list(model.boost(rows(800, seed), held, seed))[-1]
            lost.append(np.mean(np.logaddexp(0, z) - held.labels * z))
        return np.mean(lost)

    assert loss(100) < loss(4) - 0.01
