"""Checkpoints: everything that a run needs to resume after a kill. A half-written one is never read."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwise.bundle.scoring import Saved
from fieldwise.config.errors import BundleError
from fieldwise.config.files import whole_file, whole_folder
from fieldwise.nn.model import Model
from fieldwise.optim import RowOptimizer
from fieldwise.train import distributed
from fieldwise.train.state import State

FACTS, TENSORS = "state.json", "state.safetensors"


class Store(ABC):
    """What a run keeps on disk: checkpoints to resume from, and the best weights so far. All workers call all methods.

    `average` holds the averaged weights, empty without an average; `keep` is how many of the newest checkpoints stay.
    """

    def __init__(self, out: Path, optimizer: RowOptimizer, average: dict[str, Tensor], keep: int) -> None:
        self.folder, self.best = out / "checkpoint", out / "best.safetensors"
        self.optimizer, self.average, self.keep = optimizer, average, keep

    @abstractmethod
    def load(self) -> State | None:
        """Restores the newest checkpoint and returns its state; None where there is none."""

    @abstractmethod
    def save(self, state: State) -> None:
        """Writes a checkpoint, and drops older ones but for that of the best step."""

    @abstractmethod
    def keep_best(self) -> None:
        """Keeps the current weights as the best so far."""

    @abstractmethod
    def take_best(self, step: int) -> None:
        """Restores the best weights, those of that step."""

    @property
    @abstractmethod
    def whole(self) -> Saved:
        """The whole model with the best weights, for the bundle."""

    @abstractmethod
    def tidy(self, step: int) -> None:
        """Removes what only an unfinished run needs; `step` was the best one."""


class WholeStore(Store):
    """The store of a model that every worker holds whole: rank 0 writes, all read."""

    def __init__(self, out: Path, model: Model, optimizer: RowOptimizer, average: dict[str, Tensor], keep: int) -> None:
        super().__init__(out, optimizer, average, keep)
        self.model = model

    def load(self) -> State | None:
        found = newest_first(self.folder)
        state = self._restore(found[0]) if found else None
        distributed.wait()  # rank 0 may drop this checkpoint only when all have read it
        return state

    def _restore(self, path: Path) -> State:
        facts = read_facts(path / FACTS)
        tensors = _put(path, facts, self.model, self.optimizer)
        for name, value in self.average.items():
            value.copy_(tensors[f"average.{name}"])
        torch.set_rng_state(tensors["random"].cpu())
        if "random.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["random.cuda"].cpu())
        return State.of(facts["progress"])

    def save(self, state: State) -> None:
        """Writes folder/STEP with weights, optimiser state, random state and the run's state, on rank 0."""
        if not distributed.first():
            return
        kept = self.optimizer.state_dict()
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.items()}
        plain: dict[str, dict[str, Any]] = {}
        for number, values in kept["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{number}.{name}"] = value
                else:
                    plain.setdefault(str(number), {})[name] = value
        tensors["random"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        facts = {"progress": state.to_json(), "groups": kept["param_groups"], "plain": plain}
        with whole_folder(folder_of(self.folder, state.step), FACTS, force=True) as work:
            host = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
            save_file(host, work / TENSORS)
            (work / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        drop_others(self.folder, state.step, state.best_step, newest=self.keep)

    def keep_best(self) -> None:
        if distributed.first():
            with whole_file(self.best) as file:
                self.model.save(file)

    def take_best(self, step: int) -> None:
        self.model.load(self.best)

    @property
    def whole(self) -> Saved:
        return self.model

    def tidy(self, step: int) -> None:
        self.best.unlink(missing_ok=True)
        drop_others(self.folder, step)


def drop_others(folder: Path, *steps: int, newest: int = 0) -> None:
    """Removes all checkpoints but those of these steps and some of the newest."""
    kept = {folder_of(folder, step) for step in steps} | set(newest_first(folder)[:newest])
    for old in folder.iterdir():
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def load_best(folder: Path, model: nn.Module, optimizer: Optimizer) -> bool:
    """Restores weights and optimiser state of the best step, not random state; False if no checkpoint has them."""
    for path in newest_first(folder):
        # A kill while a checkpoint was being dropped may have left a part of it; such a one is never the best.
        facts = read_facts(path / FACTS) if (path / FACTS).exists() else None
        if facts and facts["progress"]["step"] == facts["progress"]["best_step"]:
            _put(path, facts, model, optimizer)
            return True
    return False


def folder_of(folder: Path, step: int) -> Path:
    """The folder of that step's checkpoint."""
    return folder / f"{step:012d}"


def newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("[0-9]*") if path.is_dir()), reverse=True)


def read_facts(path: Path) -> dict[str, Any]:
    """The JSON file of a checkpoint."""
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path.parent, str(error)) from None
    return facts


def _put(path: Path, facts: dict[str, Any], model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Restores model and optimiser; returns all tensors of the checkpoint."""
    try:
        tensors: dict[str, Tensor] = load_file(path / TENSORS, device=str(next(model.parameters()).device))
    except (OSError, ValueError, RuntimeError) as error:
        raise damaged(path, str(error)) from None
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    model.load_state_dict(weights)
    state: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in facts["plain"].items()}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in facts["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return tensors


def damaged(path: Path, why: str) -> BundleError:
    return BundleError(f"the checkpoint is damaged: {why}; start anew with another --out ({path})")
