"""The step of several workers, each of which has a part of every table."""

from __future__ import annotations

from torch import Tensor

from fieldwise.config.settings import Config
from fieldwise.optim import clip
from fieldwise.optim.squares import square_sum
from fieldwise.train import distributed
from fieldwise.train.sharded.sharded_model import Cut
from fieldwise.train.steps.shared import SharedStep


class ShardedStep(SharedStep):
    """`SharedStep` over cut tables: the gradients of a worker's rows come to it with the backward pass, whole."""

    def __init__(self, cut: Cut, config: Config, total: int) -> None:
        self.cut = cut
        super().__init__(cut.model, config, total)

    def added_up(self) -> list[Tensor]:
        return list(self.cut.dense.values())

    def clip(self) -> None:
        clip(self.added_up(), self.settings.clip, self.cut.rows.values(), distributed.summed)

    def table_squares(self) -> list[Tensor]:
        # The sum is scaled by this worker's share of the batch, but no other worker has these rows.
        return [square_sum(rows) / self.fraction for rows in self.cut.rows.values()]
