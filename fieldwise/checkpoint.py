"""Everything needed to go on after a kill, written so that a half-written checkpoint is never read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from fieldwise.errors import BundleError
from fieldwise.files import whole_folder


def save(folder: Path, model: nn.Module, optimizer: Optimizer, progress: dict[str, Any]) -> None:
    """Writes folder/STEP with weights, optimiser state, random state and `progress`, then drops older ones."""
    state = optimizer.state_dict()
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
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
    target = folder / f"{progress['step']:012d}"
    with whole_folder(target, "state.json", force=True) as work:
        save_file({name: value.detach().contiguous() for name, value in tensors.items()}, work / "state.safetensors")
        (work / "state.json").write_text(json.dumps(facts), encoding="utf-8")
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
    """Puts the newest checkpoint back and returns its progress; None where there is none."""
    found = sorted(path for path in folder.glob("[0-9]*") if path.is_dir())
    if not found:
        return None
    device = str(next(model.parameters()).device)
    try:
        tensors = load_file(found[-1] / "state.safetensors", device=device)
        facts = json.loads((found[-1] / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError) as error:
        raise BundleError(f"the checkpoint is damaged: {error}; start anew with another --out ({found[-1]})") from None
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    model.load_state_dict(weights)
    state: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in facts["plain"].items()}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in facts["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    torch.set_rng_state(tensors["random"].cpu())
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"].cpu())
    progress: dict[str, Any] = facts["progress"]
    return progress
