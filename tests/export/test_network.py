"""ONNX graphs of every registered model and of its options: whole rows, rows behind any context, terms of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from fieldwise import models
from fieldwise.config.errors import ConfigError
from fieldwise.data.schema import Layout
from fieldwise.evaluation.metrics import sigmoid
from fieldwise.export import convert, network
from fieldwise.graphs import plain_parts
from fieldwise.nn.classifiers import DNN, Layers
from fieldwise.nn.embedding import Embedding
from fieldwise.nn.model import Branch, Model
from fieldwise.parts.features.formula import Concat, Flatten
from fieldwise.parts.kernel.formula import KernelSum
from tests.test_contract import drawn_ids, made

LAYOUTS = {"plain": Layout.of((5, 7, 4, 3)), "mixed": Layout((5, 7, 4, 6, 5), (1, 3, 1, 2, 1), (3, 4))}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "poly2": [{"buckets": 5}],
    "ffm": [{"input_norm": True}, {"linear": False}],
    "kfm": [{"kernel": "vec"}, {"kernel": "num"}, {"adaptive": 2.0}],
    "nifm": [{"adaptive": 2.0}, {"norm": "layer"}, {"subnet": (8, 6, 3), "norm": "none"}],
    "afm": [{"project": False, "temperature": 0.5}],
    "fnn": [{"norm": "batch"}, {"norm": "weight", "adaptive": 2.0, "activation": "selu"}],
    "ccpm": [{"channels": (6, 5), "widths": (2, 2), "keep": (2, 1)}],
    "ipnn": [{"product_norm": False}],
    "fwfm": [{"linear": "vectors"}],
    "autoint": [{"attention": 6, "heads": 1, "scaled": True, "deep": False}],
    "fibinet": [{"bilinear": "all", "excitation": "sigmoid"}, {"bilinear": "each"}],
    "dcnv2": [{"structure": "stacked", "adaptive": 2.0}, {"rank": 3, "experts": 2}],
    "gdcn": [{"structure": "parallel", "adaptive": 2.0}],
    "masknet": [{"structure": "serial", "reduction": 0.5}],
    "edcn": [{"bridge": "sum", "norm": "batch", "adaptive": 2.0}],
    "finalmlp": [{"gate": "learned", "norm": "batch"}, {"gate": "none", "adaptive": 2.0}],
    "finalnet": [{"residual": "sum", "norm": "layer", "gate": False}, {"norm": "none", "adaptive": 2.0}],
    "fcn": [{"heads": 3}],
    "wukong": [{"made": 2, "kept": 2}],
    "kpnn": [{"adaptive": 2.0}],
    "pin": [{"subnet_norm": kind} for kind in ("layer", "none", "fused-per-pair")]
    + [{"subnet": (8, 6, 3), "product": False}],
}
CASES = [(name, options) for name in models.MODELS for options in [{}, *OPTIONS.get(name, [])]]


def drawn(name: str, layout: Layout, positive_gains: bool, **options: Any) -> Model:
    """A model whose weights are all drawn; gains of norms lie around 1, or anywhere."""
    model = made(name, layout, **options)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("gain") and positive_gains:
                parameter.uniform_(0.5, 2)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm1d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return model.eval()


def session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def close(found: Any, model: Model, ids: np.ndarray) -> None:
    """Probabilities within 1e-6 of the model's in float64, or about as near as the model's own in float32."""
    own = sigmoid(np.float64(model(torch.from_numpy(ids)).detach().numpy()))
    exact = sigmoid(model.double()(torch.from_numpy(ids)).detach().numpy())
    model.float()
    near = max(1e-6, 5 * float(np.abs(own - exact).max()))
    assert near < 1e-5
    np.testing.assert_allclose(sigmoid(np.float64(found)), exact, rtol=0, atol=near)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))
def test_graphs_say_what_the_model_says(name: str, options: dict[str, Any], kind: str) -> None:
    layout = LAYOUTS[kind]
    random = np.random.default_rng(0)
    for positive_gains in (True, False) if name in ("pin", "nifm") else (True,):
        model, ids = drawn(name, layout, positive_gains, **options), drawn_ids(layout).numpy()
        described = convert.network(model, layout)
        tables = network.tables_of(described)
        whole = session(network.graph_of(described, network.as_input))
        for rows in (ids, ids[:1]):
            close(whole.run(None, {"ids": rows, **tables})[0], model, rows)
        sizes = [1, layout.fields - 1, int(random.integers(1, layout.fields))]
        for size in sizes:
            context = np.sort(random.choice(layout.fields, size, replace=False)).tolist()
            others = [field for field in range(layout.fields) if field not in context]
            shared, own = layout.columns_of(context), layout.columns_of(others)
            rows = ids.copy()
            rows[:, shared] = ids[3, shared]
            for one_thread in (False, True):
                behind = session(network.graph_of(described, network.as_input, context, one_thread))
                found = behind.run(None, {"ids": rows[:, own].copy(), "context": rows[:1, shared].copy(), **tables})[0]
                close(found, model, rows)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))
def test_terms_add_up_to_the_logit(name: str, options: dict[str, Any], kind: str) -> None:
    layout = LAYOUTS[kind]
    model, ids = drawn(name, layout, True, **options), drawn_ids(layout).numpy()
    described = convert.network(model, layout)
    assert network.is_exact(described) == all(part["classifier"] == "Sum" for part in model.parts)
    if network.is_exact(described):
        terms = session(network.terms_of(described, network.as_input)).run(
            None, {"ids": ids, **network.tables_of(described)}
        )
        bias = 0 if model.linear is None else model.linear.bias.item()
        close(bias + sum(term.sum(axis=1) for term in terms), model, ids)


@pytest.mark.parametrize("name", ["lr", "fm", "ffm", "pin"])
def test_graphs_of_fields_that_share_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout((5, 4, 5, 6), (1, 1, 3, 1), like=(0, 1, 0, 3), sequences=((2,),))
    monkeypatch.setitem(LAYOUTS, "shared", layout)
    test_graphs_say_what_the_model_says(name, {}, "shared")
    test_terms_add_up_to_the_logit(name, {}, "shared")
    described = convert.network(drawn(name, layout, True), layout)
    network.check(described, layout)
    with pytest.raises(ValueError, match="other fields than its encoder"):
        network.check(described, layout.apart)


def test_a_sequence_that_is_pooled_is_traced_from_its_ids() -> None:
    layout = Layout((5, 4, 5), (1, 1, 3), like=(0, 1, 0), sequences=((2,),))
    model, ids = drawn("din", layout, True), drawn_ids(layout).numpy()
    described = convert.network(model, layout)
    assert network.whole_part(described) == "CandidateAttention"
    whole = session(network.graph_of(described, network.as_input))
    for rows in (ids, ids[:1]):
        close(whole.run(None, {"ids": rows})[0], model, rows)


def test_fm_terms_are_its_inner_products() -> None:
    layout = LAYOUTS["plain"]
    model, ids = drawn("fm", layout, True), drawn_ids(layout).numpy()
    described = convert.network(model, layout)
    linear, pairs = session(network.terms_of(described, network.as_input)).run(
        None, {"ids": ids, **network.tables_of(described)}
    )
    found = model.double().lookup(torch.from_numpy(ids))
    v = found["vectors"].detach().numpy()
    np.testing.assert_allclose(linear, found["linear"].detach().numpy()[:, :, 0], atol=1e-6)
    slow = [[v[row, i] @ v[row, j] for i in range(4) for j in range(i + 1, 4)] for row in range(len(ids))]
    np.testing.assert_allclose(pairs, slow, atol=1e-6)


@pytest.mark.parametrize(("tables", "near"), [("fp16", 2e-3), ("int8", 1e-1)])
def test_smaller_tables_are_near_and_smaller(tables: str, near: float) -> None:
    layout = Layout.of((50, 70, 40))
    model, ids = drawn("pin", layout, True, dim=16), drawn_ids(layout).numpy()
    whole, small = (convert.network(model, layout, kind) for kind in ("fp32", tables))
    first, second = (
        session(network.graph_of(each, network.as_input)).run(None, {"ids": ids, **network.tables_of(each)})[0]
        for each in (whole, small)
    )
    assert 0 < np.abs(first - second).max() < near
    sizes = [sum(array.nbytes for array in network.tables_of(each).values()) for each in (whole, small)]
    assert sizes[1] <= sizes[0] * (0.5 if tables == "fp16" else 0.32)


def test_an_int8_row_is_within_half_a_step() -> None:
    from fieldwise.export.quantize import stored_table

    weight = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    weight[3] = 0
    kept = stored_table(weight, "int8")
    back = kept["weight"] * kept["scale"]
    assert (np.abs(back - weight) <= np.abs(weight).max(axis=1, keepdims=True) / 127 / 2 * 1.001).all()
    assert not back[3].any()
    with pytest.raises(ConfigError, match="unknown kind of tables 'int4'"):
        stored_table(weight, "int4")


def test_parts_come_back_from_a_folder(tmp_path: Any) -> None:
    layout = LAYOUTS["mixed"]
    described = convert.network(drawn("pin", layout, True), layout)
    plain_parts.save(described, tmp_path)
    back = plain_parts.load(tmp_path)
    for (path, one), (other_path, other) in zip(described.walk(), back.walk(), strict=True):
        assert (path, one.kind, one.settings) == (other_path, other.kind, other.settings)
        assert list(one.arrays) == list(other.arrays)
        assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


@pytest.mark.parametrize("context", [(), (1, 2)])
def test_a_sum_of_kernel_products_is_one_feature_of_a_dnn(context: tuple[int, ...]) -> None:
    layout, dims = LAYOUTS["plain"], (3,) * 4
    torch.manual_seed(0)
    features = Concat(KernelSum(dims, init="uniform"), Flatten(dims))
    model = Model(Embedding(layout, dims), Branch(features, DNN(features.width, Layers((5,))))).eval()
    described, ids = convert.network(model, layout), drawn_ids(layout).numpy()
    graph = session(network.graph_of(described, network.as_input, context))
    ids[:, list(context)] = ids[:1, list(context)]
    rest = [field for field in range(4) if field not in context]
    asked = {"ids": ids[:, rest], **({"context": ids[:1, list(context)]} if context else {})}
    (found,) = graph.run(None, network.tables_of(described) | asked)
    close(found, model, ids)
