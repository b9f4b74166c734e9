"""Training trees, a round at a time, until validation log loss stops falling. There are no checkpoints: a killed run
starts again, which takes minutes."""

from __future__ import annotations

import math
import time
from pathlib import Path

from fieldwise.config.errors import TrainingError
from fieldwise.config.interrupts import check
from fieldwise.config.progress import Progress
from fieldwise.config.settings import Config
from fieldwise.data.dataset import Dataset
from fieldwise.evaluation import metrics
from fieldwise.nn.trees import Trees
from fieldwise.train.runs import Run, check_settings

# Rounds between two lines of the log.
LOG_ROUNDS = 10


class Boosting(Run):
    """Rounds of trees until validation log loss has not fallen for the model's `patience` of them."""

    model: Trees
    steps = 1

    def __init__(self, config: Config, dataset: Dataset, out: Path, resume: bool, model: Trees) -> None:
        way_out = f"see `fieldwise models {config.model}` for the settings it has"
        check_settings(config, ("calibration", "callbacks"), config.model, way_out)
        self.model = model
        self.again = resume and (out / "identity.json").exists()
        super().__init__(config, dataset, out, resume)
        self._trim_log()

    @property
    def rate(self) -> str:
        return f"model.lr ({self.model.lr:g})"

    def fit(self, progress: Progress) -> None:
        """Adds a tree at a time; validation log loss decides how many stay."""
        if self.again:
            progress.say("trees have no checkpoints: the unfinished run starts again")
        progress.start(self.part.rows, self.model.rounds, 0)
        began, valid, state = time.monotonic(), self.valid, self.state
        for logits in self.model.boost(self.part, valid, self.config.seed):
            check()
            state.step += 1
            loss = metrics.log_loss(valid.labels, metrics.sigmoid(logits + self.offset), valid.weights)
            if not math.isfinite(loss):
                raise TrainingError(f"the loss is {loss} at round {state.step}; lower {self.rate}")
            best = state.take_best(loss)
            state.seconds = time.monotonic() - began
            state.stopped = state.bad >= self.model.patience or self.race.late
            progress.step(self.part.rows, loss, state.step)
            last = state.stopped or state.step == self.model.rounds
            if last or state.step % LOG_ROUNDS == 0:
                place = {"epoch": state.step, **self._place(), "best": best}
                record = {"event": "valid", **self._measured(logits), **place}
                self._log(record)
                progress.evaluated(record)
            if last:
                break

    def _take_best(self) -> None:
        self.model.keep(self.state.best_step)
