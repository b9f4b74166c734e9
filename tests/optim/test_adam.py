from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fieldwise.config.errors import ConfigError
from fieldwise.optim import Adam
from tests.optim.batches import D, N, backward, batches, dense, sparse, table

BETA1, BETA2 = 0.9, 0.999


def dense_reference(weight: Tensor, steps: int, eps: float, eps_mode: str, lr: float = 0.01) -> Tensor:
    """Section 4.3.2 word by word: all moments decay in every step, the update is masked."""
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for t, (ids, values) in enumerate(batches(steps), start=1):
        grad, mask = dense(ids, values)
        mean = BETA1 * mean + (1 - BETA1) * grad
        square = BETA2 * square + (1 - BETA2) * grad * grad
        first, second = 1 - BETA1**t, 1 - BETA2**t
        if eps_mode == "textbook":
            change = (mean / first) / ((square / second).sqrt() + eps)
        else:
            change = math.sqrt(second) / first * mean / (square.sqrt() + eps)
        weight = weight - lr * change * mask
    return weight


@pytest.mark.parametrize("eps_mode", ["textbook", "hat"])
@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_paper_mode_equals_its_dense_reference_over_200_steps(eps_mode: str, eps: float) -> None:
    weight = table()
    optimizer = Adam([weight], 0.01, eps=eps, eps_mode=eps_mode)
    expected = dense_reference(weight.detach().clone(), 200, eps, eps_mode)
    for ids, values in batches(200):
        optimizer.zero_grad()
        backward(weight, ids, values)
        optimizer.step()
    assert (weight - expected).abs().max() < 1e-12
    assert torch.equal(weight[N - 2 :], table()[N - 2 :])


def test_paper_mode_in_float32_over_a_gap_of_thousands_of_steps() -> None:
    weight = table(dtype=torch.float32)
    optimizer = Adam([weight], 0.01)
    for gap in (1, 3000):
        optimizer.param_groups[0]["step"] += gap - 1
        weight.grad = sparse(torch.tensor([0]), torch.ones(1, D))
        optimizer.step()
    square = torch.full((D,), (1 - BETA2) * (BETA2**3000 + 1))
    torch.testing.assert_close(optimizer.state[weight]["square"][0], square, rtol=1e-6, atol=0)


def test_lazy_mode_is_sparse_adam() -> None:
    ours, theirs = table(), table()
    optimizers = [
        Adam([ours], 0.01, eps_mode="hat", sparse_mode="lazy"),
        torch.optim.SparseAdam([theirs], 0.01),
    ]
    for ids, values in batches(200):
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            backward(weight, ids, values)
            optimizer.step()
    assert (ours - theirs).abs().max() < 1e-12


def test_dense_mode_is_torch_adam() -> None:
    ours, theirs = table(), table()
    optimizer, reference = Adam([ours], 0.01, sparse_mode="dense"), torch.optim.Adam([theirs], 0.01)
    for ids, values in batches(200):
        optimizer.zero_grad()
        backward(ours, ids, values)
        optimizer.step()
        theirs.grad, _ = dense(ids, values)
        reference.step()
    assert (ours - theirs).abs().max() < 1e-12


@pytest.mark.parametrize("sparse_mode", ["paper", "lazy", "dense"])
@pytest.mark.parametrize("strided", [False, True])
def test_dense_gradients_are_torch_adam_in_every_mode(sparse_mode: str, strided: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3), (3,), (), (2, 3, 4)]
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(w.clone()) for w in start] for _ in range(2))
    optimizer = Adam(ours, 0.01, betas=(0.8, 0.95), eps=1e-3, sparse_mode=sparse_mode)
    reference = torch.optim.Adam(theirs, 0.01, betas=(0.8, 0.95), eps=1e-3)
    for _ in range(50):
        for a, b in zip(ours, theirs, strict=True):
            grad = torch.randn(a.shape[::-1], generator=generator, dtype=torch.float64)
            grad = grad.permute(tuple(reversed(range(grad.dim()))))
            a.grad, b.grad = (grad if strided else grad.contiguous()), grad.clone()
        optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_hat_mode_on_dense_gradients(fused: bool) -> None:
    weight, grad = (
        torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.float64)),
        torch.full((2, 3), 2.0).double(),
    )
    optimizer = Adam([weight], 0.1, eps=0.5, eps_mode="hat")
    mean = square = expected = 0.0
    for t in range(1, 6):
        weight.grad = grad if fused else grad.t().contiguous().t()
        optimizer.step()
        mean, square = BETA1 * mean + (1 - BETA1) * 2.0, BETA2 * square + (1 - BETA2) * 4.0
        rate = 0.1 * math.sqrt(1 - BETA2**t) / (1 - BETA1**t)
        expected -= rate * mean / (math.sqrt(square) + 0.5)
    torch.testing.assert_close(weight.detach(), torch.full_like(weight, expected), rtol=1e-13, atol=0)


