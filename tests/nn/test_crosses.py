"""Weights of pairs of categories: where they lie, that hashing spreads them, and what they can learn."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fieldwise import models
from fieldwise.data.schema import Layout
from fieldwise.evaluation.pair_strength import pair_strength
from fieldwise.nn.crosses import PairTable, mixed
from fieldwise.optim import Adam
from tests.parts import slow

LARGEST = 2**31 - 1


def test_every_two_categories_have_a_row_of_their_own() -> None:
    layout = Layout.of((3, 4, 2))
    part = PairTable(layout, 100)
    ids = torch.cartesian_prod(*(torch.arange(size) for size in layout.sizes))
    rows = part.pair_ids(ids) + torch.tensor(part.table.layout.column_offsets)
    assert rows.unique().tolist() == list(range(12 + 6 + 8))
    assert [len(column.unique()) for column in rows.T] == [12, 6, 8]


def test_an_unused_member_has_no_pair() -> None:
    part = PairTable(Layout((3, 4), (2, 2)), 100)
    assert part.pair_ids(torch.tensor([[1, -1, 3, 2], [0, 2, 1, -1]])).tolist() == [[7, 6, -1, -1], [1, -1, 9, -1]]
    hashed = PairTable(Layout((3, 4), (2, 2)), 5)
    assert (hashed.pair_ids(torch.tensor([[1, -1, 3, 2]])) >= 0).tolist() == [[True, True, False, False]]


def test_hashes_equal_those_of_plain_whole_numbers() -> None:
    numbers = [0, 1, 2, 12345, 2**31, 2**62 - 1, LARGEST * LARGEST]
    assert mixed(torch.tensor(numbers)).tolist() == [slow.hashed(number) for number in numbers]


def test_hashes_fill_all_buckets_evenly() -> None:
    """Ids that count up, and ids that only differ in the first field: both as if drawn by chance."""
    for ids in (
        torch.stack([torch.arange(100_000), torch.zeros(100_000, dtype=torch.int64)], dim=1),
        torch.cartesian_prod(torch.arange(400), torch.arange(250)),
    ):
        part = PairTable(Layout.of((100_000, 4096)), 64)
        counts = part.pair_ids(ids).squeeze(1).bincount(minlength=64)
        expected = len(ids) / 64
        # 63 degrees of freedom: by chance above 115 once in 20,000 times.
        assert ((counts - expected) ** 2 / expected).sum().item() < 115


def test_the_largest_fields_do_not_overflow() -> None:
    with torch.device("meta"):
        sizes = PairTable(Layout.of((LARGEST, LARGEST)), 1000).table.layout.sizes
    assert sizes == (1000,)
    part = PairTable(Layout.of((LARGEST, LARGEST)), 1000)
    ids = torch.tensor([[LARGEST - 1, LARGEST - 1]], dtype=torch.int32)
    assert part.pair_ids(ids).tolist() == [[slow.hashed((LARGEST - 1) * 2**31 + LARGEST - 1) % 1000]]


def fitted(name: str) -> tuple[models.Model, float]:
    """A model trained on labels that are 1 where two fields of two categories differ, and its log loss."""
    ids = torch.cartesian_prod(torch.arange(2), torch.arange(2)).repeat(25, 1)
    labels = (ids[:, 0] != ids[:, 1]).float()
    torch.manual_seed(0)
    model = models.build(name, Layout.of((2, 2)))
    assert isinstance(model, models.Model)
    optimizer = Adam(model.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(ids), labels)
        loss.backward()
        optimizer.step()
    return model, loss.item()


def test_poly2_learns_what_lr_cannot() -> None:
    assert fitted("lr")[1] > 0.69
    model, loss = fitted("poly2")
    assert loss < 0.05
    ids = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.int32)
    assert pair_strength(model.logits, ids, Layout.of((2, 2)))[0, 1] > 5


def test_pair_strength_is_the_mixed_difference_of_the_weights() -> None:
    model = models.build("poly2", Layout.of((2, 2, 2)))
    assert isinstance(model, models.Model)
    with torch.no_grad():
        for table in (model.linear.weights, model.embedding.table):
            table.weight.zero_()
        model.embedding.table.weight[4 + 3] = 3.0  # fields 0 and 2, both at 1
    ids = np.array([[0, 0, 0], [1, 1, 1]], dtype=np.int32)
    np.testing.assert_allclose(
        pair_strength(model.logits, ids, Layout.of((2, 2, 2))), 3.0 * np.eye(3)[[2, 1, 0]] * (1 - np.eye(3))
    )
