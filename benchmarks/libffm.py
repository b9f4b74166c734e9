"""Our FFM with the libFFM recipe beside libFFM itself, epoch by epoch, on the same encoded rows.

    pip install pylibffm==0.4.1
    python benchmarks/libffm.py DATA --out RUN [--epochs 15] [--batch-size 1]

DATA is a prepared folder without set fields and weights; RUN is our run folder (a finished one is not trained again).
libFFM runs with one thread, first on the rows as they are, then eight times with the rows in another order and the
features under other numbers, so with other starting values: how far these lie apart is what chance does. `literal` is
its algorithm written out here, with our starting values and in our order: nothing is left to chance there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numba import njit

from fieldwise.config.settings import load_config
from fieldwise.data.batches import batches
from fieldwise.data.dataset import Dataset
from fieldwise.models import Model, build
from fieldwise.train.loop import resolve, train
from fieldwise.train.network import Network

RECIPE = Path(__file__).parent.parent / "recipes" / "criteo" / "ffm-libffm.toml"
ORDERS = 8
Curve = list[tuple[float, float]]  # log loss of training rows while training, and of validation rows, for each epoch

# In a process of its own: libFFM writes its log losses to the standard output of C, and takes its threads from OpenMP.
LIBFFM = """
import sys
import numpy as np
from pylibffm import make_bin, wrapper
from scipy.sparse import csr_matrix
folder, epochs, eta, penalty, dim = sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:5]), int(sys.argv[5])
field_of = np.load(folder + "/field_of.npy")
paths = []
for part in ("train", "valid"):
    features, labels = np.load(f"{folder}/{part}.npy"), np.load(f"{folder}/{part}-labels.npy")
    ends = np.arange(len(features) + 1) * features.shape[1]
    ones = np.ones(features.size, dtype=np.float32)
    rows = csr_matrix((ones, features.ravel(), ends), shape=(len(features), len(field_of)))
    paths.append(make_bin(f"{folder}/{part}", rows, labels, field_of)[0])
