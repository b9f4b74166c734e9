"""The checks of `bench --check` find what is right to be right, and say so of nothing else."""

import torch

from fieldwise.checks import LIMITS, Check, adam_error, error, learnable, part_errors
from fieldwise.data.schema import Layout
from fieldwise.nn.interactions import KernelProduct

CPU = torch.device("cpu")


def test_adam_on_rows_is_right():
    assert adam_error(3, CPU) <= LIMITS["float32"]


def test_a_part_is_right_in_both_precisions():
    for precision, limit in LIMITS.items():
        found = part_errors(lambda: KernelProduct([20] * 4, "mat", "uniform"), precision, CPU, fields=4, rows=20)
        assert all(value <= limit for value in found.values()), found


def test_an_error_is_seen():
    assert error(torch.tensor([1.0, 2.2]), torch.tensor([1.0, 2.0])) > 0.05
    assert not Check("something", "float32", 2e-5, 1e-5).right
    assert not Check("something", "float32", float("nan"), 1e-5).right


def test_labels_can_be_learnt():
    part = learnable(Layout.of([50] * 39), 2000, seed=1)
    assert 0.1 < part.labels.mean() < 0.9
    assert part.ids.max() < 50
