"""How numbers should enter: hard buckets of several rules against places between anchors, for columns and for rates.

    python benchmarks/interpolation.py train.txt [--seeds 3] [--rules count,tree] [--models lr]

The file is Criteo's as it is published, or the first rows of it, in the order of time. The first 80 % are for training,
10 % for validation, 10 % for testing. Rates are those of the 26 categories, told by the rows before. Figures are means
over the seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.recipes.criteo import CRITEO
from fieldwise.data.recipes.raw_columns import Reader
from fieldwise.data.schema import Field, HistorySettings, Schema
from fieldwise.train.loop import train

NUMBERS, CATEGORIES = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
RULES: dict[str, dict[str, Any]] = {
    "count, 20 rows": {"buckets": "count", "bucket_count": 20},
    "log-square": {"buckets": "log-square"},
    "quantile, 64": {"max_buckets": 64},
    "quantile, 16": {"max_buckets": 16},
    "tree, 16": {"buckets": "tree", "max_buckets": 16},
    "quantile, 16, interpolate 8": {"max_buckets": 16, "interpolate": 8},
    "tree, 16, interpolate 8": {"buckets": "tree", "max_buckets": 16, "interpolate": 8},
}
RATES = HistorySettings(tuple(CATEGORIES), time="row", strength=5.0, parts=("rate",))
HISTORIES = {"hard": RATES, "interpolate 8": HistorySettings(**{**vars(RATES), "interpolate": 8})}
MODELS = {
    "lr": [],
    "ipnn": ["model.dim=4", "model.hidden=[64]", "model.norm=none", "model.product_norm=false", "train.lr=3e-4"]
    + ["train.l2=3e-2"],
    "gbdt": ["model.depth=5", "model.lr=0.05", "model.min_child_weight=20", "model.cat_threshold=16"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rules", default="", help="beginnings of the rules to measure; all without it")
    parser.add_argument("--models", default="lr,ipnn,gbdt")
    asked = parser.parse_args()
    print("| numbers | rates | model | valid AUC | valid log loss | test AUC | test log loss |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for rule in RULES:
            if rule.startswith(tuple(asked.rules.split(","))):
                _measure(asked, Path(folder) / rule, rule, "none", ["lr", "ipnn"])
        for rates in HISTORIES if not asked.rules else ():
            _measure(asked, Path(folder) / rates, "quantile, 16, interpolate 8", rates, ["lr", "ipnn", "gbdt"])


def _measure(asked: argparse.Namespace, work: Path, rule: str, rates: str, models: list[str]) -> None:
    fields = [Field(name, "numeric", **RULES[rule]) for name in NUMBERS]
    fields += [Field(name, min_count=20) for name in CATEGORIES]
    schema = Schema("label", tuple(fields), history=HISTORIES.get(rates, HistorySettings()))
    source = {"train": partial(Reader(CRITEO).rows, [asked.file])}
    prepare(source, work / "data", "label", schema, Split(by="row"))
    for model in [model for model in models if model in asked.models.split(",")]:
        found = []
        for seed in range(asked.seeds):
            chosen = [f"model.name={model}", *MODELS[model], f"seed={seed}", "device=cpu"]
            report = train(load_config(overrides=chosen), work / "data", work / f"{model}{seed}")
            found.append([report[part][metric] for part in ("valid", "test") for metric in ("auc", "log_loss")])
        figures = " | ".join(f"{value:.4f}" for value in np.mean(found, axis=0))
        print(f"| {rule} | {rates} | {model} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