def test_a_step_without_a_gradient_is_a_step_without_a_touched_row() -> None:
    skipped, empty = table(), table()
    optimizers = [Adam([weight], 0.01) for weight in (skipped, empty)]
    for step, (ids, values) in enumerate(batches(20)):
        for weight, optimizer in zip((skipped, empty), optimizers, strict=True):
            optimizer.zero_grad()
            if step % 3:
                backward(weight, ids, values)
            elif weight is empty:
                backward(weight, ids[:0], values[:0])
            optimizer.step()
    assert torch.equal(skipped, empty)
    assert not torch.equal(skipped, table())


def test_a_dense_gradient_touches_all_rows_of_a_table() -> None:
    mixed, plain = table(), table()
    optimizer, reference = Adam([mixed], 0.01), Adam([plain], 0.01, sparse_mode="dense")
    for step, (ids, values) in enumerate(batches(40)):
        grad, _ = dense(ids, values)
        everything = torch.arange(N)
        optimizer.zero_grad()
        if step % 4 in (0, 1):
            mixed.grad = grad.clone()
        else:
            backward(mixed, everything, grad)
        optimizer.step()
        plain.grad = grad
        reference.step()
    assert (mixed - plain).abs().max() < 1e-12


# The numbers of sections 4.3.1 and 4.3.2, taken from the optimiser: a row that is first seen at step t.


def at_step(t: int, weight: torch.nn.Parameter, **settings: object) -> Adam:
    optimizer = Adam([weight], lr=1.0, **settings)  # type: ignore[arg-type]
    optimizer.param_groups[0]["step"] = t - 1
    return optimizer


def first_moves(t: int, grads: np.ndarray, eps: float, eps_mode: str) -> np.ndarray:
    """How far Adam moves a weight first seen at step t, per gradient, in units of the learning rate."""
    weight = torch.nn.Parameter(torch.zeros(1, len(grads), dtype=torch.float64))
    weight.grad = sparse(torch.tensor([0]), torch.from_numpy(grads)[None], rows=1)
    at_step(t, weight, eps=eps, eps_mode=eps_mode).step()
    return -weight.detach().numpy()[0]


@pytest.mark.parametrize(
    ("t", "eps_mode", "threshold", "slope", "saturation"),
    [
        (1, "textbook", 1.0, 0.25, 1.0),
        (100, "textbook", 9.757, 0.2439, 0.9758),
        (10000, "textbook", 31.62, 0.7906, 3.1622),
        (1, "hat", 31.62, 0.25, 1.0),
        (100, "hat", 31.62, 0.2439, 0.9758),
        (10000, "hat", 31.62, 0.7906, 3.1622),
    ],
)
@pytest.mark.parametrize("eps", [1e-8, 1e-4])
def test_threshold_of_the_sensitive_gradient(
    t: int, eps_mode: str, threshold: float, slope: float, saturation: float, eps: float
) -> None:
    x = np.linspace(math.log(eps) - 12, math.log(eps) + 24, 36001)
    moves = first_moves(t, np.exp(x), eps, eps_mode)
    assert moves[-1] == pytest.approx(saturation, rel=1e-4)
    slopes = np.gradient(moves, x)
    assert slopes.max() == pytest.approx(slope, rel=5e-4)
    assert math.exp(x[slopes.argmax()]) == pytest.approx(threshold * eps, rel=2e-3)
    half = np.interp(moves[-1] / 2, moves, x)
    assert math.exp(half) == pytest.approx(threshold * eps, rel=5e-4)


@pytest.mark.parametrize(("t", "total", "ratio"), [(1, 5.99, 6.0), (100, 10.18, 10.4), (10000, 31.7, 10.0)])
def test_long_tail_of_one_gradient(t: int, total: float, ratio: float) -> None:
    """One gradient of 0.01 at step t, then 60 steps in which the batch has another row."""
    moved = {}
    for mode in ("dense", "paper", "lazy"):
        weight = torch.nn.Parameter(torch.zeros(2, 1, dtype=torch.float64))
        optimizer = at_step(t, weight, sparse_mode=mode)
        for step in range(61):
            row, grad = (0, 0.01) if step == 0 else (1, 1.0)
            weight.grad = sparse(torch.tensor([row]), torch.tensor([[grad]], dtype=torch.float64), rows=2)
            optimizer.step()
        moved[mode] = -weight[0].item()
    assert moved["dense"] == pytest.approx(total, rel=1e-3)
    assert moved["dense"] / moved["paper"] == pytest.approx(ratio, rel=1e-2)
    assert moved["paper"] == moved["lazy"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lr": 0.0}, "lr must be positive, found 0.0"),
        ({"lr": math.nan}, "lr must be positive, found nan"),
        ({"betas": (0.9, 1.0)}, r"betas must be two in \[0, 1\), found \(0.9, 1.0\)"),
        ({"eps": -1.0}, "eps must be positive, found -1.0"),
        ({"eps_mode": "hut"}, "unknown eps_mode 'hut'; did you mean 'hat'"),
        ({"sparse_mode": "papr"}, "unknown sparse_mode 'papr'; did you mean 'paper'"),
    ],
)
def test_settings_out_of_range(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Adam([table()], **settings)  # type: ignore[arg-type]
