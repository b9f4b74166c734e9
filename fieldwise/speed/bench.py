"""Measures how fast each model trains on this machine, and compares it with the machine's limits.

The shape is that of the paper's Table 10: 39 fields, vectors of 20, a DNN of five layers of 700, sub-networks of
40 and 5. Rows are random, encoded and in memory; `batches` and `make_step` handle them as in `train`.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fieldwise.bundle.scoring import device_of, placed, score
from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.batches import Batch, batches
from fieldwise.data.dataset import Part
from fieldwise.data.schema import Layout
from fieldwise.models import MODELS, build, options
from fieldwise.nn.model import Model
from fieldwise.speed.ceilings import PeakMemory, ceilings, machine, synchronize
from fieldwise.speed.costs import bytes_per_row, flops_per_row
from fieldwise.train.steps import STAGES, CapturedStep, Step, make_step

FIELDS = 39
WARM_UP = 4  # steps
# Table 10's options, for all models that have them, and the exceptions.
SHAPE: dict[str, Any] = {"dim": 20, "hidden": (700,) * 5, "dropout": 0.0, "subnet": (40, 5), "attention": 16}
OTHERS: dict[str, dict[str, Any]] = {
    "ccpm": {"hidden": (256, 256, 256)},
    "ffm": {"dim": 4},
    "ffm-k1": {"dim": 1},
    "nifm": {"subnet": (40, 1)},
    "poly2": {"buckets": 2**12},
}
VARIANTS = {"ffm-k1": "ffm"}


def names() -> list[str]:
    """The models that can be measured: every registered network, and variants with other options."""
    return [*MODELS, *VARIANTS]


def shape_of(name: str) -> tuple[str, dict[str, Any]]:
    """The model of this name and its options in the bench."""
    if name not in names():
        raise ConfigError(unknown("model of the bench", name, names()))
    model = VARIANTS.get(name, name)
    return model, {key: value for key, value in SHAPE.items() if key in options(model)} | OTHERS.get(name, {})


@dataclass(frozen=True)
class Setting:
    """What all measurements of one call share. `rows` is how many are timed for each model, after the warm-up."""

    device: str = "cpu"
    rows: int = 40_000
    batch: int = 2000
    precision: str = "float32"
    optimizer: str = "adam"
    seed: int = 0
    train: TrainSettings = field(init=False)

    def __post_init__(self) -> None:
        if self.rows < self.batch or self.batch < 2:
            sizes = f"found --rows {self.rows} and --batch {self.batch}"
            raise ConfigError(f"--rows must be at least --batch, and --batch at least 2: {sizes}; change one of them")
        # Vectors large enough that bfloat16 does not round them away.
        settings = TrainSettings(self.batch, optimizer=self.optimizer, precision=self.precision, init_scale=0.05)
        object.__setattr__(self, "train", settings)


def run(asked: Sequence[str], vocabularies: Sequence[int], setting: Setting) -> Iterator[dict[str, Any]]:
    """Yields the machine and its limits, then the figures of each model and vocabulary as they are measured."""
    for name in asked:
        shape_of(name)
    if min(vocabularies) < 2 * FIELDS:
        raise ConfigError(f"--vocab needs at least two categories a field, {2 * FIELDS}, found {min(vocabularies)}")
    device = device_of(setting.device)
    most = ceilings(device, setting.precision)
    yield {"machine": machine(device), "ceilings": most}
    for vocabulary in vocabularies:
        layout = layout_of(vocabulary)
        # Whole batches only: a smaller one at an epoch's end would be a plain step instead of the captured one.
        rows = max(1, min(setting.rows, 500_000) // setting.batch) * setting.batch
        part = drawn_rows(layout, rows, setting.seed)
        for name in asked:
            yield measure(name, layout, part, setting, most)


def layout_of(vocabulary: int) -> Layout:
    """This many categories in all, equally many in each field."""
    return Layout.of([vocabulary // FIELDS] * FIELDS)


def drawn_rows(layout: Layout, rows: int, seed: int) -> Part:
    """Rows whose ids follow Zipf's law (exponent 1) in each field; a quarter of them is positive."""
    random = np.random.default_rng(seed)
    # The inverse of a truncated power law's distribution: size^u.
    ids = np.power(np.array(layout.sizes), random.random((rows, layout.fields))) - 1
    return Part(ids.astype(np.int32), (random.random(rows) < 0.25).astype(np.uint8))


def _built(name: str, layout: Layout) -> Model:
    model_name, settings = shape_of(name)
    model = build(model_name, layout, settings)
    assert isinstance(model, Model)
    return model


