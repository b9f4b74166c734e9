"""A plain training loop that calls back at every step, for the figures that show gradients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from fieldwise import models
from fieldwise.data.dataset import Dataset
from fieldwise.nn.model import Model
from fieldwise.optim.make import make_optimizer
from fieldwise.studies import lookalikes
from fieldwise.studies.study import Row, Setup
from fieldwise.train.steps.plain import log_loss

Watch = Callable[[int, Model, torch.Tensor, torch.Tensor], None]


class Watched:
    """An FNN on iPinYou's look-alike; as in the paper, no bias starts at the base rate."""

    def __init__(self, setup: Setup) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lookalikes.source(setup, "ipinyou")(Path(folder) / "data")
            dataset = Dataset.open(Path(folder) / "data")
            part = dataset.parts["train"]
            self.layout = dataset.layout
            self.ids, self.labels = torch.tensor(part.ids), torch.tensor(part.labels).float()

    def train(self, options: Row, optimizer: Row, steps: int, batch: int, watch: Watch, seed: int = 0) -> None:
        """Takes `steps` steps on random rows and calls `watch` with the number of the step, the network with its
        gradients, the logits and the labels."""
        torch.manual_seed(seed)
        model = models.build("fnn", self.layout, options)
        assert isinstance(model, Model)
        stepper = make_optimizer(params=model.parameters(), **optimizer)
        for step in range(1, steps + 1):
            rows = torch.randint(len(self.labels), (batch,))
            logits, labels = model(self.ids[rows]), self.labels[rows]
            stepper.zero_grad(set_to_none=True)
            log_loss(logits, labels, None).backward()
            watch(step, model, logits.detach(), labels)
            stepper.step()
