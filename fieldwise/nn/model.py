"""The frame of every network: looks rows up, combines them, adds up the logits, and saves the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fieldwise.config.errors import BundleError
from fieldwise.nn.branch_losses import BranchLoss
from fieldwise.nn.crosses import PairTable
from fieldwise.nn.embedding import Embedding, Linear, Table, rows_of
from fieldwise.nn.members import merged
from fieldwise.nn.shallow_scores import SHALLOW
from fieldwise.parts.interactions import Interaction
from fieldwise.parts.ways import Way, chosen, no_triton
from fieldwise.parts.weights import Packed


class Branch(nn.Module):
    """An interaction and the classifier of its features: field vectors (B, F, D) -> logits (B,), or (B, k) of members.

    The model adds `share` of them to its logits: branches whose mean it takes have shares below 1, 1 together.
    """

    def __init__(self, interaction: Interaction, classifier: nn.Module, share: float = 1.0) -> None:
        super().__init__()
        self.interaction, self.classifier, self.share = interaction, classifier, share

    @property
    def parts(self) -> dict[str, str]:
        return {"interaction": self.interaction.name, "classifier": type(self.classifier).__name__}

    def forward(self, v: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.interaction(v))
        return logits


def _tables(model: Model) -> tuple[Table, Table] | None:
    """The vectors' table and the linear part's, if both look up the same rows."""
    if model.linear is None or not isinstance(model.embedding, Embedding) or len(model.embedding.tables) > 1:
        return None
    vectors, linear = model.embedding.tables[0], model.linear.weights
    assert isinstance(vectors, Table)
    return None if vectors.layout.has_sets else (vectors, linear)


def _not_at_once(model: Model, ids: Tensor) -> str:
    both = _tables(model)
    return "not two tables of the same rows" if both is None else no_triton(*(table.weight for table in both))


def _at_once(model: Model, ids: Tensor) -> dict[str, Tensor]:
    vectors, linear = rows_of(ids, *(_tables(model) or ()))
    return {"vectors": vectors, "linear": linear}


BOTH_TABLES = Way("Triton, both tables at once", _not_at_once, _at_once)


class Model(nn.Module):
    """ids (B, C) -> logits (B,), in two steps: look the rows up, then combine them.

    `branch_loss` is what training adds to the log loss for the branches' own logits (nn/branch_losses.py).
    """

    file = "weights.safetensors"

    def __init__(
        self,
        embedding: Embedding | PairTable | None,
        *branches: Branch,
        linear: Linear | None = None,
        branch_loss: BranchLoss | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.linear, self.branch_loss = embedding, linear, branch_loss
        self.branches = nn.ModuleList(branches)

    @property
    def bias(self) -> Tensor | None:
        """The output's bias: the linear part's, or else the last layer's of a DNN."""
        parts = (self.linear, *(branch.classifier for branch in self.branches))
        own: list[Tensor | None] = [getattr(part, "bias", None) for part in parts]
        return next((bias for bias in own if bias is not None), None)

    @property
    def biases(self) -> list[Tensor]:
        """The biases to add a number to for it to be added to the logit: one, or those of all branches of a mean."""
        averaged = [branch for branch in self.branches if isinstance(branch, Branch) and branch.share < 1]
        if averaged:
            return [bias for branch in averaged if (bias := getattr(branch.classifier, "bias", None)) is not None]
        return [] if self.bias is None else [self.bias]

    @chosen(BOTH_TABLES)
    def lookup(self, ids: Tensor) -> dict[str, Tensor]:
        """The rows' linear weights (B, F, 1), and their vectors (B, F, D) or pairs' weights (B, P, 1), if any."""
        found = {}
        if self.linear is not None:
            found["linear"] = self.linear.weights(ids)
        if self.embedding is not None:
            found["vectors"] = self.embedding(ids)
        return found

    def combine(self, found: dict[str, Tensor]) -> Tensor:
        """What `lookup` found -> logits (B,)."""
        return merged(self.scored(found)[0])

    def scored(self, found: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """What `lookup` found -> logits (B,), or (B, k) of k members, and those of each branch by itself."""
        own = [branch(found["vectors"]) for branch in self.branches]
        parts = [z if branch.share == 1 else branch.share * z for branch, z in zip(self.branches, own, strict=True)]
        if self.linear is not None:
            parts.append(self.linear(found["linear"]))
        if any(part.dim() == 2 for part in parts):
            parts = [part if part.dim() == 2 else part[:, None] for part in parts]
        total: Tensor = sum(parts[1:], parts[0])
        return total, own

    def forward(self, ids: Tensor) -> Tensor:
        return self.combine(self.lookup(ids))

    @torch.inference_mode()
    @chosen(SHALLOW)
    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """As `forward`, from and to numpy, in evaluation mode."""
        was_training, device = self.training, next(self.parameters()).device
        found: NDArray[np.float32] = self.eval()(torch.from_numpy(ids).to(device)).float().cpu().numpy()
        self.train(was_training)
        return found

    @property
    def on_gpu(self) -> bool:
        return next(self.parameters()).is_cuda

    @property
    def parts(self) -> list[dict[str, str]]:
        """Each branch's interaction and classifier, in words."""
        return [branch.parts for branch in self.branches if isinstance(branch, Branch)]

    @property
    def dense_weights(self) -> dict[str, list[Tensor]]:
        """The weights outside the tables, by their L2 setting: weights, kernels or attention.

        A part names the setting of its weights by `l2_group`, None for no penalty; the default is `weights`.
        One-dimensional tensors are biases, gains and the like, which have no penalty, unless they are packed weights.
        """
        found: dict[str, list[Tensor]] = {"weights": [], "kernels": [], "attention": []}
        _sort_weights(self, "weights", found)
        return found

    @property
    def size(self) -> int:
        """How many numbers it learns."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save(self, path: Path) -> None:
        save_file({name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}, path)

    def load(self, path: Path) -> None:
        """Loads a file's weights, which must have this model's names, shapes and types, and be finite."""
        held = load_file(path, device=str(next(self.parameters()).device))
        _check_weights(held, self.state_dict(), path)
        self.load_state_dict(held)
        self.eval()


def _check_weights(held: dict[str, Tensor], own: dict[str, Tensor], path: Path) -> None:
    """Refuses what load_state_dict would accept: other types, which it converts, and NaN."""
    for name in sorted(held.keys() ^ own.keys()):
        raise BundleError(f"the weights are not the model's: only one of the two has '{name[:100]}' ({path})")
    for name, weight in own.items():
        found = held[name]
        if found.shape != weight.shape or found.dtype != weight.dtype:
            expected, other = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (weight, found))
            raise BundleError(f"the weights are not the model's: '{name}' must be {expected}, found {other} ({path})")
        # If the sum is finite, so are all numbers, and the second look is rarely needed.
        infinite = found.is_floating_point() and not (found.sum().isfinite() or found.isfinite().all())
        if infinite or (name.endswith("running_var") and (found < 0).any()):
            raise BundleError(f"weights must be finite numbers, found others in '{name}' ({path})")


def _sort_weights(part: nn.Module, group: str | None, found: dict[str, list[Tensor]]) -> None:
    group = getattr(part, "l2_group", group)
    if group is None:
        return
    found[group] += [p for p in part.parameters(recurse=False) if p.dim() > 1 or isinstance(part, Packed)]
    for child in part.children():
        _sort_weights(child, group, found)
