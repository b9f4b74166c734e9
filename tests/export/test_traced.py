"""A model of one file, without an ONNX form: it trains, scores, serves, ranks, explains and is measured all the same.

The toy is DCNv2 (Wang et al. 2021): x <- x0 * (W x + b) + x beside a DNN on the same vectors.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fieldwise import cli, models
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import load_config
from fieldwise.data.schema import Layout
from fieldwise.export import convert
from fieldwise.export.export import export
from fieldwise.nn.classifiers import DNN, Layers, Sum
from fieldwise.nn.crosses import PairTable
from fieldwise.nn.embedding import Embedding, Linear, Vectors
from fieldwise.nn.model import Branch, Model
from fieldwise.parts.affine.formula import affine
from fieldwise.parts.features.formula import Concat, Flatten
from fieldwise.parts.inner.formula import InnerProduct
from fieldwise.parts.interactions import Interaction
from fieldwise.parts.pair_weights.formula import PairWeights
from fieldwise.serving.engine import Engine
from fieldwise.train.loop import train
from tests import test_contract as contract
from tests.export.test_network import close, network, session
from tests.serving.bundles import Prepared, log

CONTRACT = [
    (check, kind)
    for check in (value for name, value in vars(contract).items() if name.startswith("test_"))
    for kind in (contract.LAYOUTS if "kind" in inspect.signature(check).parameters else [""])
    if "name" in inspect.signature(check).parameters
]
ROWS = [{name: value for name, value in row.items() if name != "click"} for row in log(25, seed=9)]
CONTEXT = {"user": "u1", "age": 33, "when": 260}
CANDIDATES = [{"item": n, "price": n / 12} for n in range(6)]


class Cross(Interaction):
    """x <- x0 * (W x + b) + x, some times, on all vectors side by side."""

    def __init__(self, dims: tuple[int, ...], times: int) -> None:
        super().__init__()
        self.flat = Flatten(dims)
        self.width = self.flat.width
        self.layers = nn.ModuleList(affine(self.width, self.width) for _ in range(times))

    def forward(self, v: Tensor) -> Tensor:
        x = first = self.flat(v)
        for layer in self.layers:
            x = first * layer(x) + x
        return x


def dcn(layout: Layout, *, vectors: Vectors = Vectors(6), crosses: int = 2, layers: Layers = Layers((8,))) -> Model:
    """DCNv2: explicit crosses of bounded degree beside a DNN."""
    dims = vectors.sizes(layout)
    cross, flat = Cross(dims, crosses), Flatten(dims)
    wide, deep = Branch(cross, DNN(cross.width, Layers(()))), Branch(flat, DNN(flat.width, layers))
    return Model(vectors.embedding(layout), wide, deep, linear=Linear(layout))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is known within a test, and to no other test."""
    monkeypatch.setitem(models.MODELS, "dcn", dcn)


@pytest.mark.parametrize(("check", "kind"), CONTRACT, ids=lambda value: getattr(value, "__name__", value))
def test_the_contract_holds(check: Any, kind: str, registered: None) -> None:
    needed = inspect.signature(check).parameters
    given = {"name": "dcn", "kind": kind, "additive": float("inf")}
    check(**{name: value for name, value in given.items() if name in needed})


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def test_from_rows_to_answers(registered: None, everything: Prepared, tmp_path: Path, capsys: Any) -> None:
    config = load_config(overrides=["model.name=dcn", "model.dim=4", "train.epochs=1", "train.batch_size=120"])
    train(config, everything.data, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out")
    engine, predictor = Engine.load(tmp_path / "out"), Predictor.load(tmp_path / "run")
    np.testing.assert_allclose(engine.predict(ROWS), predictor.predict(ROWS), rtol=0, atol=1e-5)
    whole = engine.predict([{**CONTEXT, **candidate} for candidate in CANDIDATES])
    for _ in range(3):
        order, found = engine.rank(CONTEXT, CANDIDATES)
        np.testing.assert_allclose(found, whole[order], rtol=0, atol=1e-6)
    assert engine.model["members"][0]["whole_rows_in_rank"] == "its Cross looks at all fields of a row at once"
    explained = engine.explain(ROWS[0])
    assert not explained.exact
    assert max(abs(each.logit) for each in explained.fields) > 0
    assert run("evaluate", tmp_path / "run", everything.data) == 0
    assert run("explain", tmp_path / "run") == 0
    capsys.readouterr()
    assert run("bench", "--models", "dcn", "--vocab", "1e3", "--rows", "64", "--batch", "32", "--json") == 0
    (measured,) = json.loads(capsys.readouterr().out)["results"]
    assert measured["model"] == "dcn"
    assert measured["rows_per_s"] > 0


class Twice(InnerProduct):
    """Another formula than that of the class whose ONNX form it would inherit."""

    def forward(self, v: Tensor) -> Tensor:
        return 2 * super().forward(v)


class Weighed(PairWeights):
    def forward(self, weights: Tensor) -> Tensor:
        return weights.flatten(1).tanh()


class Halved(Model):
    def combine(self, found: dict[str, Tensor]) -> Tensor:
        return super().combine(found) / 2


class Own(nn.Module):
    """An embedding that the graphs do not know."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.inside = Embedding(layout, (3,) * layout.fields)

    def forward(self, ids: Tensor) -> Tensor:
        return self.inside(ids) + 1


LAYOUT = Layout((5, 7, 4, 6), (1, 3, 1, 2), (3,))


def made(kind: str) -> Model:
    torch.manual_seed(0)
    dims, linear = (3,) * LAYOUT.fields, Linear(LAYOUT)
    features = Concat(Flatten(dims), Twice(dims))
    if kind == "inherited form":
        return Model(Embedding(LAYOUT, dims), Branch(features, DNN(features.width, Layers((5,)))))
    if kind == "members":
        return Model(Embedding(LAYOUT, dims), Branch(Flatten(dims), DNN(12, Layers((5,), "batch", members=3))))
    if kind == "pair table":
        return Model(PairTable(LAYOUT, 50), Branch(Weighed(LAYOUT.fields), Sum()), linear=linear)
    if kind == "own sum":
        return Halved(Embedding(LAYOUT, dims), Branch(InnerProduct(dims), Sum()), linear=linear)
    return Model(Own(LAYOUT), Branch(InnerProduct(dims), Sum()), linear=linear)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("inherited form", "Twice"),
        ("members", "DNN"),
        ("pair table", "Weighed"),
        ("own sum", "Halved"),
        ("own embedding", "Own"),
    ],
)
def test_what_no_form_tells_is_traced(kind: str, of: str) -> None:
    model, ids = made(kind), contract.drawn_ids(LAYOUT).numpy()
    described = convert.network(model, LAYOUT)
    assert [part["of"] for part in described.parts if part.kind == "traced"] == [of]
    whole = session(network.graph_of(described, network.as_input))
    for rows in (ids, ids[:1]):
        found = whole.run(None, {"ids": rows, **network.tables_of(described)})[0]
        close(found, model, rows)


class Untold(Interaction):
    width = 1

    def forward(self, v: Tensor) -> Tensor:
        return v.sum(dim=(1, 2))[:, None] if v.sum() > 0 else v.sum(dim=(1, 2))[:, None] * 2


def test_what_cannot_be_traced_says_so() -> None:
    model = Model(Embedding(LAYOUT, (3,) * 4), Branch(Untold(), Sum()))
    with pytest.raises(ConfigError, match=r"Untold has no ONNX form and cannot be traced: .*; give it a plain_part"):
        convert.network(model, LAYOUT)
