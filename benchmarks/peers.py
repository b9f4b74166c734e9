"""Training speed beside other libraries, on the same arrays in the same run: rows per second and the ratio to ours.

    python benchmarks/peers.py [--vocab 1e6] [--rows 10000] [--models deepfm,fnn,ipnn,afm,ccpm,fm,ffm,lr] [--trees]

Makes an environment with DeepCTR-Torch, torchfm, FuxiCTR, LightGBM and Vowpal Wabbit in the user's cache folder and
runs itself there; torch, numpy and XGBoost are those of this one. 39 fields, vectors of 20 (FFM 4), DNN of five layers
of 700, batches of 2000, Zipf's ids. Each peer trains as its own fit or example does; steps of all alternate, so that
what else the machine does meets all alike. Wall and processor time; a library that cannot be had or fails is named and
left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

# isort: off
import fieldwise  # before torch: it sets how long torch's threads spin
# isort: on

import numpy as np
import torch
from torch import nn

from fieldwise import bench
from fieldwise.data.batches import Batch, batches
from fieldwise.data.schema import Layout

PINS = ("deepctr-torch==0.3.0", "torchfm==0.7.0", "fuxictr==2.3.10", "lightgbm==4.7.0", "vowpalwabbit==9.11.9")
NEEDED = ("requests", "urllib3", "idna", "certifi", "charset-normalizer", "h5py", "PyYAML", "narwhals")
HIDDEN, DIM = (700,) * 5, 20
INSIDE = "FIELDWISE_PEERS"
Learn = Callable[[Batch], object]


def main() -> None:
    arguments = parse()
    if os.environ.get(INSIDE) != "1":
        python = environment()
        code = subprocess.run([python, __file__, *sys.argv[1:]], env={**os.environ, INSIDE: "1"}, check=False)
        sys.exit(code.returncode)
    layout = bench.layout_of(int(float(arguments.vocab)))
    part = bench.drawn_rows(layout, arguments.rows + 4000, seed=0)
    shown = list(batches(part, 2000, 0, 0))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {layout.rows:,} categories")
    print(f"{'model':8}{'library':24}{'rows/s':>12}{'per CPU-s':>12}{'ours / this':>12}{'in CPU-s':>10}")
    for model in arguments.models.split(","):
        compare(model, layout, shown)
    if arguments.trees:
        trees(part.ids, part.labels)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training speed beside other libraries.")
    parser.add_argument("--vocab", default="1e6")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--models", default="deepfm,fnn,ipnn,afm,ccpm,fm,ffm,lr")
    parser.add_argument("--trees", action="store_true")
    return parser.parse_args()


def environment() -> str:
    """The python of an environment with the peers; it also sees what this one has."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fieldwise" / "peers"
    python = cache / "bin" / "python"
    ready = cache / "-".join(["ready", *(pin.partition("==")[2] for pin in PINS)])
    if not ready.exists():
        venv.create(cache, with_pip=True, clear=True)
        for package in (*PINS, *NEEDED):
            done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", package], check=False)
            if done.returncode:
                print(f"{package} cannot be had here")
        where = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        own = [sysconfig.get_path("purelib"), str(Path(fieldwise.__file__).parent.parent)]
        Path(where, "host.pth").write_text("\n".join(own) + "\n", encoding="utf-8")
        ready.touch()
    return str(python)


def compare(model: str, layout: Layout, shown: list[Batch]) -> None:
    """Steps of ours and of each peer in turn; one line for each."""
    learners: dict[str, Learn] = {}
    for precision in ("float32", "bf16"):
        step = bench.made_step(model, layout, bench.Setting(precision=precision))
        learners[f"fieldwise {precision}"] = lambda batch, step=step: step(batch, 0)
    for library, make in PEERS.get(model, {}).items():
        try:
            learners[library] = make(layout)
        except Exception as error:  # a peer's fault must not end the comparison
            print(f"{model:8}{library:24}left out: {type(error).__name__}: {error}")
    spent = {library: np.zeros(2) for library in learners}
    for place, batch in enumerate(shown):
        for library, learn in learners.items():
            wall, processor = time.perf_counter(), time.process_time()
            learn(batch)
            # The first two steps compile and allocate.
            spent[library] += (place >= 2) * np.array([time.perf_counter() - wall, time.process_time() - processor])
    rows = sum(len(batch.labels) for batch in shown[2:])
    ours = rows / spent["fieldwise float32"]
    for library, seconds in spent.items():
        speed = rows / seconds
        ratio = ours / speed
        print(f"{model:8}{library:24}{speed[0]:12,.0f}{speed[1]:12,.0f}{ratio[0]:12.2f}{ratio[1]:10.2f}", flush=True)


