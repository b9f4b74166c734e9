"""One update of a network by one batch: look up, score, loss, gradients, optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.config.errors import ConfigError, TrainingError
from fieldwise.config.memory import keep_freed_memory
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.batches import Batch, batches
from fieldwise.data.dataset import Part
from fieldwise.nn.embedding import Table
from fieldwise.nn.model import Model
from fieldwise.optim import RowOptimizer, clip, clip_rows, learning_rate, make_optimizer, set_learning_rate
from fieldwise.optim.row_clip import apart
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
        self.optimizer = optimizer_of(config, model)
        # An unknown schedule, or one that the optimiser cannot follow, is refused here and not in the middle of a run.
        for number in (total - 1, 0):
            set_learning_rate(self.optimizer, self._rate(number))
        self.fraction = 1.0  # of the batch's loss that this process has
        self.passed: Callable[[str], None] = lambda stage: None
        self.during: Callable[[str], AbstractContextManager[None]] = lambda part: nullcontext()

    def weights(self) -> list[Tensor]:
        """The parameters that the optimiser moves."""
        return list(self.model.parameters())

    def __call__(self, batch: Batch, number: int) -> float:
        """Makes one update and returns the loss before it; `number` counts the steps from 0."""
        ids, labels, weights = self._on_device(batch)
        self.passed("data")
        found = self.model.lookup(ids)
        held = self.held(found)
        loss, total = self.objective(held, labels, weights)
        value = self._checked(float(loss.detach()), number)
        self.passed("forward")
        self.differentiate(total, found, held, len(labels))
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

    def held(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """What was looked up, as the objective takes it: where rows are clipped, their gradient stops here first."""
        if not self.settings.row_ratio:
            return found
        return {name: values.detach().requires_grad_() for name, values in found.items()}

    def differentiate(self, total: Tensor, found: dict[str, Tensor], held: dict[str, Tensor], rows: int) -> None:
        """Leaves the gradients of the objective `total` of what was `held`, and the penalties' of what was `found`."""
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        if held is found:
            return
        reached = [name for name, values in held.items() if values.grad is not None]
        torch.autograd.backward(
            [found[name] for name in reached], [held[name].grad for name in reached], retain_graph=True
        )
        self.clip_rows()
        if terms := self.table_penalties(found, rows):
            with apart(self.rows_of_tables()):
                (self.fraction * torch.stack(terms).sum()).backward()

    def rows_of_tables(self) -> list[Tensor]:
        """The rows of each table that this process has."""
        return [table.here[0] for table in tables(self.model)]

    def clip_rows(self) -> None:
        """Cuts the gradients of looked-up rows by CowClip's rule."""
        clip_rows(self.rows_of_tables(), self.settings.row_ratio, self.settings.row_clip_least)

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
        # Rows are clipped without their penalty, which comes after that.
        terms = [] if self.settings.row_ratio else self.table_penalties(found, rows)
        for scale, weights in self.penalised:
            terms += [scale / 2 * square_sum(weight) for weight in weights]
        return torch.stack(terms).sum() if terms else None

    def table_penalties(self, found: dict[str, Tensor], rows: int) -> list[Tensor]:
        """Those on looked-up rows and on whole tables."""
        terms = []
        if self.settings.l2:
            terms += [self.row_penalty(rows) / 2 * square_sum(values) for values in found.values()]
        if self.settings.l2_full:
            terms += [self.settings.l2_full / 2 * squares for squares in self.table_squares()]
        return terms

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


def optimizer_of(config: Config, model: Model) -> RowOptimizer:
    """The optimiser of the settings, over the model's parameters."""
    s = config.train
    return make_optimizer(
        s.optimizer,
        _groups(model, s),
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


def _groups(model: Model, settings: TrainSettings) -> list[Any]:
    """The parameters; where they have two rates, those of the tables and all others as two groups."""
    if settings.dense_lr in (0, settings.lr):
        return list(model.parameters())
    rows = [table.here[0] for table in tables(model)]
    known = {id(weight) for weight in rows}
    others = [weight for weight in model.parameters() if id(weight) not in known]
    return [{"params": rows}, {"params": others, "lr": settings.dense_lr, "times": settings.dense_lr / settings.lr}]
