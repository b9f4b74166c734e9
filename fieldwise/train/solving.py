"""LR fitted at once: Newton's method over all training rows, for train.optimizer = newton. Its weights are curves
(curves.py); there is no rate, no epoch, and nothing to stop: validation rows only judge and calibrate."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from fieldwise.bundle.scoring import score
from fieldwise.config.errors import ConfigError
from fieldwise.config.progress import Progress
from fieldwise.config.settings import NEWTON, Config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.loops.blas import one_blas_thread
from fieldwise.nn.lines import Lines
from fieldwise.train.curves import MOST_COLUMNS, Curves, affordable, fitted
from fieldwise.train.runs import Run, check_settings

# The model that it fits.
LR = "lr"
# The settings that it has.
OWN = ("optimizer", "calibration", "callbacks", "hide")


class Solving(Run):
    """One fit of a model that is its linear part alone."""

    model: Lines
    steps = 1

    def __init__(self, config: Config, dataset: Dataset, out: Path, resume: bool) -> None:
        check_settings(config, OWN, NEWTON, "leave it out, or choose another optimizer")
        if config.model != LR:
            raise ConfigError(
                f"train.optimizer={NEWTON} fits {LR} alone, found {config.model}; choose another optimizer"
            )
        rows = dataset.parts["train"].rows
        if not affordable(dataset.layout, rows):
            found = f"{rows:,} rows and fields of {sum(dataset.layout.sizes):,} ids"
            most = f"takes few rows and at most about {MOST_COLUMNS:,} ids"
            raise ConfigError(f"train.optimizer={NEWTON} {most}, found {found}; choose another optimizer")
        self.model = Lines(dataset.layout)
        super().__init__(config, dataset, out, resume)
        self._trim_log()

    def fit(self, progress: Progress) -> None:
        """Fits the curves, and leaves them as the weights of ids."""
        progress.start(self.part.rows, 1, 0)
        began, part, layout = time.monotonic(), self.part, self.dataset.layout
        encoder = Encoder.load(self.dataset.path / "encoder", self.dataset.schema)
        # As trees see them: all rows, and those with hidden values once more.
        hidden = part.rows_with_hidden
        own = np.concatenate([np.arange(part.rows), hidden])
        ids = np.concatenate([np.array(part.ids[:]), part.shown(hidden)])
        curves = Curves.of(layout, [encoder.numbers_of(field) for field in range(layout.fields)], ids)
        weights = None if part.weights is None else part.weights[own].astype(np.float64)
        with one_blas_thread():
            found = fitted(curves.design(ids), part.labels[own], curves.kinds, weights)
        self.model.put(curves.weights(found.found), found.bias)
        self.state.seconds = time.monotonic() - began
        self.state.step = 1
        self.best_logits = score(self.model, self.valid.ids)
        measured = self._measured(self.best_logits)
        self.state.take_best(measured["log_loss"])
        record = {"event": "valid", "epoch": 1, **self._place(), **measured, "strengths": found.strengths.tolist()}
        self._log(record)
        progress.step(part.rows, measured["log_loss"], 1)
        progress.evaluated(record)

    def _take_best(self) -> None:
        """Does nothing: there is one fit."""
