"""A moving average of the weights: the mean of noisy steps is better than the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fieldwise.optim.rounding import narrow, wide
from fieldwise.optim.rows import check

# Rows of narrow weights that become float32 at a time.
ROWS = 2**16
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
        self.values = {name: value.to(wide(value), copy=True) for name, value in self.live.items()}

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Adds the weights after that step (1 is the first) to the average; where steps are many, not after each."""
        number, between = divmod(step, self.every)
        if not between:
            weight = max(1 / number, 1 / self.horizon)
            same = [name for name, value in self.live.items() if not narrow(value)]
            if same:
                torch._foreach_lerp_([self.values[name] for name in same], [self.live[name] for name in same], weight)
            for name in self.live.keys() - set(same):
                for part, own in zip(self.values[name].split(ROWS), self.live[name].split(ROWS), strict=True):
                    part.lerp_(own.to(part.dtype), weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model has the averaged weights; afterwards its own again, bit for bit."""
        # Narrow weights cannot hold the average, which they would round if both changed places.
        kept = {name: value.clone() for name, value in self.live.items() if narrow(value)}
        self._swap()
        self._put({name: self.values[name] for name in kept})
        try:
            yield
        finally:
            self._swap()
            self._put(kept)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.live[name].copy_(value)

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in self.live.items():
            if narrow(value):
                continue
            own = value.clone()
            value.copy_(self.values[name])
            self.values[name].copy_(own)


def averaged(model: nn.Module) -> dict[str, Tensor]:
    """The tensors to average: a model's weights and running statistics, by name."""
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
