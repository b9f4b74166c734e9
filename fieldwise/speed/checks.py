"""Checks that fast is also right: compares fast parts with plain PyTorch in float64, and bf16 training with float32.

Both sides get the same numbers: inputs of matrix products are rounded to their precision first. Otherwise a ReLU whose
input is within rounding of zero would open on one side only, and gradients would differ for that reason alone.

Trained networks differ by chance: two runs in float32 whose starting values differ by a rounding end in different
places, with different AUCs. So each seed is trained three times: in float32, in float32 from a start moved by bf16's
rounding, and in bf16. The first two show how much is chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fieldwise.bundle.scoring import SCORE_ROWS, device_of, score
from fieldwise.data.dataset import Part
from fieldwise.data.schema import Layout
from fieldwise.evaluation import metrics
from fieldwise.nn.model import Model
from fieldwise.optim import Adam
from fieldwise.parts.kernel import gpu as kernel
from fieldwise.parts.kernel.formula import KernelProduct
from fieldwise.parts.micro import gpu as micro
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.ways import formulas_alone
from fieldwise.speed.bench import FIELDS, Setting, layout_of, made_model, made_step
from fieldwise.train.steps import Step

LIMITS = {"float32": 1e-5, "bf16": 1e-2}
SCORE_LIMITS = {"float32": 1e-5, "bf16": 2e-2}  # of whole networks: a DNN rounds in every layer
AUC_LIMIT = 2e-4
CHANCE_LIMIT = 1e-3  # with more chance than this, a check could not tell a bad precision from a good one
SEEDS = 6


class Rounded(MicroNetwork):
    """A micro network that rounds its third input, the product, as a matrix product in bfloat16 does."""

    rounds = False

    def forward(self, v: Tensor) -> Tensor:
        with formulas_alone() if self.rounds else nullcontext():
            return super().forward(v)

    def both(self, p: Tensor, q: Tensor) -> Tensor:
        exact = p * q
        return exact + (exact.detach().bfloat16().to(p.dtype) - exact.detach()) if self.rounds else exact


@dataclass(frozen=True)
class Shape:
    """The shape of a batch, and of a part's layers if it has some."""

    fields: int = FIELDS
    dim: int = 20
    units: int = 40
    outs: int = 5
    rows: int = 512

    @property
    def dims(self) -> list[int]:
        return [self.dim] * self.fields

    def __str__(self) -> str:
        return f"{self.fields} fields of {self.dim}, subnet {self.units}, {self.outs}, {self.rows} rows"


Make = Callable[[Shape], nn.Module]
PARTS: dict[str, Make] = {
    "pin's micro networks": lambda shape: Rounded(shape.dims, (shape.units, shape.outs)),
    "nifm's micro networks": lambda shape: MicroNetwork(shape.dims, (shape.units, 1), product=False, last_norm=False),
    "kernel products": lambda shape: KernelProduct(shape.dims, "mat", "uniform"),
}
DRAWN = 8  # random shapes of each part, besides that of the bench
NEAR = 1e-5  # a unit this near to zero may open on one side only


def drawn_shapes(count: int, seed: int) -> Iterator[Shape]:
    """Random shapes: vectors shorter and longer than the units, and sizes that are not multiples of a register's."""
    random = Random(seed)
    for _ in range(count):
        yield Shape(*(random.randint(*ends) for ends in ((3, 12), (1, 130), (4, 130), (2, 8), (100, 300))))


@dataclass(frozen=True)
class Check:
    """A measured error and its limit."""

    what: str
    precision: str
    found: float
    limit: float

    @property
    def right(self) -> bool:
        return self.found <= self.limit


def checks(names: tuple[str, ...], setting: Setting) -> Iterator[Check]:
    """All checks of this device: Adam's rows, parts forward and backward, and the AUC of the named models."""
    device = device_of(setting.device)
    for dim in (1, 20, 152):
        yield Check(f"Adam on rows of {dim}", "float32", adam_error(dim, device), LIMITS["float32"])
    for what, make in PARTS.items():
        for shape in (Shape(), *drawn_shapes(DRAWN, setting.seed)):
            for precision, limit in LIMITS.items():
                if precision == "bf16" and not fused(make, device, shape):
                    continue
                for side, found in part_errors(make, precision, device, shape).items():
                    yield Check(f"{what}, {side}: {shape}", precision, found, limit)
    for name in names:
        yield from trained_checks(name, setting)


