"""The GPU's Adam of touched rows beside the plain one, through Triton's interpreter."""

import pytest
import torch

from tests.parts.interpreter import in_interpreter

CASES = [([20], "paper"), ([1], "paper"), ([37], "lazy"), ([20, 1], "paper")]


@pytest.mark.parametrize(("dims", "mode"), CASES)
def test_moves_rows_as_the_plain_update_does(dims, mode):
    in_interpreter(__name__, "check_steps", dims, mode)


def test_drawn_sizes():
    in_interpreter(__name__, "check_drawn")


def test_a_gradient_that_is_no_number_is_not_hidden():
    in_interpreter(__name__, "check_nan")


def test_a_models_tables_move_together_and_their_state_can_be_saved():
    in_interpreter(__name__, "check_model")


def moved(dims, mode, steps, seed=0):
    """Tables after some steps with many duplicate ids, by the kernel and by plain PyTorch in float64."""
    from fieldwise.optim import Adam
    from fieldwise.optim.triton_adam import Scratch, Table, adam_rows

    random = torch.Generator().manual_seed(seed)
    plain = [torch.randn(50, dim, generator=random).double().requires_grad_() for dim in dims]
    adam = Adam(plain, lr=0.01, sparse_mode=mode)
    fast = []
    for weight, dim in zip(plain, dims, strict=True):
        moments = torch.zeros(50, 3 * dim)  # moments side by side, a gap behind them
        last = None if mode == "lazy" else torch.zeros(50, 3, dtype=torch.int32)[:, 1]
        fast.append(Table(weight.detach().float(), moments[:, :dim], moments[:, dim : 2 * dim], last))
    scratch = Scratch.of(fast, 120, (0.9, 0.999))
    for step in range(1, steps + 1):
        ids = (torch.rand(120, generator=random) ** 3 * 50).long()
        # Rows of very different sizes: a sum of whole numbers must not lose the small ones.
        values = [torch.randn(120, dim, generator=random) * 10.0 ** -(ids % 7)[:, None] for dim in dims]
        for weight, own in zip(plain, values, strict=True):
            weight.grad = torch.sparse_coo_tensor(ids[None], own.double(), weight.shape, check_invariants=False)
        adam.step()
        group = adam.param_groups[0]
        numbers = torch.tensor(adam.numbers(group, step, group["lr"]), dtype=torch.float32)
        adam_rows(fast, ids, values, numbers, (0.9, 0.999), scratch)
    return fast, scratch, plain, adam


def check_drawn():
    from hypothesis import strategies as some

    from tests.parts.interpreter import over_shapes

    dims = some.lists(some.integers(1, 70), min_size=1, max_size=2)
    over_shapes(check_steps, 2, dims=dims, mode=some.sampled_from(["paper", "lazy"]))


def check_steps(dims, mode):
    found, scratch, plain, adam = moved(dims, mode, steps=3)
    for dim, fast, weight in zip(dims, found, plain, strict=True):
        state = adam.state[weight]
        for ours, theirs in ((fast.weight, weight), (fast.mean, state["mean"]), (fast.square, state["square"])):
            # Row by row, as rows differ in size by 10^6.
            wrong = (ours.double() - theirs.detach()).norm(dim=1)
            size = 10.0 ** -(torch.arange(50) % 7).double() if ours is not fast.weight else torch.ones(50)
            assert (wrong <= 1e-6 * (size if ours is not fast.square else size**2) * dim**0.5).all()
        if fast.last is not None:
            torch.testing.assert_close(fast.last, state["last"])
    # All is ready for the next step.
    assert all((part == 0).all() for part in (*scratch.sums, scratch.marks.joined, scratch.marks.counters[:3]))
    assert (scratch.marks.owner[:50] == -1).all()
    assert (scratch.marks.owner[50:] == 0).all()
    again = moved(dims, mode, steps=3)[0]
    assert all(torch.equal(one.weight, two.weight) for one, two in zip(found, again, strict=True))


def check_nan():
    from fieldwise.optim.triton_adam import Scratch, Table, adam_rows

    table = Table(torch.ones(4, 2), torch.zeros(4, 2), torch.zeros(4, 2), None)
    values = torch.tensor([[1.0, float("nan")], [1.0, 1.0], [2.0, 2.0]])
    numbers = torch.tensor([1.0, 0.1, 0.1, 1e-8])
    adam_rows([table], torch.tensor([1, 1, 2]), [values], numbers, (0.9, 0.999), Scratch.of([table], 3, (0.9, 0.999)))
    assert table.weight[1].isnan().any()
    assert torch.isfinite(table.weight[2]).all()


def check_model():
    from fieldwise.data.schema import Layout
    from fieldwise.models import build
    from fieldwise.optim import Adam

    torch.manual_seed(0)
    layout = Layout.of([7, 5, 9])
    fast, slow = build("fm", layout, {"dim": 3}), build("fm", layout, {"dim": 3}).double()
    slow.load_state_dict(fast.state_dict())
    ours, theirs = Adam(fast.parameters(), lr=0.01), Adam(slow.parameters(), lr=0.01)
    for step in range(4):
        ids = torch.randint(0, 5, (20, 3), dtype=torch.int32)
        for model, adam in ((fast, ours), (slow, theirs)):
            adam.zero_grad()
            model(ids).square().sum().backward()
            adam.step()
        if step == 1:  # as a run that is resumed
            saved = ours.state_dict()
            ours = Adam(fast.parameters(), lr=0.01)
            ours.load_state_dict(saved)
    assert len(ours._gpu_rows.scratch) == 1
    for found, expected in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)
        for name, value in theirs.state[expected].items():
            torch.testing.assert_close(ours.state[found][name].to(value.dtype), value, rtol=1e-5, atol=1e-7)
    tables = [table.weight for table in (fast.embedding.tables[0], fast.linear.weights)]
    pieces = {ours.state[weight][name].untyped_storage().data_ptr() for weight in tables for name in ours.state[weight]}
    assert len(pieces) == 1
