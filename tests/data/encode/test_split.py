"""Which part a row goes to at random: each label by itself."""

import numpy as np
import pytest

from fieldwise.data.encode.split import Split, at_random


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.7, 0.15, 0.15), (0.5, 0.25, 0.25)])
def test_all_parts_have_the_rate_of_the_file(shares):
    """6,000 rows with 1,000 positives: drawn row by row, the validation part had 14.1 % of them for 17.4 %."""
    for seed in range(20):
        labels = (np.random.default_rng(seed).random(6000) < 1 / 6).astype(np.uint8)
        parts = at_random(Split(shares, seed=seed))(labels)
        for part, share in enumerate(shares):
            for label in (0, 1):
                assert abs((labels[parts == part] == label).sum() - share * (labels == label).sum()) <= 4


def test_how_rows_are_cut_does_not_matter():
    labels = (np.random.default_rng(1).random(5000) < 0.1).astype(np.uint8)
    whole, cut = at_random(Split(seed=3)), at_random(Split(seed=3))
    assert np.array_equal(whole(labels), np.concatenate([cut(own) for own in np.split(labels, [1, 7, 900, 901, 4000])]))


def test_a_row_goes_to_a_part_by_its_share_wherever_it_is():
    """The order inside of a block is random: positions in the file do not say the part."""
    labels = np.zeros(40, dtype=np.uint8)
    drawn = np.stack([at_random(Split(seed=seed))(labels) for seed in range(2000)])
    assert np.abs((drawn == 0).mean(axis=0) - 0.8).max() < 0.05
    assert np.abs((drawn == 1).mean(axis=0) - 0.1).max() < 0.04


def test_rows_are_drawn_behind_others_without_drawing_these():
    labels = (np.random.default_rng(1).random(5000) < 0.1).astype(np.uint8)
    whole = at_random(Split((0.65, 0.2, 0.15), seed=3))(labels)
    for first in (0, 1, 20, 399, 4990):
        before = int((labels[:first] == 0).sum()), int(labels[:first].sum())
        assert np.array_equal(at_random(Split((0.65, 0.2, 0.15), seed=3), before)(labels[first:]), whole[first:])
