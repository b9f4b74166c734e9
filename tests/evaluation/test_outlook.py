"""Levels in blocks of time with a known truth: how much of the last block is the level of the next ones."""

import numpy as np
import pytest

from fieldwise.evaluation.metrics import sigmoid
from fieldwise.evaluation.outlook import Outlook, outlook

PARTS = ["train"] * 32 + ["valid"] * 4


def walk(random):
    return np.cumsum(random.normal(0, 0.07, 40))


def returning(random):
    return random.normal(0, 0.3, 40)


def flat(random):
    return np.zeros(40)


def drawn(kind, rows, seed):
    """Blocks that follow a process, the last four of them unseen; and the mean level of those."""
    random = np.random.default_rng(seed)
    levels = kind(random) - 2
    positives = random.binomial(rows, sigmoid(levels)).tolist()
    return [(part, rows, own) for part, own in zip(PARTS, positives, strict=False)], levels[-4:].mean()


def errors(kind, rows, worlds=60):
    """The distances of the true level to come from: the last block's, all training blocks', and the outlook's."""
    found = []
    for seed in range(worlds):
        levels, truth = drawn(kind, rows, seed)
        ahead = outlook(levels)
        trained, last = (level(levels, part) for part in ("train", "valid"))
        found.append([last - truth, trained - truth, trained + ahead.keep * (last - trained) + ahead.move - truth])
    return np.sqrt(np.mean(np.square(found), axis=0))


def level(levels, part):
    rows, positives = np.array([own[1:] for own in levels if own[0] == part]).sum(axis=0)
    return np.log(positives / (rows - positives))


@pytest.mark.parametrize("rows", [500, 5000])
def test_levels_that_return_are_not_taken_from_the_last_block(rows):
    last, trained, ours = errors(returning, rows)
    assert ours < 0.8 * last
    assert ours < 1.1 * trained


@pytest.mark.parametrize("rows", [500, 5000])
def test_levels_that_stay_are_those_of_all_rows(rows):
    last, _, ours = errors(flat, rows)
    assert ours < 0.6 * last


@pytest.mark.parametrize("rows", [500, 5000])
def test_levels_that_wander_off_are_those_of_the_last_block(rows):
    last, trained, ours = errors(walk, rows)
    assert ours < 1.15 * last
    assert ours < 0.7 * trained


@pytest.mark.parametrize("kind", [walk, returning, flat])
def test_nine_of_ten_levels_to_come_lie_in_the_range(kind):
    inside = []
    for seed in range(200):
        levels, truth = drawn(kind, 1000, seed)
        ahead = outlook(levels)
        trained, last = (level(levels, part) for part in ("train", "valid"))
        said = sigmoid(trained + ahead.keep * (last - trained) + ahead.move)
        observed = np.random.default_rng(1000 + seed).binomial(4000, sigmoid(truth)) / 4000
        low, high = ahead.range(observed, 4000 * observed)
        inside.append(low <= said / observed <= high)
    assert np.mean(inside) > 0.75


def test_the_range_is_wider_with_fewer_positives_and_with_levels_that_move():
    wide = [Outlook(1.0, sd=sd).range(0.1, positives) for sd, positives in ((0, 5000), (0, 50), (0.3, 5000))]
    widths = [high - low for low, high in wide]
    assert widths[0] < widths[1]
    assert widths[0] < widths[2]
    assert all(low < 1 < high for low, high in wide)


def test_too_few_blocks_say_nothing():
    assert outlook([]) is None
    assert outlook([("train", 100, 10), ("valid", 50, 5)]) is None
