"""LR, FM and FFM on a CPU: the whole step in compiled loops over the batch (train/steps/shallow_loops.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.config.settings import Config
from fieldwise.data.batches import Batch
from fieldwise.data.schema import Layout
from fieldwise.loops import running
from fieldwise.nn.embedding import Embedding
from fieldwise.nn.model import Model
from fieldwise.nn.shallow_scores import is_shallow
from fieldwise.optim import AdaGrad, Adam, RowOptimizer
from fieldwise.optim.adam_rows import powers
from fieldwise.parts.field_aware.formula import FieldAwareProduct
from fieldwise.parts.ways import no_loops
from fieldwise.train.steps.plain import Step, tables

if TYPE_CHECKING:
    from fieldwise.optim.moves import Numbers
    from fieldwise.train.steps.shallow_loops import Rows, Update

# Rows that are worth a thread of their own.
ROWS_PER_THREAD = 250
LINE = 64  # bytes that memory gives at once


class ShallowStep(Step):
    """`Step` for a logit of a linear part and an FM's or FFM's products, in one pass over the touched rows."""

    @staticmethod
    def takes(model: Model, config: Config) -> bool:
        """Whether the compiled loops can train this model with these settings."""
        settings = config.train
        moved_by_rows = settings.optimizer in ("ftrl", "adagrad") or (
            settings.optimizer == "adam" and settings.sparse_mode != "dense"
        )
        return (
            moved_by_rows
            and not settings.clip
            and not settings.row_ratio
            and settings.dense_lr in (0, settings.lr)
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
        self.wide = WideRows(layout) if layout.has_sets else None
        self.marks = Marks(layout.rows)
        self.room = Room(0, 0, layout.fields, self.memory)

    def __call__(self, batch: Batch, number: int) -> float:
        self._set_rate(number)
        self.memory.hold()
        update = self._update(batch.rows)
        loss, slope = self._narrow(batch, update, number) if self.wide is None else self._wide(batch, update, number)
        self._move_bias(slope, update)
        self.optimizer.count()
        self.passed("optimiser")
        return loss

    def _narrow(self, batch: Batch, update: Update, number: int) -> tuple[float, float]:
        """Moves the tables where each field has one id; returns the loss and its derivative by the bias."""
        rows = self._rows(batch)
        self.passed("data")
        self._group(rows)
        losses, slopes = zip(*self._walk(rows, update), strict=True)
        loss = self._checked(sum(losses), number)
        self.passed("forward")
        self._move_repeated(update)
        return loss, sum(slopes)

    def _wide(self, batch: Batch, update: Update, number: int) -> tuple[float, float]:
        """`_narrow` where a field may have several ids."""
        assert self.wide is not None
        self.passed("data")
        loss, slope = self.wide.look(batch, self.memory.table, self.bias)
        loss = self._checked(loss, number)
        self.passed("forward")
        self.wide.move(batch, self.memory.table, update)
        return loss, slope

    @property
    def bias(self) -> float:
        return 0.0 if self.model.bias is None else float(self.model.bias.detach())

    def _rows(self, batch: Batch) -> Rows:
        """The batch as the loops read it; `_group` fills its slots."""
        from fieldwise.train.steps.shallow_loops import Rows

        count, fields = batch.ids.shape
        threads = max(1, min(torch.get_num_threads(), count // ROWS_PER_THREAD))
        if (self.room.count, self.room.threads) != (count, threads):
            self.room = Room(count, threads, fields, self.memory)
        return Rows(batch.ids, self.offsets, self.room.places, batch.labels, _shares(batch))

    def _update(self, rows: int) -> Update:
        """How the optimiser moves rows of the table in the coming step."""
        from fieldwise.train.steps.shallow_loops import Update

        optimizer = self.optimizer
        return Update(_kind(optimizer), _numbers(optimizer), _powers(optimizer), self.row_penalty(rows))

    def _group(self, rows: Rows) -> None:
        """Gives a slot to the rows of the table that occur more than once."""
        from fieldwise.train.steps.shallow_loops import group

        room, base = self.room, self.marks.next(len(rows.ids))

        def part(low: int, high: int, thread: int) -> None:
            group(rows.ids, rows.offsets, low, high, base, self.marks.seen, room.places, room.slots)

        running.on_threads(part, len(self.offsets), room.threads)

    def _walk(self, rows: Rows, update: Update) -> list[tuple[float, float]]:
        """Losses and their derivatives by the bias, of each thread's rows; moves what occurs once."""
        loop, room, table = self._loop(), self.room, self.memory.table
        bias, scale = self.bias, self.product.scale if self.product else 1.0

        def part(low: int, high: int, thread: int) -> tuple[float, float]:
            return loop(rows, low, high, table, update, bias, scale, room.sums[thread], room.scratch[thread])

        return running.on_threads(part, len(rows.ids), room.threads)

    def _loop(self) -> Callable[..., tuple[float, float]]:
        from fieldwise.train.steps.ffm_loops import ffm_rows
        from fieldwise.train.steps.shallow_loops import fm_rows, lr_rows

        return ffm_rows if self.product else fm_rows if self.memory.table.dim else lr_rows

    def _move_repeated(self, update: Update) -> None:
        """Moves the rows that have a slot, by the sums of all threads."""
        from fieldwise.train.steps.shallow_loops import repeated

        room, minus = self.room, 0.0 if self.product else 1.0

        def part(low: int, high: int, thread: int) -> None:
            repeated(low, high, room.slots, minus, self.memory.table, update, room.sums, room.scratch[thread])

        running.on_threads(part, len(self.offsets), room.threads)

    def _move_bias(self, slope: float, update: Update) -> None:
        from fieldwise.train.steps.shallow_loops import move_alone

        if self.model.bias is not None:
            states = self.optimizer.state_of(self.model.bias)
            bias, one, two = (tensor.detach().numpy() for tensor in (self.model.bias, states[0], states[-1]))
            move_alone(update.kind, bias, one, two, slope, update.numbers)


