"""A model whose tables are cut by rows over workers: each has its own rows, and moves them by its own optimiser.

TorchRec's fused tables (FBGEMM) move rows while gradients arrive. They are not used: their Adam is not ours. It lacks
the decay of rows out of the batch (`paper`), its clock also counts the batches that are only scored, and on CPUs it
does not exist; there is no float64, no clipping, and rows are padded to four numbers. Their unfused gradient is as
large as the table. Here the optimisers of optim/ move a worker's rows as they move a whole table, on any device, so
that each setting means what it means in one process. `benchmarks/torchrec_fused.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.nn.embedding import Table
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.sharded.deferred import IntoOwnRows, WithoutMemory
from fieldwise.train.sharded.routes import Router, fetched, share

# What a table's numbers are by train.weights_precision.
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


class CutTable(Table):
    """A table whose rows are spread over all workers: ids go to the workers that have the rows, and rows come back.

    `own` (n, D) are this worker's rows, from number `first` on.
    """

    own: nn.Parameter
    first: int
    router: Router

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The shape of the whole table and the type that its rows have in a step, without memory."""
        kind = torch.float64 if self.own.dtype == torch.float64 else torch.float32
        return torch.empty(self.layout.rows, self.own.shape[1], dtype=kind, device="meta")

    @property
    def here(self) -> tuple[Tensor, range]:
        return self.own, range(self.first, self.first + len(self.own))

    def start(self, init: str = "uniform-nk", scale: float = 1.0) -> None:
        """Fills this worker's rows with the values that they have in a whole table."""
        with torch.no_grad(), IntoOwnRows(self.own, self.first):
            super().start(init, scale)

    def _rows(self, ids: Tensor) -> Tensor:
        return fetched(self.own, self.router.route(ids, self.offsets))


@dataclass(frozen=True)
class Cut:
    """A model with cut tables, by their names."""

    model: Model
    tables: dict[str, CutTable]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters by the names that they have in an ordinary model; of tables this worker's rows."""
        own = {f"{name}.own": f"{name}.weight" for name in self.tables}
        return {own.get(name, name): value for name, value in self.model.named_parameters()}

    @property
    def rows(self) -> dict[str, Tensor]:
        """Those of the tables."""
        return {f"{name}.weight": table.own for name, table in self.tables.items()}

    @property
    def dense(self) -> dict[str, Tensor]:
        """The others, of which every worker has a copy."""
        rows = self.rows
        return {name: value for name, value in self.weights.items() if name not in rows}

    @property
    def live(self) -> dict[str, Tensor]:
        """The tensors that this worker's steps change in place."""
        return {name: value.detach() for name, value in self.weights.items()}

    @property
    def size(self) -> int:
        """How many parameters the whole model has."""
        own = sum(value.numel() for value in self.dense.values())
        return own + sum(table.weight.numel() for table in self.tables.values())


def build(make: Callable[[], Model], settings: TrainSettings, device: torch.device) -> Cut:
    """The model that `make` builds, with its tables cut over the workers; no worker ever holds a whole one."""
    with torch.device("meta"):
        shapes = {tuple(part.weight.shape) for part in make().modules() if isinstance(part, Table)}
    with WithoutMemory(shapes):
        model = make()
    tables = {name: part for name, part in model.named_modules() if isinstance(part, Table)}
    for table in tables.values():
        check_rows(len(table.weight), distributed.count())
    without = [name for name, value in model.named_parameters() if value.is_meta]
    assert without == [f"{name}.weight" for name in tables], without
    routers: dict[tuple[int, ...], Router] = {}
    for table in tables.values():
        same = len(table.weight), *table.offsets.tolist()
        router = routers.setdefault(same, Router(len(table.weight)))
        _cut(table, router, PRECISIONS[settings.weights_precision], device)
    cut = {name: part for name, part in tables.items() if isinstance(part, CutTable)}
    return Cut(model.to(device), cut)


def _cut(table: Table, router: Router, kind: torch.dtype, device: torch.device) -> None:
    """Turns a table without memory into a `CutTable`, in place; its rows are not filled yet."""
    rows, dim = table.weight.shape
    del table.weight
    table.__class__ = CutTable
    assert isinstance(table, CutTable)
    table.router, table.first = router, distributed.rank() * share(rows)
    table.own = nn.Parameter(torch.empty(min(share(rows), rows - table.first), dim, dtype=kind, device=device))
    if kind == torch.bfloat16:
        table.own.grad_dtype = torch.float32


def refuse(config: Config) -> None:
    """Refuses settings that cut tables do not support."""
    settings = config.train
    bf16 = settings.weights_precision == "bf16"
    rules = [
        (not (bf16 and settings.l2_full), "train.l2_full=0 with train.weights_precision=bf16", settings.l2_full),
        (not settings.row_ratio, "train.row_clip=0", f"{settings.row_ratio:g}"),
        (torch.distributed.is_initialized(), "workers; start them with --workers or torchrun", "a lone process"),
    ]
    for holds, rule, found in rules:
        if not holds:
            raise ConfigError(f"--tables sharded needs {rule}, found {found}; or take --tables replicated")


def check_rows(rows: int, workers: int) -> None:
    """Refuses a table so small that the last worker would have no row.

    >>> check_rows(5, 2)
    >>> check_rows(4, 3)
    Traceback (most recent call last):
    fieldwise.config.errors.ConfigError: --tables sharded needs rows of every table for each of 3 workers, found ...
    """
    if (workers - 1) * -(-rows // workers) >= rows:
        way_out = "take fewer workers, or --tables replicated"
        needed = f"rows of every table for each of {workers} workers"
        raise ConfigError(f"--tables sharded needs {needed}, found one of {rows} rows; {way_out}")
