"""Logits in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fieldwise.bundle.scoring import SCORE_IDS, in_batches


@pytest.mark.parametrize(("rows", "columns", "most"), [(10_000, 3, 4096), (1000, 5000, 800), (3, 6_000_000, 1)])
def test_batches_are_bounded_by_rows_and_by_ids(rows: int, columns: int, most: int) -> None:
    ids = np.broadcast_to(np.arange(rows, dtype=np.int32)[:, None], (rows, columns))
    sizes = []

    def logits(batch: NDArray[np.int32]) -> NDArray[Any]:
        sizes.append(len(batch))
        return batch[:, 0]

    np.testing.assert_array_equal(in_batches(logits, ids), np.arange(rows))
    assert max(sizes) == most
    assert most == 1 or most * columns <= SCORE_IDS
