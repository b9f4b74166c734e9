from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise.config.errors import ConfigError
from fieldwise.data.schema import Layout
from fieldwise.nn.embedding import Embedding, Linear, Table, Vectors
from fieldwise.parts.weights import Packed
from tests.parts import slow
from tests.parts.drawn import numbers

PLAIN = Layout.of((3, 5, 4))
SETS = Layout((3, 5, 4, 6), (1, 3, 1, 2))
PLAIN_IDS = torch.tensor([[0, 0, 0], [2, 4, 3], [1, 4, 0], [1, 4, 0]], dtype=torch.int32)
SETS_IDS = torch.tensor(
    [[0, 4, -1, -1, 0, 5, 0], [2, 0, 1, 2, 3, 1, -1], [1, 3, 1, -1, 0, 2, 4], [0, 4, -1, -1, 0, 5, 0]],
    dtype=torch.int32,
)
PLACES = Layout((3, 6, 4, 6), (1, 4, 2, 4), (1, 3))
PLACES_IDS = torch.tensor(
    [[0, 2, 2, 2, 3, 3, 0, 4, 4, 4, 4], [2, 0, -1, -1, -1, 1, -1, 4, 5, 5, 5], [2, 3, 3, 4, 4, 2, 2, 1, -1, -1, -1]],
    dtype=torch.int32,
)
SEQUENCES = Layout((3, 5, 4, 3, 5), (1, 1, 1, 3, 3), like=(0, 1, 2, 0, 1), sequences=((3, 4),))
SEQUENCES_IDS = torch.tensor(
    [[0, 0, 0, 2, 1, 1, 4, 0, 3], [2, 4, 3, 1, 2, -1, 3, 3, -1], [1, 4, 0, 0, -1, -1, 0, -1, -1]], dtype=torch.int32
)
CASES = {
    "plain": (PLAIN, (2, 2, 2), PLAIN_IDS),
    "sets": (SETS, (2, 2, 2, 2), SETS_IDS),
    "sizes": (PLAIN, (3, 1, 3), PLAIN_IDS),
    "sizes and sets": (SETS, (4, 2, 1, 2), SETS_IDS),
    "sizes in another order": (SETS, (2, 4, 1, 2), SETS_IDS),
    "places": (PLACES, (2, 2, 2, 2), PLACES_IDS),
    "sequences": (SEQUENCES, (2, 2, 2, 2, 2), SEQUENCES_IDS),
    "sizes and sequences": (SEQUENCES, (3, 2, 3, 3, 2), SEQUENCES_IDS),
    "sizes and places": (PLACES, (4, 2, 2, 1), PLACES_IDS),
}


def one_hot(layout: Layout, ids: Tensor) -> Tensor:
    """(B, C) -> (B, F, N), each field's row of weights on all categories: a mean over its members."""
    hot = torch.zeros(len(ids), layout.fields, layout.rows, dtype=torch.float64)
    for row, values in enumerate(ids.tolist()):
        for column, value in enumerate(values):
            if value >= 0:
                field = layout.column_fields[column]
                hot[row, field, layout.offsets[field] + value] += 1
    return hot / hot.sum(dim=2, keepdim=True)


@pytest.mark.parametrize("case", CASES)
def test_vectors_equal_the_loop(case: str) -> None:
    layout, dims, ids = CASES[case]
    embedding = Embedding(layout, dims).double()
    found = embedding(ids)
    assert found.shape == (len(ids), layout.fields, max(dims))
    for row, one in enumerate(ids):
        for field, vector in enumerate(slow.embed(embedding, layout, one)):
            torch.testing.assert_close(found[row, field, : dims[field]], vector, rtol=0, atol=1e-10)
            assert not found[row, field, dims[field] :].any()