def adam_error(dim: int, device: torch.device) -> float:
    """The error of five steps on a table of 10,000 rows, with 20,000 mostly repeated ids each, against float64."""
    torch.manual_seed(0)
    start = 0.05 * torch.randn(10_000, dim, device=device)
    tables = [start.clone().requires_grad_(), start.double().requires_grad_()]
    optimizers = [Adam([table]) for table in tables]
    for _ in range(5):
        ids = (10_000 ** torch.rand(20_000, device=device, dtype=torch.float64)).long() - 1
        values = torch.randn(20_000, dim, device=device)
        for table, optimizer in zip(tables, optimizers, strict=True):
            shape, numbers = table.shape, values.to(table.dtype)
            table.grad = torch.sparse_coo_tensor(ids[None], numbers, shape, check_invariants=False)
            with formulas_alone() if table.dtype == torch.float64 else nullcontext():
                optimizer.step()
    return error(tables[0] - start, tables[1] - start.double())


def part_errors(make: Make, precision: str, device: torch.device, shape: Shape) -> dict[str, float]:
    """Errors of features with and without gradients, of the vectors' gradient, and the worst of the weights'."""
    errors = [error(*pair) for pair in compared(make, precision, device, shape)]
    return {"forward": errors[0], "scores": errors[1], "backward": errors[2], "weights": max(errors[3:])}


def fused(make: Make, device: torch.device, shape: Shape) -> bool:
    """Whether bf16 is our own: on a GPU, parts whose matrices are too large for the kernels fall back to autocast."""
    part = make(shape)
    with torch.autocast(device.type, torch.bfloat16):
        way = kernel.TRITON if isinstance(part, KernelProduct) else micro.TRITON
        return device.type == "cpu" or not way.against(part, torch.empty(1, device=device))


def compared(make: Make, precision: str, device: torch.device, shape: Shape) -> list[tuple[Tensor, Tensor]]:
    """Results of the fast and the plain part: features with and without gradients, gradients of vectors and weights."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    fast, slow = make(shape).to(device), make(shape).to(device).double()
    with torch.no_grad():
        for ours, theirs in zip(fast.parameters(), slow.parameters(), strict=True):
            ours.copy_(ours.to(dtype))
            theirs.copy_(ours)
    if isinstance(slow, Rounded):
        slow.rounds = precision == "bf16"
    v = clear(slow, torch.randn(shape.rows, shape.fields, shape.dim, device=device).to(dtype))
    two, one = v.double().requires_grad_(), v.float().requires_grad_()
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        ours = fast(one)
        with torch.no_grad():
            scores = fast(one)
    with formulas_alone():
        theirs = slow(two)
    pull = torch.randn_like(theirs).to(dtype)
    ours.backward(pull.to(ours.dtype))
    theirs.backward(pull.double())
    expected = theirs.detach()
    found: list[tuple[Any, Any]] = [(ours.detach(), expected), (scores, expected), (one.grad, two.grad)]
    return found + [(a.grad, b.grad) for a, b in zip(fast.parameters(), slow.parameters(), strict=True)]


def clear(part: nn.Module, v: Tensor) -> Tensor:
    """Replaces rows with a unit near zero by copies of others: their gradients would differ for that reason alone."""
    near = torch.full((len(v),), torch.inf, device=v.device, dtype=torch.float64)

    def look(relu: nn.Module, given: tuple[Tensor, ...]) -> None:
        units = given[0].abs().amin(-1)  # of rows, or of pairs and rows
        torch.minimum(near, units if units.dim() == 1 else units.amin(0), out=near)

    hooks = [relu.register_forward_pre_hook(look) for relu in part.modules() if isinstance(relu, nn.ReLU)]
    with torch.no_grad(), formulas_alone():
        part(v.double())
    for hook in hooks:
        hook.remove()
    kept = torch.nonzero(near > min(NEAR, float(near.max()) / 2))[:, 0]
    return v[kept[torch.arange(len(v), device=v.device) % len(kept)]]


def error(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    with torch.no_grad():
        return float((found.double() - expected.double()).norm() / expected.double().norm())


@dataclass(frozen=True)
class Paths:
    """AUCs of the same seeds: in float32, in float32 from a start moved by bf16's rounding, and in bf16."""

    plain: list[float]
    moved: list[float]
    fast: list[float]

    @property
    def difference(self) -> float:
        """The mean AUC of bf16 minus that of float32."""
        return float(np.mean(self.fast) - (np.mean(self.plain) + np.mean(self.moved)) / 2)

    @property
    def chance(self) -> float:
        """Three standard errors of that difference, if bf16 were another run of float32.

        A run's variance s^2 is half the mean square of (plain - moved); the difference has s^2 (1 + 1/2) / seeds.
        """
        variance = float(np.mean((np.array(self.plain) - self.moved) ** 2)) / 2
        return 3 * math.sqrt(1.5 * variance / len(self.fast))

    def checks(self, name: str) -> Iterator[Check]:
        """Whether the difference is within limit and chance, and whether chance is small enough to tell."""
        what = f"AUC of {name} over {len(self.fast)} seeds: {np.mean(self.fast):.5f} for {np.mean(self.plain):.5f}"
        yield Check(what, "bf16", abs(self.difference), AUC_LIMIT + self.chance)
        yield Check(
            f"AUC of {name}: chance, 3 standard errors; more could hide a difference",
            "float32",
            self.chance,
            CHANCE_LIMIT,
        )


