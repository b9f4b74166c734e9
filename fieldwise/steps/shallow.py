"""LR, FM and FFM on a CPU: the whole step in compiled loops over the batch (kernels/shallow.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwise.config import Config
from fieldwise.data.batches import Batch
from fieldwise.kernels import rows
from fieldwise.nn.classifiers import Sum
from fieldwise.nn.embedding import Embedding, Table
from fieldwise.nn.interactions import FieldAwareProduct, PairSum
from fieldwise.nn.model import Branch, Model
from fieldwise.optim import FTRL, AdaGrad, Adam, RowOptimizer
from fieldwise.steps.plain import Step, tables

# Rows that are worth a thread of their own.
ROWS_PER_THREAD = 250


class ShallowStep(Step):
    """`Step` for a logit of a linear part and an FM's or FFM's products, in one pass over the touched rows."""

    @staticmethod
    def takes(model: Model, config: Config) -> bool:
        """Whether this model can be trained so with these settings."""
        settings = config.train
        moved_by_rows = settings.optimizer in ("ftrl", "adagrad") or (
            settings.optimizer == "adam" and settings.sparse_mode != "dense"
        )
        return (
            moved_by_rows
            and not settings.clip
            and not settings.l2_full
            and _has_shallow_parts(model)
            and rows.available(*(table.weight for table in tables(model)))
        )

    def __init__(self, model: Model, config: Config, total: int) -> None:
        super().__init__(model, config, total)
        self.vectors = model.embedding.tables[0] if isinstance(model.embedding, Embedding) else None
        self.linear = model.linear.weights if model.linear is not None else None
        interaction = model.branches[0].interaction if len(model.branches) else None
        self.product = interaction if isinstance(interaction, FieldAwareProduct) else None
        layout = tables(model)[0].layout
        self.offsets = np.array(layout.offsets)
        self.seen = np.zeros(layout.rows, dtype=np.int32)
        dim = self.vectors.weight.shape[1] if isinstance(self.vectors, Table) else 0
        self.dim = dim
        self.slots = Slots(0, 0, layout.fields, dim, tables(model)[0].weight.dtype)

    def __call__(self, batch: Batch, number: int) -> float:
        from fieldwise.kernels import shallow as loops

        shallow: Any = loops
        self._set_rate(number)
        count, fields = batch.ids.shape
        threads = max(1, min(torch.get_num_threads(), count // ROWS_PER_THREAD))
        if not self.slots.suit(count, threads):
            self.slots = Slots(count, threads, fields, self.dim, self.slots.dtype)
        slots, kind = self.slots, _kind(self.optimizer)
        shares = np.full(count, 1 / count) if batch.weights is None else batch.weights.astype(np.float64) / count
        bias = self.model.bias
        vectors, linear = self._arrays(self.vectors), self._arrays(self.linear)
        numbers, powers, l2 = _numbers(self.optimizer), _powers(self.optimizer), self.row_penalty(count)
        scale, minus = (self.product.scale, 0.0) if self.product else (1.0, 1.0)
        self.passed("data")

        def group(low: int, high: int, thread: int) -> None:
            shallow.group(batch.ids, self.offsets, low, high, self.seen, slots.of, slots.rows, slots.used)

        def walk(low: int, high: int, thread: int) -> tuple[float, float]:
            kernel = shallow.ffm_rows if self.product else shallow.fm_rows
            start = 0.0 if bias is None else float(bias.detach())
            found: tuple[float, float] = kernel(
                self.dim, kind, batch.ids, self.offsets, slots.of, batch.labels, shares, low, high, start, scale, l2,
                *vectors, *linear, numbers, powers, slots.sums[thread], slots.totals[thread],
            )  # fmt: skip
            return found

        def repeated(low: int, high: int, thread: int) -> None:
            shallow.repeated(
                self.dim, kind, low, high, slots.rows, slots.used, minus, l2, *vectors, *linear, numbers, powers,
                slots.sums, slots.totals,
            )  # fmt: skip

        _on_threads(group, fields, threads)
        found = _on_threads(walk, count, threads)
        loss = self._checked(sum(part for part, _ in found), number)
        self.passed("forward")
        _on_threads(repeated, fields, threads)
        if bias is not None:
            bias.grad = torch.full_like(bias, sum(slope for _, slope in found))
        self.optimizer.step()
        self.passed("optimiser")
        return loss

    def _arrays(self, table: Any) -> tuple[NDArray[Any], ...]:
        """A table as the kernels take it, flat: weights, two states, last steps."""
        if table is None:
            nothing = np.empty((0, 0), _NUMPY[self.slots.dtype])
            return nothing, nothing, nothing, np.empty(0, np.int32)
        group = self.optimizer.param_groups[0]
        state = self.optimizer._state(group, table.weight, last=self.optimizer.decays)
        one, two = state[self.optimizer.names[0]], state[self.optimizer.names[-1]]
        last = state["last"].numpy() if self.optimizer.decays else np.empty(0, np.int32)
        return *(tensor.detach().numpy() for tensor in (table.weight, one, two)), last


class Slots:
    """Room for the rows that occur more than once in a batch: which they are, and their gradients of each thread."""

    def __init__(self, count: int, threads: int, fields: int, dim: int, dtype: torch.dtype) -> None:
        self.count, self.threads, self.dtype = count, threads, dtype
        most = count // 2
        self.of = np.empty((count, fields), np.int32)
        self.rows = np.empty((fields, most), np.int64)
        self.used = np.zeros(fields, np.int64)
        self.sums = np.zeros((threads, fields, most, dim), _NUMPY[dtype])
        self.totals = np.zeros((threads, fields, most, 2), _NUMPY[dtype])

    def suit(self, count: int, threads: int) -> bool:
        return (self.count, self.threads) == (count, threads)


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def _has_shallow_parts(model: Model) -> bool:
    one_table = model.embedding is None or (isinstance(model.embedding, Embedding) and len(model.embedding.tables) == 1)
    if not one_table or len(model.branches) != (model.embedding is not None) or not tables(model):
        return False
    interactions = [branch.interaction for branch in model.branches if isinstance(branch, Branch)]
    return (
        all(type(interaction) in (PairSum, FieldAwareProduct) for interaction in interactions)
        and all(isinstance(branch.classifier, Sum) for branch in model.branches)
        and not tables(model)[0].layout.has_sets
    )


def _kind(optimizer: RowOptimizer) -> int:
    from fieldwise.kernels import shallow

    return {Adam: shallow.ADAM, AdaGrad: shallow.ADAGRAD, FTRL: shallow.FTRL}[type(optimizer)]


def _numbers(optimizer: RowOptimizer) -> tuple[float, ...]:
    """The optimiser's numbers of the coming step, in the order in which `kernels.shallow.move` takes them."""
    group = optimizer.param_groups[0]
    step = float(group["step"] + 1)
    if isinstance(optimizer, Adam):
        return step, *map(float, group["betas"]), *optimizer.rate_and_eps({**group, "step": group["step"] + 1})
    if isinstance(optimizer, AdaGrad):
        return step, group["initial"], 0.0, group["lr"], group["eps"]
    return step, group["l1"], group["l2"], group["lr"], group["beta"]


def _powers(optimizer: RowOptimizer) -> NDArray[np.float64]:
    return rows.powers(*optimizer.param_groups[0]["betas"]) if isinstance(optimizer, Adam) else np.empty((0, 2))


def _on_threads(action: Callable[[int, int, int], Any], size: int, threads: int) -> list[Any]:
    """action(low, high, thread) on equal parts of a range, each in a thread of its own."""
    cuts = [size * part // threads for part in range(threads + 1)]
    if threads == 1:
        return [action(0, size, 0)]
    jobs = [rows.pool(threads).submit(action, cuts[t], cuts[t + 1], t) for t in range(threads)]
    return [job.result() for job in jobs]
