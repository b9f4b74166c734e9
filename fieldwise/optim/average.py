"""A moving average of the weights: the mean of noisy steps is better than the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fieldwise.optim.rows import check

# The most updates in an epoch: each costs a pass over all weights, tables included.
UPDATES_PER_EPOCH = 100


class Average:
    """An exponential moving average, over about `epochs` epochs, of `live`, which steps change in place.

    Update u = 1, 2, ... has the weight max(1/u, 1/horizon), the horizon in updates: at first the plain mean of all so
    far, so that the starting values drop out with the first update. It holds a second copy of the weights.
    """

    def __init__(self, live: dict[str, Tensor], epochs: float, steps_per_epoch: int) -> None:
        check(epochs > 0, "an average needs a positive number of epochs", epochs)
        self.every = max(1, steps_per_epoch // UPDATES_PER_EPOCH)
        self.horizon = epochs * steps_per_epoch / self.every
        self.live = live
        self.values = {name: value.clone() for name, value in self.live.items()}

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Adds the weights after that step (1 is the first) to the average; where steps are many, not after each."""
        number, between = divmod(step, self.every)
        if not between:
            weight = max(1 / number, 1 / self.horizon)
            torch._foreach_lerp_(list(self.values.values()), list(self.live.values()), weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model has the averaged weights; afterwards its own again, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in self.live.items():
            own = value.clone()
            value.copy_(self.values[name])
            self.values[name].copy_(own)


def averaged(model: nn.Module) -> dict[str, Tensor]:
    """The tensors to average: a model's weights and running statistics, by name."""
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
