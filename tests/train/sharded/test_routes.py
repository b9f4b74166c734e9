"""Rows and gradients that go between workers are those of one table; here the workers are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fieldwise.train import distributed
from fieldwise.train.sharded.routes import Router, fetched, share

OFFSETS = torch.tensor([0, 11, 30])
SIZES = torch.tensor([11, 19, 1])


class Threads:
    """The messages of `distributed.exchanged` between threads, counted."""

    def __init__(self, workers: int, patch: pytest.MonkeyPatch) -> None:
        self.workers, self.local, self.sent = workers, threading.local(), 0
        self.meeting, self.table = threading.Barrier(workers), [[torch.empty(0)] * workers for _ in range(workers)]
        patch.setattr(distributed, "rank", lambda: self.local.rank)
        patch.setattr(distributed, "count", lambda: workers)
        patch.setattr(distributed, "exchanged", self.exchanged)

    def exchanged(self, values: Tensor, given: list[int], taken: list[int]) -> Tensor:
        self.table[self.local.rank] = list(values.split(given))
        self.sent += self.local.rank == 0
        self.meeting.wait(60)
        found = [own[self.local.rank] for own in self.table]
        self.meeting.wait(60)
        assert [len(part) for part in found] == taken
        return torch.cat(found)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        def named(rank: int) -> Any:
            self.local.rank = rank
            return work(rank)

        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(named, range(self.workers)))


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_rows_and_gradients_are_those_of_one_table(
    workers: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(workers)
    number = torch.float64 if kind == torch.float64 else torch.float32
    whole = torch.randn(31, 4).to(kind)
    # Few ids of which many are popular, and a worker that looks up a row alone.
    ids = [(torch.rand(9 if rank else 1, 3) ** 2 * SIZES).int() for rank in range(workers)]
    gradients = [torch.randn(*own.shape, 4, dtype=number) for own in ids]
    threads = Threads(workers, monkeypatch)

    def work(rank: int) -> tuple[Tensor, Tensor, int]:
        own = torch.nn.Parameter(whole[rank * share(31) : (rank + 1) * share(31)].clone())
        own.grad_dtype = number
        router = Router(31)
        vectors = fetched(own, router.route(ids[rank], OFFSETS))
        before = threads.sent
        fetched(own, router.route(ids[rank], OFFSETS))  # a second table, looked up by the same ids: only rows are sent
        messages = threads.sent - before
        vectors.backward(gradients[rank])
        assert own.grad is not None
        assert own.grad.is_sparse
        assert own.grad.dtype == number
        return vectors.detach(), own.grad.to_dense(), messages

    found = threads.run(work)
    expected = whole.to(number).requires_grad_()
    for own, gradient, (vectors, _, _) in zip(ids, gradients, found, strict=True):
        plain = functional.embedding(own + OFFSETS, expected)
        assert vectors.equal(plain.detach())
        plain.backward(gradient)
    assert expected.grad is not None
    torch.testing.assert_close(torch.cat([grad for _, grad, _ in found]), expected.grad)
    assert found[0][2] == 1
