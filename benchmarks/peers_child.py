"""One peer library on the rows of peers.py, step by step as it is told; run by peers.py in an environment of its own.

    PYTHON benchmarks/peers_child.py FOLDER MODEL LIBRARY

FOLDER holds ids.npy (n, F), labels.npy and sizes.npy, the fields' categories. Says "ready", then trains on rows "low
high" as asked on a line of standard input, and says what it "took": seconds on the wall, and of processors.
This file imports nothing of fieldwise: the peer has a process as it would have it anywhere else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import nn

HIDDEN, DIM = (700,) * 5, 20
ROUNDS = 10  # of trees
THREADS = torch.get_num_threads()
Learn = Callable[[np.ndarray, np.ndarray], object]


def main() -> None:
    folder, model, library = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    ids, labels, sizes = (np.load(folder / f"{name}.npy") for name in ("ids", "labels", "sizes"))
    learn = PEERS[model][library]([int(size) for size in sizes])
    print("ready", flush=True)
    for line in sys.stdin:
        low, high = map(int, line.split())
        wall, processor = time.perf_counter(), time.process_time()
        learn(ids[low:high], labels[low:high])
        print("took", time.perf_counter() - wall, time.process_time() - processor, flush=True)


def torchfm(name: str, *options: Any) -> Callable[[list[int]], Learn]:
    """A model of torchfm, trained as its example does."""

    def make(sizes: list[int]) -> Learn:
        import importlib

        # Its package file imports a removed name of numpy's in another module; the models themselves do not.
        np.long = np.int64  # type: ignore[attr-defined]
        module, _, kind = name.rpartition(".")
        model = getattr(importlib.import_module(f"torchfm.model.{module}"), kind)(sizes, *options)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
        loss = nn.BCELoss()

        def learn(ids: np.ndarray, labels: np.ndarray) -> None:
            found = loss(model(torch.from_numpy(ids).long()), torch.from_numpy(labels))
            model.zero_grad()
            found.backward()
            optimizer.step()

        return learn

    return make


def deepctr(kind: str, columns: int = 1, **options: Any) -> Callable[[list[int]], Learn]:
    """A model of DeepCTR-Torch, trained as its `fit` does."""

    def make(sizes: list[int]) -> Learn:
        from deepctr_torch import models
        from deepctr_torch.inputs import SparseFeat

        fields = [SparseFeat(f"f{n}", size, embedding_dim=DIM) for n, size in enumerate(sizes)]
        model = getattr(models, kind)(*[fields] * columns, device="cpu", **options)
        model.compile("adam", "binary_crossentropy")
        model.train()

        def learn(ids: np.ndarray, labels: np.ndarray) -> None:
            found = model(torch.from_numpy(ids).float()).squeeze()
            model.optim.zero_grad()
            loss = model.loss_func(found, torch.from_numpy(labels), reduction="sum")
            (loss + model.get_regularization_loss() + model.aux_loss).backward()
            model.optim.step()

        return learn

    return make


def fuxictr(products: bool) -> Callable[[list[int]], Learn]:
    """FuxiCTR's layers (embedding table, inner products, MLP) with the Adam that its models use."""

    def make(sizes: list[int]) -> Learn:
        # Its data loaders want ray, which no layer needs.
        for name in ("ray", "ray.data", "ray.data.datasource", "ray.data.datasource.filename_provider"):
            sys.modules.setdefault(name, MagicMock())
        from fuxictr.pytorch.layers import InnerProductInteraction, MLP_Block

        fields = len(sizes)
        pairs = fields * (fields - 1) // 2
        table = nn.ModuleList(nn.Embedding(size, DIM) for size in sizes)
        inner = InnerProductInteraction(fields, output="inner_product")
        mlp = MLP_Block(fields * DIM + products * pairs, output_dim=1, hidden_units=list(HIDDEN))
        parts = nn.ModuleList([table, mlp])
        optimizer = torch.optim.Adam(parts.parameters(), lr=1e-3)

        def learn(ids: np.ndarray, labels: np.ndarray) -> None:
            places = torch.from_numpy(ids).long()
            v = torch.stack([each(places[:, n]) for n, each in enumerate(table)], dim=1)
            features = torch.cat([v.flatten(1), inner(v)], dim=1) if products else v.flatten(1)
            loss = nn.functional.binary_cross_entropy(mlp(features).sigmoid().squeeze(1), torch.from_numpy(labels))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parts.parameters(), 10.0)
            optimizer.step()

        return learn

    return make


def vowpal(sizes: list[int]) -> Learn:
    """Vowpal Wabbit's logistic regression, parsing of its text lines included."""
    from vowpalwabbit import Workspace

    workspace = Workspace("--loss_function logistic -b 22 --quiet")

    def learn(ids: np.ndarray, labels: np.ndarray) -> None:
        for label, row in zip(labels, ids.tolist(), strict=True):
            fields = " ".join(f"{n}_{value}" for n, value in enumerate(row))
            workspace.learn(f"{1 if label else -1} |f {fields}")

    return learn


def boost(sizes: list[int]) -> Learn:
    """XGBoost's histograms, ids as numbers; what `--model gbdt` trains with."""
    import xgboost

    def learn(ids: np.ndarray, labels: np.ndarray) -> None:
        data = xgboost.QuantileDMatrix(ids, label=labels)
        xgboost.train({"objective": "binary:logistic", "tree_method": "hist", "nthread": THREADS}, data, ROUNDS)

    return learn


def light(sizes: list[int]) -> Learn:
    import lightgbm

    def learn(ids: np.ndarray, labels: np.ndarray) -> None:
        settings = {"objective": "binary", "verbosity": -1, "num_threads": THREADS}
        lightgbm.train(settings, lightgbm.Dataset(ids, label=labels), ROUNDS)

    return learn


DEEP = {"dnn_hidden_units": HIDDEN}
PEERS: dict[str, dict[str, Callable[[list[int]], Learn]]] = {
    "lr": {"torchfm": torchfm("lr.LogisticRegressionModel"), "Vowpal Wabbit": vowpal},
    "fm": {
        "torchfm": torchfm("fm.FactorizationMachineModel", DIM),
        "DeepCTR-Torch": deepctr("DeepFM", 2, dnn_hidden_units=()),
    },
    "ffm": {"torchfm": torchfm("ffm.FieldAwareFactorizationMachineModel", 4)},
    "fnn": {
        "torchfm": torchfm("fnn.FactorizationSupportedNeuralNetworkModel", DIM, HIDDEN, 0.0),
        "FuxiCTR layers": fuxictr(products=False),
    },
    "deepfm": {
        "torchfm": torchfm("dfm.DeepFactorizationMachineModel", DIM, HIDDEN, 0.0),
        "DeepCTR-Torch": deepctr("DeepFM", 2, **DEEP),
    },
    "ipnn": {
        "torchfm": torchfm("pnn.ProductNeuralNetworkModel", DIM, HIDDEN, 0.0),
        "DeepCTR-Torch": deepctr("PNN", 1, **DEEP),
        "FuxiCTR layers": fuxictr(products=True),
    },
    "afm": {
        "torchfm": torchfm("afm.AttentionalFactorizationMachineModel", DIM, 16, (0.0, 0.0)),
        "DeepCTR-Torch": deepctr("AFM", 2, attention_factor=16),
    },
    "trees": {"XGBoost": boost, "LightGBM": light},
    "ccpm": {"DeepCTR-Torch": deepctr("CCPM", 2, dnn_hidden_units=(256, 256, 256))},
}


if __name__ == "__main__":
    main()
