"""How the time of a training step depends on the size of the vocabulary: FM, 39 fields, dim 20, batch 2000.

    python benchmarks/fm_step.py [categories ...]

Ids are drawn uniformly (the worst case: nearly all rows differ) and by Zipf's law. Prints the median of each part
of the step and the ratio to the smallest vocabulary.
"""

from __future__ import annotations

import sys
import time

# isort: off
import fieldwise  # noqa: F401  before torch: it sets how long torch's threads spin
# isort: on

import numpy as np
import torch
from torch.nn import functional

from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.optim import make_optimizer

FIELDS, DIM, BATCH, STEPS = 39, 20, 2000, 40


def draw(sizes: list[int], zipf: bool, seed: int) -> torch.Tensor:
    random = np.random.default_rng(seed)
    uniform = random.random((BATCH, FIELDS))
    # The inverse of a truncated power law's distribution; exponent 1 makes it size^u.
    columns = np.power(np.array(sizes), uniform) - 1 if zipf else uniform * np.array(sizes)
    return torch.from_numpy(columns.astype(np.int64))


def step_times(categories: int, zipf: bool) -> np.ndarray:
    sizes = [categories // FIELDS] * FIELDS
    model = build("fm", Layout.of(sizes), {"dim": DIM})
    optimizer = make_optimizer("adam", model.parameters(), lr=1e-3)
    labels = torch.randint(0, 2, (BATCH,)).float()
    times = []
    for step in range(STEPS + 5):
        ids = draw(sizes, zipf, step)
        start = time.perf_counter()
        loss = functional.binary_cross_entropy_with_logits(model(ids), labels)
        forward = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        backward = time.perf_counter()
        optimizer.step()
        times.append([forward - start, backward - forward, time.perf_counter() - backward])
    return np.median(times[5:], axis=0) * 1000


def main() -> None:
    vocabularies = [int(float(text)) for text in sys.argv[1:]] or [100_000, 1_000_000, 10_000_000]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ms per step of {BATCH} rows")
    for zipf in (False, True):
        base = None
        for categories in vocabularies:
            parts = step_times(categories, zipf)
            base = base or parts.sum()
            law = "zipf" if zipf else "uniform"
            shares = "  ".join(
                f"{n} {t:6.1f}" for n, t in zip(("forward", "backward", "optimiser"), parts, strict=True)
            )
            print(f"{law:8}{categories:>12,}  {shares}  all {parts.sum():6.1f}  ratio {parts.sum() / base:.2f}")


if __name__ == "__main__":
    main()
