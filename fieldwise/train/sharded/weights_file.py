"""Writes the weights file of an ordinary model from the rows of all workers; none ever holds a whole table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from fieldwise.config.files import whole_file
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.sharded.routes import share
from fieldwise.train.sharded.sharded_model import Cut, CutTable

# Rows sent at a time.
PIECE_ROWS = 2**18
KINDS = {torch.float32: "F32", torch.float64: "F64"}


@dataclass(frozen=True)
class WholeWeights:
    """Weights that are in a file already, as a bundle saves them for a cut model."""

    source: Path
    file = Model.file

    def save(self, path: Path) -> None:
        shutil.copyfile(self.source, path)


def write_whole(cut: Cut, path: Path) -> None:
    """Writes all weights as safetensors, named as the ordinary model's. Every worker calls it, rank 0 writes."""
    dense = {name: value.detach().cpu().contiguous() for name, value in cut.dense.items()}
    tables = {f"{name}.weight": table for name, table in cut.tables.items()}
    if not distributed.first():
        for table in tables.values():
            _send(table)
        return
    shapes = dense | {name: table.weight for name, table in tables.items()}
    with whole_file(path) as work, work.open("wb") as file:
        file.write(_header(shapes))
        for value in dense.values():
            _write(file, value)
        for table in tables.values():
            for rows in _received(table):
                _write(file, rows)


def _header(shapes: dict[str, Tensor]) -> bytes:
    """The header of a safetensors file: the length of the JSON, and the JSON that says where each tensor lies."""
    place, entries = 0, {}
    for name, value in shapes.items():
        end = place + value.numel() * value.element_size()
        entries[name] = {"dtype": KINDS[value.dtype], "shape": list(value.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(file: BinaryIO, value: Tensor) -> None:
    file.write(value.contiguous().numpy().tobytes())


def _pieces(table: CutTable, worker: int) -> list[tuple[int, int]]:
    """Start and end of the pieces of a worker's rows, counted from its first."""
    rows = table.layout.rows
    own = min(share(rows), rows - worker * share(rows))
    return [(start, min(start + PIECE_ROWS, own)) for start in range(0, own, PIECE_ROWS)]


def _piece(table: CutTable, start: int, end: int) -> Tensor:
    """Rows of this worker, in the type of an ordinary model's."""
    return table.own.detach()[start:end].to("cpu", table.weight.dtype)


def _send(table: CutTable) -> None:
    for start, end in _pieces(table, distributed.rank()):
        torch.distributed.send(_piece(table, start, end), 0)


def _received(table: CutTable) -> Iterator[Tensor]:
    """All rows of a table in the order of ranks."""
    for worker in range(distributed.count()):
        for start, end in _pieces(table, worker):
            if worker == 0:
                yield _piece(table, start, end)
            else:
                rows = torch.empty(end - start, table.own.shape[1], dtype=table.weight.dtype)
                torch.distributed.recv(rows, worker)
                yield rows
