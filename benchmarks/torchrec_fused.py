"""Sharded tables beside TorchRec's fused ones (FBGEMM), which move rows while gradients arrive: rows/s in one run.

    python benchmarks/torchrec_fused.py [--device cpu|cuda] [--workers 1] [--model fm] [--dim 16] [--fields 10]
        [--categories 1000000] [--batch 2000] [--optimizers adagrad sgd adam paper] [--steps 100]

Needs TorchRec (`make distributed`; on a GPU fbgemm-gpu==1.8.0 instead of fbgemm-gpu-cpu). Both train the same model
from the same weights on the same rows, turn by turn, so that a slow moment of the machine is one for both. `difference`
is the largest difference of a loss. FBGEMM has no Adam on CPUs; its Adam on GPUs is compared with our `lazy` mode, and
our `paper` mode, which it lacks, is a line of its own. Exits with 1 if losses differ by more than 1e-4.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.batches import share
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.embedding import Table
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.sharded.deferred import IntoOwnRows
from fieldwise.train.sharded.sharded_model import build as cut_model
from fieldwise.train.steps import ShardedStep, SharedStep, tables
from fieldwise.train.steps.shared import Share

ROWS = "rows"
SEED, SCALE = 1, 0.1
LANES = 4  # FBGEMM needs rows of a multiple of this many numbers
# The optimisers' names: ours, FBGEMM's or "" where it has none, and our settings.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adagrad": ("EXACT_ADAGRAD", {"optimizer": "adagrad", "lr": 0.02}),
    "sgd": ("EXACT_SGD", {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1}),
    "adam": ("ADAM", {"sparse_mode": "lazy"}),
    "paper": ("", {}),
}


class FusedTable(Table):
    """A table whose rows TorchRec cuts, looks up and moves."""

    rows: Any

    def _rows(self, ids: Tensor) -> Tensor:
        from torchrec import KeyedJaggedTensor

        distinct, which = torch.unique(ids + self.offsets, return_inverse=True)
        asked = distinct.int() if len(self.weight) < 2**31 else distinct  # half the message
        lengths = torch.tensor([len(asked)], dtype=torch.int32, device=ids.device)
        found = self.rows(KeyedJaggedTensor(keys=[ROWS], values=asked, lengths=lengths))[ROWS].values()
        return functional.embedding(which, found[:, : self.weight.shape[1]])


class FusedStep(SharedStep):
    """The step of several workers, in which TorchRec moves the tables and our optimiser all other weights."""

    def weights(self) -> list[Tensor]:
        return [value for name, value in self.model.named_parameters() if f".{ROWS}." not in name]


def fused(model: Model, settings: TrainSettings, kind: str, device: torch.device) -> Model:
    """The model with TorchRec's tables instead of its own."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.comm_ops import set_gradient_division
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.types import ShardingPlan

    params = {"optimizer": EmbOptimType[kind], "learning_rate": settings.lr, "eps": settings.eps}
    params |= {"beta1": settings.betas[0], "beta2": settings.betas[1]} if kind == "ADAM" else {}
    sharder = EmbeddingCollectionSharder(fused_params=params)
    set_gradient_division(False)  # gradients are summed, as those of other weights are
    model.to(device)
    found = {name: part for name, part in model.named_modules() if isinstance(part, Table)}
    plan = ShardingPlan({f"{name}.{ROWS}": _collection(table, sharder, device) for name, table in found.items()})
    parallel = DistributedModelParallel(model, device=device, plan=plan, sharders=[sharder], init_data_parallel=False)
    state, optimizer = model.state_dict(), parallel.fused_optimizer.state_dict()["state"]
    torch.manual_seed(SEED)
    for name, table in found.items():
        key = f"{name}.{ROWS}.embeddings.{ROWS}.weight"
        (shard,) = state[key].local_shards()
        own, first = shard.tensor.detach().zero_(), shard.metadata.shard_offsets[0]
        with torch.no_grad(), IntoOwnRows(own[:, : table.weight.shape[1]], first):
            torch.empty_like(table.weight).normal_(0.0, SCALE)
        if kind == "EXACT_ADAGRAD":  # FBGEMM's sum of squares includes the starting value
            for value in optimizer[key].values():
                value.local_shards()[0].tensor.fill_(settings.initial_accumulator)
    return model


