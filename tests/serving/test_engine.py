"""The engine: the predictor's probabilities without torch, rankings, explanations, history, blends."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldwise import models
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import BundleError, DataError
from fieldwise.evaluation import contributions
from fieldwise.export import export as exporting
from fieldwise.nn.tree_models import TREES
from fieldwise.serving.engine import Engine
from fieldwise.serving.sessions import MOST_SPLITS, NetworkScorer
from fieldwise.train.blend import blend
from tests.serving.bundles import Prepared, log

ROWS = [{name: value for name, value in row.items() if name != "click"} for row in log(25, seed=9)]
WILD = [{}, {"user": "never seen"}, {"price": "cheap", "tags": ["z", "a"]}, {"age": 1e9, "size": -3, "item": None}]
CONTEXT = {"user": "u1", "age": 33, "when": 260}
CANDIDATES = [{"item": n, "price": n / 12, "tags": "a|b" if n % 3 else None, "size": n * n} for n in range(12)]


@pytest.fixture(scope="module")
def load(everything: Prepared) -> Any:
    """Engines of models, each made once, in this process: the export's own process is tried apart."""
    made: dict[str, Engine] = {}

    def loaded(name: str) -> Engine:
        if name not in made:
            path = everything.bundle(name)
            if name not in TREES:
                exporting.write_network(path, path / exporting.FOLDER)
            made[name] = Engine.load(path)
        return made[name]

    return loaded


every_model = pytest.mark.parametrize("name", models.registry())


@every_model
def test_probabilities_are_the_predictors(name: str, everything: Prepared, load: Any) -> None:
    engine, predictor = load(name), Predictor.load(everything.bundle(name, out=f"{name}-again"))
    for rows in (ROWS, WILD, ROWS[:1]):
        expected = np.concatenate([predictor.predict([row]) for row in rows])
        np.testing.assert_allclose(engine.predict(rows), expected, rtol=0, atol=2e-6)
    assert engine.predict([]).shape == (0,)
    many = ROWS * 30
    np.testing.assert_allclose(engine.predict(many), np.tile(engine.predict(ROWS), 30), rtol=0, atol=1e-6)


@every_model
def test_a_ranking_is_that_of_whole_rows(name: str, load: Any) -> None:
    engine = load(name)
    whole = engine.predict([{**CONTEXT, **candidate} for candidate in CANDIDATES])
    # The first ranking of a set of fields scores whole rows, later ones are behind the context.
    for _ in range(3):
        order, found = engine.rank(CONTEXT, CANDIDATES)
        np.testing.assert_allclose(found, whole[order], rtol=0, atol=1e-6)
        assert sorted(order) == list(range(12))
        assert (np.diff(found) <= 0).all()
    best, top = engine.rank(CONTEXT, CANDIDATES, top=3)
    np.testing.assert_array_equal(best, order[:3])
    np.testing.assert_array_equal(top, found[:3])


@pytest.mark.parametrize("name", ["pin", "ipnn", "poly2", "gbdt"])
def test_rankings_of_drawn_fields(name: str, load: Any) -> None:
    engine, random = load(name), np.random.default_rng(1)
    for _ in range(6):
        own = [column for column in engine.columns if random.random() < 0.5]
        context = {column: value for column, value in ROWS[0].items() if column not in own}
        candidates = [
            {column: row[column] for column in own if random.random() < 0.9} for row in ROWS[: random.integers(1, 8)]
        ]
        whole = engine.predict([{**context, **candidate} for candidate in candidates])
        for _ in range(2):
            order, found = engine.rank(context, candidates)
            np.testing.assert_allclose(found, whole[order], rtol=0, atol=1e-6)


def test_ties_keep_their_order_and_nothing_is_ranked_as_nothing(load: Any) -> None:
    engine = load("fm")
    order, found = engine.rank(CONTEXT, [{}] * 4)
    assert order.tolist() == [0, 1, 2, 3]
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(engine.predict([CONTEXT])[0], abs=1e-6)
    for order, found in (engine.rank(CONTEXT, []), engine.rank(CONTEXT, CANDIDATES, top=0)):
        assert len(order) == len(found) == 0