@pytest.mark.parametrize("case", ["plain", "sets", "places"])
def test_table_gradients_equal_the_dense_one_hot_version(case: str) -> None:
    layout, dims, ids = CASES[case]
    table = Table(layout, dims[0]).double()
    dense = table.weight.detach().clone().requires_grad_()
    factors = numbers(len(ids), layout.fields, dims[0])
    (table(ids).sin() * factors).sum().backward()
    ((one_hot(layout, ids) @ dense).sin() * factors).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    assert dense.grad is not None
    torch.testing.assert_close(table.weight.grad.to_dense(), dense.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_all_tables_equal_the_loop(case: str) -> None:
    layout, dims, ids = CASES[case]
    embedding = Embedding(layout, dims).double()
    factors = numbers(len(ids), layout.fields, max(dims))
    (embedding(ids).sin() * factors).sum().backward()
    fast = [table.weight.grad.to_dense() for table in embedding.tables]
    embedding.zero_grad()
    for row, one in enumerate(ids):
        for field, vector in enumerate(slow.embed(embedding, layout, one)):
            (vector.sin() * factors[row, field, : dims[field]]).sum().backward()
    for table, grad in zip(embedding.tables, fast, strict=True):
        torch.testing.assert_close(grad, table.weight.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", ["plain", "sets", "places"])
def test_a_gradient_names_only_the_rows_of_the_batch(case: str) -> None:
    layout, dims, ids = CASES[case]
    table = Table(layout, dims[0]).double()
    table(ids[:1]).sum().backward()
    assert table.weight.grad is not None
    named = set(table.weight.grad.coalesce().indices()[0].tolist())
    assert named == set(one_hot(layout, ids[:1]).nonzero()[:, 2].tolist())


def test_a_set_is_the_mean_of_its_members_in_any_order() -> None:
    table = Table(Layout((4, 2), (3, 1)), 1)
    with torch.no_grad():
        table.weight[:, 0] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    ids = torch.tensor([[0, 1, 3, 1], [3, 0, 1, 1], [2, -1, -1, 0], [1, 3, -1, 0]])
    expected = torch.tensor([[11 / 3, 32.0], [11 / 3, 32.0], [4.0, 16.0], [5.0, 16.0]])
    torch.testing.assert_close(table(ids)[:, :, 0], expected)


def test_ids_may_be_int32_or_int64() -> None:
    for layout, dims, ids in CASES.values():
        embedding = Embedding(layout, dims)
        assert torch.equal(embedding(ids), embedding(ids.long()))


@pytest.mark.parametrize("layout", [PLAIN, SETS])
def test_linear_is_the_sum_of_weights_and_a_bias(layout: Layout) -> None:
    ids = PLAIN_IDS if layout is PLAIN else SETS_IDS
    for bias in (True, False):
        part = Linear(layout, bias).double()
        if part.bias is not None:
            part.bias.data.fill_(3.0)
        expected = [sum(slow.lookup(part.weights, layout, one)) + 3.0 * bias for one in ids]
        torch.testing.assert_close(part(part.weights(ids)), torch.cat(expected), rtol=0, atol=1e-10)
        assert len(list(part.parameters())) == 1 + bias


def test_linear_gradients() -> None:
    part = Linear(PLAIN).double()
    weights = part.weights(PLAIN_IDS).detach().requires_grad_()
    assert gradcheck(part, weights)


@pytest.mark.parametrize(
    ("categories", "c", "largest", "size"),
    [
        (1, 4.0, 40, 1),  # ln 1 is 0, and a field has at least one number
        (2, 4.0, 40, 3),  # 2.77
        (7, 4.0, 40, 8),  # 7.78, the paper's "4 log 7 is about 8"
        (1000, 4.0, 40, 28),  # 27.6
        (22026, 4.0, 40, 40),  # 39.99
        (10**6, 4.0, 40, 40),  # 55.3
        (1000, 0.1, 40, 1),  # 0.69
        (1000, 2.0, 5, 5),
        (1000, 0.0, 16, 16),  # not adaptive
        (1, 0.0, 16, 16),
    ],
)
def test_adaptive_sizes(categories: int, c: float, largest: int, size: int) -> None:
    assert Vectors(largest, c).sizes(Layout.of([categories, 3]))[0] == size
    if c:
        assert size == max(1, math.ceil(min(c * math.log(categories), largest)))


def test_adaptive_tables_hold_what_their_fields_need() -> None:
    embedding = Embedding(SETS, (4, 2, 1, 2))
    assert sum(p.numel() for p in embedding.parameters()) == 3 * 4 + 5 * 2 + 4 * 1 + 6 * 2
    assert len(embedding.tables) == 3


@pytest.mark.parametrize(("dim", "adaptive"), [(0, 0.0), (4, -1.0)])
def test_impossible_sizes_are_refused(dim: int, adaptive: float) -> None:
    with pytest.raises(ConfigError, match=f"dim must be positive and adaptive 0 or more, found {dim} and {adaptive}"):
        Vectors(dim, adaptive)


def test_the_start_counts_the_fields_of_the_whole_model() -> None:
    layout = Layout.of((3000, 2000, 1000, 500))
    tables = Embedding(layout, (4, 2, 4, 2)).tables
    for table, dim in zip(tables, (4, 2), strict=True):
        assert table.weight.abs().max().item() == pytest.approx(math.sqrt(1 / (4 * dim)), rel=0.01)
        table.start("uniform-Nk", 3.0)
        assert table.weight.abs().max().item() == pytest.approx(math.sqrt(3 / (6500 * dim)), rel=0.01)


def test_the_start_of_a_row_of_several_vectors_follows_one_vectors_size() -> None:
    (table,) = Embedding(Layout.of((3000, 2000, 1000)), (8, 8, 8), parts=2).tables
    assert table.weight.abs().max().item() == pytest.approx(math.sqrt(1 / (3 * 4)), rel=0.01)
    table.start("libffm")
    assert table.weight.max().item() == pytest.approx(1 / math.sqrt(4), rel=0.01)


def test_packed_weights_learn_only_where_the_mask_holds() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    packed = Packed(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), mask).double()
    assert packed().tolist() == [[1.0, 0.0], [3.0, 4.0]]
    assert [p.tolist() for p in packed.parameters()] == [[1.0, 3.0, 4.0]]
    assert gradcheck(lambda entries: torch.func.functional_call(packed, {"entries": entries}, ()), packed.entries)


def test_vectors_of_several_sizes_are_looked_up_without_lists_from_the_host() -> None:
    """A step that is captured on a GPU cannot copy an index from the host: columns are buffers, and move along."""

    class Operations(TorchDispatchMode):
        seen: ClassVar[set[str]] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.add(str(func))
            return func(*args, **(kwargs or {}))

    embedding = Embedding(Layout.of([5, 50, 5]), (2, 4, 2))
    ids = torch.tensor([[1, 2, 3], [4, 40, 0]])
    with Operations():
        found = embedding(ids)
    assert "aten.index_select.default" in Operations.seen
    assert "aten.index.Tensor" not in Operations.seen
    assert found.shape == (2, 3, 4)
    assert {"columns0", "columns1"} <= dict(embedding.named_buffers()).keys()
