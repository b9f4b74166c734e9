"""The GPU's Adam of touched rows beside the plain one, through Triton's interpreter."""

import pytest
import torch

from tests.kernels.interpreter import in_interpreter

CASES = [(20, "paper"), (1, "paper"), (37, "lazy")]


@pytest.mark.parametrize(("dim", "mode"), CASES)
def test_moves_rows_as_the_plain_update_does(dim, mode):
    in_interpreter("tests.kernels.test_triton_adam", "check_steps", dim, mode)


def test_a_gradient_that_is_no_number_is_not_hidden():
    in_interpreter("tests.kernels.test_triton_adam", "check_nan")


def moved(dim, mode, steps, seed=0):
    """Weights after some steps with many duplicate ids, by the kernel and by plain PyTorch in float64."""
    from fieldwise.kernels.triton_adam import Scratch, Tables, adam_rows
    from fieldwise.optim import Adam

    random = torch.Generator().manual_seed(seed)
    start = torch.randn(50, dim, generator=random)
    plain = start.double().requires_grad_()
    adam = Adam([plain], lr=0.01, sparse_mode=mode)
    fast = Tables(start.clone(), torch.zeros(50, dim), torch.zeros(50, dim), torch.zeros(50, dtype=torch.int32))
    if mode == "lazy":
        fast = Tables(fast.weight, fast.mean, fast.square, None)
    scratch = None
    for step in range(1, steps + 1):
        ids = (torch.rand(120, generator=random) ** 3 * 50).long()
        # Rows of very different sizes: a sum of whole numbers must not lose the small ones.
        values = torch.randn(120, dim, generator=random) * 10.0 ** -(ids % 7)[:, None]
        adam.zero_grad()
        plain.grad = torch.sparse_coo_tensor(ids[None], values.double(), plain.shape, check_invariants=False)
        adam.step()
        scratch = scratch or Scratch.of(fast.weight, values, (0.9, 0.999))
        group = adam.param_groups[0]
        numbers = torch.tensor(adam.numbers(group, step, group["lr"]), dtype=torch.float32)
        adam_rows(fast, ids, values, numbers, (0.9, 0.999), scratch)
    return fast, scratch, plain, adam


def check_steps(dim, mode):
    fast, scratch, plain, adam = moved(dim, mode, steps=3)
    state = adam.state[plain]
    for ours, theirs in ((fast.weight, plain), (fast.mean, state["mean"]), (fast.square, state["square"])):
        # Row by row, as rows differ in size by 10^6.
        wrong = (ours.double() - theirs.detach()).norm(dim=1)
        size = 10.0 ** -(torch.arange(50) % 7).double() if ours is not fast.weight else torch.ones(50)
        assert (wrong <= 1e-6 * (size if ours is not fast.square else size**2) * dim**0.5).all()
    assert not scratch.sums.any()
    assert not scratch.shared.any()
    if fast.last is not None:
        torch.testing.assert_close(fast.last, state["last"])
    again = moved(dim, mode, steps=3)[0]
    assert torch.equal(again.weight, fast.weight)


def check_nan():
    from fieldwise.kernels.triton_adam import Scratch, Tables, adam_rows

    tables = Tables(torch.ones(4, 2), torch.zeros(4, 2), torch.zeros(4, 2), None)
    values = torch.tensor([[1.0, float("nan")], [1.0, 1.0], [2.0, 2.0]])
    numbers = torch.tensor([1.0, 0.1, 0.1, 1e-8])
    adam_rows(
        tables, torch.tensor([1, 1, 2]), values, numbers, (0.9, 0.999), Scratch.of(tables.weight, values, (0.9, 0.999))
    )
    assert tables.weight[1].isnan().any()
    assert torch.isfinite(tables.weight[2]).all()
