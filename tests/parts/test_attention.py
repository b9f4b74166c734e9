"""AFM's attention by compiled loops equals the plain one, gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fieldwise.loops.running import ROWS_PER_THREAD
from fieldwise.parts.attention.compiled import Scores
from fieldwise.parts.attention.formula import AttentionPool
from tests.parts.drawn import by_formula, drawn, numbers

ROWS = 2 * ROWS_PER_THREAD + 3


def gradients(pool: AttentionPool, v: Tensor, pooled: Tensor) -> list[Tensor]:
    weights = [v, pool.attend.weight, pool.attend.bias, pool.score]  # type: ignore[list-item]
    return [pooled, *torch.autograd.grad(pooled, weights, torch.cos(pooled.detach()))]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dim", "hidden"), [(3, 2), (16, 16), (20, 21)])
def test_equals_the_plain_way(dim: int, hidden: int, threads: int) -> None:
    pool, v = drawn(AttentionPool([dim] * 5, hidden, temperature=2.0)), numbers(ROWS, 5, dim).requires_grad_()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    fast = gradients(pool, v, pool(v))
    torch.set_num_threads(before)
    for one, two in zip(gradients(pool, v, by_formula(pool, v)), fast, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


def test_many_rows_take_it_and_few_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, taken, apply = AttentionPool([4] * 3, 5).double(), [], Scores.apply
    monkeypatch.setattr(Scores, "apply", lambda v, *given: taken.append(len(v)) or apply(v, *given))
    for rows in (ROWS_PER_THREAD - 1, ROWS_PER_THREAD):
        pool(numbers(rows, 3, 4))
    assert taken == [ROWS_PER_THREAD]


def test_bf16_computes_it_in_float32() -> None:
    torch.manual_seed(0)
    pool, v = AttentionPool([8] * 4, 16), torch.randn(ROWS, 4, 8)
    exact = pool(v)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(pool(v), exact, rtol=0, atol=0)
