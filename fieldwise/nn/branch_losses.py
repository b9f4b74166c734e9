"""Losses of branches' own logits, which training adds to the log loss of the model's (FinalNet, FCN)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Logits and targets -> the mean log loss of these rows; and this loss -> that of the whole batch, without a gradient.
LossOf = Callable[[Tensor, Tensor], Tensor]
OfTheBatch = Callable[[Tensor], Tensor]
BranchLoss = Callable[[list[Tensor], Tensor, Tensor, LossOf, OfTheBatch], Tensor]


def towards_the_mean(own: list[Tensor], logits: Tensor, labels: Tensor, loss_of: LossOf, whole: OfTheBatch) -> Tensor:
    """Each branch's log loss with the model's probabilities as targets (FinalNet)."""
    targets = torch.sigmoid(logits.detach())
    return torch.stack([loss_of(each, targets) for each in own]).sum()


def where_worse(own: list[Tensor], logits: Tensor, labels: Tensor, loss_of: LossOf, whole: OfTheBatch) -> Tensor:
    """Each branch's log loss times what it is above the model's, if it is (FCN's Tri-BCE).

    The factors are constants of the batch: their gradient would push the model's own loss up.
    """
    model = whole(loss_of(logits, labels))
    losses = [loss_of(each, labels) for each in own]
    return torch.stack([(whole(loss) - model).clamp(min=0) * loss for loss in losses]).sum()