def test_sessions_for_contexts_are_few_and_come_with_the_second_request(load: Any) -> None:
    scorer = load("lr").bundle.model
    assert isinstance(scorer, NetworkScorer)
    fields = len(scorer.network["sizes"])
    assert scorer.split(range(1, fields)) is None
    assert scorer.split(range(1, fields)) is not None
    for context in itertools.islice(itertools.combinations(range(fields), 3), 2 * MOST_SPLITS):
        assert scorer.split(context) is None
        assert scorer.split(context) is not None
        assert len(scorer._splits) <= MOST_SPLITS
    assert (
        load("ccpm").model["members"][0]["whole_rows_in_rank"] == "its convolution looks at all fields of a row at once"
    )
    assert load("pin").model["members"][0]["whole_rows_in_rank"] == ""


@every_model
def test_explanations(name: str, load: Any) -> None:
    engine = load(name)
    for row in (*ROWS[:3], *WILD):
        found = engine.explain(row)
        assert found.probability == pytest.approx(engine.predict([row])[0], abs=1e-12)
        total = found.bias + sum(each.logit for each in (*found.fields, *found.pairs))
        sizes = [abs(each.logit) for each in found.pairs]
        assert sizes == sorted(sizes, reverse=True)
        assert len(found.pairs) == len(found.fields) * (len(found.fields) - 1) / 2
        assert {each.fields[0] for each in found.fields} == set(found.values)
        assert found.exact == (name in ("lr", "poly2", "fm", "ffm", "kfm", "nifm", "afm", "fwfm", "fmfm"))
        assert found.exact == ("occlusion" not in found.method)
        if found.exact:
            assert total == pytest.approx(found.logit, abs=1e-5)


def test_an_occluded_field_is_what_the_logit_loses(load: Any) -> None:
    engine, row = load("deepfm"), ROWS[0] | {"tags": "a", "item": 3}
    found = engine.explain(row)

    def logit(row: dict[str, Any]) -> float:
        return engine.explain(row).logit

    terms = {each.fields: each.logit for each in (*found.fields, *found.pairs)}
    without = {name: logit(row | dict.fromkeys(name)) for name in (("tags",), ("size",), ("size", "tags"))}
    for name in ("tags", "size"):
        assert terms[(name,)] == pytest.approx(found.logit - without[(name,)], abs=1e-5)
    mixed = found.logit - without[("tags",)] - without[("size",)] + without[("size", "tags")]
    assert terms[("size", "tags")] == pytest.approx(mixed, abs=1e-5)


def test_of_many_fields_only_the_largest_have_pairs(monkeypatch: Any, load: Any) -> None:
    monkeypatch.setattr(contributions, "MOST_OCCLUDED", 4)
    found = load("gbdt").explain(ROWS[0])
    largest = {each.fields[0] for each in found.fields[:4]}
    assert len(found.pairs) == 6
    assert {name for each in found.pairs for name in each.fields} == largest


def test_a_bundle_that_cannot_be_written_to_is_exported_elsewhere(everything: Prepared, monkeypatch: Any) -> None:
    path = everything.bundle("lr", out="lr-read-only")
    monkeypatch.setattr(exporting.os, "access", lambda folder, mode: False)
    monkeypatch.setattr(exporting, "_export_in_child", exporting.write_network)
    assert Engine.load(path).predict(ROWS).shape == (len(ROWS),)
    assert not (path / exporting.FOLDER).exists()


def test_the_words_of_a_row(load: Any) -> None:
    values = load("lr").explain({"user": "u1", "item": None, "price": 0.25, "age": "old", "tags": ["a", "b"]}).values
    assert values["user"] == "u1"
    assert values["item"] == values["size"] == "(missing)"
    assert values["age"] == "old (other)"
    assert values["tags"] == "a, b"
    assert load("lr").explain({"tags": "a|never"}).values["tags"] == "a|never (other)"
    assert values["user:count"].startswith("(")


