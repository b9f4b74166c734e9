"""Which values of training rows a model does not see."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fieldwise.data import hiding
from fieldwise.data.batches import batches, share, take
from fieldwise.data.dataset import Part
from fieldwise.data.draws import HIDDEN, stream
from fieldwise.data.feed import Source
from fieldwise.data.hiding import Blank, Hiding, blank
from fieldwise.data.schema import FIRST, MISSING, OTHER, PAD, HistorySettings, Layout

ROWS, SHARES = 5000, (0.02, 0.3, 0.0)


def part(seed: int = 0, rate: float = 0.1) -> Part:
    random = np.random.default_rng(3)
    labels = (random.random(ROWS) < rate).astype(np.uint8)
    blanks = [Blank(np.array([column]), np.array([OTHER], dtype=np.int32)) for column in range(3)]
    ids = random.integers(FIRST, 50, (ROWS, 3), dtype=np.int32)
    return Part(ids, labels, hiding=Hiding(blanks, SHARES, seed, labels))


def hidden(part: Part, epoch: int = 0) -> NDArray[np.bool_]:
    return part.shown(np.arange(part.rows), epoch) == OTHER


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_each_label_has_its_share_hidden(rate: float) -> None:
    """To a row: a few hundred rows would have a rate of their own by chance."""
    rows = part(rate=rate)
    found = hidden(rows)
    for label in (0, 1):
        own = rows.labels == label
        wanted = np.array(SHARES) * own.sum()
        assert found[own].sum(axis=0) == pytest.approx(wanted, abs=rows.rows / min(own.sum(), (~own).sum()))
    both = found[:, 0] & found[:, 1]
    assert 0 < both.sum() < found[:, 0].sum()


def test_it_is_drawn_by_seed_epoch_and_row() -> None:
    rows = part()
    assert np.array_equal(hidden(rows), hidden(part()))
    for other in (hidden(part(seed=1)), hidden(rows, epoch=1)):
        assert not np.array_equal(hidden(rows), other)
        assert other.sum() == hidden(rows).sum()


def test_neither_batches_nor_workers_matter() -> None:
    rows, epoch = part(), 2
    whole = rows.shown(np.arange(ROWS), epoch)
    some = np.random.default_rng(5).permutation(ROWS)[:777]
    own = [take(rows, share(some, rank, 2), epoch).ids for rank in (0, 1)]
    assert np.array_equal(own[0], whole[some[::2]])
    assert np.array_equal(own[1], whole[some[1::2]])
    every = np.concatenate([batch.ids for batch in batches(rows, 100, 0, epoch)])
    assert sorted(map(tuple, every)) == sorted(map(tuple, whole))


@pytest.mark.parametrize("resident", [True, False])
def test_rows_that_lie_on_a_device_have_the_same_hidden(resident: bool) -> None:
    rows, some = part(), np.random.default_rng(5).permutation(ROWS)[:777]
    source = Source(rows, torch.device("cpu"), resident)
    into = [torch.zeros(777, 3, dtype=torch.int32), torch.zeros(777)]
    for epoch in (0, 1):
        source.put(source.load(some, epoch), into)
        assert np.array_equal(into[0].numpy(), rows.shown(some, epoch))


def test_rows_of_one_label_hide_what_they_can() -> None:
    labels = np.zeros(100, dtype=np.uint8)
    rows = Part(np.full((100, 1), 7, dtype=np.int32), labels, hiding=None)
    hiding = Hiding([Blank(np.array([0]), np.array([OTHER], dtype=np.int32))], [0.5], 0, labels)
    assert np.array_equal(hiding.cells(np.arange(100), 0)[0], [])
    assert (rows.shown(np.arange(100)) == 7).all()


def test_a_new_value_has_no_past_in_any_key_of_it() -> None:
    history = HistorySettings(("user", "user*item", "item"), parts=("count", "rate"), interpolate=2)
    names = ["user", "item", *(f"{key}:{part}" for key in history.keys for part in history.parts)]
    layout = Layout((9,) * 8, (1, 3, 2, 2, 2, 2, 2, 2))
    row = np.full((1, layout.columns), 5, dtype=np.int32)
    user, item = [[OTHER]], [[5, 5, 5]]
    known, new = [[5] * 4], [[FIRST, FIRST, MISSING, PAD]]
    wanted = {
        "user": [*user, *item, *new, *new, *known],
        "item": [[5], [OTHER, PAD, PAD], *known, *new, *new],
        "user*item": [[5], *item, *known, *new, *known],
    }
    for name, cells in wanted.items():
        gap = blank(name, names, layout, history)
        assert not gap.there(row).any()
        found = gap.put(row)
        assert found.tolist() == [list(itertools.chain(*cells))]
        assert gap.there(found).all()


@pytest.mark.parametrize("trial", range(8))
def test_the_hidden_cells_are_those_of_the_slow_way(trial, monkeypatch):
    rng = np.random.default_rng([7, trial])
    monkeypatch.setattr(hiding, "PIECE", int(rng.integers(1, 300)))
    monkeypatch.setattr(hiding, "MANY", int(rng.integers(1, 3000)))
    rows, columns = int(rng.integers(1, 3000)), int(rng.integers(1, 9))
    labels = (rng.random(rows) < rng.choice([0.02, 0.4, 0.9])).astype(np.uint8)
    shares = rng.choice([0.0, 0.003, 0.05, 0.6, 1.0], columns).tolist()
    blanks = [Blank(np.arange(i, i + 1 + i % 2), np.array([1, 0][: 1 + i % 2], np.int32)) for i in range(columns)]
    asked = rng.permutation(rows)[: int(rng.integers(1, rows + 1))]
    places, at, ids = Hiding(blanks, shares, trial, labels).cells(asked, 3)

    draws = hiding._Draws(stream(trial, HIDDEN, 3), columns)
    numbers = draws(np.arange(rows)) >> np.uint64(32)
    rare = int(np.bincount(labels, minlength=2).argmin())  # of one class alone, the other
    few, many = np.flatnonzero(labels == rare), np.flatnonzero(labels != rare)
    slow: list[tuple[int, int, int]] = []
    for name, wanted in enumerate(shares):
        count = int(wanted * len(few))
        hidden = {int(row) for row in few[np.argsort(numbers[name, few])][:count]}
        others = round(count * len(many) / max(1, len(few)))
        hidden |= {int(row) for row in many[np.argsort(numbers[name, many])][:others]}
        gap = blanks[name]
        there = [place for place, row in enumerate(asked.tolist()) if row in hidden]
        slow += [(place, int(c), int(v)) for place in there for c, v in zip(gap.columns, gap.ids, strict=True)]
    assert sorted(slow) == sorted(zip(places.tolist(), at.tolist(), ids.tolist(), strict=True))
