"""What a set is worth: genres of films as a set, as one category for each combination, and not at all.

    python benchmarks/genres.py ml-1m [--seeds 3]

The folder holds ratings.dat, users.dat and movies.dat: MovieLens 1M, or what `fieldwise simulate --kind movielens-1m
--layout raw` has written. Figures are means over the seeds on the test rows, a tenth drawn at random.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.recipes.movielens import MOVIELENS
from fieldwise.data.recipes.raw_columns import Reader
from fieldwise.data.schema import Field
from fieldwise.train.loop import train

OTHERS = tuple(field for field in MOVIELENS.fields if field.name != "genres")
FORMS = {
    "a set": MOVIELENS.fields,
    "one category for each combination": (*OTHERS, Field("genres", min_count=1)),
    "left out": OTHERS,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default="lr,fm")
    asked = parser.parse_args()
    print("| genres | model | test AUC | sd | test log loss |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for form, fields in FORMS.items():
            data, schema = Path(folder) / form / "data", MOVIELENS.schema
            assert schema is not None
            source = {"train": partial(Reader(MOVIELENS).rows, [asked.folder / "ratings.dat"])}
            prepare(source, data, MOVIELENS.label, replace(schema, fields=fields))
            for model in asked.models.split(","):
                found = []
                for seed in range(asked.seeds):
                    config = load_config(overrides=[f"model.name={model}", f"seed={seed}", "device=cpu"])
                    report = train(config, data, Path(folder) / form / f"{model}{seed}")["test"]
                    found.append([report["auc"], report["log_loss"]])
                auc, loss = np.mean(found, axis=0)
                print(f"| {form} | {model} | {auc:.4f} | {np.std(found, axis=0)[0]:.4f} | {loss:.4f} |", flush=True)


if __name__ == "__main__":
    main()
