"""Logs: rows with their truth, and their files."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from fieldwise.config.errors import DataError
from fieldwise.data.world.fields import Floats

if TYPE_CHECKING:
    from fieldwise.data.world.sequential import SequentialWorld
    from fieldwise.data.world.world import World


@dataclass(frozen=True)
class Log:
    """Rows in time order, the label first where there is one, and the true P(click=1 | row) of each."""

    table: pa.Table
    probability: Floats

    def __len__(self) -> int:
        return len(self.probability)

    def __getitem__(self, rows: slice) -> Log:
        return Log(self.table[rows], self.probability[rows])


def join(logs: Sequence[Log]) -> Log:
    """One log of several, in their order."""
    return Log(pa.concat_tables([log.table for log in logs]), np.concatenate([log.probability for log in logs]))


def write_log(
    world: World | SequentialWorld,
    rows: int,
    path: str | Path,
    seed: int = 0,
    truth: bool = False,
    first_day: int = 0,
    last_day: int | None = None,
) -> None:
    """Write a log by the ending: csv, tsv, txt (tabs, no header), each also .gz, or parquet; all of it or nothing."""
    path = Path(path)
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if ending not in ("csv", "tsv", "txt", "parquet") or path.name.endswith(".parquet.gz"):
        raise DataError(f"expected a name ending in .csv, .tsv, .txt (or these with .gz) or .parquet, found {path}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            writer = None
            for log in world.chunks(rows, seed, first_day=first_day, last_day=last_day):
                table = log.table.append_column("true_probability", [log.probability]) if truth else log.table
                writer = writer or stack.enter_context(_writer(stack, part, ending, table.schema))
                writer.write_table(table)
        part.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _writer(stack: contextlib.ExitStack, part: Path, ending: str, schema: pa.Schema) -> Any:
    sink: Any = stack.enter_context(part.open("wb"))
    if ending == "parquet":
        return pq.ParquetWriter(sink, schema)
    if ".gz." in part.name:  # without the time of writing: the same log, the same bytes
        sink = stack.enter_context(gzip.GzipFile("", "wb", 5, sink, mtime=0))
    separator = "," if ending == "csv" else "\t"
    if ending != "txt":
        sink.write(f"{separator.join(schema.names)}\n".encode())
    options = pacsv.WriteOptions(include_header=False, delimiter=separator, quoting_style="none")
    return pacsv.CSVWriter(sink, schema, write_options=options)