wrapper.train_on_disk(*paths, eta, penalty, epochs, dim, True, False)
"""


def libffm(data: Dataset, epochs: int, seed: int | None = None) -> Curve:
    """libFFM's curve; with a seed, rows and features are in a random order first."""
    settings = load_config(RECIPE)
    layout = data.layout
    random = np.random.default_rng(seed)
    numbers = np.arange(layout.rows) if seed is None else random.permutation(layout.rows)
    field_of = np.empty(layout.rows, dtype=np.int32)
    field_of[numbers] = np.repeat(np.arange(layout.fields), layout.sizes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "field_of.npy", field_of)
        for part in ("train", "valid"):
            rows = data.parts[part]
            order = np.arange(rows.rows) if seed is None else random.permutation(rows.rows)
            np.save(folder / f"{part}.npy", numbers[rows.ids[order] + layout.offsets].astype(np.int32))
            np.save(folder / f"{part}-labels.npy", np.asarray(rows.labels)[order])
        options = [epochs, settings.train.lr, settings.train.l2, settings.options["dim"]]
        command = [sys.executable, "-c", LIBFFM, name, *map(str, options)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    if done.returncode:
        sys.exit(f"libFFM failed; is it there (pip install pylibffm==0.4.1)?\n{done.stderr}")
    lines = re.findall(r"^ *\d+ +(\d\.\d+) +(\d\.\d+) +[\d.]+$", done.stdout, re.MULTILINE)
    return [(float(train), float(valid)) for train, valid in lines]


def literal(data: Dataset, epochs: int) -> Curve:
    """The curve of libFFM's algorithm, a row and a pair at a time, from our starting values and in our order."""
    config = resolve(load_config(RECIPE))
    torch.manual_seed(config.seed)
    model = build(config.model, data.layout, config.options)
    assert isinstance(model, Model)
    with tempfile.TemporaryDirectory() as name:
        table = Network(config, data, Path(name) / "run", False, model).model.state_dict()["embedding.tables.0.weight"]
    dim, fields = config.options["dim"], data.layout.fields
    weights = np.zeros((len(table), fields, dim), dtype=np.float32)
    for field, (start, size) in enumerate(zip(data.layout.offsets, data.layout.sizes, strict=True)):
        others = [other for other in range(fields) if other != field]
        weights[start : start + size, others] = table[start : start + size].reshape(size, fields - 1, dim)
    squares, curve = np.ones_like(weights), []
    rates = np.float32(config.train.lr), np.float32(config.train.l2)
    for epoch in range(epochs):
        losses = []
        for part, moves in (("train", True), ("valid", False)):
            rows = data.parts[part]
            (batch,) = batches(rows, rows.rows, config.seed, epoch)
            features = batch.ids + np.array(data.layout.offsets)
            losses.append(_literal_pass(features, 2 * batch.labels - 1, weights, squares, *rates, moves))
        curve.append((losses[0], losses[1]))
    return curve


@njit  # type: ignore[untyped-decorator, unused-ignore]
def _literal_pass(features, labels, weights, squares, eta, penalty, moves):  # type: ignore[no-untyped-def]
    rows, fields = features.shape
    scale, total = np.float32(1 / fields), 0.0
    for row in range(rows):
        logit = np.float32(0)
        for a in range(fields):
            for b in range(a + 1, fields):
                for d in range(weights.shape[2]):
                    logit += weights[features[row, a], b, d] * weights[features[row, b], a, d] * scale
        total += np.log1p(np.exp(-labels[row] * logit))
        if not moves:
            continue
        kappa = np.float32(-labels[row] / (1 + np.exp(labels[row] * logit))) * scale
        for a in range(fields):
            for b in range(a + 1, fields):
                for d in range(weights.shape[2]):
                    one, other = (features[row, a], b, d), (features[row, b], a, d)
                    first, second = weights[one], weights[other]
                    for place, gradient in (
                        (one, penalty * first + kappa * second),
                        (other, penalty * second + kappa * first),
                    ):
                        squares[place] += gradient * gradient
                        weights[place] -= eta * gradient / np.sqrt(squares[place])
    return total / rows


def ours(data: Path, out: Path, epochs: int, batch_size: int) -> Curve:
    """Our curve, all epochs; accumulators of 1/B^2 make a batch the sum of its rows' gradients."""
    changes = {"train.epochs": epochs, "train.patience": 99, "train.batch_size": batch_size}
    config = load_config(RECIPE, base=changes | {"train.initial_accumulator": 1 / batch_size**2})
    train(config, data, out, resume=True)
    return list(_curve(out / "log.jsonl"))


def _curve(log: Path) -> Iterator[tuple[float, float]]:
    losses: list[float] = []
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "train":
            losses.append(event["loss"])
        else:
            yield float(np.mean(losses)), event["log_loss"]
            losses = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=1)
    asked = parser.parse_args()
    data = Dataset.open(asked.data)
    if data.layout.has_sets or data.parts["train"].weights is not None:
        sys.exit("libFFM has neither the mean of a set nor weights of rows; take data without them")
    theirs = np.array(libffm(data, asked.epochs))
    others = np.array([libffm(data, asked.epochs, seed) for seed in range(1, ORDERS + 1)])
    own = np.array(ours(asked.data, asked.out, asked.epochs, asked.batch_size))
    for column, part in enumerate(("training rows, while training", "validation rows")):
        print(f"\n| {part}: epoch | libFFM | in {ORDERS} other orders | ours | ours - libFFM |\n|---|---|---|---|---|")
        for epoch in range(asked.epochs):
            one, mine, low_to_high = theirs[epoch, column], own[epoch, column], np.sort(others[:, epoch, column])
            spread = f"{low_to_high[0]:.5f} to {low_to_high[-1]:.5f}"
            print(f"| {epoch + 1} | {one:.5f} | {spread} | {mine:.5f} | {mine - one:+.5f} |")
    compared = {
        "ours and libFFM": own - theirs,
        "libFFM and libFFM in other orders": others - theirs,
        "ours and literal": own - np.array(literal(data, asked.epochs)),
    }
    print("\n| largest distance | training rows | validation rows |\n|---|---|---|")
    for name, distances in compared.items():
        training, validation = np.abs(distances).reshape(-1, 2).max(axis=0)
        print(f"| {name} | {training:.6f} | {validation:.6f} |")


if __name__ == "__main__":
    main()