def made_model(name: str, layout: Layout, setting: Setting) -> Model:
    """A model of this shape, on the device, with the seed's starting values."""
    torch.manual_seed(setting.seed)
    with device_of(setting.device):  # so that a large table is filled there and not on the host
        model = _built(name, layout)
    return model.to(device_of(setting.device)).train()


def made_step(
    name: str, layout: Layout, setting: Setting, train: TrainSettings | None = None, total: int = 10**6
) -> Step:
    """The step of `train` for a model of this shape; `train` replaces the bench's settings."""
    config = Config(*shape_of(name), train or setting.train, setting.seed, setting.device)
    return make_step(made_model(name, layout, setting), config, total)


def measure(name: str, layout: Layout, part: Part, setting: Setting, most: dict[str, float]) -> dict[str, Any]:
    """The figures of one model: speed, time of each stage, memory, and shares of the machine's limits."""
    gc.collect()
    device = device_of(setting.device)
    memory = PeakMemory(device)
    step = made_step(name, layout, setting)
    clock, source = Clock(device), _forever(step, part)
    started, _ = clock.time(lambda: _steps(step, source, WARM_UP))
    count = setting.rows // setting.batch
    wall, processor = clock.time(lambda: _steps(step, source, count, first=WARM_UP))
    stages = _stages(step, part, setting, clock, count)
    ids = placed(step.model, part.ids[: setting.rows])  # on a GPU, as training's rows
    _scores(step, ids, setting, setting.rows)  # warm-up: kernels are compiled for these sizes
    scored, _ = clock.time(lambda: _scores(step, ids, setting, setting.rows))
    peak = memory.read()
    small = Layout.of([2] * FIELDS)
    flops = flops_per_row(_built(name, small), small)
    moved = bytes_per_row(step.model, step.optimizer, part.ids[: setting.batch], layout)
    speed = count * setting.batch / wall
    return {
        "model": name,
        "vocab": layout.rows,
        "rows_per_s": speed,
        "rows_per_cpu_s": count * setting.batch / processor,
        "ms_per_step": 1000 * wall / count,
        "ms": {stage: 1000 * seconds for stage, seconds in stages.items()},
        "scored_rows_per_s": setting.rows / scored,
        "peak_bytes": peak,
        "flops_per_row": flops["products"] + flops["others"],
        "product_flops_per_row": flops["products"],
        "bytes_per_row": moved,
        "matmul_share": (flops["products"] + flops["others"]) * speed / most["matmul_flops"],
        "copy_share": moved * speed / most["copy_bytes"],
        "parameters": step.model.size,
        "batch": setting.batch,
        "precision": setting.precision,
        "optimizer": setting.optimizer,
        "step": type(step).__name__,
        "start_s": started,
    }


def _stages(step: Step, part: Part, setting: Setting, clock: Clock, count: int) -> dict[str, float]:
    """Seconds of each stage: of the CUDA graph if the step is one, else of plain steps."""
    if isinstance(step, CapturedStep) and step.graph is not None:
        return step.stages()
    source = itertools.chain.from_iterable(
        batches(part, setting.batch, setting.seed, epoch) for epoch in itertools.count()
    )
    return clock.split(step, source, max(3, count // 4), first=WARM_UP + count)


class Clock:
    """Times actions on a device, and the stages of steps."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def time(self, action: Callable[[], object]) -> tuple[float, float]:
        """Seconds of wall time and of processor time."""
        synchronize(self.device)
        wall, processor = time.perf_counter(), time.process_time()
        action()
        synchronize(self.device)
        return time.perf_counter() - wall, time.process_time() - processor

    def split(self, step: Step, source: Iterator[Batch], count: int, first: int) -> dict[str, float]:
        """The median seconds of each stage; a fused step has 0 for some."""
        found: dict[str, list[float]] = {stage: [] for stage in STAGES}
        began = 0.0

        def passed(stage: str) -> None:
            nonlocal began
            synchronize(self.device)
            now = time.perf_counter()
            found[stage].append(now - began)
            began = now

        before, step.passed = step.passed, passed
        for number in range(first, first + count):
            began = time.perf_counter()
            step(next(source), number)
        step.passed = before
        return {stage: float(np.median(seconds)) if seconds else 0.0 for stage, seconds in found.items()}


def _steps(step: Step, source: Iterator[Any], count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        step.run(next(source), number)
    step.flush()


def _scores(step: Step, ids: Any, setting: Setting, rows: int) -> None:
    """Logits of `rows` rows, in the precision of training."""
    for first in range(0, rows, len(ids)):
        score(step.model, ids[: rows - first], precision=setting.precision)


def _forever(step: Step, part: Part) -> Iterator[Any]:
    for epoch in itertools.count():
        yield from step.batches(part, epoch)
