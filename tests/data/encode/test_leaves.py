"""Leaves of boosted trees as fields: right leaves, the same everywhere, and nothing that can fail on a new value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import BundleError, ConfigError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.leaves import Leaves
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.schema import FIRST, Layout, Schema
from fieldwise.train.loop import train

pytest.importorskip("xgboost")
TREES = 5


@pytest.fixture(scope="module")
def data(small_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaves") / "data"
    prepare({"train": lambda: formats.read([small_log])}, folder, "click", gbdt_leaves=TREES)
    return folder


def walked(tree: dict[str, Any], value: float) -> int:
    """The leaf of a row with one quantity, by the tree's own dump."""
    while "leaf" not in tree:
        side = tree["missing"] if np.isnan(value) else tree["yes"] if value < tree["split_condition"] else tree["no"]
        tree = next(child for child in tree["children"] if child["nodeid"] == side)
    return int(tree["nodeid"])


def test_a_leaf_is_the_one_that_the_tree_leads_to():
    rng = np.random.default_rng(0)
    layout = Layout((30,), (1,), ordered=(0,))
    ids = rng.integers(0, 30, (2000, 1)).astype(np.int32)
    leaves = Leaves.fit(layout, ids, rng.random(2000) < ids[:, 0] / 40, None, trees=4, depth=3)
    found = leaves.transform(ids)
    for tree, text in enumerate(leaves.booster.get_dump(dump_format="json")):
        values = np.where(ids[:, 0] == 0, np.nan, ids[:, 0])
        expected = [walked(json.loads(text), float(value)) for value in values]
        assert leaves.numbers[tree][found[:, tree] - FIRST].tolist() == expected
        assert leaves.sizes[tree] - FIRST == len(set(expected)) > 1


def test_prepare_adds_a_field_for_each_tree(data: Path):
    dataset = Dataset.open(data)
    assert dataset.names == ["user", "price", "tags", *(f"leaf_{number}" for number in range(1, TREES + 1))]
    assert dataset.layout.fields == len(dataset.names)
    ids = np.asarray(dataset.parts["train"].ids)
    assert (ids[:, -TREES:] >= FIRST).all()
    assert (ids[:, -TREES:].max(axis=0) < np.array(dataset.layout.sizes[-TREES:])).all()
    # The first tree splits on what the log's clicks depend on.
    labels = np.asarray(dataset.parts["train"].labels)
    rates = [labels[ids[:, -TREES] == leaf].mean() for leaf in np.unique(ids[:, -TREES])]
    assert max(rates) - min(rates) > 0.5


def test_the_predictor_finds_the_same_leaves(data: Path, small_log: Path, tmp_path: Path):
    run = tmp_path / "run"
    report = train(load_config(overrides=["model.name=fm", "train.epochs=1", "device=cpu"]), data, run)
    assert report["pair_strength"]["fields"] == Dataset.open(data).names
    predictor = Predictor.load(run)
    assert predictor.encoder.names == Dataset.open(data).names
    whole = next(iter(formats.read([small_log])))
    encoder = Encoder.load(data / "encoder", Schema.load(data / "schema.toml"))
    assert np.array_equal(predictor.encoder.transform(whole), encoder.transform(whole))
    assert predictor.evaluate_prepared(data)["log_loss"] == pytest.approx(report["test"]["log_loss"])
    assert predictor.encoder.value_of(3, FIRST) == "(leaf 0)"
    strange = predictor.predict([{"user": "never seen", "price": "cheap", "tags": "x|y"}, {}])
    assert np.isfinite(strange).all()


def test_a_fields_name_may_not_be_a_leafs(small_log: Path, tmp_path: Path):
    def rows() -> Any:
        for chunk in formats.read([small_log]):
            yield chunk.rename_columns(["click", "user", "leaf_2", "tags"])

    with pytest.raises(ConfigError, match="field names must differ, found 'leaf_2' 2 times"):
        prepare({"train": rows}, tmp_path / "data", "click", gbdt_leaves=2)


def test_damaged_trees_are_named(data: Path, tmp_path: Path):
    encoder = Encoder.load(data / "encoder", Schema.load(data / "schema.toml"))
    encoder.save(tmp_path)
    (tmp_path / "leaves.ubj").write_bytes(b"no trees")
    with pytest.raises(BundleError, match=r"the trees are damaged: .*leaves\.ubj"):
        Encoder.load(tmp_path, encoder.schema)


def test_trees_of_a_negative_number_are_refused():
    with pytest.raises(ConfigError, match="gbdt_leaves takes 0 or more trees"):
        Schema.from_toml('label = "y"\ngbdt_leaves = -1\n[[field]]\nname = "x"\n', "here")
