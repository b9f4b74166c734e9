"""The step of several workers: each takes its share of a batch, they add up gradients and make the same update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config
from fieldwise.data.batches import Batch, rows_of_batches, share, take
from fieldwise.data.dataset import Part
from fieldwise.nn.model import Model
from fieldwise.optim import clip_rows
from fieldwise.optim.row_clip import Summed
from fieldwise.optim.rows import touched
from fieldwise.train import distributed
from fieldwise.train.steps.plain import Step


@dataclass(frozen=True)
class Share(Batch):
    """A worker's rows of a batch of `whole` rows."""

    whole: int

    @property
    def rows(self) -> int:
        return self.whole


class SharedStep(Step):
    """`Step` over the workers' shares of a batch: the same losses and weights but for the rounding of sums.

    Workers sum dense gradients in one message; of a table they send only the touched rows, with their ids.
    """

    def __init__(self, model: Model, config: Config, total: int) -> None:
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
            raise ConfigError(
                "batch norm needs the whole batch in one process, found several workers; "
                "take model.norm=layer, or train without --workers"
            )
        super().__init__(model, config, total)
        self.rank, self.workers = distributed.rank(), distributed.count()
        self.whole = 0  # rows of the current batch, over all workers

    def batches(self, part: Part, epoch: int, start: int = 0) -> Iterator[Share]:
        settings = self.settings
        for rows in rows_of_batches(part.rows, settings.batch_size, self.seed, epoch, start, settings.shuffle_rows):
            if len(rows) < self.workers:
                raise ConfigError(f"a batch needs a row for each of {self.workers} workers, found {len(rows)} rows")
            own = take(part, share(rows, self.rank, self.workers), epoch)
            yield Share(own.ids, own.labels, own.weights, len(rows))

    def __call__(self, batch: Batch, number: int) -> float:
        self._seed(number)
        self._set_rate(number)
        self.whole = batch.rows
        ids, labels, weights = self._on_device(batch)
        self.passed("data")
        self.fraction = len(labels) / self.whole
        found = self.model.lookup(ids)
        held = self.held(found)
        loss, total = self.objective(held, labels, weights)
        self.passed("forward")
        self.differentiate(total, found, held, len(labels))
        value = self._checked(exchange(self.added_up(), loss.detach()), number)
        self.passed("backward")
        if self.settings.clip:
            self.clip()
        self.optimizer.step()
        self.passed("optimiser")
        return value

    def added_up(self) -> list[Tensor]:
        """The parameters of which each worker has the gradient of its share of the batch."""
        return self.weights()

    def objective(self, found: dict[str, Tensor], labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """This share's part of the batch's loss, and of the loss with its penalties."""
        loss, total = super().objective(found, labels, weights)
        return loss * self.fraction, total * self.fraction

    def of_the_batch(self, loss: Tensor) -> Tensor:
        return distributed.summed(loss.detach() * self.fraction)

    def clip_rows(self) -> None:
        clip_rows(self.rows_of_tables(), self.settings.row_ratio, self.settings.row_clip_least, _added_up)

    def row_penalty(self, rows: int) -> float:
        """`objective` scales by the share, which is right for a mean; a sum is scaled back to that of all rows."""
        of_rows = super().row_penalty(rows)
        return of_rows if self.settings.l2_reduction == "mean" else of_rows * self.whole / rows

    def _seed(self, number: int) -> None:
        """Seeds dropout: it differs between workers and steps, and is the same when a step is repeated after a kill."""
        state = np.random.SeedSequence([self.seed, number, self.rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(state[0]))


def exchange(weights: list[Any], loss: Tensor) -> float:
    """Adds up the workers' gradients, in place, and their losses."""
    used = [weight for weight in weights if weight.grad is not None]
    by_rows = [weight for weight in used if weight.grad.is_sparse]
    _add_dense([weight.grad for weight in used if not weight.grad.is_sparse])
    if by_rows:
        _add_rows(by_rows)
    return float(distributed.summed(loss.clone()))


def _add_dense(grads: list[Tensor]) -> None:
    """Sums dense gradients in one message for each dtype, whatever the number of layers."""
    for kind in dict.fromkeys(grad.dtype for grad in grads):
        own = [grad for grad in grads if grad.dtype == kind]
        flat = distributed.summed(torch.cat([grad.reshape(-1) for grad in own]))
        for grad, values in zip(own, flat.split([grad.numel() for grad in own]), strict=True):
            grad.copy_(values.view_as(grad))


def _add_rows(weights: list[Any]) -> None:
    """Concatenates the touched rows in the order of ranks: every optimiser adds equal ids in that order."""
    gathered = _gathered(weights, [touched(weight.grad) for weight in weights])
    for weight, (ids, rows) in zip(weights, gathered, strict=True):
        weight.grad = torch.sparse_coo_tensor(ids[None], rows, weight.shape, check_invariants=False)


def _gathered(tables: list[Any], own: list[Summed]) -> list[Summed]:
    """For each table the ids of all workers' touched rows, and what belongs to them, in the order of ranks."""
    if not own:
        return []
    sizes = distributed.counts(torch.tensor([len(ids) for ids, _ in own], device=own[0][0].device))
    found = []
    for number, (ids, rows) in enumerate(own):
        each = [of_worker[number] for of_worker in sizes]
        short = ids.int() if len(tables[number]) < 2**31 else ids
        found.append((distributed.gathered(short, each).long(), distributed.gathered(rows, each)))
    return found


def _added_up(tables: list[Tensor], own: list[Summed]) -> list[Summed]:
    """For each table the distinct ids of all workers, and the sums of what belongs to them."""
    found = []
    for table, (ids, rows) in zip(tables, _gathered(tables, own), strict=True):
        size = len(table), rows.shape[1]
        found.append(touched(torch.sparse_coo_tensor(ids[None], rows, size, check_invariants=False)))
    return found