def _collection(table: Any, sharder: Any, device: torch.device) -> Any:
    """Gives the table TorchRec's rows, not yet cut and without memory; returns the plan by which they are cut."""
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise

    rows, wide = len(table.weight), -(-table.weight.shape[1] // LANES) * LANES
    shape = torch.empty_like(table.weight.detach(), device="meta")
    del table.weight
    table.weight = shape
    table.__class__ = FusedTable
    one = EmbeddingConfig(name=ROWS, feature_names=[ROWS], num_embeddings=rows, embedding_dim=wide)
    table.rows = EmbeddingCollection(tables=[one], device=torch.device("meta"))
    by_rows, workers = {ROWS: row_wise(compute_kernel="fused")}, distributed.count()
    return construct_module_sharding_plan(table.rows, by_rows, sharder, world_size=workers, device_type=device.type)


def steps_of(asked: argparse.Namespace, name: str, device: torch.device) -> dict[str, SharedStep]:
    """Ours, and TorchRec's where it has this optimiser here."""
    kind, changes = OPTIMIZERS[name]
    settings = TrainSettings(**{"lr": 1e-3, "l2": 0.0, "warmup": 0, **changes})
    options = {"dim": asked.dim}
    config = Config(asked.model, options, settings)

    def make() -> Model:
        torch.manual_seed(SEED)
        model = build(asked.model, Layout.of([asked.categories // asked.fields] * asked.fields), options)
        assert isinstance(model, Model)
        return model.train()

    cut = cut_model(make, settings, device)
    torch.manual_seed(SEED)
    for table in tables(cut.model):
        table.start("normal", SCALE)
    found: dict[str, SharedStep] = {"ours": ShardedStep(cut, config, 10**6)}
    if kind and not (kind == "ADAM" and device.type == "cpu"):
        found["TorchRec"] = FusedStep(fused(make(), settings, kind, device), config, 10**6)
    return found


def drawn(asked: argparse.Namespace, number: int) -> Share:
    """This worker's rows of a batch; popular ids come often."""
    random = np.random.default_rng([number, asked.batch])
    each = asked.categories // asked.fields
    ids = (random.random((asked.batch, asked.fields)) ** 3 * each).astype(np.int32)
    labels = (random.random(asked.batch) < 0.3).astype(np.float32)
    own = share(np.arange(asked.batch), distributed.rank(), distributed.count())
    return Share(ids[own], labels[own], None, asked.batch)


def measured(asked: argparse.Namespace) -> dict[str, tuple[dict[str, float], float]]:
    """For each optimiser the rows a second of each kind of step, and the largest difference of a loss."""
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    found = {}
    with distributed.joined(300):
        device = torch.device(asked.device)
        for name in asked.optimizers:
            steps = steps_of(asked, name, device)
            times: dict[str, list[float]] = {kind: [] for kind in steps}
            most = 0.0
            for number in range(asked.steps):
                batch, losses = drawn(asked, number), []
                for kind, step in steps.items():
                    distributed.wait()
                    began = time.perf_counter()
                    losses.append(step(batch, number))
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    times[kind].append(time.perf_counter() - began)
                most = max(most, max(losses) - min(losses))
            warm = asked.steps // 5
            found[name] = {kind: asked.batch / statistics.median(own[warm:]) for kind, own in times.items()}, most
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--model", default="fm")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--fields", type=int, default=10)
    parser.add_argument("--categories", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=2000)
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = distributed.launch(measured, (asked,), asked.workers, restarts=0)
    print(f"{asked.model}, {asked.device}, {asked.workers} workers, batches of {asked.batch:,}")
    print(f"{'optimiser':>11}{'our rows/s':>13}{'TorchRec rows/s':>17}{'ours/theirs':>13}{'difference':>12}")
    for name, (speeds, most) in found.items():
        ours, theirs = speeds["ours"], speeds.get("TorchRec")
        beside = f"{theirs:17,.0f}{ours / theirs:13.2f}{most:12.1e}" if theirs else f"{'none':>17}"
        print(f"{name:>11}{ours:13,.0f}{beside}")
    sys.exit(1 if max(most for _, most in found.values()) > 1e-4 else 0)


if __name__ == "__main__":
    main()
