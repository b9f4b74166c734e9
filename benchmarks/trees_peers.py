"""CatBoost, LightGBM and XGBoost on the rows of one split; run by trees.py with an interpreter that has them.

    PYTHON benchmarks/trees_peers.py FOLDER PEER

FOLDER holds train.csv, valid.csv and test.csv, and columns.json with the label, the numbers and the categories. Each
peer reads categories its own way, stops early on the validation rows, and leaves FOLDER/PEER.npz: the probabilities of
validation and test rows. One thread each. This file imports nothing of fieldwise: it runs in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROUNDS, PATIENCE = 2000, 50


def main() -> None:
    folder, peer = Path(sys.argv[1]), sys.argv[2]
    facts = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
    parts = {part: _rows(folder / f"{part}.csv", facts) for part in ("train", "valid", "test")}
    labels = {part: rows.pop(facts["label"]).astype(int).to_numpy() for part, rows in parts.items()}
    began = time.monotonic()
    found, rounds = PEERS[peer](parts, labels, facts["categories"])
    seconds = time.monotonic() - began
    work = folder / f".{peer}.npz"
    np.savez(work, valid=found["valid"], test=found["test"], seconds=seconds, rounds=rounds)
    work.rename(folder / f"{peer}.npz")


def _rows(path: Path, facts: dict[str, Any]) -> pd.DataFrame:
    """The columns in use: categories as text, where an empty cell is a value too, and numbers with gaps."""
    columns = [facts["label"], *facts["numbers"], *facts["categories"]]
    rows = pd.read_csv(path, dtype=str, keep_default_na=False, usecols=columns)[columns]
    for name in facts["numbers"]:
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    return rows


def _categorical(parts: dict[str, pd.DataFrame], categories: list[str]) -> dict[str, pd.DataFrame]:
    """Categories as pandas has them; a value that training does not know is missing."""
    known = {name: list(parts["train"][name].unique()) for name in categories}
    return {
        part: rows.assign(
            **{name: pd.Categorical.from_codes(_codes(rows[name], values), values) for name, values in known.items()}
        )
        for part, rows in parts.items()
    }


def _codes(column: pd.Series, values: list[str]) -> np.ndarray:
    return pd.Index(values).get_indexer(column)


def catboost(
    parts: dict[str, pd.DataFrame], labels: dict[str, Any], categories: list[str]
) -> tuple[dict[str, Any], int]:
    """Its defaults: ordered boosting, statistics of categories and of their combinations."""
    from catboost import CatBoostClassifier, Pool

    pools = {part: Pool(rows, labels[part], cat_features=categories) for part, rows in parts.items()}
    model = CatBoostClassifier(
        iterations=1000,
        od_type="Iter",
        od_wait=PATIENCE,
        thread_count=1,
        random_seed=0,
        verbose=0,
        allow_writing_files=False,
    )
    model.fit(pools["train"], eval_set=pools["valid"])
    return {part: model.predict_proba(pools[part])[:, 1] for part in ("valid", "test")}, model.best_iteration_ + 1


def lightgbm(
    parts: dict[str, pd.DataFrame], labels: dict[str, Any], categories: list[str]
) -> tuple[dict[str, Any], int]:
    """Its own categories, a learning rate of .03: on validation rows of two sets better than the default .1."""
    import lightgbm as library

    rows = _categorical(parts, categories)
    model = library.LGBMClassifier(n_estimators=ROUNDS, learning_rate=0.03, n_jobs=1, random_state=0, verbose=-1)
    stop = library.early_stopping(PATIENCE, verbose=False)
    held = {"eval_X": (rows["valid"],), "eval_y": (labels["valid"],)}
    model.fit(rows["train"], labels["train"], **held, eval_metric="binary_logloss", callbacks=[stop])
    return {part: model.predict_proba(rows[part])[:, 1] for part in ("valid", "test")}, model.best_iteration_


def xgboost(
    parts: dict[str, pd.DataFrame], labels: dict[str, Any], categories: list[str]
) -> tuple[dict[str, Any], int]:
    """Its own categories, depth 6, a learning rate of .05."""
    import xgboost as library

    rows = _categorical(parts, categories)
    settings: dict[str, Any] = {"learning_rate": 0.05, "max_depth": 6, "tree_method": "hist", "n_jobs": 1}
    model = library.XGBClassifier(
        n_estimators=ROUNDS, enable_categorical=True, early_stopping_rounds=PATIENCE, random_state=0, **settings
    )
    model.fit(rows["train"], labels["train"], eval_set=[(rows["valid"], labels["valid"])], verbose=False)
    return {part: model.predict_proba(rows[part])[:, 1] for part in ("valid", "test")}, model.best_iteration + 1


PEERS = {"catboost": catboost, "lightgbm": lightgbm, "xgboost": xgboost}

if __name__ == "__main__":
    main()
