"""Bytes that a worker hands to others in a step: they grow with the batch, not with the vocabulary.

    python benchmarks/distributed.py [--workers 2 4] [--categories 100000 10000000] [--batches 500 2000]

Each line is measured on steps of an FM (sizes of all tensors given to the process group) and set beside the formula of
docs/scale.md. Exits with 1 if the vocabulary changes the bytes by more than 2 %, or if the formula is off by more than
that. Needs 44 bytes of memory for each category and worker; a minute.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from fieldwise import distributed
from fieldwise.config import Config, TrainSettings
from fieldwise.data.batches import share
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.steps import SharedStep
from fieldwise.steps.shared import Share

FIELDS, DIM, STEPS = 10, 2, 3


def measured(categories: list[int], batches: list[int]) -> dict[tuple[int, int], float]:
    """Bytes of a step for each number of categories and size of the batch; called in every worker."""
    found = {}
    with distributed.joined(300):
        for size in categories:
            torch.manual_seed(0)
            model = build("fm", Layout.of([size // FIELDS] * FIELDS), {"dim": DIM})
            assert isinstance(model, Model)
            step = SharedStep(model.train(), Config("fm", {"dim": DIM}, TrainSettings()), 100)
            for rows in batches:
                before = distributed.Wire.sent
                for number in range(STEPS):
                    step(drawn(rows, size, number), number)
                found[size, rows] = (distributed.Wire.sent - before) / STEPS
            del model, step
    return found


def drawn(rows: int, categories: int, number: int) -> Share:
    """This worker's share of a batch whose ids nearly all differ."""
    random = np.random.default_rng([number, rows])
    own = share(np.arange(rows), distributed.rank(), distributed.count())
    starts = random.integers(categories // FIELDS, size=FIELDS)
    stride = max(1, categories // FIELDS // rows)
    ids = (starts + np.arange(rows)[:, None] * stride) % (categories // FIELDS)
    return Share(ids[own].astype(np.int32), (random.random(len(own)) < 0.3).astype(np.float32), None, rows)


def formula(rows: int, workers: int) -> float:
    """An id and its gradient for each lookup, of the vectors and of the linear part; counts, the bias and the loss."""
    lookups = -(-rows // workers) * FIELDS
    return lookups * (4 + 4 * DIM) + lookups * (4 + 4) + 2 * 8 + 4 + 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the bytes that workers exchange in a step.")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--categories", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--batches", type=int, nargs="+", default=[500, 2000])
    chosen = parser.parse_args()
    wrong = False
    print(f"{'workers':>8}{'batch':>8}{'categories':>13}{'bytes a step':>14}{'formula':>10}")
    for workers in chosen.workers:
        found = distributed.launch(measured, (chosen.categories, chosen.batches), workers, restarts=0)
        for rows in chosen.batches:
            expected = formula(rows, workers)
            for size in chosen.categories:
                print(f"{workers:8}{rows:8}{size:13,}{found[size, rows]:14,.0f}{expected:10,.0f}", flush=True)
            sent = [found[size, rows] for size in chosen.categories]
            wrong |= max(sent) > 1.02 * min(sent) or not all(0.98 < each / expected < 1.02 for each in sent)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
