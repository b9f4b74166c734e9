"""LR, FM and FFM on a CPU: the whole step in compiled loops over the batch (train/steps/shallow_loops.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.config.settings import Config
from fieldwise.data.batches import Batch
from fieldwise.loops import running
from fieldwise.nn.embedding import Embedding
from fieldwise.nn.model import Model
from fieldwise.nn.shallow_scores import is_shallow
from fieldwise.optim import FTRL, AdaGrad, Adam, RowOptimizer
from fieldwise.optim.adam_rows import powers
from fieldwise.parts.field_aware.formula import FieldAwareProduct
from fieldwise.parts.ways import no_loops
from fieldwise.train.steps.plain import Step, tables

# Rows that are worth a thread of their own.
ROWS_PER_THREAD = 250
LINE = 64  # bytes that memory gives at once


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
            and is_shallow(model)
            and not no_loops(*(table.weight.detach()[:1] for table in tables(model)))
        )

    def __init__(self, model: Model, config: Config, total: int) -> None:
        super().__init__(model, config, total)
        interaction = model.branches[0].interaction if len(model.branches) else None
        self.product = interaction if isinstance(interaction, FieldAwareProduct) else None
        self.memory = SideBySide(model, self.optimizer)
        layout = tables(model)[0].layout
        self.offsets = np.array(layout.offsets)
        self.marks = Marks(layout.rows)
        self.slots = Slots(0, 0, layout.fields, self.memory)

    def __call__(self, batch: Batch, number: int) -> float:
        from fieldwise.train.steps import shallow_loops as loops

        shallow: Any = loops
        self._set_rate(number)
        self.memory.hold()
        count, fields = batch.ids.shape
        threads = max(1, min(torch.get_num_threads(), count // ROWS_PER_THREAD))
        if (self.slots.count, self.slots.threads) != (count, threads):
            self.slots = Slots(count, threads, fields, self.memory)
        slots, memory, kind = self.slots, self.memory, _kind(self.optimizer)
        shares = np.full(count, 1 / count) if batch.weights is None else batch.weights.astype(np.float64) / count
        bias = self.model.bias
        shape = memory.dim, memory.linear, kind
        table = memory.table, memory.clock, _numbers(self.optimizer), _powers(self.optimizer)
        l2, start = self.row_penalty(count), 0.0 if bias is None else float(bias.detach())
        scale, minus = (self.product.scale, 0.0) if self.product else (1.0, 1.0)
        base, kernel = self.marks.next(count), self._kernel(shallow)
        self.passed("data")

        def group(low: int, high: int, thread: int) -> None:
            shallow.group(batch.ids, self.offsets, low, high, base, self.marks.seen, slots.of, slots.rows, slots.used)

        def walk(low: int, high: int, thread: int) -> tuple[float, float]:
            data = batch.ids, self.offsets, slots.of, batch.labels, shares, low, high
            found: tuple[float, float] = kernel(
                *shape, *data, start, scale, l2, *table, slots.sums[thread], slots.scratch[thread]
            )
            return found

        def repeated(low: int, high: int, thread: int) -> None:
            shallow.repeated(
                *shape, low, high, slots.rows, slots.used, minus, l2, *table, slots.sums, slots.scratch[thread]
            )

        running.on_threads(group, fields, threads)
        found = running.on_threads(walk, count, threads)
        loss = self._checked(sum(part for part, _ in found), number)
        self.passed("forward")
        running.on_threads(repeated, fields, threads)
        if bias is not None:
            state = self.optimizer.state_of(bias)
            own = [tensor.detach().numpy() for tensor in (bias, state[0], state[-1])]
            shallow.move_alone(kind, *own, sum(slope for _, slope in found), table[2])
        self.optimizer.count()
        self.passed("optimiser")
        return loss

    def _kernel(self, shallow: Any) -> Any:
        if self.product:
            from fieldwise.train.steps.ffm_loops import ffm_rows

            return ffm_rows
        return shallow.fm_rows if self.memory.dim else shallow.lr_rows


class SideBySide:
    """The model's tables and the optimiser's state of them in one piece of memory, a category's numbers side by side.

    The weights and states themselves become views of it: reading, copying and loading work as before.
    """

    def __init__(self, model: Model, optimizer: RowOptimizer) -> None:
        self.optimizer = optimizer
        vectors: list[Any] = [model.embedding.tables[0].weight] if isinstance(model.embedding, Embedding) else []
        linear: list[Any] = [model.linear.weights.weight] if model.linear is not None else []
        self.weights = vectors + linear
        self.dim, self.linear = sum(weight.shape[1] for weight in vectors), len(linear)
        first: Tensor = self.weights[0]
        wide, self.dtype = self.dim + self.linear, first.dtype
        numbers = wide * (1 + len(optimizer.names)) + int(optimizer.decays)
        line = LINE // first.element_size()
        # A row that does not fill a line shares it with whole others; a longer one begins a line.
        stride = -(-numbers // line) * line if numbers > line else 1 << (numbers - 1).bit_length()
        # Loops read sixteen numbers at a time, so that they may reach behind the last row: they get the room as well.
        room = torch.zeros(len(first) + 1 + 16 // stride, stride, dtype=first.dtype)
        self.table, self.clock = room.numpy(), room.view(torch.int32).numpy()
        self.memory = memory = room[: len(first)]
        # Where a double holds the clock, its first half does.
        self.views: list[dict[str, Tensor]] = []
        start = 0
        for weight in self.weights:
            width = weight.shape[1]
            parts = ["weight", *optimizer.names]
            views = {name: memory[:, n * wide + start : n * wide + start + width] for n, name in enumerate(parts)}
            if optimizer.decays:
                views["last"] = memory.view(torch.int32)[:, -1]
            self.views.append(views)
            start += width
        self.hold()

    def hold(self) -> None:
        """Takes in what others put in the place of a view: a loaded state, weights that were moved."""
        for weight, views in zip(self.weights, self.views, strict=True):
            if weight.data_ptr() != views["weight"].data_ptr():
                views["weight"].copy_(weight.detach())
                weight.data = views["weight"]
            state = self.optimizer.state[weight]
            for name, view in views.items():
                if name == "weight" or (name in state and state[name].data_ptr() == view.data_ptr()):
                    continue
                if name in state:
                    view.copy_(state[name])
                state[name] = view


class Slots:
    """Room for the rows that occur more than once in a batch: which they are, and their gradients of each thread."""

    def __init__(self, count: int, threads: int, fields: int, memory: SideBySide) -> None:
        self.count, self.threads = count, threads
        most, kind = count // 2, memory.table.dtype
        self.of = np.empty((count, fields), np.int32)
        self.rows = np.empty((fields, most), np.int64)
        self.used = np.zeros(fields, np.int64)
        # Behind a gradient is how often the row occurs, and an FM's sum of derivatives.
        size, line = memory.dim + memory.linear + 2, LINE // kind.itemsize
        size = size if size < line else -(-size // line) * line
        # Of torch, whose memory begins a line.
        room = -(-(fields + 16) * (size + 16) // line) * line
        self.sums = torch.zeros(threads, fields, most, size, dtype=memory.dtype).numpy()
        self.scratch = torch.zeros(threads, room, dtype=memory.dtype).numpy()


class Marks:
    """For each row of the table, which batch saw it last; what is less than the batch's base is of an earlier one."""

    def __init__(self, rows: int) -> None:
        self.seen = np.full(rows, -1, dtype=np.int32)
        self.base = 0

    def next(self, count: int) -> int:
        """The base of a batch of `count` rows, whose marks are less than base + 2 count."""
        if self.base + 2 * count > np.iinfo(np.int32).max:
            self.seen[:], self.base = -1, 0
        base = self.base
        self.base += 2 * count
        return base


def _kind(optimizer: RowOptimizer) -> int:
    from fieldwise.optim import moves

    if isinstance(optimizer, Adam):
        return moves.ADAM if optimizer.decays else moves.LAZY_ADAM
    return moves.ADAGRAD if isinstance(optimizer, AdaGrad) else moves.FTRL


def _numbers(optimizer: RowOptimizer) -> tuple[float, ...]:
    """The optimiser's numbers of the coming step, in the order in which `kernels.moves.moved` takes them."""
    group = optimizer.param_groups[0]
    step = float(group["step"] + 1)
    if isinstance(optimizer, Adam):
        return step, *map(float, group["betas"]), *optimizer.rate_and_eps({**group, "step": group["step"] + 1})
    if isinstance(optimizer, AdaGrad):
        return step, group["initial"], 0.0, group["lr"], group["eps"]
    assert isinstance(optimizer, FTRL)
    return step, group["l1"], group["l2"], group["lr"], group["beta"]


def _powers(optimizer: RowOptimizer) -> NDArray[np.float64]:
    return powers(*optimizer.param_groups[0]["betas"]) if isinstance(optimizer, Adam) else np.empty((0, 2))
