"""Our FFM with the libFFM recipe does what libFFM does: compared with its algorithm, written out row by row."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from fieldwise.config.progress import Progress
from fieldwise.config.settings import load_config
from fieldwise.data.batches import batches
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.models import Model, build
from fieldwise.train.loop import resolve
from fieldwise.train.network import Network

RECIPE = Path(__file__).parent.parent / "recipes" / "criteo" / "ffm-libffm.toml"
ETA, LAMBDA, K = 0.2, 2e-5, 4
Weights = dict[tuple[int, int, int], NDArray[np.float64]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three fields of unequal sizes; two of them decide the label together. 400 training rows."""
    random = np.random.default_rng(0)
    a, b, c = random.integers(0, 4, 500), random.integers(0, 7, 500), random.integers(0, 3, 500)
    clicks = (random.random(500) < np.where((a + b) % 2 == 0, 0.8, 0.2)).astype(int)
    texts = {
        name: pa.array([f"{name}{value}" for value in values]) for name, values in zip("abc", (a, b, c), strict=True)
    }
    folder = tmp_path_factory.mktemp("libffm") / "data"
    prepare({"train": lambda: iter([pa.table({"click": clicks, **texts})])}, folder, "click", split=Split(by="row"))
    found = Dataset.open(folder)
    assert found.parts["train"].rows == 400
    return found


def network(data: Dataset, out: Path, **overrides: Any) -> Network:
    base = {"train.epochs": 3, "train.patience": 9} | {f"train.{name}": value for name, value in overrides.items()}
    config = resolve(load_config(RECIPE, base=base))
    model = build(config.model, data.layout, config.options)
    assert isinstance(model, Model)
    return Network(config, data, out, False, model.double())


def vectors_of(model: Model, data: Dataset) -> Weights:
    """w[j, f] of libFFM, keyed by field, category and other field."""
    assert model.embedding is not None
    rows = model.embedding.tables[0].weight.detach().numpy()
    found, fields = {}, data.layout.fields
    for field, (start, size) in enumerate(zip(data.layout.offsets, data.layout.sizes, strict=True)):
        others = [other for other in range(fields) if other != field]
        for category in range(size):
            for place, other in enumerate(others):
                found[field, category, other] = rows[start + category, place * K : (place + 1) * K].copy()
    return found


def literal_epoch(w: Weights, accumulated: Weights, data: Dataset, batch_size: int, epoch: int) -> float:
    """libFFM's updates, a pair at a time, and its mean log loss; with a batch, rows' gradients are added up first."""
    losses, fields = [], data.layout.fields
    pairs = [(i, j) for i in range(fields) for j in range(i + 1, fields)]
    scale = 1 / fields  # 1 / |x|^2: each row has a one in each field
    for batch in batches(data.parts["train"], batch_size, seed=0, epoch=epoch):
        gradients: Weights = {}
        for ids, label in zip(batch.ids, batch.labels, strict=True):
            keys = [((i, int(ids[i]), j), (j, int(ids[j]), i)) for i, j in pairs]
            t = scale * sum(float(w[one] @ w[other]) for one, other in keys)
            y = 2 * float(label) - 1
            losses.append(math.log1p(math.exp(-y * t)))
            kappa = -y / (1 + math.exp(y * t))
            for one, other in keys:
                for own, partner in ((one, other), (other, one)):
                    gradient = LAMBDA * w[own] + kappa * scale * w[partner]
                    gradients[own] = gradients.get(own, 0.0) + gradient
        for key, gradient in gradients.items():
            accumulated[key] = accumulated[key] + gradient**2
            w[key] = w[key] - ETA * gradient / np.sqrt(accumulated[key])
    return float(np.mean(losses))


def logged(path: Path) -> list[float]:
    """The mean training loss of each epoch, whose lines are of equally many rows."""
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    trained = [event for event in events if event["event"] == "train"]
    losses = {event["epoch"]: [] for event in trained}
    for event in trained:
        losses[event["epoch"]].append(event["loss"])
    return [float(np.mean(found)) for found in losses.values()]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_recipe_follows_libffms_algorithm(data: Dataset, tmp_path: Path, batch_size: int) -> None:
    """A batch's loss is a mean of B rows': accumulators that start at 1/B^2 make its step that of their sum."""
    run = network(data, tmp_path / "run", batch_size=batch_size, initial_accumulator=1 / batch_size**2)
    w = vectors_of(run.model, data)
    start = np.concatenate([*w.values()])
    assert 0 <= start.min() < 0.05 < 0.45 < start.max() <= 0.5  # U(0, 1) / sqrt(4)
    accumulated = {key: np.ones(K) for key in w}
    losses = [literal_epoch(w, accumulated, data, batch_size, epoch) for epoch in range(3)]
    run.fit(Progress())
    found = vectors_of(run.model, data)
    np.testing.assert_allclose([*found.values()], [*w.values()], rtol=0, atol=1e-7)
    assert np.abs(np.concatenate([*w.values()]) - start).max() > 0.1
    np.testing.assert_allclose(logged(tmp_path / "run" / "log.jsonl"), losses, rtol=0, atol=1e-7)
    assert losses[2] < losses[0] - 0.01


def test_the_recipe_stops_as_libffms_auto_stop_does(data: Dataset, tmp_path: Path) -> None:
    """At the first epoch that is worse, keeping the weights before it."""
    assert load_config(RECIPE).train.patience == 0
    run = network(data, tmp_path / "run", patience=0, epochs=60)
    run.fit(Progress())
    assert run.state.stopped
    assert run.state.step - run.state.best_step == run.steps