def torchfm(name: str, *options: Any) -> Callable[[Layout], Learn]:
    """A model of torchfm, trained as its example does."""

    def make(layout: Layout) -> Learn:
        import importlib

        # Its package file imports a removed name of numpy's in another module; the models themselves do not.
        np.long = np.int64  # type: ignore[attr-defined]
        module, _, kind = name.rpartition(".")
        model = getattr(importlib.import_module(f"torchfm.model.{module}"), kind)(list(layout.sizes), *options)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
        loss = nn.BCELoss()

        def learn(batch: Batch) -> None:
            found = loss(model(torch.from_numpy(batch.ids).long()), torch.from_numpy(batch.labels))
            model.zero_grad()
            found.backward()
            optimizer.step()

        return learn

    return make


def deepctr(kind: str, columns: int = 1, **options: Any) -> Callable[[Layout], Learn]:
    """A model of DeepCTR-Torch, trained as its `fit` does."""

    def make(layout: Layout) -> Learn:
        from deepctr_torch import models
        from deepctr_torch.inputs import SparseFeat

        fields = [SparseFeat(f"f{n}", size, embedding_dim=DIM) for n, size in enumerate(layout.sizes)]
        model = getattr(models, kind)(*[fields] * columns, device="cpu", **options)
        model.compile("adam", "binary_crossentropy")
        model.train()

        def learn(batch: Batch) -> None:
            found = model(torch.from_numpy(batch.ids).float()).squeeze()
            model.optim.zero_grad()
            loss = model.loss_func(found, torch.from_numpy(batch.labels), reduction="sum")
            (loss + model.get_regularization_loss() + model.aux_loss).backward()
            model.optim.step()

        return learn

    return make


def fuxictr(products: bool) -> Callable[[Layout], Learn]:
    """FuxiCTR's layers (embedding table, inner products, MLP) with the Adam that its models use."""

    def make(layout: Layout) -> Learn:
        # Its data loaders want ray, which no layer needs.
        for name in ("ray", "ray.data", "ray.data.datasource", "ray.data.datasource.filename_provider"):
            sys.modules.setdefault(name, MagicMock())
        from fuxictr.pytorch.layers import InnerProductInteraction, MLP_Block

        fields = layout.fields
        pairs = fields * (fields - 1) // 2
        table = nn.ModuleList(nn.Embedding(size, DIM) for size in layout.sizes)
        inner = InnerProductInteraction(fields, output="inner_product")
        mlp = MLP_Block(fields * DIM + products * pairs, output_dim=1, hidden_units=list(HIDDEN))
        parts = nn.ModuleList([table, mlp])
        optimizer = torch.optim.Adam(parts.parameters(), lr=1e-3)

        def learn(batch: Batch) -> None:
            ids = torch.from_numpy(batch.ids).long()
            v = torch.stack([each(ids[:, n]) for n, each in enumerate(table)], dim=1)
            features = torch.cat([v.flatten(1), inner(v)], dim=1) if products else v.flatten(1)
            loss = nn.functional.binary_cross_entropy(
                mlp(features).sigmoid().squeeze(1), torch.from_numpy(batch.labels)
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parts.parameters(), 10.0)
            optimizer.step()

        return learn

    return make


def vowpal(layout: Layout) -> Learn:
    """Vowpal Wabbit's logistic regression, parsing of its text lines included."""
    from vowpalwabbit import Workspace

    workspace = Workspace("--loss_function logistic -b 22 --quiet")

    def learn(batch: Batch) -> None:
        for label, ids in zip(batch.labels, batch.ids.tolist(), strict=True):
            fields = " ".join(f"{n}_{value}" for n, value in enumerate(ids))
            workspace.learn(f"{1 if label else -1} |f {fields}")

    return learn


DEEP = {"dnn_hidden_units": HIDDEN}
PEERS: dict[str, dict[str, Callable[[Layout], Learn]]] = {
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
    "ccpm": {"DeepCTR-Torch": deepctr("CCPM", 2, dnn_hidden_units=(256, 256, 256))},
}


def trees(ids: np.ndarray, labels: np.ndarray, rounds: int = 10) -> None:
    """Rows times rounds per second of the tree libraries; XGBoost is what `--model gbdt` trains with."""
    import xgboost

    def boost() -> None:
        data = xgboost.QuantileDMatrix(ids, label=labels)
        xgboost.train({"objective": "binary:logistic", "tree_method": "hist"}, data, rounds)

    def light() -> None:
        import lightgbm

        lightgbm.train({"objective": "binary", "verbosity": -1}, lightgbm.Dataset(ids, label=labels), rounds)

    for library, train in (("XGBoost", boost), ("LightGBM", light)):
        try:
            wall, processor = time.perf_counter(), time.process_time()
            train()
            spent = time.perf_counter() - wall, time.process_time() - processor
            speeds = "".join(f"{rounds * len(ids) / seconds:12,.0f}" for seconds in spent)
            print(f"{'trees':8}{library:24}{speeds}  row-rounds")
        except Exception as error:  # as above
            print(f"{'trees':8}{library:24}left out: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
