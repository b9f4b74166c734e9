"""Bytes that a worker hands to others in a step: they grow with the batch, not with the vocabulary.

    python benchmarks/distributed.py [--tables replicated sharded] [--workers 2 4] [--categories 100000 10000000]
        [--batches 500 2000] [--optimizer adam] [--weights-precision float32]

Each line is measured on steps of an FM, where the process group takes the tensors, and set beside the formula of
docs/scale.md. Exits with 1 if the vocabulary changes the bytes by more than 2 %, or if the formula is off by more than
that. Needs 44 bytes of memory for each category and worker, and 44 for each category with sharded tables; two minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.batches import share
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.sharded.sharded_model import build as cut_model
from fieldwise.train.steps import ShardedStep, SharedStep, tables
from fieldwise.train.steps.shared import Share

FIELDS, DIM, STEPS = 10, 2, 10


class Counted(TorchDispatchMode):
    """Within, the bytes that go into the process group for other workers, whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("c10d.alltoall_base_"):
            self.sent += leaving(args[1], args[4])
        elif name.startswith(("c10d.allreduce_", "c10d.broadcast_")):
            self.sent += sum(tensor.nbytes for tensor in tensors(args[0]))
        elif name.startswith("c10d.allgather_"):
            self.sent += sum(tensor.nbytes for tensor in tensors(args[1]))
        elif name.startswith("c10d.") and "barrier" not in name:
            raise NotImplementedError(f"bytes of {name} are not counted")
        return func(*args, **(kwargs or {}))


def tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    else:
        for value in values:
            yield from tensors(value)


def leaving(values: Tensor, splits: list[int]) -> float:
    """The bytes of what is cut up for all workers, but for the own part; without splits the parts are equal."""
    own, workers = distributed.rank(), distributed.count()
    stays = splits[own] / max(1, sum(splits)) if splits else 1 / workers
    return values.nbytes * (1 - stays)


@dataclass(frozen=True)
class Found:
    """What a step of a worker costs: bytes handed over, milliseconds, and the memory that its tables have taken."""

    sent: float
    took: float
    memory: int


def measured(
    kind: str, categories: list[int], batches: list[int], settings: TrainSettings
) -> dict[tuple[int, int], Found]:
    """The costs of a step for each number of categories and size of the batch; called in every worker."""
    found = {}
    with distributed.joined(300):
        for size in categories:
            before = resident()
            step = step_of(kind, size, settings)
            memory = resident() - before
            for rows in batches:
                step(drawn(rows, size, STEPS), 0)  # the first is slow
                shares = [drawn(rows, size, number) for number in range(STEPS)]
                with Counted() as wire:
                    for number, own in enumerate(shares):
                        step(own, number)
                took = fastest(step, shares)
                total = distributed.summed(torch.tensor(wire.sent))
                found[size, rows] = Found(float(total) / STEPS / distributed.count(), took, memory)
            del step
    return found


def fastest(step: SharedStep, shares: list[Share]) -> float:
    """Milliseconds of the fastest of some steps, which no other program on the machine has slowed."""
    times = []
    for number, own in enumerate(shares):
        distributed.wait()
        began = time.perf_counter()
        step(own, number)
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def step_of(kind: str, categories: int, settings: TrainSettings) -> SharedStep:
    """A step whose weights and optimiser states are in memory, also where they are zero."""

    def make() -> Model:
        model = build("fm", Layout.of([categories // FIELDS] * FIELDS), {"dim": DIM})
        assert isinstance(model, Model)
        return model.train()

    torch.manual_seed(0)
    config = Config("fm", {"dim": DIM}, settings)
    step: SharedStep
    if kind == "sharded":
        cut = cut_model(make, settings, torch.device("cpu"))
        step, weights = ShardedStep(cut, config, 100), cut.rows
    else:
        step = SharedStep(make(), config, 100)
        weights = {name: value for name, value in step.model.named_parameters() if value.dim() == 2}
    for table in tables(step.model):
        table.start("normal", 0.01)
    for weight in weights.values():
        for state in step.optimizer.whole_state(weight, by_rows=True).values():
            state.zero_()
    return step


def drawn(rows: int, categories: int, number: int) -> Share:
    """This worker's share of a batch whose ids nearly all differ."""
    random = np.random.default_rng([number, rows])
    own = share(np.arange(rows), distributed.rank(), distributed.count())
    starts = random.integers(categories // FIELDS, size=FIELDS)
    stride = max(1, categories // FIELDS // rows)
    ids = (starts + np.arange(rows)[:, None] * stride) % (categories // FIELDS)
    return Share(ids[own].astype(np.int32), (random.random(len(own)) < 0.3).astype(np.float32), None, rows)


def formula(kind: str, rows: int, workers: int, settings: TrainSettings) -> float:
    """An id and its gradient for each lookup, of the vectors and of the linear part; counts, the bias and the loss.

    Of sharded tables an id goes out for both, rows come back and gradients go out, all but the part that a worker has
    itself; and each worker tells each other how many there are.
    """
    lookups, small = -(-rows // workers) * FIELDS, 4 + 4
    if kind == "replicated":
        return lookups * (4 + 4 * DIM) + lookups * (4 + 4) + 2 * 8 + small
    others = (workers - 1) / workers
    number = 2 if settings.weights_precision == "bf16" else 4
    return lookups * others * (4 + (number + 4) * (DIM + 1)) + 8 * (workers - 1) + small


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the bytes that workers exchange in a step.")
    parser.add_argument("--tables", nargs="+", default=["replicated", "sharded"])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--categories", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--batches", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--weights-precision", default="float32")
    chosen = parser.parse_args()
    settings = TrainSettings(optimizer=chosen.optimizer, weights_precision=chosen.weights_precision)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    titles = f"{'categories':>13}{'bytes a step':>14}{'formula':>10}{'ms a step':>11}{'MB of tables':>14}"
    print(f"{'tables':>11}{'workers':>8}{'batch':>8}{titles}")
    for kind in chosen.tables:
        for workers in chosen.workers:
            asked = kind, chosen.categories, chosen.batches, settings
            found = distributed.launch(measured, asked, workers, restarts=0)
            for rows in chosen.batches:
                expected = formula(kind, rows, workers, settings)
                for size in chosen.categories:
                    step = found[size, rows]
                    shown = f"{size:13,}{step.sent:14,.0f}{expected:10,.0f}{step.took:11.1f}{step.memory / 1e6:14,.0f}"
                    print(f"{kind:>11}{workers:8}{rows:8}{shown}", flush=True)
                sent = [found[size, rows].sent for size in chosen.categories]
                wrong |= max(sent) > 1.02 * min(sent) or not all(0.98 < each / expected < 1.02 for each in sent)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
