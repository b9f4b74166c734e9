"""Checkpoints of cut tables by torch.distributed.checkpoint: each worker writes its rows; any number can read them."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_loader import load as read
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from fieldwise.config.errors import TrainingError
from fieldwise.optim import RowOptimizer
from fieldwise.train import distributed
from fieldwise.train.checkpoint import Store, damaged, drop_others, folder_of, newest_first, read_facts
from fieldwise.train.sharded.sharded_model import Cut
from fieldwise.train.sharded.weights_file import WholeWeights, write_whole
from fieldwise.train.state import State

PROGRESS = "progress.json"


class CutStore(Store):
    """Writes checkpoints while training goes on; they appear whole or not at all, and only the last few stay.

    The best weights are those of the best step's checkpoint, so they are not written twice.
    """

    def __init__(
        self,
        out: Path,
        cut: Cut,
        optimizer: RowOptimizer,
        average: dict[str, Tensor],
        keep: int,
        by_rows: bool = True,
    ) -> None:
        """`by_rows`: tables move by rows in this run, rather than whole because of a penalty."""
        super().__init__(out, optimizer, average, keep)
        self.cut, self.by_rows = cut, by_rows
        self.group = distributed.beside()
        self.workers = DeviceMesh.from_group(torch.distributed.distributed_c10d._get_default_group(), "cpu")
        self.writer = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None

    def save(self, state: State) -> None:
        self.wait()
        folder = folder_of(self.folder, state.step)
        work = folder.with_name(f".{folder.name}.tmp")
        facts = {"progress": state.to_json(), "clocks": [group["step"] for group in self.optimizer.param_groups]}
        distributed.from_first(lambda: _begin(work, facts))
        with _quietly():
            written: Any = async_save(
                self._placed(self._state()), checkpoint_id=work, process_group=self.group, async_stager=Copies()
            )
        self.writing = self.writer.submit(self._publish, written, work, folder, state.step, state.best_step)

    def _publish(self, written: Future[Any], work: Path, folder: Path, *kept: int) -> None:
        """Rank 0 hears that it is written once all ranks have written; then it renames it and drops old ones."""
        written.result()
        if distributed.first():
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)
            drop_others(self.folder, *kept, newest=self.keep)

    def wait(self) -> None:
        """Waits until the checkpoint being written is there for all ranks."""
        if self.writing is not None:
            try:
                self.writing.result()
            except (OSError, CheckpointException) as error:
                raise _unwritten(error, self.folder) from error
            self.writing = None
            distributed.wait()

    def load(self) -> State | None:
        found = distributed.from_first(lambda: newest_first(self.folder))
        if not found:
            return None
        facts = distributed.from_first(lambda: read_facts(found[0] / PROGRESS))
        self._read(self._state(), found[0])
        for group, clock in zip(self.optimizer.param_groups, facts["clocks"], strict=True):
            group["step"] = clock
        return State.of(facts["progress"])

    def keep_best(self) -> None:
        """Does nothing: the checkpoint that follows every evaluation has the weights."""

    def take_best(self, step: int) -> None:
        """Restores the best weights, averaged where there is an average, and writes them whole for the bundle."""
        self.wait()
        kind = "average" if self.average else "model"
        self._read({f"{kind}.{name}": value for name, value in self.cut.live.items()}, folder_of(self.folder, step))
        write_whole(self.cut, self.best)

    @property
    def whole(self) -> WholeWeights:
        return WholeWeights(self.best)

    def tidy(self, step: int) -> None:
        self.best.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _state(self) -> dict[str, Tensor]:
        """All tensors that a run needs to resume, of tables this worker's rows."""
        state = {f"model.{name}": value for name, value in self.cut.live.items()}
        state |= {f"average.{name}": value for name, value in self.average.items()}
        for name, weight in self.cut.weights.items():
            by_rows = self.by_rows and name in self.cut.rows
            for key, value in self.optimizer.whole_state(weight, by_rows).items():
                state[f"{key}.{name}"] = value
        return state

    def _placed(self, state: dict[str, Tensor]) -> dict[str, Any]:
        """The tensors as those of all workers: a table's rows as a part of it, others as they are; on the host."""
        sizes = {name: table.layout.rows for name, table in self.cut.tables.items()}
        found: dict[str, Any] = {}
        for name, value in state.items():
            table = name.split(".", 1)[1].removesuffix(".weight")
            found[name] = value.detach().cpu()
            if table in sizes:
                found[name] = part_of(sizes[table], found[name], self.workers)
        return found

    @torch.no_grad()
    def _read(self, state: dict[str, Tensor], folder: Path) -> None:
        """Fills these tensors from a checkpoint."""
        placed = self._placed(state)
        try:
            with _quietly():
                read(placed, checkpoint_id=folder, process_group=self.group)
        except (OSError, ValueError, RuntimeError, CheckpointException) as error:
            raise damaged(folder, _why(error)) from error
        for name, value in state.items():
            found = placed[name]
            own = found.to_local() if isinstance(found, DTensor) else found
            if own.data_ptr() != value.data_ptr():  # not filled in place: it is on a GPU
                value.copy_(own)


def part_of(size: int, rows: Tensor, workers: DeviceMesh) -> DTensor:
    """This worker's rows (n, ...) as a part of a tensor (size, ...) of all workers."""
    whole = torch.empty(size, *rows.shape[1:], device="meta")
    found: DTensor = DTensor.from_local(rows, workers, [Shard(0)], shape=whole.shape, stride=whole.stride())
    return found


class Copies(AsyncStager):
    """Copies what is to be written, so that training can go on."""

    should_synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {name: _copied(value) for name, value in state_dict.items()}

    def synchronize_staging(self) -> None:
        return None

    def close(self) -> None:
        return None


def _copied(value: Any) -> Any:
    if isinstance(value, DTensor):
        return part_of(len(value), value.to_local().clone(), value.device_mesh)
    return value.clone()


@contextmanager
def _quietly() -> Iterator[None]:
    """Hides torch's warnings about its own affairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _begin(work: Path, facts: dict[str, Any]) -> None:
    """Makes the folder to write into, with the state of the run."""
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        (work / PROGRESS).write_text(json.dumps(facts), encoding="utf-8")
    except OSError as error:
        raise _unwritten(error, work.parent) from None


def _unwritten(error: BaseException, folder: Path) -> TrainingError:
    return TrainingError(f"the checkpoint cannot be written: {_why(error)}; go on with --resume ({folder})")


def _why(error: BaseException) -> str:
    """The first worker's error in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return (str(error).strip() or type(error).__name__).splitlines()[0]
