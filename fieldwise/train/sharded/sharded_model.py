"""A model whose tables are cut by rows: on each worker, TorchRec holds, looks up and moves the worker's own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.nn.embedding import Table
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.sharded.deferred import IntoOwnRows, WithoutMemory
from fieldwise.train.sharded.torchrec_engine import torchrec

# The one feature and table of each collection. TorchRec returns rows by this name.
ROWS = "rows"
# FBGEMM needs rows of a multiple of this many numbers; the padding has no gradient and stays zero.
LANES = 4


class CutTable(Table):
    """A table whose rows are spread over all workers: ids go to the workers that have the rows, and rows come back.

    `weight` has a shape and a dtype but no memory. `own` are this worker's rows, from number `first` on, and `padded`
    the same rows with FBGEMM's padding.
    """

    rows: Any
    own: Tensor
    padded: Tensor
    first: int

    def start(self, init: str = "uniform-nk", scale: float = 1.0) -> None:
        """Fills this worker's rows with the values that they have in a whole table."""
        with torch.no_grad(), IntoOwnRows(self.own, self.first):
            super().start(init, scale)

    def _rows(self, ids: Tensor) -> Tensor:
        # FBGEMM does not support torch's inference mode.
        with torch.inference_mode(False), torch.set_grad_enabled(torch.is_grad_enabled()):
            return self._fetched(ids + self.offsets)

    def _fetched(self, places: Tensor) -> Tensor:
        """The rows of these numbers (B, n) from the workers that have them: (B, n, D). Each row is sent once."""
        distinct, which = torch.unique(places, return_inverse=True)
        # Row numbers that fit in 32 bits halve the message.
        asked = distinct.int() if len(self.weight) < 2**31 else distinct
        lengths = torch.tensor([len(asked)], dtype=torch.int32, device=places.device)
        jagged = torchrec().KeyedJaggedTensor(keys=[ROWS], values=asked, lengths=lengths)
        found: Tensor = self.rows(jagged)[ROWS].values()
        return functional.embedding(which, found[:, : self.weight.shape[1]])


@dataclass(frozen=True)
class Cut:
    """A model with cut tables: `weights` and `states` are TorchRec's tensors of all workers, by the model's names."""

    model: Model
    parallel: Any
    tables: dict[str, CutTable]
    weights: dict[str, Any]
    states: dict[str, Any]

    @property
    def dense(self) -> dict[str, Tensor]:
        """The parameters outside the tables, of which every worker has a copy."""
        inside = tuple(f"{name}.{ROWS}." for name in self.tables)
        return {name: value for name, value in self.model.named_parameters() if not name.startswith(inside)}

    @property
    def live(self) -> dict[str, Tensor]:
        """The tensors that this worker's steps change in place: the dense parameters, its own rows of the tables."""
        dense = {name: value.detach() for name, value in self.dense.items()}
        return dense | {f"{name}.weight": table.padded for name, table in self.tables.items()}

    @property
    def size(self) -> int:
        """How many parameters the whole model has."""
        own = sum(value.numel() for value in self.dense.values())
        return own + sum(table.weight.numel() for table in self.tables.values())

    def spread(self, name: str, value: Tensor) -> Any:
        """A tensor like one of `live` as a tensor of all workers: a shard of a table, or the same on each worker."""
        return placed(value, self.weights[name]) if name in self.weights else value

    def set_rate(self, rate: float) -> None:
        """The learning rate of the rows' optimiser, from the next gradient on."""
        optimizer = self.parallel.fused_optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()  # moves nothing: it passes the rate on


def placed(own: Tensor, like: Any) -> Any:
    """A sharded tensor like `like` that has these rows as this worker's shard."""
    shards = [type(shard)(own, shard.metadata) for shard in like.local_shards()]
    return type(like)._init_from_local_shards_and_global_metadata(shards, like.metadata())


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
    # TorchRec draws starting values of its own, different on each worker: that must not advance our random numbers.
    with torch.random.fork_rng():
        return cut(model, tables, settings, device)


