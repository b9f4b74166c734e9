"""Section 3.1.1: FM couples its gradients, so fields that do not interact get a product all the same.

Three fields; the label depends only on the pairs (1, 2) and (2, 3), and 1 and 3 are independent. A model's term for a
pair of fields is a product of vectors, <v1, v3> in FM and v1 K13 v3 in KFM. The study compares its mean absolute value
over the categories of the idle pair, relative to that of the active pairs. All models are measured by their logits; the
effects of single categories, which are linear terms, are removed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.bundle import bundle
from fieldwise.bundle.scoring import score
from fieldwise.nn.model import Model
from fieldwise.reporting.result_tables import Column, high, low
from fieldwise.studies import figures, sources
from fieldwise.studies.study import Case, Plan, Results, Row, Setup, Study, Verdict, by_seed

MODELS = ("fm", "ffm", "kfm")
SIZE, RANK = 20, 3
ROWS = {"small": 60_000, "medium": 500_000, "paper": 2_000_000}
ACTIVE, IDLE = ((0, 1), (1, 2)), (0, 2)


def toy(rows: int, seed: int) -> pa.Table:
    """Rows of three fields of 20 categories; the active pairs have bilinear effects with kernels of their own."""
    rng = np.random.default_rng([311, seed])
    codes = rng.integers(SIZE, size=(3, rows))
    vectors = rng.standard_normal((3, SIZE, RANK))
    logit = np.zeros(rows)
    for first, second in ACTIVE:
        effect = vectors[first] @ rng.standard_normal((RANK, RANK)) @ vectors[second].T
        effect -= effect.mean(0) + effect.mean(1, keepdims=True) - effect.mean()
        logit += 1.2 * (effect / effect.std())[codes[first], codes[second]]
    click = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    held = rows // 10
    columns = {name: codes[place] for place, name in enumerate(("gender", "city", "weekday"))}
    return pa.table({"click": click, **columns, sources.PART: sources.parts_of((rows - 2 * held, held, held))})


def plan(setup: Setup) -> Plan:
    # Vectors as small as the rank of the effects: with room to spare FM could keep its pairs apart.
    common: Row = {"model.dim": RANK, "train.l2": 1e-5, "train.lr": 5e-3}
    cases: list[tuple[Row, str, Row]] = [({"model": m}, "toy", {"model.name": m} | common) for m in MODELS]
    return by_seed(setup, cases, lambda _, seed: sources.codes(lambda: toy(ROWS[setup.size], seed)))


def interaction(logits: NDArray[np.float64]) -> float:
    """The mean absolute value of a table of logits (categories, categories) after removing row and column means."""
    centred = logits - logits.mean(0) - logits.mean(1, keepdims=True) + logits.mean()
    return float(np.abs(centred).mean())


def look(case: Case, run: Path) -> Row:
    """The strength of each pair's product; the third field stays at one category, which the centring removes."""
    model = bundle.load(run).model
    assert isinstance(model, Model)
    found = {}
    for pair in (*ACTIVE, IDLE):
        ids = np.full((SIZE * SIZE, 3), 2, dtype=np.int32)
        grid = np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")
        for field, values in zip(pair, grid, strict=True):
            ids[:, field] = 2 + values.ravel()
        found[pair] = interaction(np.asarray(score(model, ids), dtype=np.float64).reshape(SIZE, SIZE))
    active = float(np.mean([found[pair] for pair in ACTIVE]))
    return {"active": active, "idle": found[IDLE], "relative": found[IDLE] / active}


def claims(results: Results) -> list[Verdict]:
    relative = {model: results.mean("relative", model=model) for model in MODELS}
    return [
        Verdict(
            f"the idle pair's product, relative to the active ones: {model.upper()} has less than half of FM's",
            0.5 * relative["fm"] - relative[model],
            results.seeds,
            f"{relative[model]:.3f} against {relative['fm']:.3f}",
        )
        for model in ("kfm", "ffm")
    ]


STUDY = Study(
    id="coupled-gradient",
    paper="Coupled gradients (section 3.1.1)",
    asks="Can FM, FFM and KFM leave alone a pair of fields that does not interact?",
    says="FM's vectors make pairs act that do not; kernels and field-aware vectors need not.",
    keys=("model",),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("active", "Active pairs", ".3f"),
        Column("idle", "Idle pair", ".3f"),
        Column("relative", "Relative", ".3f", low, "relative_sd"),
    ),
    plan=plan,
    look=look,
    weights=True,
    claims=claims,
    draw=figures.panels(
        "{model}",
        "idle / active",
        "relative to the active pairs",
        "Product of the fields that do not interact",
        {"relative": "relative"},
    ),
    seeds={"small": 3, "medium": 5, "paper": 5},
    budget=1,
)