class WideRows:
    """The loops over fields of several ids, and their memory."""

    def __init__(self, layout: Layout) -> None:
        from fieldwise.nn.wide_loops import fields_of

        self.fields, self.places = fields_of(layout), np.full(layout.rows, -1, dtype=np.int32)
        self.logits = self.slopes = np.empty(0)
        self.sums = np.empty((0, 0))
        self.grads: list[NDArray[Any]] = []

    def look(self, batch: Batch, table: Any, bias: float) -> tuple[float, float]:
        """The loss of a batch and its derivative by the bias."""
        from fieldwise.nn.wide_loops import wide_scores
        from fieldwise.train.steps.wide_loops import losses, room

        count, flat, stride = batch.rows, table.numbers.reshape(-1), table.numbers.shape[1]
        threads = max(1, min(torch.get_num_threads(), count // ROWS_PER_THREAD))
        if (len(self.logits), len(self.grads)) != (count, threads):
            kind, wide = table.numbers.dtype, table.dim + table.linear
            self.logits, self.slopes = np.empty(count, kind), np.empty(count, kind)
            self.sums = np.empty((count, table.dim), kind)
            self.grads = [room(count, self.fields, wide, kind) for _ in range(threads)]
        linear = flat[table.dim :], stride * table.linear

        def part(low: int, high: int, thread: int) -> None:
            numbers = table.dim, bias, flat, stride, *linear, self.sums, self.logits
            wide_scores(batch.ids, self.fields, low, high, *numbers)

        running.on_threads(part, count, threads)
        found: tuple[float, float] = losses(self.logits, batch.labels, _shares(batch), self.slopes)
        return found

    def move(self, batch: Batch, table: Any, update: Update) -> None:
        """Moves the rows of the table that the batch has."""
        from fieldwise.train.steps.wide_loops import move_fields

        def part(low: int, high: int, thread: int) -> None:
            given = self.slopes, self.sums, table, update, self.places, self.grads[thread]
            move_fields(batch.ids, self.fields, low, high, *given)

        running.on_threads(part, len(self.fields.widths), len(self.grads))


def _shares(batch: Batch) -> NDArray[np.float64]:
    """What each row's loss counts in the loss of the batch."""
    count = batch.rows
    return np.full(count, 1 / count) if batch.weights is None else batch.weights.astype(np.float64) / count


class SideBySide:
    """The model's tables and the optimiser's state of them in one piece of memory, a category's numbers side by side.

    The weights and states themselves become views of it: reading, copying and loading work as before.
    """

    def __init__(self, model: Model, optimizer: RowOptimizer) -> None:
        from fieldwise.train.steps.shallow_loops import Table

        self.optimizer = optimizer
        vectors: list[Any] = [model.embedding.tables[0].weight] if isinstance(model.embedding, Embedding) else []
        linear: list[Any] = [model.linear.weights.weight] if model.linear is not None else []
        self.weights = vectors + linear
        first: Tensor = self.weights[0]
        dim = sum(weight.shape[1] for weight in vectors)
        wide, self.dtype = dim + len(linear), first.dtype
        numbers = wide * (1 + len(optimizer.names)) + int(optimizer.decays)
        line = LINE // first.element_size()
        # A row that does not fill a line shares it with whole others; a longer one begins a line.
        stride = -(-numbers // line) * line if numbers > line else 1 << (numbers - 1).bit_length()
        # Loops read sixteen numbers at a time and so may reach behind the last row: there is room for that.
        room = torch.zeros(len(first) + 1 + 16 // stride, stride, dtype=first.dtype)
        self.table = Table(dim, len(linear), room.numpy(), room.view(torch.int32).numpy())
        self.views = self._views(room[: len(first)], wide)
        self.hold()

    def _views(self, memory: Tensor, wide: int) -> list[dict[str, Tensor]]:
        """Each weight and its states by name, as parts of `memory`."""
        found, start = [], 0
        for weight in self.weights:
            width = weight.shape[1]
            parts = ["weight", *self.optimizer.names]
            views = {name: memory[:, n * wide + start : n * wide + start + width] for n, name in enumerate(parts)}
            if self.optimizer.decays:  # in double precision the first half of a number holds it
                views["last"] = memory.view(torch.int32)[:, -1]
            found.append(views)
            start += width
        return found

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


class Room:
    """Memory for a batch of `count` rows on `threads` threads: slots for the rows that occur more than once, which
    place has which slot, and each thread's sums and scratch."""

    def __init__(self, count: int, threads: int, fields: int, memory: SideBySide) -> None:
        from fieldwise.train.steps.shallow_loops import Slots

        self.count, self.threads = count, threads
        table, most = memory.table, count // 2
        self.places = np.empty((count, fields), np.int32)
        self.slots = Slots(np.empty((fields, most), np.int64), np.zeros(fields, np.int64))
        # Behind a gradient is how often the row occurs, and an FM's sum of derivatives.
        size, line = table.dim + table.linear + 2, LINE // table.numbers.itemsize
        size = size if size < line else -(-size // line) * line
        # Allocated by torch, whose memory begins a line.
        scratch = -(-(fields + 16) * (size + 16) // line) * line
        self.sums = torch.zeros(threads, fields, most, size, dtype=memory.dtype).numpy()
        self.scratch = torch.zeros(threads, scratch, dtype=memory.dtype).numpy()


class Marks:
    """For each row of the table, where a batch saw it last; a mark less than a batch's base is of an earlier batch."""

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


def _numbers(optimizer: RowOptimizer) -> Numbers:
    """The numbers of the coming step."""
    from fieldwise.optim.moves import Numbers

    group = optimizer.param_groups[0]
    step = group["step"] + 1
    if isinstance(optimizer, Adam):
        found = *group["betas"], *optimizer.rate_and_eps({**group, "step": step})
    elif isinstance(optimizer, AdaGrad):
        found = group["initial"], 0.0, group["lr"], group["eps"]
    else:
        found = group["l1"], group["l2"], group["lr"], group["beta"]
    return Numbers(step, *map(float, found))


def _powers(optimizer: RowOptimizer) -> NDArray[np.float64]:
    return powers(*optimizer.param_groups[0]["betas"]) if isinstance(optimizer, Adam) else np.empty((0, 2))