def test_an_unknown_name_is_refused_with_the_nearest(load: Any) -> None:
    engine = load("lr")
    for call, where in (
        (lambda: engine.predict([{}, {"usr": 1}]), "row 2"),
        (lambda: engine.rank({"usr": 1}, [{}]), "context"),
        (lambda: engine.rank({}, [{}, {"usr": 1}]), "candidate 2"),
        (lambda: engine.explain({"usr": 1}), ""),
        (lambda: engine.history_event({"usr": 1}, 1), ""),
        (lambda: engine.search("usr"), ""),
    ):
        with pytest.raises(DataError, match=f"unknown field 'usr'; did you mean 'user'.*{where}"):
            call()
    with pytest.raises(DataError, match="a row is an object of fields and values, found list"):
        engine.predict([[1]])
    with pytest.raises(DataError, match="label is 0 or 1, found 2"):
        engine.history_event({}, 2)
    for row, time in (({}, float("inf")), ({"when": "inf"}, None)):
        with pytest.raises(DataError, match="time must be a finite number, found inf"):
            engine.history_event(row, 1, time)


def test_what_is_known_of_fields(load: Any) -> None:
    engine = load("lr")
    facts = {field.name: field for field in engine.fields}
    assert [field.name for field in engine.fields] == list(engine.columns)
    assert facts["user"].kind == "categorical"
    assert facts["user"].size == 12
    assert len(facts["user"].examples) == 8
    assert facts["when"].kind == "time"
    assert facts["price"].kind == "numeric"
    assert all(float(bound) >= 0 for bound in facts["price"].examples)
    assert facts["size"].examples == ()
    assert (facts["tags"].separator, facts["user"].separator) == ("|", "")
    hints = {name: facts[name].hint for name in ("user", "item", "size", "tags", "when")}
    assert hints == {
        "user": "12 known values",
        "item": "any text",
        "size": "a number",
        "tags": "several, with | between",
        "when": "the time of the row, for its history",
    }
    assert facts["price"].hint.startswith("a number, often 0.")
    assert [name for name in facts if facts[name].number] == ["price", "age", "size"]
    assert [name for name in facts if facts[name].complete] == ["user", "tags"]
    found = engine.search("user", "U1")
    assert sorted(found) == ["u1", "u10", "u11"]
    assert engine.search("user", "U1", limit=1) == found[:1]
    assert engine.search("user", limit=3) == list(facts["user"].examples[:3])
    assert engine.search("user", "x") == engine.search("when") == []


def test_events_change_later_probabilities(everything: Prepared, load: Any) -> None:
    path = everything.bundle("fm", out="fm-events")
    exporting.write_network(path, path / exporting.FOLDER)
    engine, row = Engine.load(path), {"user": "u1", "item": 3}
    assert engine.has_history
    before = engine.predict([row])
    for _ in range(20):
        engine.history_event(row, 1, 300.0)
    assert engine.predict([{**row, "when": 301.0}]) == before
    after = engine.predict([{**row, "when": 303.0}])
    assert after != before
    assert engine.predict([row]) == after
    again = Engine.load(path)
    for _ in range(20):
        again.history_event(row, 1, 300.0)
    assert again.predict([row]) == after


def test_many_threads_at_once(load: Any) -> None:
    engine, expected = load("pin"), load("pin").predict(ROWS)
    failures: list[Any] = []

    def ask() -> None:
        for _ in range(5):
            if not np.allclose(engine.predict(ROWS), expected, rtol=0, atol=1e-6):
                failures.append("predict")
            engine.rank(CONTEXT, CANDIDATES)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.fixture(scope="module")
