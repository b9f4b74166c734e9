"""Section 3.2.2: the parity of some of 30 binary fields. The more fields, the less information in a DNN's gradients.

FNN and the product networks on parities of 2 to 10 fields; and the variance of FNN's first gradient over random parity
targets of the same size, which falls with the number of hypotheses if the gradient carries no
information about the target.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from fieldwise import models
from fieldwise.data.schema import Layout
from fieldwise.nn.model import Model
from fieldwise.reporting.result_tables import Column, high
from fieldwise.studies import figures, sources
from fieldwise.studies.study import Case, Plan, Results, Row, Setup, Study, Verdict, by_seed, highest, lowest

FIELDS = 30
# Rows of a gradient at a time; the share of a signal that counts as none.
PIECE, FAINT = 20_000, 0.05
# Rows, epochs, parity sizes and models.
SIZES: dict[str, tuple[int, int, tuple[int, ...], tuple[str, ...]]] = {
    "small": (50_000, 5, (2, 4, 8), ("fnn", "ipnn")),
    "medium": (100_000, 10, (2, 3, 4, 6, 8, 10), ("fnn", "ipnn", "kpnn", "pin")),
    "paper": (100_000, 20, tuple(range(2, 11)), ("fnn", "ipnn", "kpnn", "pin")),
}


def parity(size: int, rows: int, seed: int) -> pa.Table:
    """Rows of 30 random bits, labelled by the parity of `size` of them."""
    rng = np.random.default_rng([322, size, seed])
    bits = rng.integers(2, size=(FIELDS, rows))
    chosen = rng.permutation(FIELDS)[:size]
    columns: dict[str, Any] = {"click": (bits[chosen].sum(0) % 2).astype(np.int8)}
    columns |= {f"f{field}": bits[field] for field in range(FIELDS)}
    held = rows // 10
    return pa.table(columns | {sources.PART: sources.parts_of((rows - 2 * held, held, held))})


def plan(setup: Setup) -> Plan:
    rows, epochs, sizes, models = SIZES[setup.size]
    common: Row = {
        "model.dim": 8,
        "model.hidden": [128, 128],
        "model.dropout": 0.0,
        "train.l2": 0.0,
        "train.init_scale": 0.1,
        "train.epochs": epochs,
        "train.patience": 2 * epochs,
    }
    cases: list[tuple[Row, str, Row]] = [
        ({"model": model, "size": size}, f"parity-{size}", {"model.name": model} | common)
        for size in sizes
        for model in models
    ]
    size_of = {f"parity-{size}": size for size in sizes}
    return by_seed(setup, cases, lambda data, seed: sources.codes(lambda: parity(size_of[data], rows, seed)))


def gradient_variance(size: int, seed: int, rows: int = 200_000, targets: int = 40) -> float:
    """How much an FNN's first gradient differs between random parity targets of one size.

    The trace of its covariance over targets, relative to the mean square norm of a single row's gradient: at most one
    over the number of hypotheses. Each target has two gradients, of two halves of the rows, and their covariance is
    taken: chance, about 1 / n in the variance over n rows, is not common to both.
    """
    rng = np.random.default_rng([323, size, seed])
    torch.manual_seed(seed)
    model = models.build("fnn", Layout.of((2,) * FIELDS), {"dim": 8, "hidden": (64,), "dropout": 0.0})
    assert isinstance(model, Model)
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def gradient(loss: torch.Tensor) -> NDArray[np.float64]:
        found = torch.autograd.grad(loss, weights, retain_graph=True)
        dense = [(one.to_dense() if one.is_sparse else one).flatten() for one in found]
        return torch.cat(dense).numpy().astype(np.float64)

    chosen = [rng.permutation(FIELDS)[:size] for _ in range(targets)]
    sums = np.zeros((2, targets, sum(weight.numel() for weight in weights)))
    for half in sums:
        for _ in range(rows // 2 // PIECE):
            bits = rng.integers(2, size=(PIECE, FIELDS))
            logits = model(torch.from_numpy(bits.astype(np.int32)))
            for target, fields in zip(half, chosen, strict=True):
                signs = torch.from_numpy(1.0 - 2.0 * (bits[:, fields].sum(1) % 2)).float()
                target += gradient((logits * signs).sum())
    first, second = sums / (rows // 2)
    norm = np.mean([np.square(gradient(logit)).sum() for logit in logits[:50]])
    common = (first - first.mean(0)) * (second - second.mean(0))
    return float(common.sum() / (targets - 1) / norm)


def look(case: Case, run: Path) -> Row:
    """For FNN, the variance of its first gradient over targets."""
    own = case.keys["model"] == "fnn"
    return {"gradient_variance": gradient_variance(case.keys["size"], case.seed)} if own else {}


def claims(results: Results) -> list[Verdict]:
    own = results.where(model="fnn")
    sizes = own.different("size")
    easy = lowest(own.mean("auc", size=size) for size in sizes if size <= 2)
    hard = highest(own.mean("auc", size=size) for size in sizes if size >= 8)
    tells = {size: own.mean("gradient_variance", size=size) for size in sizes}
    few = [tells[size] for size in sizes if size <= 4]
    falls = [own.mean("auc", size=before) - own.mean("auc", size=later) for before, later in pairwise(sizes)]
    return [
        Verdict("FNN learns the parity of 2 fields: AUC above 0.9", easy - 0.9, results.seeds, f"AUC {easy:.3f}"),
        Verdict("FNN learns nothing of 8 or more: AUC at most 0.55", 0.55 - hard, results.seeds, f"AUC {hard:.3f}"),
        Verdict("AUC does not rise with the size of the parity, within .02", lowest(falls) + 0.02, results.seeds),
        Verdict(
            "the first gradient tells less of 3 fields than of 2, and of 4 than of 3",
            lowest(before - later for before, later in pairwise(few)),
            results.seeds,
            "variance over targets " + " ".join(f"{value:.2g}" for value in few),
        ),
        Verdict(
            f"of 8 fields or more it tells less than {FAINT} of what it tells of 2",
            FAINT * tells[2] - highest(own for size, own in tells.items() if size >= 8),
            results.seeds,
            " ".join(f"{own / tells[2]:.2g}" for size, own in tells.items() if size >= 8),
        ),
    ]


STUDY = Study(
    id="parity",
    paper="Parity (section 3.2.2)",
    asks="Up to which size does a network learn the parity of some of 30 fields?",
    says="The gradient tells a network nothing about a parity of many fields.",
    keys=("model", "size"),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("best_epoch", "Best epoch", ".0f"),
        Column("gradient_variance", "Variance of the first gradient", ".2g"),
    ),
    plan=plan,
    look=look,
    claims=claims,
    draw=figures.curves("size", "{model}", "Fields of the parity"),
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=4,
)
