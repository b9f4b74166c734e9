"""The networks' epochs, with evaluations and checkpoints in between; their steps are in steps/."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fieldwise.bundle import bundle
from fieldwise.bundle.scoring import SCORE_ROWS, Saved, device_of, placed
from fieldwise.config.errors import ConfigError
from fieldwise.config.interrupts import check
from fieldwise.config.progress import Progress
from fieldwise.config.settings import NEWTON, Config, TrainSettings
from fieldwise.data.batches import rows_of_batches, steps_per_epoch
from fieldwise.data.dataset import Dataset, Part
from fieldwise.data.encode.encoder import Encoder
from fieldwise.loops.running import threads_worth
from fieldwise.nn.model import Model
from fieldwise.optim import Average, RowOptimizer, averaged
from fieldwise.train import capacity, checkpoint, distributed
from fieldwise.train.incremental import check_same_ids, given_up, take_weights
from fieldwise.train.large_batches import resolved, said, scaled
from fieldwise.train.pretrain import start_from
from fieldwise.train.race import Rivals
from fieldwise.train.runs import Run
from fieldwise.train.sharded.placement import tables_of
from fieldwise.train.sharded.sharded_model import Cut, refuse
from fieldwise.train.sharded.sharded_model import build as cut_model
from fieldwise.train.state import Plan
from fieldwise.train.steps import make_step, optimizer_of, tables, ways_taken

# By how much the rate may rise from one step to the next. docs/lab has what was measured.
WARMUP_SLOPE = 2e-5
# A loss within this share of the base rate's has learnt nothing; fewer rows than these cannot tell.
LEARNT, LEAST_ROWS = 1e-3, 5_000
# From this many training rows on, the chosen batch size no longer grows.
SMALL_ROWS = 400_000


def network(
    config: Config, dataset: Dataset, out: Path, resume: bool = False, origin: bundle.Bundle | None = None
) -> Network:
    """The run of a network, whose tables may be cut over the workers."""
    cuts = _where_tables_lie(config, dataset) == "sharded"
    _check_memory(config, dataset, cuts)
    torch.manual_seed(config.seed)
    if cuts:
        config = replace(config, train=replace(config.train, tables="sharded"))
        refuse(config)
        cut = cut_model(lambda: _network(config, dataset), config.train, device_of(config.device))
        return Network(config, dataset, out, resume, cut.model, origin, cut)
    if config.train.weights_precision != "float32":
        raise ConfigError("train.weights_precision=bf16 needs --tables sharded, found whole tables; leave it out")
    return Network(config, dataset, out, resume, _network(config, dataset), origin)


def _where_tables_lie(config: Config, dataset: Dataset) -> str:
    return tables_of(config, lambda: _network(config, dataset), device_of(config.device))


def _check_memory(config: Config, dataset: Dataset, cuts: bool) -> None:
    """Refuses a network that does not fit, before anything is allocated."""
    rows, device = dataset.parts["train"].rows, device_of(config.device)
    config = settled(config, rows)
    # On a GPU, scoring takes fewer rows at a time where memory is short.
    scored = min(SCORE_ROWS, dataset.parts["valid"].rows) if device.type == "cpu" else 0
    found = capacity.need(config, lambda: _network(config, dataset), min(config.train.batch_size, rows), scored)
    capacity.check(config, found, dataset.layout.fields, device, cuts)


def _network(config: Config, dataset: Dataset) -> Model:
    model = bundle.build_model(config, dataset.layout)
    assert isinstance(model, Model)
    return model


def batch_size(settings: TrainSettings, rows: int) -> int:
    """The batch size; 0 means a 200th of the rows: small data need steps, large data speed."""
    return settings.batch_size or min(2000, max(50, round(rows / 200)))


def average(settings: TrainSettings, rows: int) -> float:
    """The epochs to average over; -1 means one epoch for small data, whose last steps are noisy, and none for large."""
    if settings.average >= 0:
        return settings.average
    return 1.0 if not settings.batch_size and rows < SMALL_ROWS else 0.0


def warmup(settings: TrainSettings, steps: int, deep: bool) -> int:
    """warmup -1 becomes the steps in which the rate rises by WARMUP_SLOPE a step, at most half of an epoch's `steps`.

    Adam's first steps move every weight by the rate, along what the rows have in common. In a wide layer these moves
    add up: all rows get the same units, the norm divides what is left by their size, and the gradient is gone. Models
    without such layers (not `deep`) need none.
    """
    if settings.warmup >= 0:
        return settings.warmup
    if settings.optimizer != "adam" or settings.continue_from or not deep:
        return 0
    return min(round(settings.lr / WARMUP_SLOPE), steps // 2)


def settled(config: Config, rows: int, deep: bool = True) -> Config:
    """The config with what these rows and the model's layers decide of it written out."""
    asked = config.train
    size = batch_size(asked, rows)
    warm = warmup(asked, steps_per_epoch(rows, size), deep)
    base = replace(asked, batch_size=size, average=average(asked, rows), warmup=warm)
    return replace(config, train=scaled(base))


