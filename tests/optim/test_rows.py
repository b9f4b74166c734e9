from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fieldwise.optim import FTRL, SGD, AdaGrad, Adam, RowOptimizer, touched
from fieldwise.optim.rows import BLOCK, Orders, order_of
from tests.optim.batches import D, N, backward, batches, dense, sparse, table

EVERY: dict[str, Callable[[Any], RowOptimizer]] = {
    **{f"adam {mode}": lambda w, mode=mode: Adam(w, 0.01, sparse_mode=mode) for mode in ("paper", "lazy", "dense")},
    "adam hat": lambda w: Adam(w, 0.01, eps_mode="hat"),
    "adagrad": lambda w: AdaGrad(w, 0.1),
    "ftrl": lambda w: FTRL(w, 0.1, l1=0.1, l2=0.1),
    "sgd": lambda w: SGD(w, 0.01),
    "sgd momentum": lambda w: SGD(w, 0.01, momentum=0.9),
}
BY_ROWS = {name: make for name, make in EVERY.items() if name != "adam dense"}
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
by_rows = pytest.mark.parametrize("make", BY_ROWS.values(), ids=BY_ROWS)


def test_touched_sums_duplicates() -> None:
    for ids, values in batches(20):
        found, rows = touched(sparse(ids, values))
        grad, mask = dense(ids, values)
        assert torch.equal(found, mask[:, 0].nonzero()[:, 0])
        torch.testing.assert_close(rows, grad[found], rtol=0, atol=1e-14)


def test_touched_adds_in_the_order_of_the_batch() -> None:
    values = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    assert touched(sparse(torch.tensor([3, 3, 3, 3]), values))[1].item() == 1.0


