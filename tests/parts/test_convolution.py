"""The largest windows of a convolution by compiled loops are torch's, gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fieldwise.loops.running import ROWS_PER_THREAD
from fieldwise.parts.convolution.formula import Convolution
from tests.parts.drawn import by_formula, drawn, numbers

ROWS = 2 * ROWS_PER_THREAD + 3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("fields", "dim", "channels", "width"), [(5, 3, 7, 2), (9, 20, 4, 7), (3, 4, 6, 3)])
def test_equals_convolution_and_maximum(fields: int, dim: int, channels: int, width: int, threads: int) -> None:
    part = drawn(Convolution([dim] * fields, [channels], [width], [1]))
    v = numbers(ROWS, fields, dim).requires_grad_()

    def found(features: Tensor) -> list[Tensor]:
        return [features, *torch.autograd.grad(features, [v, *part.parameters()], torch.cos(features.detach()))]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    features = part(v)
    assert "WindowMax" in str(features.grad_fn.next_functions)
    fast = found(features)
    torch.set_num_threads(before)
    for one, two in zip(found(by_formula(part, v)), fast, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-10)


def test_other_stages_and_few_rows_go_the_plain_way() -> None:
    several = Convolution([4] * 6, [5, 3], [2, 2], [3, 1]).double()
    for part, rows in ((several, ROWS), (Convolution([4] * 6, [5], [2], [1]).double(), ROWS_PER_THREAD - 1)):
        v = numbers(rows, 6, 4)
        torch.testing.assert_close(part(v), by_formula(part, v), rtol=0, atol=0)
