"""The step on a GPU, captured once as a CUDA graph and replayed: all of it, from the ids to the optimiser.

A graph repeats the same operations on the same memory, so what changes from step to step lies in a window on the
device: some hundred batches, the numbers of their steps (step, learning rate ...), and room for their losses. The graph
reads the batch at `at` and advances `at`; the host only replays it, and refills the window when it is used up.
"""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldwise.config.errors import first_line
from fieldwise.config.settings import Config
from fieldwise.data.batches import Batch, rows_of_batches, take
from fieldwise.data.dataset import Part
from fieldwise.data.feed import Source, ahead
from fieldwise.nn.model import Model
from fieldwise.optim import Adam
from fieldwise.parts.ways import shared_memory_bytes
from fieldwise.train.steps.plain import STAGES, Step

WINDOW_BYTES = 64 * 2**20
WINDOW_BATCHES = 256
COMPILED_STEPS = 1000  # a shorter run would end before it is compiled
WARM_UP = 3  # steps before the capture, which compile kernels and allocate state and memory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """A batch of `rows` rows in the window, which holds `count` batches; `number` 0 is the first."""

    rows: int
    number: int
    count: int


@dataclass(frozen=True)
class Window:
    """Batches on the device: `rows` are ids (W, B, C), labels (W, B) and, where there are any, weights (W, B).

    `numbers` (W, G, 4) are Adam's for each of its groups, `losses` (W,) those of the steps done, `at` the index of the
    next batch.
    """

    rows: list[Tensor]
    numbers: Tensor
    losses: Tensor
    at: Tensor

    @classmethod
    def of(cls, part: Part, batch: int, groups: int, device: torch.device) -> Window:
        columns = part.ids.shape[1]
        size = max(1, min(WINDOW_BATCHES, WINDOW_BYTES // (4 * batch * columns)))
        ids = torch.zeros(size, batch, columns, dtype=torch.int32, device=device)
        others = [torch.zeros(size, batch, device=device) for _ in range(1 if part.weights is None else 2)]
        numbers, losses = torch.zeros(size, groups, 4, device=device), torch.zeros(size, device=device)
        return cls([ids, *others], numbers, losses, torch.zeros(1, dtype=torch.int64, device=device))

    def now(self, values: Tensor) -> Tensor:
        """values[at]."""
        return values.index_select(0, self.at).squeeze(0)


class CapturedStep(Step):
    """Equals Step. A batch of another size, the last of an epoch, is a plain step."""

    @staticmethod
    def takes(model: Model, config: Config) -> bool:
        """Whether the model is on a GPU and capturing is not switched off."""
        return config.train.graph and next(model.parameters()).is_cuda

    def __init__(self, model: Model, config: Config, total: int) -> None:
        super().__init__(model, config, total)
        self.capturable = _capturable(self)
        worth_it = self.settings.compile and self.capturable and total >= COMPILED_STEPS
        self.compiled: Any = _compiled(self.objective) if worth_it else self.objective
        self.graph: torch.cuda.CUDAGraph | None = None
        self.side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.warm = 0
        self.source: Source | None = None
        self.window: Window | None = None
        self.first = 0  # number of the window's first step
        self.done = 0  # steps done of the window
        self.read = 0  # of these, those whose losses are read or under way
        self.coming: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def batches(self, part: Part, epoch: int, start: int = 0) -> Iterator[Batch | Place]:
        if not self.capturable:
            yield from super().batches(part, epoch, start)
            return
        if self.source is None or self.source.part is not part:
            with self.during("rows to the GPU"):
                self.source = Source(part, self.device)
            groups = len(self.optimizer.param_groups)
            self.window = Window.of(part, self.settings.batch_size, groups, self.device)
            self.graph, self.warm = None, 0
        for loaded, count in ahead(self._loaded(part, epoch, start)):
            if isinstance(loaded, Batch):
                yield loaded
            else:
                self._fill(loaded, count)
                for number in range(count):
                    yield Place(self.settings.batch_size, number, count)

    def _loaded(self, part: Part, epoch: int, start: int) -> Iterator[tuple[Batch | list[Tensor], int]]:
        """Batches for one window at a time, ready to be copied to the device; a batch of another size comes alone."""
        assert self.source is not None
        assert self.window is not None
        size, settings = self.settings.batch_size, self.settings
        waiting: list[Any] = []
        for rows in rows_of_batches(part.rows, size, self.seed, epoch, start, settings.shuffle_rows):
            if len(rows) == size:
                waiting.append(rows)
            if waiting and (len(waiting) == len(self.window.losses) or len(rows) != size):
                yield self.source.load(np.concatenate(waiting), epoch), len(waiting)
                waiting = []
            if len(rows) != size:
                yield take(part, rows, epoch), 1
        if waiting:
            yield self.source.load(np.concatenate(waiting), epoch), len(waiting)

    def _fill(self, loaded: list[Tensor], count: int) -> None:
        """Copies the next batches into the window, after it has sent the losses there to the host."""
        assert self.source is not None
        assert self.window is not None
        self._fetch()
        self.source.put(loaded, [values[:count].flatten(0, 1) for values in self.window.rows])
        self.window.at.zero_()
        self.done = self.read = 0

    def run(self, batch: Batch | Place, number: int) -> list[float]:
        if isinstance(batch, Batch):
            known = self.flush()
            return [*known, self(batch, number)]
        if batch.number == 0:
            self._set_numbers(number, batch.count)
        self._go()
        self.done += 1
        return self._arrived(wait=False)

    def flush(self) -> list[float]:
        self._fetch()
        return self._arrived(wait=True)

    def _set_numbers(self, first: int, count: int) -> None:
        assert self.window is not None
        assert isinstance(self.optimizer, Adam)
        numbers = [self._numbers(first + i, i + 1) for i in range(count)]
        self.window.numbers[:count].copy_(_pinned(torch.tensor(numbers), self.device), non_blocking=True)
        self.first = first

    def _numbers(self, number: int, later: int) -> list[tuple[float, ...]]:
        """Adam's numbers of each group in step `number`, the `later`-th from now on."""
        assert isinstance(self.optimizer, Adam)
        self._set_rate(number)
        return [self.optimizer.numbers(each, each["step"] + later, each["lr"]) for each in self.optimizer.param_groups]

    def _go(self) -> None:
        """Makes one step, by the graph once there is one."""
        self._set_rate(self.first + self.done)
        if self.graph is not None:
            self.graph.replay()
            self.optimizer.count()
        elif self.side is None:  # on a CPU, in tests: everything but the graph
            self._plainly()
        elif self.warm < WARM_UP:
            with self.during("compiling"):
                self._on_the_side(self._plainly)
            self.warm += 1
        else:
            with self.during("capture"):
                graph = self._on_the_side(self._capture)
            if graph is None:
                self._plainly()
            else:
                graph.replay()

    def _on_the_side(self, action: Any) -> Any:
        """Runs the action on another stream: a capture needs one, and memory that was first used there."""
        here = torch.cuda.current_stream(self.device)
        assert self.side is not None
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            found = action()
        here.wait_stream(self.side)
        return found

    def _plainly(self) -> None:
        try:
            total = self._gradients()
        except Exception as error:  # a compiler can fail in any way
            if self.compiled == self.objective:
                raise
            log.warning("train.compile: this step runs uncompiled: %s", first_line(error))
            self.compiled = self.objective
            total = self._gradients()
        self._update(total)

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        """The step as a graph that has not run yet; None if it cannot be captured."""
        before, graph = [group["step"] for group in self.optimizer.param_groups], torch.cuda.CUDAGraph()
        try:
            with _capturing(graph, self.side):
                self._update(self._gradients())
        except Exception as error:  # so can a capture, by an operation that needs the host
            log.warning("train.graph: this step runs without a graph: %s", first_line(error))
            self.warm = -(2**62)
            for group, step in zip(self.optimizer.param_groups, before, strict=True):
                group["step"] = step
            return None
        self.graph = graph
        return graph

    def _gradients(self) -> Tensor:
        """Runs forward and backward; returns the loss."""
        found, labels, weights = self._looked_up()
        held = self.held(found)
        loss, total = self.compiled(held, labels, weights)
        self.differentiate(total, found, held, len(labels))
        return loss.detach()  # type: ignore[no-any-return]

    def _looked_up(self) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        assert self.window is not None
        ids, labels, *weights = (self.window.now(values) for values in self.window.rows)
        return self.model.lookup(ids), labels, weights[0] if weights else None

    def _update(self, loss: Tensor) -> None:
        assert self.window is not None
        assert isinstance(self.optimizer, Adam)
        self.window.losses.index_copy_(0, self.window.at, loss.reshape(1))
        self.optimizer.captured = self.window.now(self.window.numbers)
        try:
            self.optimizer.step()
        finally:
            self.optimizer.captured = None
        self.window.at.add_(1)

    def stages(self, times: int = 50) -> dict[str, float]:
        """Seconds of each stage, for the bench, after the last step: how much longer a graph with that stage takes."""
        assert self.window is not None
        assert self.graph is not None
        window = self.window
        parts: list[Any] = [
            lambda: [window.now(values) for values in window.rows],
            lambda: self.compiled(*self._looked_up()),
            self._gradients,
        ]
        graphs = []
        for part in parts:
            graphs.append(torch.cuda.CUDAGraph())
            with _capturing(graphs[-1], self.side):
                part()
        passed = [0.0] + [self._time_of(graph, times) for graph in (*graphs, self.graph)]
        return {name: later - before for name, before, later in zip(STAGES, passed[:-1], passed[1:], strict=True)}

    def _time_of(self, graph: torch.cuda.CUDAGraph, times: int) -> float:
        assert self.window is not None
        self.window.at.zero_()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        began.record()
        for _ in range(min(times, len(self.window.losses) - 1)):
            graph.replay()
        ended.record()
        torch.cuda.synchronize()
        milliseconds: float = began.elapsed_time(ended)
        return milliseconds / 1000 / min(times, len(self.window.losses) - 1)

    def _fetch(self) -> None:
        """Sends the losses of the steps so far to the host, without waiting for them."""
        if self.window is None or self.read == self.done:
            return
        there = torch.empty(self.done - self.read, pin_memory=self.side is not None)
        there.copy_(self.window.losses[self.read : self.done], non_blocking=True)
        event = None if self.side is None else torch.cuda.Event()
        if event is not None:
            event.record()
        self.coming.append((self.first + self.read, there, event))
        self.read = self.done

    def _arrived(self, wait: bool) -> list[float]:
        found: list[float] = []
        while self.coming:
            first, losses, event = self.coming[0]
            if event is not None and not wait and not event.query():
                break
            self.coming.popleft()
            if event is not None:
                event.synchronize()
            found += [self._checked(loss, first + i) for i, loss in enumerate(losses.tolist())]
        return found


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """What runs within becomes the graph.

    Another thread may do meanwhile what a capture forbids, such as take pinned memory for the next window. A capture
    that fails leaves torch's random numbers as if it went on, and every later run of the process would fail: they go on
    in a state of their own.
    """
    try:
        with _uncollected(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            yield
    except Exception:
        random = torch.cuda.default_generators[torch.cuda.current_device()]
        random.graphsafe_set_state(random.clone_state())
        raise


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within, Python collects no garbage: freeing an older run's graph would break a capture."""
    gc.collect()
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _capturable(step: Step) -> bool:
    """Whether every step has the same shapes and reads everything that changes from the window."""
    settings, optimizer = step.settings, step.optimizer
    if settings.clip or not isinstance(optimizer, Adam):
        return False
    if settings.l2_full and optimizer.by_rows:  # rows know their last step, and all of them have a gradient
        return False
    return all(optimizer.can_be_captured(group) for group in optimizer.param_groups)


def _compiled(objective: Any) -> Any:
    """Compiles the function with torch.compile and padded matrices: kernels for rows that are no multiple of 16 bytes
    (700 units) have a third of the speed."""
    # All models share this function, and dynamo gives up on a function after eight variants.
    torch.compiler.reset()
    # Not where it is defined: the mark loads torch's compiler, which takes seconds, and most runs compile nothing.
    torch.compiler.assume_constant_result(shared_memory_bytes)
    return torch.compile(objective, dynamic=False, options={"shape_padding": True, "force_shape_pad": True})


def _pinned(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory() if device.type == "cuda" else values