def cut(model: Model, tables: dict[str, Table], settings: TrainSettings, device: torch.device) -> Cut:
    """Replaces the tables of a model with cut ones, in place."""
    cut_tables = {name: _emptied(table) for name, table in tables.items()}
    model.to(device)
    plans = {}
    sharder = torchrec("torchrec.distributed.embedding").EmbeddingCollectionSharder(fused_params=optimizer_of(settings))
    for name, table in cut_tables.items():
        table.rows = _collection(*table.weight.shape)
        plans[f"{name}.{ROWS}"] = _by_rows(table, sharder, device)
    # Gradients of the workers' shares of a loss are summed, as those of the dense parameters are; not averaged.
    torchrec("torchrec.distributed.comm_ops").set_gradient_division(False)
    parallel = torchrec("torchrec.distributed").DistributedModelParallel(
        model,
        device=device,
        plan=torchrec("torchrec.distributed.types").ShardingPlan(plans),
        sharders=[sharder],
        init_data_parallel=False,
    )
    state = model.state_dict()
    weights = {f"{name}.weight": state[f"{name}.{ROWS}.embeddings.{ROWS}.weight"] for name in tables}
    for name, table in cut_tables.items():
        _give_rows(table, weights[f"{name}.weight"])
    return Cut(model, parallel, cut_tables, weights, _states(parallel, cut_tables, settings))


def optimizer_of(settings: TrainSettings) -> dict[str, Any]:
    """FBGEMM's settings for the optimiser that moves rows while gradients arrive."""
    kinds = torchrec("fbgemm_gpu.split_embedding_configs").EmbOptimType
    chosen = {"learning_rate": settings.lr}
    if settings.optimizer == "adagrad":
        return chosen | {"optimizer": kinds.EXACT_ADAGRAD, "eps": settings.eps}
    return chosen | {"optimizer": kinds.EXACT_SGD}


def refuse(config: Config) -> None:
    """Refuses settings that cut tables do not support."""
    settings = config.train
    torchrec()
    moves = settings.optimizer == "adagrad" or (settings.optimizer == "sgd" and not settings.momentum)
    rules = [
        (moves, "train.optimizer=adagrad, or sgd with train.momentum=0", settings.optimizer),
        (not settings.clip, "train.clip=0, as rows move while gradients arrive", settings.clip),
        (not settings.l2_full, "train.l2_full=0, which is of whole tables", settings.l2_full),
        (not settings.init_from, "no train.init_from", settings.init_from),
        (not settings.continue_from, "no train.continue_from", settings.continue_from),
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


def _emptied(table: Table) -> CutTable:
    """Turns the table into a `CutTable` whose weight has no memory."""
    shape = torch.empty_like(table.weight.detach(), device="meta")
    del table.weight
    table.__class__ = CutTable
    assert isinstance(table, CutTable)
    table.weight = shape  # type: ignore[assignment]
    return table


def _collection(rows: int, dim: int) -> Any:
    """TorchRec's table of `rows` rows, not yet cut and without memory."""
    config = torchrec().EmbeddingConfig(
        name=ROWS, feature_names=[ROWS], num_embeddings=rows, embedding_dim=-(-dim // LANES) * LANES
    )
    return torchrec().EmbeddingCollection(tables=[config], device=torch.device("meta"))


def _by_rows(table: CutTable, sharder: Any, device: torch.device) -> Any:
    """TorchRec's plan for one table: equal parts by rows, moved by the fused optimiser."""
    plans = torchrec("torchrec.distributed.sharding_plan")
    return plans.construct_module_sharding_plan(
        table.rows,
        {ROWS: plans.row_wise(compute_kernel="fused")},
        sharder,
        world_size=distributed.count(),
        device_type=device.type,
    )


def _give_rows(table: CutTable, weight: Any) -> None:
    """Gives the table this worker's rows, set to zero."""
    (shard,) = weight.local_shards()
    table.padded, table.first = shard.tensor.detach().zero_(), shard.metadata.shard_offsets[0]
    table.own = table.padded[:, : table.weight.shape[1]]


def _states(parallel: Any, tables: dict[str, CutTable], settings: TrainSettings) -> dict[str, Any]:
    """The state of the rows' optimiser, filled with its starting value: FBGEMM's sum of squares includes it."""
    found = {}
    by_weight = parallel.fused_optimizer.state_dict()["state"]
    for name in tables:
        for key, value in by_weight[f"{name}.{ROWS}.embeddings.{ROWS}.weight"].items():
            found[f"{name}.{key.removeprefix(ROWS + '.')}"] = value
            for shard in value.local_shards():
                shard.tensor.fill_(settings.initial_accumulator)
    return found
