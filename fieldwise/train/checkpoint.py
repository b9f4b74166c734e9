"""Everything needed to go on after a kill, written so that a half-written checkpoint is never read."""

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
from fieldwise.train import distributed


class Store(ABC):
    """What a run keeps on disk to go on from, and the best weights so far. Every worker calls all of it.

    `average` are the averaged weights, if there are any; `keep` says how many of the newest checkpoints stay.
    """

    def __init__(self, out: Path, average: dict[str, Tensor], keep: int) -> None:
        self.folder, self.best = out / "checkpoint", out / "best.safetensors"
        self.average, self.keep = average, keep

    @abstractmethod
    def load(self) -> dict[str, Any] | None:
        """Puts the newest checkpoint back and returns its progress; None where there is none."""

    @abstractmethod
    def save(self, progress: dict[str, Any]) -> None:
        """Writes a checkpoint, and drops older ones."""

    @abstractmethod
    def keep_best(self) -> None:
        """The weights as they are now are the best so far."""

    @abstractmethod
    def take_best(self, step: int) -> None:
        """Puts the best weights back, which are those of that step."""

    @property
    @abstractmethod
    def whole(self) -> Saved:
        """The whole model, to be saved when the best weights are back."""

    @abstractmethod
    def tidy(self, step: int) -> None:
        """Removes what only an unfinished run needs; that was its best step."""


class WholeStore(Store):
    """Of a model that every worker holds whole: the first writes, all read."""

    def __init__(self, out: Path, model: Model, optimizer: Optimizer, average: dict[str, Tensor], keep: int) -> None:
        super().__init__(out, average, keep)
        self.model, self.optimizer = model, optimizer

    def load(self) -> dict[str, Any] | None:
        found = load(self.folder, self.model, self.optimizer, self.average)
        distributed.wait()  # the first worker may drop this checkpoint only when all have read it
        return found

    def save(self, progress: dict[str, Any]) -> None:
        if distributed.first():
            save(self.folder, self.model, self.optimizer, progress, self.average, self.keep)

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


def save(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer,
    progress: dict[str, Any],
    average: dict[str, Tensor],
    keep: int = 1,
) -> None:
    """Writes folder/STEP with weights, optimiser state, random state and `progress`, then drops all but `keep`.

    That of the best step stays: a later run may go on from there. `average` are the averaged weights, if there are any.
    """
    state = optimizer.state_dict()
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.items()}
    plain: dict[str, dict[str, Any]] = {}
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{number}.{name}"] = value
            else:
                plain.setdefault(str(number), {})[name] = value
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    facts = {"progress": progress, "groups": state["param_groups"], "plain": plain}
    with whole_folder(folder_of(folder, progress["step"]), "state.json", force=True) as work:
        kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(kept, work / "state.safetensors")
        (work / "state.json").write_text(json.dumps(facts), encoding="utf-8")
    drop_others(folder, progress["step"], progress["best_step"], newest=keep)


def drop_others(folder: Path, *steps: int, newest: int = 0) -> None:
    """Removes the checkpoints of all other steps, but for some of the newest."""
    kept = {folder_of(folder, step) for step in steps} | set(newest_first(folder)[:newest])
    for old in folder.iterdir():
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, model: nn.Module, optimizer: Optimizer, average: dict[str, Tensor]) -> dict[str, Any] | None:
    """Puts the newest checkpoint back, averaged weights too, and returns its progress; None where there is none."""
    found = newest_first(folder)
    if not found:
        return None
    facts = _facts(found[0])
    tensors = _put(found[0], facts, model, optimizer)
    for name, value in average.items():
        value.copy_(tensors[f"average.{name}"])
    torch.set_rng_state(tensors["random"].cpu())
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"].cpu())
    progress: dict[str, Any] = facts["progress"]
    return progress


def load_best(folder: Path, model: nn.Module, optimizer: Optimizer) -> bool:
    """Puts weights and optimiser state of the best step back, random state aside; False where they are not there."""
    for path in newest_first(folder):
        # A kill may have left a part of a checkpoint that was being dropped; it is of no best step.
        facts = _facts(path) if (path / "state.json").exists() else None
        if facts and facts["progress"]["step"] == facts["progress"]["best_step"]:
            _put(path, facts, model, optimizer)
            return True
    return False


def folder_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of that step lies."""
    return folder / f"{step:012d}"


def newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("[0-9]*") if path.is_dir()), reverse=True)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    return facts


def _put(path: Path, facts: dict[str, Any], model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Loads model and optimiser; returns all tensors of the checkpoint."""
    try:
        tensors: dict[str, Tensor] = load_file(path / "state.safetensors", device=str(next(model.parameters()).device))
    except (OSError, ValueError, RuntimeError) as error:
        raise _damaged(path, error) from None
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


def _damaged(path: Path, error: Exception) -> BundleError:
    return BundleError(f"the checkpoint is damaged: {error}; start anew with another --out ({path})")
