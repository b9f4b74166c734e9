"""The compiled row kernel equals the plain PyTorch update, whatever the number of threads."""

import pytest
import torch

from fieldwise.loops import running
from fieldwise.optim import adam, make_optimizer
from fieldwise.parts.ways import no_loops

pytest.importorskip("numba")


def steps(dtype, compiled, monkeypatch, threads=1, dim=7, **settings):
    """The table and its state after steps with duplicates, gaps and untouched rows."""
    if not compiled:
        monkeypatch.setattr(adam, "no_loops", lambda *tensors: "not asked for")
    random = torch.Generator().manual_seed(0)
    table = torch.randn(5000, dim, dtype=dtype, generator=random).requires_grad_()
    optimizer = make_optimizer("adam", [table], lr=0.01, **settings)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for _ in range(12):
        ids = torch.randint(0, 4000, (3000,), generator=random)
        grad = torch.randn(3000, dim, dtype=dtype, generator=random)
        table.grad = torch.sparse_coo_tensor(ids[None], grad, table.shape, check_invariants=False)
        optimizer.step()
    torch.set_num_threads(before)
    return table.detach(), *optimizer.state[table].values()


@pytest.mark.parametrize("settings", [{}, {"sparse_mode": "lazy"}, {"eps_mode": "hat", "betas": (0.8, 0.99)}], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str)
@pytest.mark.parametrize("dim", [1, 7, 16, 37])
def test_compiled_equals_plain(monkeypatch, settings, dtype, tolerance, dim):
    compiled = steps(dtype, True, monkeypatch, dim=dim, **settings)
    plain = steps(dtype, False, monkeypatch, dim=dim, **settings)
    for one, two in zip(compiled, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def test_threads_change_nothing(monkeypatch):
    one = steps(torch.float32, True, monkeypatch, threads=1)
    two = steps(torch.float32, True, monkeypatch, threads=2)
    assert all(a.equal(b) for a, b in zip(one, two, strict=True))


def test_gaps_beyond_the_table_of_powers(monkeypatch):
    """A row that comes back after thousands of steps decays by beta^gap all the same."""
    found = []
    for against in (no_loops, lambda *tensors: "not asked for"):
        monkeypatch.setattr(adam, "no_loops", against)
        table = torch.ones(3, 2, dtype=torch.float64).requires_grad_()
        optimizer = make_optimizer("adam", [table], lr=0.1)
        for step in (0, 5000):
            optimizer.param_groups[0]["step"] = step
            table.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2).double(), (3, 2), check_invariants=False)
            optimizer.step()
        found.append(table.detach())
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)
    assert found[0][0].tolist() == [1.0, 1.0]


def test_what_it_does_not_take_goes_the_plain_way():
    good = torch.zeros(4, 2)
    assert not no_loops(good)
    assert no_loops(good.half()) == "not all float32 or all float64"
    assert no_loops(good.T) == "not contiguous"
    assert no_loops(good, good.double()) == "not all float32 or all float64"


@pytest.mark.parametrize("openmp", [True, False])
def test_each_part_is_done_once_and_errors_come_back(monkeypatch, openmp):
    if not openmp:
        monkeypatch.setattr(running, "_openmp", lambda: None)
    found = running.on_threads(lambda low, high, thread: (thread, list(range(low, high))), 10, 3)
    assert [thread for thread, _ in found] == [0, 1, 2]
    assert [place for _, part in found for place in part] == list(range(10))

    def failing(low, high, thread):
        if thread:
            raise ValueError(f"part {thread}")

    with pytest.raises(ValueError, match="part 1"):
        running.on_threads(failing, 10, 2)


@pytest.mark.parametrize(("rows", "weights", "threads"), [(50, 200_000, 1), (256, 200_000, 2), (500, 1000, 2)])
def test_only_a_small_step_has_one_thread(rows, weights, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with running.threads_worth(rows, weights):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