@pytest.mark.parametrize("rows", [5000, 2**31 + 10])
def test_touched_many(rows: int) -> None:
    """Many threads at work, and ids that int32 cannot hold."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(rows - 5000, rows, (40000,), generator=generator)
    values = torch.randn(40000, 3, generator=generator)
    found, summed = touched(sparse(ids, values, rows=rows))
    expected = torch.zeros(5000, 3, dtype=torch.float64).index_add_(0, ids - (rows - 5000), values.double())
    torch.testing.assert_close(summed.double(), expected[found - (rows - 5000)], rtol=0, atol=1e-4)
    assert all(torch.equal(touched(sparse(ids, values, rows=rows))[1], summed) for _ in range(3))


def test_touched_takes_strided_and_coalesced_gradients() -> None:
    ids, values = next(batches(1))
    strided = values.t().contiguous().t()
    expected = touched(sparse(ids, values))
    assert torch.equal(touched(sparse(ids, strided))[1], expected[1])
    found, rows = touched(sparse(ids, values).coalesce())
    assert torch.equal(found, expected[0])
    torch.testing.assert_close(rows, expected[1])


def test_touched_sorts_shared_ids_once() -> None:
    ids, values = next(batches(1))
    orders: Orders = {}
    weights = [table(0), table(1)]
    for weight in weights:
        backward(weight, ids, values)
        assert weight.grad is not None
        touched(weight.grad, orders)
    assert len(orders) == 1
    pairs = torch.stack((ids, ids.flip(0)), 1)  # same address and length, not the same ids
    for view in (pairs[:, 0], pairs.view(-1)[: len(ids)]):
        found, _ = touched(sparse(view, values), orders)
        assert torch.equal(found, view.unique())
    copied = ids.clone()
    assert order_of(sparse(copied, values), orders) is order_of(sparse(ids, values), orders)


def run(
    make: Callable[[Any], RowOptimizer], stop: int | None = None, steps: int = 40, device: str = "cpu"
) -> list[torch.Tensor]:
    """Weights and state after `steps`, with everything saved and loaded again before step `stop`."""
    start = [table(0).float(), torch.ones(3), table(1).float()]
    weights = [torch.nn.Parameter(weight.detach().to(device)) for weight in start]
    optimizer = make([{"params": weights[:2]}, {"params": weights[2:]}])
    for step, (ids, values) in enumerate(batches(steps)):
        if step == stop:
            saved = copy.deepcopy(optimizer.state_dict())
            weights = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
            optimizer = make([{"params": weights[:2]}, {"params": weights[2:]}])
            optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        backward(weights[0], ids, values)
        weights[1].grad = values[0, :3].to(weights[1])
        if step % 3:
            backward(weights[2], ids, values)
        optimizer.step()
    return [weight.detach() for weight in weights] + [
        tensor for weight in weights for _, tensor in sorted(optimizer.state[weight].items())
    ]


@every
def test_resumed_is_never_stopped(make: Callable[[Any], RowOptimizer]) -> None:
    expected = run(make)
    for stop in [0, 1, *random.Random(0).sample(range(2, 40), 5)]:
        found = run(make, stop)
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), stop


@every
def test_last_step_survives_what_float32_cannot_count(make: Callable[[Any], RowOptimizer]) -> None:
    weight = table(dtype=torch.float32)
    optimizer = make([weight])
    optimizer.param_groups[0]["step"] = 2**24
    backward(weight, *next(batches(1)))
    optimizer.step()
    other = make([weight])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups[0]["step"] == 2**24 + 1
    for name, tensor in optimizer.state[weight].items():
        assert torch.equal(other.state[weight][name], tensor)


@every
def test_state_is_tensors_and_numbers(make: Callable[[Any], RowOptimizer]) -> None:
    weight = table()
    optimizer = make([weight])
    backward(weight, *next(batches(1)))
    optimizer.step()
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        assert all(isinstance(tensor, torch.Tensor) and len(tensor) == N for tensor in state.values())
    for group in saved["param_groups"]:
        numbers = [group[name] for name in group if name not in ("params", "betas")] + list(group.get("betas", ()))
        assert all(isinstance(number, int | float) for number in numbers)


@by_rows
def test_a_grown_table_needs_only_zero_rows(make: Callable[[Any], RowOptimizer]) -> None:
    """Ten rows that arrive after 20 steps do as if they had been there, untouched, from the start."""
    whole, small = table(rows=N + 10), table(rows=N)
    small.data = whole.detach()[:N].clone()
    optimizer, growing = make([whole]), make([small])
    for step, (ids, values) in enumerate(batches(40)):
        if step == 20:
            saved = growing.state_dict()
            for name, tensor in saved["state"][0].items():
                saved["state"][0][name] = torch.cat((tensor, tensor.new_zeros(10, *tensor.shape[1:])))
            small = torch.nn.Parameter(torch.cat((small.detach(), whole.detach()[N:])))
            growing = make([small])
            growing.load_state_dict(saved)
        if step >= 20:
            ids = ids + 10 * (ids > 5)
        for weight, each in ((whole, optimizer), (small, growing)):
            each.zero_grad()
            backward(weight, ids, values)
            each.step()
    assert torch.equal(whole, small)


@by_rows
def test_a_step_reads_and_writes_touched_rows_only(make: Callable[[Any], RowOptimizer]) -> None:
    """Rows out of the batch hold NaN: whatever looked at them would spread it."""
    weight = table()
    optimizer = make([weight])
    ids, values = next(batches(1))
    with torch.no_grad():
        rest = torch.ones(N, dtype=torch.bool)
        rest[ids] = False
        weight[rest] = math.nan
    for _ in range(3):
        weight.grad = sparse(ids, values)
        optimizer.step()
    assert weight[ids].isfinite().all()
    assert weight[rest].isnan().all()
    for tensor in optimizer.state[weight].values():
        assert not tensor[rest].any()


@every
def test_blocks_are_not_seen(make: Callable[[Any], RowOptimizer], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for block in (BLOCK, 2 * D, 1):
        monkeypatch.setattr("fieldwise.optim.rows.BLOCK", block)
        found.append(run(make, steps=5))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@every
def test_a_copy_is_the_same_optimizer(make: Callable[[Any], RowOptimizer]) -> None:
    weight = table()
    optimizer = make([weight])
    ids, values = next(batches(1))
    twin = copy.deepcopy(optimizer)
    (other,) = twin.param_groups[0]["params"]
    for _ in range(2):
        for each, w in ((optimizer, weight), (twin, other)):
            w.grad = sparse(ids, values)
            each.step()
    assert torch.equal(weight, other)
    assert all(getattr(twin, name) == getattr(optimizer, name) for name in optimizer.settings)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every
def test_on_a_gpu(make: Callable[[Any], RowOptimizer]) -> None:
    expected, found, resumed = run(make), run(make, device="cuda"), run(make, stop=20, device="cuda")
    for a, b, c in zip(expected, found, resumed, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)
        assert torch.equal(b, c)


def test_a_closure_gives_its_loss() -> None:
    weight = torch.nn.Parameter(torch.ones(2))

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return loss.item()

    assert SGD([weight], 0.5).step(closure) == 2.0
    assert torch.equal(weight, torch.zeros(2))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_grown_table_goes_on_as_if_it_had_been_large_from_the_start(
    make: Callable[[Any], RowOptimizer], dtype: torch.dtype
) -> None:
    """Rows that come in the middle and at the end: bit for bit those of a table that had them, never touched."""
    was = torch.cat([torch.arange(10), torch.tensor([-1, -1]), torch.arange(10, N), torch.tensor([-1])])
    place = (was >= 0).nonzero()[:, 0]
    large, small = table(dtype=dtype, rows=len(was)), table(dtype=dtype)
    with torch.no_grad():
        small.copy_(large[place])
    always, before = make([large]), make([small])
    for ids, values in batches(30):
        for optimizer, weight, rows in ((always, large, place[ids]), (before, small, ids)):
            optimizer.zero_grad()
            backward(weight, rows, values)
            optimizer.step()
    grown = torch.nn.Parameter(torch.where((was < 0)[:, None], large, small[was.clamp(min=0)]).detach().clone())
    after = make([grown])
    assert after.understands(before)
    after.adopt(before, {grown: was})
    for ids, values in batches(40, seed=2):
        for optimizer, weight in ((always, large), (after, grown)):
            optimizer.zero_grad()
            backward(weight, (ids * 7) % len(was), values)
            optimizer.step()
    assert torch.equal(grown, large)
    assert all(torch.equal(after.state[grown][name], value) for name, value in always.state[large].items())


def test_an_optimiser_knows_whose_state_it_understands() -> None:
    weight = table()
    adam, ftrl, sgd = Adam([weight]), FTRL([weight], 0.1), SGD([weight], momentum=0.9)
    assert adam.understands(Adam([weight], lr=0.5, eps=0.1, betas=(0.8, 0.9)))
    assert ftrl.understands(FTRL([weight], 0.1))
    assert sgd.understands(SGD([weight], momentum=0.5))
    others = [Adam([weight], sparse_mode="lazy"), Adam([weight], sparse_mode="dense"), AdaGrad([weight]), ftrl]
    assert not any(adam.understands(other) for other in others)
    assert not any(ftrl.understands(FTRL([weight], *other)) for other in ((0.2,), (0.1, 2.0), (0.1, 1.0, 0.1)))
    assert not sgd.understands(SGD([weight]))


@every
def test_asking_for_the_whole_state_changes_nothing(make: Callable[[Any], RowOptimizer]) -> None:
    """Also where a table's first gradients are dense, so that no row has a last step yet."""
    found = []
    for asked in ((), (0, 3, 9), (2,)):
        weight = table()
        optimizer = make([weight])
        for number, (ids, values) in enumerate(batches(12)):
            if number in asked:
                state = optimizer.whole_state(weight, by_rows=True)
                assert set(state) == {*optimizer.names, *(["last"] if optimizer.decays else [])}
            gradient = sparse(ids, values)
            weight.grad = gradient.to_dense() if number < 2 else gradient
            optimizer.step()
        found.append(weight.detach())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-14)
