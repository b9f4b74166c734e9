"""Logits of many rows on a GPU: in large batches, whose ids threads bring to pinned memory ahead of the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.data.parallel import in_order, using
from fieldwise.nn.model import Model

ROWS = 2**15  # of a batch: launches of kernels then cost little beside the kernels
FEWEST = 2**10
THREADS = 4  # one copies about 10 GB/s, of which a GPU's LR could take three times as many


def scores(model: Model, ids: NDArray[np.int32], precision: str = "float32", rows: int = 0) -> NDArray[np.float32]:
    """What model.logits gives in small batches, ids (n, C) -> (n,); where memory is short, batches get smaller."""
    rows = rows or (ROWS if model.embedding else 4 * ROWS)  # LR looks up one number a field
    while True:
        try:
            return _scores(model, ids, precision, rows)
        except torch.OutOfMemoryError:
            if rows // 2 < FEWEST:
                raise
        rows //= 2
        torch.cuda.empty_cache()


@torch.inference_mode()
def _scores(model: Model, ids: NDArray[np.int32], precision: str, rows: int) -> NDArray[np.float32]:
    was_training, device = model.training, next(model.parameters()).device
    found, first = torch.empty(len(ids), device=device), 0
    model.eval()
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            for loaded in _loaded(ids, rows, pinned=device.type == "cuda"):
                batch = loaded.to(device, non_blocking=True)
                found[first : first + len(batch)] = model(batch)
                first += len(batch)
    finally:
        model.train(was_training)
    return found.cpu().numpy()


def _loaded(ids: NDArray[np.int32], rows: int, pinned: bool) -> Iterator[Tensor]:
    """The ids in batches, each ready to be sent."""

    def load(first: int) -> Tensor:
        part = ids[first : first + rows]
        loaded = torch.empty(part.shape, dtype=torch.int32, pin_memory=pinned)
        np.copyto(loaded.numpy(), part)
        return loaded

    with using(THREADS):
        yield from in_order(load, range(0, len(ids), rows))
