"""The step of several workers, each of which has a part of every table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fieldwise.config.settings import Config
from fieldwise.train.sharded.sharded_model import Cut
from fieldwise.train.steps.shared import SharedStep


class ShardedStep(SharedStep):
    """`SharedStep` over cut tables: rows move while gradients arrive, dense weights afterwards."""

    def __init__(self, cut: Cut, config: Config, total: int) -> None:
        self.cut, self.rate = cut, -1.0
        # An optimiser needs a parameter, and a model of tables alone has no dense one.
        self.dense = list(cut.dense.values()) or [nn.Parameter(torch.zeros(()))]
        super().__init__(cut.model, config, total)

    def weights(self) -> list[Tensor]:
        return self.dense

    def _set_rate(self, number: int) -> None:
        super()._set_rate(number)
        rate = self._rate(number)
        if rate != self.rate:
            self.cut.set_rate(rate)
            self.rate = rate
