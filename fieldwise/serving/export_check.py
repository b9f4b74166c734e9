"""How an exported folder's predictions differ from its bundle's, on labelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import DataError
from fieldwise.data.encode.prepare import read_labels
from fieldwise.data.recipes.raw_columns import columns_of, rows_of
from fieldwise.evaluation import metrics
from fieldwise.serving.engine import Engine

STEP = 5000


def differences(source: Path, exported: Path, rows: Path) -> dict[str, Any]:
    """AUC and log loss of both on a labelled raw file, and the largest difference between two probabilities."""
    predictor, engine = Predictor.load(source), Engine.load(exported)
    label, columns = predictor.schema.label, predictor.schema.columns
    labels: list[NDArray[Any]] = []
    before: list[NDArray[Any]] = []
    after: list[NDArray[Any]] = []
    known = columns_of(predictor.schema, rows)
    if label not in known:
        raise DataError(f"comparing needs the label column '{label}', found: {', '.join(known)} ({rows})")
    wanted = [label, *(name for name in columns if name in known)]
    for chunk in rows_of(predictor.schema, rows, wanted):
        passed = sum(map(len, labels))
        labels.append(read_labels(chunk[label], label, passed, classes=predictor.schema.classes))
        before.append(predictor.predict(chunk))
        plain = chunk.drop_columns([label])
        for first in range(0, len(plain), STEP):
            after.append(engine.predict(plain.slice(first, STEP).to_pylist()))
    y, p, q = (np.concatenate(each) for each in (labels, before, after))
    found = {"bundle": metrics.evaluate(y, p), "exported": metrics.evaluate(y, q)}
    return {
        "rows": len(y),
        "largest_difference": float(np.abs(p - q).max()),
        "auc": {name: values["auc"] for name, values in found.items()},
        "log_loss": {name: values["log_loss"] for name, values in found.items()},
    }
