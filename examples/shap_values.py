"""Shapley values of a fieldwise model, by the package shap: what each column adds to the predictions of some rows.

    pip install shap
    python examples/shap_values.py

shap takes numbers. So each column is coded by its own categories, and decoded again before the model sees it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

if find_spec("shap") is None:
    print("this example needs the package shap: pip install shap")
    sys.exit()

import numpy as np
import pandas as pd
import shap

import fieldwise

log = fieldwise.World("demo").log(1500).table.to_pandas()
rows, click = log.drop(columns="click"), log["click"]
model = fieldwise.Classifier("fm", {"train.epochs": 2, "model.dim": 4}, device="cpu").fit(rows, click)

words = {name: rows[name].astype("category").cat.categories for name in rows}
codes = np.column_stack([rows[name].astype("category").cat.codes for name in rows])


def predict(coded: np.ndarray) -> np.ndarray:
    """The probabilities of coded rows; -1 is a missing value."""
    columns = {
        name: [None if code < 0 else known[int(code)] for code in coded[:, place]]
        for place, (name, known) in enumerate(words.items())
    }
    return model.predict_proba(pd.DataFrame(columns))[:, 1]


explainer = shap.Explainer(predict, codes[:50], feature_names=list(words), algorithm="permutation", seed=0)
found = explainer(codes[:20], silent=True)
# The values of a row add up to its prediction.
np.testing.assert_allclose(found.base_values + found.values.sum(axis=1), predict(codes[:20]), atol=1e-6)
for place in np.argsort(-np.abs(found.values).mean(axis=0)):
    print(f"{list(words)[place]:12} {np.abs(found.values[:, place]).mean():.4f}")
