"""Ranks: trees read numbers at full resolution, from the file to the server; networks do not see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise import Predictor
from fieldwise.bundle.bundle import load
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.kinds.kind import FIRST, MISSING, OTHER
from fieldwise.data.read.formats import as_table
from fieldwise.data.schema import Field, Schema
from fieldwise.serving.engine import Engine
from fieldwise.train.blend import blend
from fieldwise.train.loop import train

FIELDS = (Field("price", "numeric"), Field("code"), Field("shop"))


def drawn(rows: int = 4000) -> pa.Table:
    """Labels that depend on a price in steps of 2, of which 64 buckets show the mean over 5 alone, and on a code."""
    rng = np.random.default_rng(0)
    price = rng.integers(0, 600, rows) / 2
    code = rng.integers(0, 60, rows)
    odds = np.where(rng.random(150) < 0.5, 0.7, 0.0)[(price / 2).astype(int)] + code / 200
    shop = [f"s{number}" for number in rng.integers(0, 5, rows)]
    return pa.table({"click": (rng.random(rows) < odds).astype(int), "price": price, "code": code, "shop": shop})


def prepared(folder: Path, fields: tuple[Field, ...] = FIELDS, **more: Any) -> Dataset:
    schema = Schema("click", fields)
    prepare({"train": lambda: iter([drawn()])}, folder, "click", schema, Split((0.7, 0.15, 0.15)), **more)
    return Dataset.open(folder)


def trained(data: Path, out: Path, model: str, **options: Any) -> dict[str, Any]:
    base = {"model.name": model, "device": "cpu", **options}
    return train(load_config(base=base), data, out)


TREES = {"model.rounds": 60, "model.depth": 9, "model.lr": 0.3, "model.threads": 1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    prepared(folder / "data")
    trained(folder / "data", folder / "trees", "gbdt", **TREES)
    trained(folder / "data", folder / "lr", "lr", **{"train.epochs": 1})
    return folder


def test_ids_are_for_all_and_ranks_for_trees(runs: Path) -> None:
    dataset = Dataset.open(runs / "data")
    assert (dataset.layout.columns, dataset.layout.ranked, dataset.ranked) == (3, (), (0, 1))
    both = dataset.with_ranks
    assert (both.layout.columns, both.layout.ranked) == (5, (0, 1))
    encoder = Encoder.load(runs / "data" / "encoder", dataset.schema)
    assert encoder.layout == both.layout
    ranks = np.asarray(both.parts["train"].ids)[:, 3]
    assert len(np.unique(ranks)) > 500
    odd = encoder.transform(as_table({"price": [None, "cheap", -1e9], "code": [3, 3, 3], "shop": ["s1"] * 3}))
    assert odd[:, 3].tolist() == [MISSING, OTHER, FIRST]
    np.testing.assert_array_equal(both.parts["valid"].ids[:, 3], both.parts["valid"].ids[:][:, 3])


def test_trees_see_what_buckets_hide(runs: Path) -> None:
    """With the same bounds as the schema's own they read 64 buckets, and know much less."""
    price = Field("price", "numeric", buckets="count", bucket_count=44)
    prepared(runs / "coarse", (price, *FIELDS[1:]))
    coarse = trained(runs / "coarse", runs / "coarse_trees", "gbdt", **TREES)["test"]["log_loss"]
    assert load(runs / "trees").metrics["test"]["log_loss"] < coarse - 0.05


