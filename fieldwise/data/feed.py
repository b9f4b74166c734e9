"""Rows on their way to a GPU: they lie there if they fit, and else come through pinned memory, a window ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.data.dataset import Part

T = TypeVar("T")

# The share of the free memory that rows may take; the rest is for the model, its optimiser and its steps.
SHARE = 0.4
CHUNK = 2**20  # rows copied at a time


class Source:
    """The rows of a part, to be had by their numbers on a device."""

    def __init__(self, part: Part, device: torch.device, resident: bool | None = None) -> None:
        self.part = part
        self.others: list[NDArray[Any]] = [part.labels] if part.weights is None else [part.labels, part.weights]
        if resident is None:
            needed = sum(array.nbytes for array in (part.ids, *self.others))
            resident = device.type == "cuda" and needed < SHARE * torch.cuda.mem_get_info(device)[0]
        self.device = device
        self.resident = [_copied(array, device) for array in (part.ids, *self.others)] if resident else None

    def load(self, rows: NDArray[np.int64], epoch: int = 0) -> list[Tensor]:
        """What `put` needs of these rows: the rows themselves, or their numbers and what is hidden of them in an epoch.

        Slow, for a separate thread.
        """
        if self.resident is None:
            arrays: list[NDArray[Any]] = [self.part.shown(rows, epoch), *(array[rows] for array in self.others)]
        else:
            arrays = [rows, *(self.part.hiding.cells(rows, epoch) if self.part.hiding else ())]
        found = [torch.from_numpy(array) for array in arrays]
        return [each.pin_memory() for each in found] if self.device.type == "cuda" else found

    def put(self, loaded: list[Tensor], into: list[Tensor]) -> None:
        """The loaded rows' ids, labels and weights -> tensors on the device, of as many rows."""
        if self.resident:
            numbers, *hidden = (each.to(self.device, non_blocking=True) for each in loaded)
            loaded = [values.index_select(0, numbers) for values in self.resident]
            if hidden:
                places, columns, ids = hidden
                loaded[0][places, columns] = ids
        for values, place in zip(loaded, into, strict=True):
            place.copy_(values, non_blocking=True)


def _copied(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, made in pieces: the array may be a file."""
    first = torch.from_numpy(np.array(array[:1]))
    copy = torch.empty(array.shape, dtype=first.dtype, device=device)
    for start in range(0, len(array), CHUNK):
        copy[start : start + CHUNK].copy_(torch.from_numpy(np.array(array[start : start + CHUNK])))
    return copy


def ahead(items: Iterable[T], count: int = 2) -> Iterator[T]:
    """The same items, of which a thread makes up to `count` before they are asked for; its errors are raised here."""
    ready: queue.Queue[tuple[str, T | BaseException | None]] = queue.Queue(count)
    closed = threading.Event()

    def put(kind: str, item: T | BaseException | None) -> bool:
        while not closed.is_set():
            try:
                ready.put((kind, item), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            kind, item = ready.get()
            if kind == "error":
                assert isinstance(item, BaseException)
                raise item
            if kind == "end":
                return
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join()