def blended(everything: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A blend with a DNN and trees, and one of sums alone, whose members have other fields."""
    folder = tmp_path_factory.mktemp("blends")
    from fieldwise.data.schema import Schema
    from tests.serving.bundles import FIELDS, prepared

    fewer = prepared(folder, Schema("click", (FIELDS[0], FIELDS[5])))
    made = {"deep": ("deepfm", "gbdt"), "sums": ("fm", "lr")}
    for out, (first, second) in made.items():
        sources = [everything.bundle(first, out=f"{out}-{first}"), fewer.bundle(second, out=f"{out}-{second}")]
        blend(sources, folder / out, [everything.data, fewer.data])
    return {out: folder / out for out in made}


@pytest.mark.parametrize("kind", ["deep", "sums"])
def test_a_blend_is_the_predictors(kind: str, blended: dict[str, Path], tmp_path: Path) -> None:
    exporting.export(blended[kind], tmp_path / "out")
    engine, predictor = Engine.load(tmp_path / "out"), Predictor.load(blended[kind])
    np.testing.assert_allclose(engine.predict(ROWS), predictor.predict(ROWS), rtol=0, atol=1e-6)
    whole = engine.predict([{**CONTEXT, **candidate} for candidate in CANDIDATES])
    for _ in range(2):
        order, found = engine.rank(CONTEXT, CANDIDATES)
        np.testing.assert_allclose(found, whole[order], rtol=0, atol=1e-6)
    explained = engine.explain(ROWS[0])
    assert explained.exact == (kind == "sums")
    total = explained.bias + sum(each.logit for each in (*explained.fields, *explained.pairs))
    if explained.exact:
        assert total == pytest.approx(explained.logit, abs=1e-5)
    assert engine.model["model"] == "blend"
    assert [member["model"] for member in engine.model["members"]] == [m.config.model for m in predictor.bundle.members]


NO_TORCH = """
import sys
sys.modules["torch"] = None
from fieldwise.serving.engine import Engine
engine = Engine.load(sys.argv[1])
print(engine.predict([{"user": "u1"}])[0])
for _ in range(2):
    engine.rank({"user": "u1"}, [{"item": 1}, {"item": 2}])
engine.explain({"user": "u1"})
engine.history_event({"user": "u1"}, 1)
print([name for name in ("torch", "sklearn", "duckdb", "matplotlib") if sys.modules.get(name)])
"""


def test_serving_needs_no_torch(everything: Prepared, load: Any, tmp_path: Path) -> None:
    exporting.export(everything.bundle("pin"), tmp_path / "out")
    arguments = [sys.executable, "-c", NO_TORCH]
    done = subprocess.run([*arguments, str(tmp_path / "out")], capture_output=True, text=True, check=True)
    probability, loaded = done.stdout.splitlines()
    assert float(probability) == pytest.approx(load("pin").predict([{"user": "u1"}])[0], abs=1e-6)
    assert loaded == "[]"
    kept = {file.suffix for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert kept <= {".json", ".toml", ".parquet", ".npz", ".onnx", ".safetensors", ".md"}


def test_a_bundle_that_was_not_exported_is_exported_once(everything: Prepared, monkeypatch: Any) -> None:
    path = everything.bundle("fm", out="fm-fresh")
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(BundleError, match=r"needs torch, which is not installed; run `fieldwise export .* --onnx"):
        Engine.load(path)
    monkeypatch.undo()
    engine = Engine.load(path)
    np.testing.assert_allclose(engine.predict(ROWS), Predictor.load(path).predict(ROWS), rtol=0, atol=1e-6)
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    assert np.array_equal(Engine.load(path).predict(ROWS), engine.predict(ROWS))
    # Other weights in the same place: what lies there is not theirs.
    everything.bundle("fm", out="fm-other", seed=3)
    (path / "weights.safetensors").write_bytes((path.parent / "fm-other" / "weights.safetensors").read_bytes())
    (path / "bundle.json").write_bytes((path.parent / "fm-other" / "bundle.json").read_bytes())
    with pytest.raises(BundleError, match="needs torch"):
        Engine.load(path)
