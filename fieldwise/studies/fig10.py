"""Figure 10: a small batch of sparse data misses much of the distribution, and dropout makes it miss more.

As in the paper: each sample has 10 different values out of N, drawn from a fixed random Q; the frequencies P in a batch
are compared with Q by KL(P || Q), with 1e-8 for stability. Dropout hides each value of a sample independently. The
paper scales the remaining values by 1 / drop, which should be 1 / (1 - drop); P is normalised, so the scale does not
matter.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies.study import Results, Row, Setup, Study, Verdict, lowest

SIZES = (1000, 2000, 4000, 8000)
BATCHES = tuple(range(100, 1001, 100))
DROPS = (0.0, 0.1, 0.3, 0.5, 0.7)
VALUES, SAMPLES, TINY = 10, 20_000, 1e-8


def samples(q: NDArray[np.float64], rng: np.random.Generator, count: int = SAMPLES) -> NDArray[np.int64]:
    """Samples (count, 10) of different values from Q; a sample with a repeated value is drawn again."""
    edges = np.cumsum(q)
    found = np.zeros((count, VALUES), dtype=np.int64)
    wrong = np.arange(count)
    while len(wrong):
        found[wrong] = np.searchsorted(edges / edges[-1], rng.random((len(wrong), VALUES)), side="right")
        ordered = np.sort(found[wrong], axis=1)
        wrong = wrong[(np.diff(ordered, axis=1) == 0).any(axis=1)]
    return found


def divergence(values: NDArray[np.int64], q: NDArray[np.float64]) -> float:
    """KL(P || Q) of the frequencies of values."""
    p = np.bincount(values, minlength=len(q)) / len(values)
    return float((p * np.log((p + TINY) / (q + TINY))).sum())


def compute(setup: Setup) -> list[Row]:
    repeats = 100
    rows: list[Row] = []
    for seed in range(setup.seeds):
        rng = np.random.default_rng([10, seed])
        for size in SIZES:
            q = rng.random(size)
            q /= q.sum()
            pool = samples(q, rng)
            for batch in BATCHES:
                for drop in DROPS if size == SIZES[0] else DROPS[:1]:
                    found = []
                    for _ in range(repeats):
                        drawn = pool[rng.integers(len(pool), size=batch)].ravel()
                        found.append(divergence(drawn[rng.random(len(drawn)) >= drop], q))
                    facts = {"N": size, "drop": drop, "batch": batch, "seed": seed}
                    rows.append(facts | {"kl": float(np.mean(found)), "kl_within": float(np.std(found))})
    return rows


def claims(results: Results) -> list[Verdict]:
    def least(lists: list[list[float]], sign: int) -> float:
        return lowest(sign * (later - before) for values in lists for before, later in pairwise(values))

    plain, small = results.where(drop=0.0), results.where(N=SIZES[0])
    by_size = [[plain.mean("kl", N=size, batch=batch) for size in SIZES] for batch in BATCHES]
    by_batch = [[plain.mean("kl", N=size, batch=batch) for batch in BATCHES] for size in SIZES]
    by_drop = [[small.mean("kl", drop=drop, batch=batch) for drop in DROPS] for batch in BATCHES]
    return [
        Verdict("the divergence grows with N at every batch size", least(by_size, 1), results.seeds),
        Verdict("it falls with the batch size at every N", least(by_batch, -1), results.seeds),
        Verdict("it grows with dropout at every batch size (N = 1000)", least(by_drop, 1), results.seeds),
    ]


def draw(results: Results) -> Figure:
    series = {f"N = {size}": [results.mean("kl", N=size, drop=0.0, batch=b) for b in BATCHES] for size in SIZES}
    series |= {
        f"drop {d:g}, N = 1000": [results.mean("kl", N=1000, drop=d, batch=b) for b in BATCHES] for d in DROPS[1:]
    }
    return plots.curves({name: (BATCHES, y) for name, y in series.items()}, "Batch size", "KL(P || Q)", ("y",))


STUDY = Study(
    id="fig10",
    paper="Figure 10",
    asks="How far is the distribution in a batch from the true one, by sparsity, batch size and dropout?",
    says="The distance of a batch from the distribution grows with N and with dropout and falls with the batch size.",
    keys=("N", "drop", "batch"),
    columns=(Column("kl", "KL divergence", ".4f", None, "kl_sd"),),
    compute=compute,
    claims=claims,
    draw=draw,
    budget=1,
)
