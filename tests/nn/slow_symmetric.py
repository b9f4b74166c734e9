"""Symmetric trees as slow as can be: a split's score is summed up row by row, and a leaf is a dictionary's key."""

import math

import numpy as np


def splits_of(bins, starts, single):
    """Every (column, bin) that may be asked for."""
    for column in range(len(bins)):
        count = int(starts[column + 1] - starts[column])
        for at in range(count if single[column] else count - 1):
            yield column, at


def goes_right(bins, single, split):
    column, at = split
    return bins[column] == at if single[column] else bins[column] > at


def score(leaves, right, slopes, weights, l2):
    """The cosine of the slopes with what the leaves would add."""
    gained = squared = 0.0
    for leaf in set(leaves.tolist()):
        for side in (True, False):
            own = (leaves == leaf) & (right == side)
            step = slopes[own].sum() / (weights[own].sum() + l2)
            gained += step * slopes[own].sum()
            squared += step**2 * weights[own].sum()
    return gained / math.sqrt(squared) if squared > 0 else 0.0


def leaf_values(leaves, labels, weights, logits, l2, steps, near):
    """What each leaf that has rows adds, by its number."""
    found = {}
    for leaf in set(leaves.tolist()):
        own, found[leaf] = leaves == leaf, 0.0
        for _ in range(steps):
            p = 1 / (1 + np.exp(-(logits[own] + found[leaf])))
            step = (weights[own] * (labels[own] - p)).sum() / ((weights[own] * p * (1 - p)).sum() + l2)
            found[leaf] += step
            if abs(step) < near:
                break
    return found
