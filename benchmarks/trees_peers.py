"""CatBoost, LightGBM, XGBoost and LR on the rows of one split; run by trees.py and unseen.py in their environments.

    PYTHON benchmarks/trees_peers.py FOLDER PEER [VIEW]

FOLDER holds train.csv, valid.csv and test.csv, and columns.json (or VIEW.json) with the label, the numbers, the
categories, the times where there are any, and whether peers keep their `own_settings`. Each peer reads categories its
own way, stops early on the validation rows (LR trains on them too), and leaves FOLDER/PEER.npz (PEER-VIEW.npz): the
probabilities of validation and test rows. One thread each. This file imports nothing of fieldwise.
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
# On validation rows of two sets better than the defaults, .1 and .3.
CHOSEN = {"lightgbm": {"learning_rate": 0.03}, "xgboost": {"learning_rate": 0.05}}
Parts, Labels, Settings = dict[str, pd.DataFrame], dict[str, np.ndarray], dict[str, float]
Found = tuple[dict[str, np.ndarray], int]


def main() -> None:
    folder, peer, *view = Path(sys.argv[1]), *sys.argv[2:]
    facts = json.loads((folder / f"{view[0] if view else 'columns'}.json").read_text(encoding="utf-8"))
    parts = {part: _rows(folder / f"{part}.csv", facts) for part in ("train", "valid", "test")}
    labels = {part: rows.pop(facts["label"]).astype(int).to_numpy() for part, rows in parts.items()}
    began = time.monotonic()
    settings = {} if facts.get("own_settings") else CHOSEN.get(peer, {})
    found, rounds = PEERS[peer](parts, labels, facts["categories"], settings)
    seconds = time.monotonic() - began
    name = "-".join([peer, *view])
    work = folder / f".{name}.npz"
    np.savez(work, valid=found["valid"], test=found["test"], seconds=seconds, rounds=rounds)
    work.rename(folder / f"{name}.npz")


def _rows(path: Path, facts: dict[str, Any]) -> pd.DataFrame:
    """The columns in use: categories as text, where an empty cell is a value too, numbers with gaps, and times as
    seconds."""
    times = facts.get("times", [])
    columns = [facts["label"], *facts["numbers"], *times, *facts["categories"]]
    rows = pd.read_csv(path, dtype=str, keep_default_na=False, usecols=columns)[columns]
    for name in facts["numbers"]:
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    for name in times:
        rows[name] = (pd.to_datetime(rows[name], utc=True) - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return rows


def _categorical(parts: Parts, categories: list[str]) -> Parts:
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


def catboost(parts: Parts, labels: Labels, categories: list[str], settings: Settings) -> Found:
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


def lightgbm(parts: Parts, labels: Labels, categories: list[str], settings: Settings) -> Found:
    """Its own categories."""
    import lightgbm as library

    rows = _categorical(parts, categories)
    model = library.LGBMClassifier(n_estimators=ROUNDS, n_jobs=1, random_state=0, verbose=-1, **settings)
    stop = library.early_stopping(PATIENCE, verbose=False)
    held = {"eval_X": (rows["valid"],), "eval_y": (labels["valid"],)}
    model.fit(rows["train"], labels["train"], **held, eval_metric="binary_logloss", callbacks=[stop])
    return {part: model.predict_proba(rows[part])[:, 1] for part in ("valid", "test")}, model.best_iteration_


def xgboost(parts: Parts, labels: Labels, categories: list[str], settings: Settings) -> Found:
    """Its own categories."""
    import xgboost as library

    rows = _categorical(parts, categories)
    stop = {"n_estimators": ROUNDS, "early_stopping_rounds": PATIENCE}
    model = library.XGBClassifier(enable_categorical=True, n_jobs=1, random_state=0, **stop, **settings)
    model.fit(rows["train"], labels["train"], eval_set=[(rows["valid"], labels["valid"])], verbose=False)
    return {part: model.predict_proba(rows[part])[:, 1] for part in ("valid", "test")}, model.best_iteration + 1


def lr(parts: Parts, labels: Labels, categories: list[str], settings: Settings) -> Found:
    """scikit-learn's LR: a weight for each category, numbers on one scale; it needs no rows to stop by."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [name for name in parts["train"] if name not in categories]
    filled = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    columns = make_column_transformer((filled, numbers), (OneHotEncoder(handle_unknown="ignore"), categories))
    model = make_pipeline(columns, LogisticRegression(max_iter=1000))
    model.fit(pd.concat([parts["train"], parts["valid"]]), np.concatenate([labels["train"], labels["valid"]]))
    return {part: model.predict_proba(parts[part])[:, 1] for part in ("valid", "test")}, 0


PEERS = {"catboost": catboost, "lightgbm": lightgbm, "xgboost": xgboost, "lr": lr}

if __name__ == "__main__":
    main()