class Network(Run):
    """Trains a network in steps, with evaluations and checkpoints in between."""

    model: Model

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        out: Path,
        resume: bool,
        model: Model,
        origin: bundle.Bundle | None = None,
        cut: Cut | None = None,
    ) -> None:
        rows, asked = dataset.parts["train"].rows, config.train
        config = settled(config, rows, deep=bool(model.dense_weights["weights"]))
        self.resolved = resolved(asked, config.train)
        self.device = device_of(config.device)
        self.model, self.cut = model if cut else model.to(self.device), cut
        _start(self.model, config.train, dataset)
        self.steps = steps_per_epoch(rows, config.train.batch_size)
        self.step = make_step(cut or self.model, config, config.train.epochs * self.steps)
        self.optimizer = self.step.optimizer
        self.origin = origin
        self.note = "" if origin is None else _go_on(self.model, self.optimizer, config, dataset, origin)
        super().__init__(config, dataset, out, resume)
        try:
            self._take_up(resume)
        except BaseException:
            self.close()
            raise

    def _take_up(self, resume: bool) -> None:
        """Makes the average and the store, and resumes from the newest checkpoint if asked to."""
        epochs = self.settings.average
        moved = self.cut.live if self.cut else averaged(self.model)
        self.average = Average(moved, epochs, self.steps) if epochs else None
        self.store = self._store()
        if resume and not self.finished:
            self.state = self.store.load() or self.state
        self._trim_log()

    def fit(self, progress: Progress) -> None:
        """Epochs of steps, an evaluation after each, until validation log loss stops falling."""
        weights = sum(weight.numel() for weight in self.model.dense_weights["weights"])
        # Compiled steps of models without such weights choose their threads by themselves.
        with threads_worth(self.settings.batch_size, weights) if weights else nullcontext():
            self._steps(progress)

    def _steps(self, progress: Progress) -> None:
        state, plan = self.state, Plan(self.settings, self.steps, distributed.anyone if self.cut else bool)
        progress.start(self.part.rows, self.settings.epochs, state.step // self.steps * self.part.rows)
        self._log_start(progress)
        self.model.train()
        watch, unseen = self.watch, 0  # rows that `progress` has not heard of
        self.step.during = watch.during
        watch.go_on("first step")
        while not self._ended():
            epoch, start = divmod(state.step, self.steps)
            for batch in self.step.batches(self.part, epoch, start):
                check()
                losses = self.step.run(batch, state.step)
                state.step += 1
                unseen += batch.rows
                if self.average:
                    self.average.follow(state.step)
                due = plan.after(state.step, self.race.late)
                if any(due):
                    losses += self.step.flush()
                if losses:
                    state.losses += losses
                    progress.step(unseen, losses[-1], epoch + 1)
                    unseen = 0
                state.seconds += watch.lap()
                watch.part = "steps"
                if due.log:
                    self._log_loss(epoch + 1, progress)
                if due.evaluate:
                    with watch.during("evaluations"):
                        progress.evaluated(self._evaluate(epoch + 1))
                if due.save:
                    with watch.during("checkpoints"):
                        self.store.save(state)
                        plan.saved()
                if self._ended():
                    break

    def _ended(self) -> bool:
        return self.state.stopped or self.state.step >= self.settings.epochs * self.steps

    def _log_start(self, progress: Progress) -> None:
        """Logs what is known before the first step: the origin's metrics, the ways of the parts."""
        if self.resolved and self.state.step == 0:
            self._log({"event": "batch scale", **self.resolved["batch_scale"]})
            progress.say(said(self.resolved["batch_scale"]))
        if self.origin is not None and math.isinf(self.state.best_loss):
            self._evaluate_origin(progress)
        if self.state.step == 0 and self.cut is None:
            self._log_ways()

    def _log_ways(self) -> None:
        """Logs which step and which implementation of each part this run takes: look here when a run is slow."""
        ids = self.part.ids[: self.settings.batch_size]
        self._log({"event": "ways", **ways_taken(self.model, self.config, ids)})

    def _evaluate_origin(self, progress: Progress) -> None:
        """Evaluates the weights that the run continues from: later ones must be better."""
        self._log({"event": "continued", "from": self.settings.continue_from, "note": self.note})
        if self.note:
            progress.say(self.note)
        progress.evaluated(self._evaluate(0))
        self.store.save(self.state)

    def _evaluate(self, epoch: int) -> dict[str, Any]:
        """Validation metrics, of the averaged weights where there is an average; keeps the best weights so far."""
        with self.average.in_place() if self.average else nullcontext():
            return self._judge(epoch)

    @cached_property
    def valid_ids(self) -> Any:
        """The ids of the validation rows, on the model's device."""
        return placed(self.model, self.valid.ids) if distributed.count() == 1 else self.valid.ids

    def _judge(self, epoch: int) -> dict[str, Any]:
        logits = distributed.score_together(self.model, self.valid_ids, self.settings.precision)
        found = distributed.from_first(lambda: self._measured(logits))
        better = self.state.take_best(found["log_loss"])
        if better:
            self.store.keep_best()
            # Rank 0 alone scores them in the end, and in float32.
            exact = distributed.count() == 1 and self.settings.precision == "float32"
            self.best_logits = logits if exact else None
        self.state.stopped = self.state.bad > self.settings.patience or self._ends_early(logits)
        record = {"event": "valid", "epoch": epoch, **found, **self._place(), "best": better}
        self._log(record)
        return record

    def _ends_early(self, logits: NDArray[np.floating[Any]]) -> bool:
        """Whether the time is up, or, from the end of the first epoch on, others leave this run nothing to add."""
        if self.race.late:
            return True
        if self.rivals is None or self.state.step < self.steps:
            return False
        return self.rivals.leave_nothing(logits + self.offset, self.state.fall)

    @cached_property
    def rivals(self) -> Rivals | None:
        return Rivals.of(self.race.others, self.valid)

    def _log_loss(self, epoch: int, progress: Progress) -> None:
        place, loss, steps = self._place(), float(np.mean(self.state.losses)), len(self.state.losses)
        speed = place["rows"] / max(self.state.seconds, 1e-9)
        self._log({"event": "train", "epoch": epoch, **place, "loss": loss, "rows_per_s": speed})
        self.state.losses = []
        first = self.state.step - steps
        if epoch == 1 and first - steps < self.settings.warmup <= first and distributed.count() == 1:
            self._look_for_learning(loss, first, progress)

    def _look_for_learning(self, loss: float, first: int, progress: Progress) -> None:
        """Says so if the loss of the first logged steps after the warm-up is no better than the base rate's.

        Both are of the same rows, so that chance in the labels cancels out.
        """
        settings, last = self.settings, self.state.step
        rows = rows_of_batches(self.part.rows, settings.batch_size, self.config.seed, 0, first, settings.shuffle_rows)
        these = np.concatenate(list(itertools.islice(rows, last - first)))
        base = _base_loss(self.part, these)
        if len(these) < LEAST_ROWS or loss < base * (1 - LEARNT):
            return
        self._log({"event": "base rate", "epoch": 1, **self._place(), "loss": loss, "base_loss": base})
        found = f"steps {first + 1} to {last} have a training loss of {loss:.4f}, the base rate alone {base:.4f}"
        progress.say(f"{found}: nothing is learnt so far; if it stays so, lower {self.rate}")

    def _store(self) -> checkpoint.Store:
        """Where checkpoints go: rank 0 saves everything, or each rank its shard."""
        average, keep = self.average.values if self.average else {}, self.settings.checkpoints
        if self.cut:
            # Here: it loads torch.distributed.checkpoint, a second of processor time that other runs do not need.
            from fieldwise.train.sharded.store import CutStore

            return CutStore(self.out, self.cut, self.optimizer, average, keep, by_rows=not self.settings.l2_full)
        return checkpoint.WholeStore(self.out, self.model, self.optimizer, average, keep)

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | self.resolved

    @property
    def rate(self) -> str:
        return f"train.lr ({self.settings.lr:g})"

    @property
    def together(self) -> bool:
        return self.cut is not None

    @property
    def size(self) -> int:
        return self.cut.size if self.cut else self.model.size

    def _score(self, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
        return distributed.score_together(self.model, ids) if self.together else super()._score(ids)

    @property
    def _whole(self) -> Saved:
        return self.store.whole

    def _take_best(self) -> None:
        self.store.take_best(self.state.best_step)

    def _tidy(self) -> None:
        self.store.tidy(self.state.best_step)


def _base_loss(part: Part, rows: NDArray[np.int64]) -> float:
    """The log loss of these rows by the rate of all training rows."""
    rate = float(np.average(part.labels, weights=part.weights))
    if not 0 < rate < 1:
        return math.inf
    losses = -np.log(np.where(np.take(np.asarray(part.labels), rows), rate, 1 - rate))
    return float(np.mean(losses if part.weights is None else losses * np.take(np.asarray(part.weights), rows)))


def _start(model: Model, settings: TrainSettings, dataset: Dataset) -> None:
    """Sets the starting values that training decides: of the tables, the bias at the base rate, from a trained FM."""
    part = dataset.parts["train"]
    for table in tables(model):
        table.start(settings.init, settings.init_scale)
    if settings.base_rate_start and model.biases:
        rate = float(np.average(part.labels, weights=part.weights))
        for bias in model.biases:
            nn.init.constant_(bias, math.log(rate / (1 - rate)) if 0 < rate < 1 else 0.0)
    if settings.init_from:
        source = bundle.load(Path(settings.init_from))
        start_from(model, Encoder.load(dataset.path / "encoder", dataset.schema), source)


def _go_on(model: Model, optimizer: RowOptimizer, config: Config, dataset: Dataset, origin: bundle.Bundle) -> str:
    """Takes weights and optimiser state of a trained run; returns why it could not take the state, else nothing."""
    encoder = Encoder.load(dataset.path / "encoder", dataset.schema, lifetimes=True)
    check_same_ids(encoder, origin)
    assert isinstance(origin.model, Model)
    gone = given_up(encoder, origin.own_encoder)
    rows = take_weights(model, encoder.layout.without_ranks, origin.model, gone)
    _shift_bias(model, origin.calibration.offset - math.log(dataset.negatives_kept))
    if origin.config.train.optimizer == NEWTON:
        return "the optimiser starts anew: the run before had none, its weights were fitted at once"
    before = optimizer_of(origin.config, origin.model)
    if not optimizer.understands(before):
        return "the optimiser starts anew: its settings are others than those of the run before"
    if not checkpoint.load_best(Path(config.train.continue_from) / "checkpoint", origin.model, before):
        return "the optimiser starts anew: a bundle alone has no state of it; name the run's folder to keep it"
    optimizer.adopt(before, rows)
    return ""


def _shift_bias(model: Model, shift: float) -> None:
    """Adds to the bias what all logits are off by where the new data keep another share of the negatives."""
    if not shift:
        return
    if not model.biases:
        raise ConfigError("--continue-from needs the share of negatives of the first data: this model has no bias")
    with torch.no_grad():
        for bias in model.biases:
            bias.add_(shift)
