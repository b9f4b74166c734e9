"""Symmetric trees beside a slow twin, and the promises that all models keep."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from safetensors.numpy import load_file, save_file

from fieldwise import Predictor, cli, models
from fieldwise.config.errors import BundleError, ConfigError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Part
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.schema import Layout
from fieldwise.data.world import World
from fieldwise.nn import symmetric as trees
from fieldwise.nn import symmetric_growth as how
from fieldwise.serving.engine import Engine
from fieldwise.train.loop import train
from tests.nn import slow_symmetric as slow
from tests.nn import test_trees
from tests.nn.test_trees import LAYOUT, drawn

FAST = {"rounds": 30, "depth": 4, "lr": 0.3, "threads": 1}


def grown(seed=0, part=None, layout=LAYOUT, **options):
    return test_trees.grown(layout, seed, part, model="symmetric", **FAST | options)


@settings(max_examples=40, deadline=None)
@given(
    some.integers(0, 9999), some.integers(5, 90), some.integers(1, 5), some.integers(1, 4),
    some.sampled_from([3, 5, 128]), some.booleans(), some.sampled_from([0.0, 1.0, 3.0]), some.integers(1, 3),
)  # fmt: skip
def test_trees_are_those_of_the_slow_twin(seed, rows, columns, depth, bins, weighted, l2, threads):
    random = np.random.default_rng(seed)
    features = random.integers(0, random.integers(1, 9, columns), (rows, columns)).astype(np.float32)
    features[random.random(features.shape) < 0.1] = np.nan
    single = random.random(columns) < 0.4
    features[:, single] = np.nan_to_num(features[:, single])
    described = [("c", 9) if one else ("q", 9) for one in single]
    labels = random.integers(0, 2, rows)
    labels[:2] = 0, 1
    weights = random.integers(1, 4, rows).astype(float) if weighted else np.ones(rows)
    growth = how.Growth(depth, 0.3, 1.0, l2, 0.0, bins, 9)
    binned = how.Binned(features, described, growth)
    growing = how.Growing(binned, labels, weights, growth, 0, threads)
    logits = np.full(rows, np.log(np.average(labels, weights=weights) / np.average(1 - labels, weights=weights)))
    for _ in range(3):
        slopes = weights * (labels - 1 / (1 + np.exp(-logits)))
        asked, values = growing.tree()
        leaves = np.zeros(rows, dtype=int)
        for level, split in enumerate(asked):
            scores = {
                one: slow.score(leaves, slow.goes_right(binned.rows, single, one), slopes, weights, l2 + 1e-9)
                for one in slow.splits_of(binned.rows, binned.starts, single)
            }
            # Of splits that are as good any may be taken.
            assert scores[split] >= max(scores.values()) - 1e-7 * max(1.0, *map(abs, scores.values()))
            leaves |= slow.goes_right(binned.rows, single, split).astype(int) << level
        expected = slow.leaf_values(leaves, labels, weights, logits, l2 + 1e-9, how.STEPS, how.NEAR)
        for leaf, value in expected.items():
            assert values[leaf] == pytest.approx(0.3 * value, rel=1e-5, abs=1e-6)
        logits = growing.logits.copy()
        # The tree over features sends each row where the tree over bins does.
        columns_, bounds, own, added = binned.splits(asked, values)
        right = np.where(own, features[:, columns_] == bounds, features[:, columns_] > bounds)
        np.testing.assert_array_equal(right @ (1 << np.arange(depth)), leaves)
        np.testing.assert_array_equal(added, values)


@settings(max_examples=60, deadline=None)
@given(some.lists(some.integers(-9, 9) | some.none(), min_size=1, max_size=60), some.integers(2, 12))
def test_bins_are_few_and_in_order(numbers, bins):
    column = np.array([np.nan if one is None else one for one in numbers], dtype=np.float32)
    binned = how.Binned(column[:, None], [("q", 20)], how.Growth(1, 0.1, 1.0, 1.0, 0.0, bins, 9))
    (found,) = binned.rows
    assert found.max() < binned.starts[-1] <= max(bins, 2) + 1
    known = ~np.isnan(column)
    assert (found[~known] == 0).all()
    assert (found[known] > 0).all()
    order = np.argsort(column[known], kind="stable")
    assert (np.diff(found[known][order].astype(int)) >= 0).all()
    if len(set(column[known].tolist())) < bins:
        assert len(set(found[known].tolist())) == len(set(column[known].tolist()))


def test_they_learn_what_fields_do_together():
    model, last = grown(rounds=60)
    test = drawn(2000, seed=2)
    assert ((model.logits(test.ids) > 0) == test.labels).mean() > 0.78
    np.testing.assert_array_equal(model.logits(drawn(seed=1).ids), last)


def test_a_missing_number_is_a_value_of_its_own():
    random = np.random.default_rng(0)
    layout = Layout((34,), (1,), (0,))
    ids = random.integers(2, 34, (2000, 1)).astype(np.int32)
    ids[random.random(2000) < 0.3] = 0
    labels = (random.random(2000) < np.where(ids[:, 0] == 0, 0.9, 0.2)).astype(np.uint8)
    model, _ = grown(part=Part(ids, labels), layout=layout, depth=2, rounds=10, ranks_alone=True)
    missing, known = model.logits(np.array([[0], [20]], dtype=np.int32))
    assert missing > 1 > -0.5 > known


def test_a_row_scores_alone_and_in_numpy_as_among_others_and_in_the_loops(monkeypatch):
    model, _ = grown()
    ids = drawn(400, seed=1).ids
    monkeypatch.setattr(trees, "MANY", 0)
    together = model.logits(ids)
    monkeypatch.setattr(trees, "MANY", 10**9)
    monkeypatch.setattr(trees, "PIECE", 100 * model.splits.columns.size)
    np.testing.assert_array_equal(model.logits(ids), together)
    np.testing.assert_array_equal(np.concatenate([model.logits(row[None]) for row in ids[:50]]), together[:50])


def test_values_never_seen_have_a_score_and_no_rows_none():
    part = drawn()
    seen = Part(part.ids[part.ids[:, 0] < 4], part.labels[part.ids[:, 0] < 4])
    model, last = grown(part=seen)
    assert np.isfinite(last).all()
    assert np.isfinite(model.logits(drawn(seed=3).ids)).all()
    assert model.logits(drawn().ids[:0]).shape == (0,)


def test_keep_drops_the_later_trees_and_a_file_brings_the_rest_back(tmp_path):
    model = models.build("symmetric", LAYOUT, FAST)
    steps = list(model.boost(drawn(), drawn(seed=1), 0))
    model.keep(7)
    np.testing.assert_array_equal(model.logits(drawn(seed=1).ids), steps[6])
    assert model.size == 7 * 2**4
    model.save(tmp_path / model.file)
    other = models.build("symmetric", LAYOUT, FAST)
    other.load(tmp_path / model.file)
    np.testing.assert_array_equal(other.logits(drawn(seed=2).ids), model.logits(drawn(seed=2).ids))
    other.keep(3)
    np.testing.assert_array_equal(other.logits(drawn(seed=1).ids), steps[2])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda arrays: arrays["columns"].fill(99), "columns must be below"),
        (lambda arrays: arrays["columns"].fill(-1), "columns must be below"),
        (lambda arrays: arrays["values"].fill(np.nan), "finite"),
        (lambda arrays: arrays["base"].fill(np.inf), "finite"),
        (lambda arrays: arrays.update(base=np.zeros((2, 2))), "finite"),
        (lambda arrays: arrays.update(values=arrays["values"][:, :8].copy()), "values must be"),
        (lambda arrays: arrays.update(bounds=arrays["bounds"][:-1].copy()), "bounds must be"),
        (lambda arrays: arrays.update(columns=arrays["columns"].astype(np.int64)), "columns must be"),
        (lambda arrays: arrays.pop("single"), "single"),
        (lambda arrays: arrays.update(more=np.zeros(3)), "more"),
    ],
)
def test_a_file_that_is_no_trees_is_refused(tmp_path, change, word):
    model, _ = grown()
    file = tmp_path / model.file
    model.save(file)
    arrays = load_file(file)
    change(arrays)
    save_file(arrays, file)
    with pytest.raises(BundleError, match=rf"the trees are damaged: .*{word}"):
        model.load(file)


@pytest.mark.parametrize("size", [0, 7, 200])
def test_a_file_that_was_cut_is_refused(tmp_path, size):
    model, _ = grown()
    model.save(tmp_path / model.file)
    (tmp_path / model.file).write_bytes((tmp_path / model.file).read_bytes()[:size])
    with pytest.raises(BundleError, match="the trees are damaged"):
        model.load(tmp_path / model.file)


def test_the_seed_decides_and_threads_do_not():
    one, same, other, three = (grown(seed, threads=threads)[1] for seed, threads in ((3, 1), (3, 1), (4, 1), (3, 3)))
    np.testing.assert_array_equal(one, same)
    np.testing.assert_array_equal(one, three)
    assert (one != other).any()


@pytest.mark.parametrize("name", trees.MOST)
def test_options_that_a_byte_does_not_hold_are_refused(name):
    with pytest.raises(ConfigError, match=f"model.{name} must be at most {trees.MOST[name]}, found 256"):
        models.build("symmetric", LAYOUT, {name: 256})


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


def test_the_walk_through_the_command_line_and_a_server(tmp_path, capsys):
    log, data, out = tmp_path / "log.csv", tmp_path / "data", tmp_path / "run"
    assert run("simulate", "--kind", "demo", "--rows", 3000, "--seed", 3, "--out", log) == 0
    assert run("prepare", log, "--label", "click", "--out", data) == 0
    fast = [argument for key, value in FAST.items() for argument in ("--set", f"model.{key}={value}")]
    assert run("train", data, "--model", "symmetric", *fast, "--out", out) == 0
    assert run("predict", out, log, "-o", tmp_path / "p.csv") == 0
    written = np.loadtxt(tmp_path / "p.csv", skiprows=1)
    rows = next(formats.read([log])).slice(0, 50).to_pylist()
    np.testing.assert_array_equal(Predictor.load(out / "bundle").predict([rows[0]]), written[:1])
    rows = [{name: value for name, value in row.items() if name != "click"} for row in rows]
    # predictions.csv keeps nine digits.
    np.testing.assert_allclose(Engine.load(out / "bundle").predict(rows), written[:50], atol=1e-8)
    capsys.readouterr()
    assert run("evaluate", out, log, "--json") == 0
    assert json.loads(capsys.readouterr().out)["auc"] > 0.6
    assert run("models", "symmetric", "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["options"]["random_strength"] == 1.0


def test_a_world_is_learnt_as_well_as_by_other_trees(tmp_path):
    log = World("demo").log(6000).table
    prepare({"train": lambda: iter([log])}, tmp_path / "data", "click")
    losses = {}
    for name in ("gbdt", "symmetric"):
        chosen = {"model.name": name, "model.lr": 0.1, "model.threads": 1}
        train(load_config(base=chosen), tmp_path / "data", tmp_path / name)
        losses[name] = json.loads((tmp_path / name / "report.json").read_text())["test"]["log_loss"]
    assert losses["symmetric"] < losses["gbdt"] + 0.01