def test_file_predictor_server_and_blend_agree(runs: Path) -> None:
    rows = drawn().slice(0, 50)
    for name in ("trees", "lr"):
        predictor, engine = Predictor.load(runs / name), Engine.load(runs / name)
        expected = predictor.predict(rows)
        np.testing.assert_allclose(engine.predict(rows.drop_columns(["click"]).to_pylist()), expected, atol=1e-6)
        order, found = engine.rank({"shop": "s1"}, [{"price": 9.99, "code": 3}, {"price": 9.5, "code": 3}])
        alone = predictor.predict([{"shop": "s1", "price": p, "code": 3} for p in (9.99, 9.5)])
        np.testing.assert_allclose(found, alone[order], atol=1e-6)
        assert len(engine.explain({"shop": "s1", "price": 9.99}).fields) == 3
        assert predictor.evaluate_prepared(runs / "data")["log_loss"] > 0
    blend([runs / "trees", runs / "lr"], runs / "blend", force=True)
    together = Predictor.load(runs / "blend").predict(rows)
    served = Engine.load(runs / "blend").predict(rows.drop_columns(["click"]).to_pylist())
    np.testing.assert_allclose(served, together, atol=1e-6)


def test_a_value_that_is_hidden_keeps_its_rank_as_a_new_one_has_one(runs: Path) -> None:
    from fieldwise.evaluation.drift import hidden

    encoder = Predictor.load(runs / "trees").encoder
    ids = encoder.transform(drawn().slice(0, 3))
    found = hidden(encoder, "code", ids)
    assert (found[:, 1] == OTHER).all()
    np.testing.assert_array_equal(found[:, [0, 2, 3, 4]], ids[:, [0, 2, 3, 4]])


def test_where_ids_say_as_much_there_are_no_ranks(tmp_path: Path) -> None:
    """Few values, bounds of a schema's own, words, and categories of few numbers."""
    table = drawn().append_column("rating", pa.array(np.arange(4000) % 9 + 0.5))
    fields = (
        *(Field("rating", "numeric"), Field("shop"), Field("code", hash_buckets=50)),
        Field("price", "numeric", buckets="explicit", thresholds=(10.0, 100.0)),
    )
    prepare({"train": lambda: iter([table])}, tmp_path / "data", "click", Schema("click", fields))
    assert Dataset.open(tmp_path / "data").ranked == ()
    assert not list((tmp_path / "data").rglob("ranks.npy"))


def test_the_order_of_names_that_are_numbers_means_nothing(tmp_path: Path) -> None:
    """Users differ, whatever their numbers; hours by their order; and amounts are too rare to have ids."""
    rng = np.random.default_rng(0)
    user, hour, amount = rng.integers(0, 300, 6000), rng.integers(0, 100, 6000), rng.integers(0, 10**6, 6000)
    odds = rng.random(300)[user] * 0.5 + hour / 200
    columns = {"click": (rng.random(6000) < odds).astype(int), "user": user, "hour": hour, "amount": amount}
    fields = tuple(Field(name) for name in ("user", "hour", "amount"))
    prepare({"train": lambda: iter([pa.table(columns)])}, tmp_path / "data", "click", Schema("click", fields))
    assert Dataset.open(tmp_path / "data").ranked == (1, 2)


def test_folders_of_rates_have_the_ranks_of_the_plain_one(tmp_path: Path) -> None:
    plain = prepared(tmp_path / "data", keep_rows=True)
    for name in ("rates", "order"):
        inner = Dataset.open(made(tmp_path / "data" / name))
        assert inner.ranked == plain.ranked
        for part, own in plain.parts.items():
            np.testing.assert_array_equal(inner.parts[part].ranks, own.ranks)


def test_a_folder_of_an_older_version_has_none(tmp_path: Path) -> None:
    """Its encoder and its facts do not know of ranks; trees read its buckets as they did."""
    import json

    prepared(tmp_path / "data")
    for file, change in (("data.json", {"ranked"}), ("encoder/encoder.json", {"ranks"})):
        path = tmp_path / "data" / file
        facts = json.loads(path.read_text())
        for entry in facts.get("fields", [facts]):
            for key in change:
                del entry[key]
        path.write_text(json.dumps(facts))
    for file in (tmp_path / "data").rglob("ranks.npy"):
        file.unlink()
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.with_ranks is dataset
    trained(tmp_path / "data", tmp_path / "run", "gbdt", **TREES)
    assert Predictor.load(tmp_path / "run").predict(drawn().slice(0, 5)).shape == (5,)
