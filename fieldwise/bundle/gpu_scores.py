"""Logits of many rows on a GPU, in large batches; ids are on the GPU already, or are copied ahead by threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.data.read.parallel import in_order, using
from fieldwise.nn.model import Model

ROWS = 2**15  # of a batch: launches of kernels then cost little beside the kernels
FEWEST = 2**10
THREADS = 4  # one copies about 10 GB/s, of which a GPU's LR could take three times as many
SHARE = 0.1  # of the free memory, for ids that will be scored again


def placed(model: Model, ids: NDArray[np.int32]) -> NDArray[np.int32] | Tensor:
    """Ids that are scored repeatedly, such as once an epoch: copied to the model's GPU if there is room."""
    device = next(model.parameters()).device
    if device.type != "cuda" or ids.nbytes > SHARE * torch.cuda.mem_get_info(device)[0]:
        return ids
    copy = torch.empty(ids.shape, dtype=torch.int32, device=device)
    for first in range(0, len(ids), ROWS):
        copy[first : first + ROWS] = torch.from_numpy(np.array(ids[first : first + ROWS]))
    return copy


def scores(model: Model, ids: NDArray[np.int32] | Tensor, precision: str = "float32") -> NDArray[np.float32]:
    """Logits of ids (n, C) -> (n,), the same as model.logits; if memory runs out, batches get smaller."""
    rows = ROWS if model.embedding else 4 * ROWS  # LR looks up one number a field
    while True:
        try:
            return _scores(model, ids, precision, rows)
        except torch.OutOfMemoryError:
            if rows // 2 < FEWEST:
                raise
        rows //= 2
        torch.cuda.empty_cache()


@torch.inference_mode()
def _scores(model: Model, ids: NDArray[np.int32] | Tensor, precision: str, rows: int) -> NDArray[np.float32]:
    was_training, device = model.training, next(model.parameters()).device
    found, first = torch.empty(len(ids), device=device), 0
    model.eval()
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            for batch in ids.split(rows) if isinstance(ids, Tensor) else _sent(ids, rows, device):
                found[first : first + len(batch)] = model(batch)
                first += len(batch)
    finally:
        model.train(was_training)
    return found.cpu().numpy()


def _sent(ids: NDArray[np.int32], rows: int, device: torch.device) -> Iterator[Tensor]:
    """Batches of ids on the device; threads meanwhile copy the next ones to pinned memory."""

    def load(first: int) -> Tensor:
        part = ids[first : first + rows]
        loaded = torch.empty(part.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        np.copyto(loaded.numpy(), part)
        return loaded

    with using(THREADS):
        for loaded in in_order(load, range(0, len(ids), rows)):
            yield loaded.to(device, non_blocking=True)
