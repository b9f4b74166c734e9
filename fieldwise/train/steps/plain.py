"""One update of a network by one batch: look up, score, loss, gradients, optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.config.errors import ConfigError, TrainingError
from fieldwise.config.memory import keep_freed_memory
from fieldwise.config.settings import Config
from fieldwise.data.batches import Batch, batches
from fieldwise.data.dataset import Part
from fieldwise.nn.embedding import Table
from fieldwise.nn.model import Model
from fieldwise.optim import RowOptimizer, clip, learning_rate, make_optimizer, set_learning_rate
from fieldwise.optim.squares import square_sum

# The stages of a step that are reported to `Step.passed`, in order.
STAGES = ("data", "forward", "backward", "optimiser")


class Step:
    """The plain step, in PyTorch: every faster one must equal it. `total` is the number of steps of the whole run.

    The step calls `passed` with the name of each stage when it ends, for the bench; and what it does once, such as
    compiling, it does within `during` of a name, for the times of a run.
    """

    def __init__(self, model: Model, config: Config, total: int) -> None:
        self.model, self.settings, self.seed, self.total = model, config.train, config.seed, total
        self.device = next(model.parameters()).device
        if self.device.type == "cpu":
            keep_freed_memory()
        self.penalised = penalised(model, config)
        self.optimizer = optimizer_of(config, self.weights())
        # An unknown schedule, or one that the optimiser cannot follow, is refused here and not in the middle of a run.
        for number in (total - 1, 0):
            set_learning_rate(self.optimizer, self._rate(number))
        self.passed: Callable[[str], None] = lambda stage: None
        self.during: Callable[[str], AbstractContextManager[None]] = lambda part: nullcontext()

    def weights(self) -> list[Tensor]:
        """The parameters that the optimiser moves."""
        return list(self.model.parameters())

    def __call__(self, batch: Batch, number: int) -> float:
        """Makes one update and returns the loss before it; `number` counts the steps from 0."""
        ids, labels, weights = self._on_device(batch)
        self.passed("data")
        loss, total = self.objective(self.model.lookup(ids), labels, weights)
        value = self._checked(float(loss.detach()), number)
        self.passed("forward")
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self.passed("backward")
        if self.settings.clip:
            self.clip()
        self._set_rate(number)
        self.optimizer.step()
        self.passed("optimiser")
        return value

    def batches(self, part: Part, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from number `start` on, in the form that this step takes."""
        return batches(part, self.settings.batch_size, self.seed, epoch, start, self.settings.shuffle_rows)

    def run(self, batch: Any, number: int) -> list[float]:
        """Makes one update; returns the losses that have become known since the last call, in order."""
        return [self(batch, number)]

    def flush(self) -> list[float]:
        """Waits until all updates are done; returns the losses that were not known yet."""
        return []

    def objective(self, found: dict[str, Tensor], labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of what was looked up, and the loss with its penalties, which is differentiated."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            logits, own = self.model.scored(found)
        logits, *own = (each.float() if each.dtype == torch.bfloat16 else each for each in (logits, *own))
        loss = total = log_loss(logits, labels, weights)
        if self.model.branch_loss is not None:
            loss_of = partial(log_loss, weights=weights)
            total = loss + self.model.branch_loss(own, logits, labels, loss_of, self.of_the_batch)
        penalty = self.penalty(found, len(labels))
        return loss, total if penalty is None else total + penalty

    def of_the_batch(self, loss: Tensor) -> Tensor:
        """The mean loss of the whole batch, without a gradient, from that of this process's rows."""
        return loss.detach()

    def _on_device(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        weights = None if batch.weights is None else torch.from_numpy(batch.weights).to(self.device)
        return torch.from_numpy(batch.ids).to(self.device), torch.from_numpy(batch.labels).to(self.device), weights

    def _checked(self, loss: float, number: int) -> float:
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {number + 1}; lower train.lr ({self.settings.lr}), or set train.clip"
            )
        return loss

    def _set_rate(self, number: int) -> None:
        set_learning_rate(self.optimizer, self._rate(number))

    def _rate(self, number: int) -> float:
        settings = self.settings
        # A warm-up that no run has settled, the bench's, is none.
        return learning_rate(settings.lr, number, self.total, settings.schedule, max(0, settings.warmup))

    def clip(self) -> None:
        """Cuts the gradients down to the norm of the settings."""
        clip(self.weights(), self.settings.clip)

    def row_penalty(self, rows: int) -> float:
        """The factor of half the square of each looked-up number in the loss: by row, or (paper) over the batch."""
        return self.settings.l2 / (rows if self.settings.l2_reduction == "mean" else 1)

    def penalty(self, found: dict[str, Tensor], rows: int) -> Tensor | None:
        """The L2 penalties that are set: on looked-up rows, on whole tables and on dense weights."""
        terms = []
        if self.settings.l2:
            terms += [self.row_penalty(rows) / 2 * square_sum(values) for values in found.values()]
        if self.settings.l2_full:
            terms += [self.settings.l2_full / 2 * squares for squares in self.table_squares()]
        for scale, weights in self.penalised:
            terms += [scale / 2 * square_sum(weight) for weight in weights]
        return torch.stack(terms).sum() if terms else None

    def table_squares(self) -> list[Tensor]:
        """The sum of squares of each table."""
        return [square_sum(table.weight) for table in tables(self.model)]


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Mean log loss of a batch: the sum of weight times loss, divided by the number of rows.

    Of logits (B, k) of k members, the mean of their losses; `labels` are (B,) or, as other logits' answers, (B, k).
    """
    if logits.dim() == 2:
        labels = (labels if labels.dim() == 2 else labels[:, None]).expand_as(logits)
        weights = None if weights is None else weights[:, None]
    return functional.binary_cross_entropy_with_logits(logits, labels, weights)


def tables(model: nn.Module) -> list[Table]:
    """The model's tables, in the order of its parameters."""
    return [part for part in model.modules() if isinstance(part, Table)]


def penalised(model: Model, config: Config) -> list[tuple[float, list[Tensor]]]:
    """Each L2 setting that is on, with the dense weights it applies to; refuses one that applies to none."""
    found = []
    for group, weights in model.dense_weights.items():
        scale = getattr(config.train, f"l2_{group}")
        if scale and not weights:
            needed = {"weights": "a DNN, sub-networks or convolutions"}.get(group, group)
            raise ConfigError(
                f"train.l2_{group} needs a model with {needed}, found {scale} for {config.model}; set it to 0"
            )
        if scale:
            found.append((scale, weights))
    return found


def optimizer_of(config: Config, weights: Iterable[Tensor]) -> RowOptimizer:
    """The optimiser of the settings, over these parameters."""
    s = config.train
    return make_optimizer(
        s.optimizer,
        weights,
        lr=s.lr,
        eps=s.eps,
        betas=s.betas,
        eps_mode=s.eps_mode,
        sparse_mode=s.sparse_mode,
        momentum=s.momentum,
        initial_accumulator=s.initial_accumulator,
        l1=s.ftrl_l1,
        l2=s.ftrl_l2,
        beta=s.ftrl_beta,
    )
