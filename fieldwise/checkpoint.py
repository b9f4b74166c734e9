"""Everything needed to go on after a kill, written so that a half-written checkpoint is never read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwise.errors import BundleError
from fieldwise.files import whole_folder


def save(
    folder: Path, model: nn.Module, optimizer: Optimizer, progress: dict[str, Any], average: dict[str, Tensor]
) -> None:
    """Writes folder/STEP with weights, optimiser state, random state and `progress`, then drops older ones.

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
    with whole_folder(folder / _name(progress["step"]), "state.json", force=True) as work:
        save_file({name: value.detach().contiguous() for name, value in tensors.items()}, work / "state.safetensors")
        (work / "state.json").write_text(json.dumps(facts), encoding="utf-8")
    drop_others(folder, progress["step"], progress["best_step"])


def drop_others(folder: Path, *steps: int) -> None:
    """Removes the checkpoints of all other steps."""
    kept = {_name(step) for step in steps}
    for old in folder.iterdir():
        if old.name not in kept:
            shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, model: nn.Module, optimizer: Optimizer, average: dict[str, Tensor]) -> dict[str, Any] | None:
    """Puts the newest checkpoint back, averaged weights too, and returns its progress; None where there is none."""
    found = _newest_first(folder)
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
    for path in _newest_first(folder):
        # A kill may have left a part of a checkpoint that was being dropped; it is of no best step.
        facts = _facts(path) if (path / "state.json").exists() else None
        if facts and facts["progress"]["step"] == facts["progress"]["best_step"]:
            _put(path, facts, model, optimizer)
            return True
    return False


def _name(step: int) -> str:
    return f"{step:012d}"


def _newest_first(folder: Path) -> list[Path]:
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
