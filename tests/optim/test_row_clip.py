"""CowClip's clip against a slow twin: the formula, row by row, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from fieldwise.config.errors import ConfigError
from fieldwise.optim import Adam, clip_rows, row_clip, touched
from fieldwise.optim.row_clip import Summed, apart
from tests.optim.batches import sparse

Case = tuple[torch.nn.Parameter, Tensor, Tensor, float, float]


def slow(weight: Tensor, ids: Tensor, values: Tensor, ratio: float, least: float) -> Tensor:
    """The clipped gradient of the whole table (N, D)."""
    found = torch.zeros_like(weight, dtype=torch.float64)
    for row in range(len(weight)):
        own = [value.double() for place, value in zip(ids.tolist(), values, strict=True) if place == row]
        count = sum(bool((value != 0).any()) for value in own)
        if count:
            total = torch.stack(own).sum(0)
            most = count * max(ratio * float(weight[row].double().norm()), least)
            found[row] = total * min(1.0, most / max(float(total.norm()), 1e-300))
    return found


@some.composite
def cases(draw: some.DrawFn) -> Case:
    """A table, ids of which many repeat, gradients of very different sizes; some rows and some places are zero."""
    rows, dim, places = draw(some.integers(1, 12)), draw(some.integers(2, 9)), draw(some.integers(1, 60))
    random = torch.Generator().manual_seed(draw(some.integers(0, 2**31)))
    kind = draw(some.sampled_from([torch.float32, torch.float64]))
    weight = torch.randn(rows, dim, generator=random, dtype=torch.float64) * 10 ** draw(some.floats(-4, 1))
    weight[torch.rand(rows, generator=random) < 0.2] = 0
    ids = (rows * torch.rand(places, generator=random) ** 2).long()
    values = torch.randn(places, dim, generator=random, dtype=torch.float64) * 10.0 ** -(ids % 5)[:, None]
    values[torch.rand(places, generator=random) < 0.2] = 0
    return (
        torch.nn.Parameter(weight.to(kind)),
        ids,
        values.to(kind),
        draw(some.floats(0.01, 100)),
        draw(some.sampled_from([0.0, 1e-5, 0.1])),
    )


@given(cases())
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("in_place", [False, True])
def test_clipped_rows_are_those_of_the_formula(in_place: bool, case: Case) -> None:
    weight, ids, values, ratio, least = case
    weight.grad = sparse(ids, values, len(weight))
    with pytest.MonkeyPatch.context() as patch:
        if in_place:
            patch.setattr(row_clip, "_summed", lambda grad, orders: row_clip._summed_in_place(grad))
        clip_rows([weight], ratio, least)
    expected = slow(weight.detach(), ids, values, ratio, least)
    tolerance = 1e-10 if weight.dtype == torch.float64 else 2e-5
    error = (weight.grad.to_dense().double() - expected).norm(dim=1)
    # Of a row whose places cancel out, only their own sizes can say what is near.
    size = torch.zeros(len(weight)).double().index_add_(0, ids, values.double().norm(dim=1))
    assert (error <= tolerance * (expected.norm(dim=1) + size)).all()


def test_several_tables_with_the_same_ids_and_tables_of_single_numbers() -> None:
    ids = torch.tensor([4, 1, 4, 4, 0])
    tables = [torch.nn.Parameter(torch.full((6, dim), 0.01)) for dim in (3, 1, 2)]
    for table in tables:
        table.grad = sparse(ids, torch.ones(5, table.shape[1]), 6)
    clip_rows([*tables, torch.nn.Parameter(torch.ones(2, 2))], 1.0, 0.0)
    for table, row in zip(tables, [0.01, 1.0, 0.01], strict=True):
        assert table.grad is not None
        found, rows = touched(table.grad)
        assert found.tolist() == [0, 1, 4]
        torch.testing.assert_close(rows, row * torch.tensor([[1.0], [1.0], [3.0]]).expand(3, table.shape[1]))


def test_what_is_short_enough_keeps_every_bit_and_its_places() -> None:
    weight, ids = torch.nn.Parameter(torch.randn(9, 4)), torch.randint(0, 9, (40,))
    values = torch.randn(40, 4)
    weight.grad = sparse(ids, values, 9)
    clip_rows([weight], 1e9, 1e-5)
    assert torch.equal(weight.grad._indices()[0], ids)
    assert torch.equal(weight.grad._values(), values)


def test_workers_give_what_one_gives() -> None:
    weight, ids, values = torch.randn(9, 4).double(), torch.randint(0, 9, (40,)), torch.randn(40, 4).double()
    shares = [slice(0, 13), slice(13, 40)]
    own = []
    for part in shares:
        own.append(row_clip._summed(sparse(ids[part], values[part], 9), {}))

    def together(tables: list[Tensor], found: list[Summed]) -> list[Summed]:
        both = torch.cat([each[0] for each in own]), torch.cat([each[1] for each in own])
        rows = torch.sparse_coo_tensor(both[0][None], both[1], (9, 5), check_invariants=False)
        return [touched(rows)]

    total = torch.zeros(9, 4).double()
    for part in shares:
        table = torch.nn.Parameter(weight.clone())
        table.grad = sparse(ids[part], values[part], 9)
        clip_rows([table], 0.05, 0.0, together)
        total += table.grad.to_dense()
    torch.testing.assert_close(total, slow(weight, ids, values, 0.05, 0.0))


def test_in_place_nothing_depends_on_values() -> None:
    # On the meta device there are shapes alone: what depends on a value, or asks the host for one, fails.
    weight = torch.nn.Parameter(torch.zeros(6, 3, device="meta"))
    grad = torch.sparse_coo_tensor(
        torch.zeros(1, 8, dtype=torch.int64, device="meta"), torch.zeros(8, 3, device="meta"), (6, 3),
        check_invariants=False,
    )  # fmt: skip
    ids, sums = row_clip._summed_in_place(grad)
    assert ids.shape == (8,)
    assert row_clip._factors(weight, ids, sums, 1.0, 1e-5).shape == (8,)
    with pytest.raises(NotImplementedError, match="unique_consecutive"):
        row_clip._summed(grad, {})


@pytest.mark.parametrize("whole", [False, True])
def test_a_penalty_is_added_place_by_place(whole: bool) -> None:
    weight, ids, values = torch.nn.Parameter(torch.ones(9, 4)), torch.randint(0, 9, (40,)), torch.randn(40, 4)
    weight.grad = sparse(ids, values, 9)
    expected = weight.grad.to_dense() + (weight.detach() if whole else sparse(ids, 2 * values, 9).to_dense())
    with apart([weight]):
        weight.grad = weight.detach().clone() if whole else sparse(ids, 2 * values, 9)
    assert weight.grad.is_sparse != whole
    torch.testing.assert_close(weight.grad.to_dense(), expected)
    with apart([weight]):
        pass
    torch.testing.assert_close(weight.grad.to_dense(), expected)
    Adam([weight]).step()


@pytest.mark.parametrize(
    ("ratio", "least", "found"), [(0.0, 0.0, "row_clip must"), (1.0, -1.0, "row_clip_least must not")]
)
def test_bad_numbers(ratio: float, least: float, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        clip_rows([], ratio, least)
