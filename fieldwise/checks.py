"""Whether fast is also right: each fast part beside plain PyTorch in float64, and bf16 training beside float32.

Both get the same numbers: what goes into a matrix product is rounded to its precision first. Else a ReLU would open for
one and stay closed for the other wherever its input is within rounding of zero, and gradients would tell of that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise import metrics
from fieldwise.bench import FIELDS, Setting, layout_of, made_step
from fieldwise.data.dataset import Part
from fieldwise.data.schema import Layout
from fieldwise.nn.interactions import KernelProduct
from fieldwise.nn.micro import MicroNetwork
from fieldwise.optim import Adam
from fieldwise.scoring import device_of, score

LIMITS = {"float32": 1e-5, "bf16": 1e-2}
AUC_LIMIT = 2e-4


class Rounded(MicroNetwork):
    """A micro network whose third input, the product, is what a product of bfloat16 matrices gets of it."""

    rounds = False

    def forward(self, v: Tensor) -> Tensor:
        return self.plain(v) if self.rounds else super().forward(v)

    def both(self, p: Tensor, q: Tensor) -> Tensor:
        exact = p * q
        return exact + (exact.detach().bfloat16().to(p.dtype) - exact.detach()) if self.rounds else exact


PARTS: dict[str, Callable[[], nn.Module]] = {
    "pin's micro networks": lambda: Rounded([20] * FIELDS, (40, 5)),
    "nifm's micro networks": lambda: MicroNetwork([20] * FIELDS, (40, 1), product=False, last_norm=False),
    "kernel products": lambda: KernelProduct([20] * FIELDS, "mat", "uniform"),
}


@dataclass(frozen=True)
class Check:
    """A thing that was measured, and what it may be at most."""

    what: str
    precision: str
    found: float
    limit: float

    @property
    def right(self) -> bool:
        return self.found <= self.limit


def checks(names: tuple[str, ...], setting: Setting) -> Iterator[Check]:
    """All checks of this device: rows of Adam, parts forward and backward, and the AUC of the models named."""
    device = device_of(setting.device)
    for dim in (1, 20, 152):
        yield Check(f"Adam on rows of {dim}", "float32", adam_error(dim, device), LIMITS["float32"])
    for what, make in PARTS.items():
        for precision, limit in LIMITS.items():
            for side, found in part_errors(make, precision, device).items():
                yield Check(f"{what}, {side}", precision, found, limit)
    for name in names:
        plain, fast = (auc_after_an_epoch(name, replace(setting, precision=p)) for p in LIMITS)
        yield Check(f"AUC of {name}, {fast:.5f} for {plain:.5f}", "bf16", abs(fast - plain), AUC_LIMIT)


def adam_error(dim: int, device: torch.device) -> float:
    """Five steps of a table of 10,000 rows by 20,000 ids each, most of them often, beside the same in float64."""
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
            optimizer.step()
    return error(tables[0] - start, tables[1] - start.double())


def part_errors(
    make: Callable[[], nn.Module], precision: str, device: torch.device, fields: int = FIELDS, rows: int = 512
) -> dict[str, float]:
    """Errors of an interaction's features, of the vectors' gradients (the median row's), and of the worst weights'."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    fast, slow = make().to(device), make().to(device).double()
    with torch.no_grad():
        for ours, theirs in zip(fast.parameters(), slow.parameters(), strict=True):
            ours.copy_(ours.to(dtype))
            theirs.copy_(ours)
    if isinstance(slow, Rounded):
        slow.rounds = precision == "bf16"
    v = torch.randn(rows, fields, 20, device=device).to(dtype)
    two, one = v.double().requires_grad_(), v.float().requires_grad_()
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        ours = fast(one)
    theirs = slow(two)
    pull = torch.randn_like(theirs).to(dtype)
    ours.backward(pull.to(ours.dtype))
    theirs.backward(pull.double())
    assert one.grad is not None
    assert two.grad is not None
    # A unit within rounding of zero may open for one and stay closed for the other: that is one row's, not the part's.
    by_row = (one.grad.double() - two.grad).flatten(1).norm(dim=1) / two.grad.flatten(1).norm(dim=1)
    pairs = zip(fast.parameters(), slow.parameters(), strict=True)
    weights = [error(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None]
    found = {"forward": error(ours, theirs), "backward": float(by_row.median())}
    return found | ({"weights": max(weights)} if precision == "bf16" else {})


def error(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    with torch.no_grad():
        return float((found.double() - expected.double()).norm() / expected.double().norm())


def auc_after_an_epoch(name: str, setting: Setting) -> float:
    """AUC on held-out rows whose labels depend on their ids, after one epoch."""
    layout = layout_of(39_000)
    part, held_out = learnable(layout, 2_000_000, seed=1), learnable(layout, 300_000, seed=2)
    # Where the rate falls to nothing, two runs that differ by rounding end in the same place.
    settings = replace(setting.train, lr=1e-3, schedule="cosine")
    step = made_step(name, layout, setting, settings, total=part.rows // setting.batch)
    for number, batch in enumerate(step.batches(part, epoch=0)):
        step.run(batch, number)
    step.flush()
    return metrics.auc(held_out.labels, score(step.model, held_out.ids))


@cache
def learnable(layout: Layout, rows: int, seed: int) -> Part:
    """Rows as the bench draws them, with labels by a logit of their ids: a weight for each id, and a few products."""
    random = np.random.default_rng(seed)
    ids = (np.power(np.array(layout.sizes), random.random((rows, layout.fields))) - 1).astype(np.int32)
    truth = np.random.default_rng(0)
    weights = truth.normal(size=(layout.fields, max(layout.sizes)))
    taken = weights[np.arange(layout.fields), ids]
    logits = 0.3 * taken.sum(axis=1) + 0.3 * (taken[:, :-1] * taken[:, 1:]).sum(axis=1) - 1
    return Part(ids, (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.uint8))


def as_json(check: Check) -> dict[str, Any]:
    """The check for scripts."""
    facts = {"what": check.what, "precision": check.precision}
    return facts | {"error": check.found, "limit": check.limit, "right": check.right}