def trained_checks(name: str, setting: Setting) -> Iterator[Check]:
    """A model after one epoch: its AUC in bf16 against float32, and its scores against float64."""
    plain, fast = (Epoch(name, replace(setting, precision=precision)) for precision in LIMITS)
    found = Paths([], [], [])
    for seed in range(SEEDS):
        found.fast.append(fast.auc(seed))
        found.moved.append(plain.auc(seed, moved=True))
        found.plain.append(plain.auc(seed))
    yield from found.checks(name)
    for precision, limit in SCORE_LIMITS.items():
        ids = plain.held_out.ids[:100_000]
        yield Check(f"scores of {name}", precision, score_error(plain.step.model, ids, precision), limit)


class Epoch:
    """One epoch of a model on learnable rows, from a fresh start for each seed, with one step (and CUDA graph)."""

    def __init__(self, name: str, setting: Setting, rows: int = 5_000_000, held_out: int = 300_000) -> None:
        self.name, self.setting, self.layout = name, setting, layout_of(39_000)
        self.part, self.held_out = learnable(self.layout, rows, seed=1), learnable(self.layout, held_out, seed=2)
        # With a rate that falls to zero, two runs that differ by rounding end near each other.
        train = replace(setting.train, lr=1e-3, schedule="cosine")
        self.step = made_step(name, self.layout, setting, train, total=self.part.rows // setting.batch)

    def auc(self, seed: int, moved: bool = False) -> float:
        """AUC on held-out rows after the epoch; `moved` changes each starting weight by up to 2^-9 of itself."""
        start = made_model(self.name, self.layout, replace(self.setting, seed=seed))
        start_anew(self.step, list(start.parameters()), moved)
        for number, batch in enumerate(self.step.batches(self.part, epoch=0)):
            self.step.run(batch, number)
        self.step.flush()
        logits = score(self.step.model, self.held_out.ids, precision=self.setting.precision)
        return metrics.auc(self.held_out.labels, logits)


@torch.no_grad()
def start_anew(step: Step, start: list[nn.Parameter], moved: bool = False) -> None:
    """Copies in starting weights and clears the optimiser, in the step's own memory, so that its graph stays valid."""
    for weight, value in zip(step.model.parameters(), start, strict=True):
        weight.copy_(value * (1 + (torch.rand_like(value) - 0.5) * 2**-8) if moved else value)
        for state in step.optimizer.state.get(weight, {}).values():
            state.zero_()
    for group in step.optimizer.param_groups:
        group["step"] = 0


def score_error(model: Model, ids: NDArray[np.int32], precision: str) -> float:
    """|scores - scores in float64| / |scores in float64|, over many rows."""
    found, exact = score(model, ids, precision=precision), deepcopy(model).double().eval()
    device = next(model.parameters()).device
    with torch.inference_mode():
        batches = [exact(torch.from_numpy(part).to(device)) for part in np.array_split(ids, 1 + len(ids) // SCORE_ROWS)]
    return error(torch.from_numpy(found), torch.cat(batches).cpu())


@cache
def learnable(layout: Layout, rows: int, seed: int) -> Part:
    """Rows as in the bench, with labels from a logit of their ids: a weight for each id, and a few products."""
    random = np.random.default_rng(seed)
    ids = (np.power(np.array(layout.sizes), random.random((rows, layout.fields))) - 1).astype(np.int32)
    truth = np.random.default_rng(0)
    weights = truth.normal(size=(layout.fields, max(layout.sizes)))
    taken = weights[np.arange(layout.fields), ids]
    logits = 0.3 * taken.sum(axis=1) + 0.3 * (taken[:, :-1] * taken[:, 1:]).sum(axis=1) - 1
    return Part(ids, (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.uint8))


def as_json(check: Check) -> dict[str, Any]:
    """The check as JSON."""
    facts = {"what": check.what, "precision": check.precision}
    return facts | {"error": check.found, "limit": check.limit, "right": check.right}
