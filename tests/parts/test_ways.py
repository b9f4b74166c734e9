"""The chooser: the first way that has nothing against the inputs, else the formula; and it can say which, and why."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fieldwise import cli, models
from fieldwise.config.settings import load_config
from fieldwise.data.schema import Layout
from fieldwise.nn.classifiers import DNN, Layers
from fieldwise.nn.embedding import Embedding
from fieldwise.nn.model import Branch, Model
from fieldwise.nn.taken import ways_of
from fieldwise.parts.features.formula import Flatten
from fieldwise.parts.inner.formula import InnerProduct
from fieldwise.parts.interactions import Interaction
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.ways import FORMULA, Way, chosen, formulas_alone, taken
from fieldwise.train.loop import train
from tests.parts.drawn import by_formula

BIG = Way("by hand", lambda part, x: "" if len(x) > 2 else "fewer than 3 rows", lambda part, x: x * 10)
NEVER = Way("never", lambda part, x: "always refuses", lambda part, x: x * 100)


class Twice(nn.Module):
    @chosen(NEVER, BIG)
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_the_first_way_with_nothing_against_it_is_taken() -> None:
    part = Twice()
    assert part(torch.ones(3)).tolist() == [10] * 3
    assert part(torch.ones(2)).tolist() == [2] * 2
    assert by_formula(part, torch.ones(3)).tolist() == [2] * 3
    with pytest.raises(RuntimeError), formulas_alone():
        raise RuntimeError
    assert part(torch.ones(3)).tolist() == [10] * 3


def test_it_can_say_which_and_why() -> None:
    model = nn.Sequential(Twice(), nn.Linear(2, 1))
    part, linear = taken(model, lambda: model(torch.ones(2, 2)))
    assert (part.part, part.kind, part.way) == ("0", "Twice", FORMULA)
    assert part.against == {"never": "always refuses", "by hand": "fewer than 3 rows"}
    assert linear.against == {"oneDNN": "a plain nn.Linear; affine() is faster"}
    (part, _) = taken(model, lambda: model(torch.ones(3, 2)))
    assert (part.way, part.against) == ("by hand", {"never": "always refuses"})


def test_modules_stay_modules() -> None:
    part, v, seen = InnerProduct([3] * 4), torch.randn(200, 4, 3), []
    handle = part.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    part(v)
    handle.remove()
    assert seen == [(200, 6)]
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert torch.equal(other(v), part(v))
    assert not part.state_dict()


@pytest.mark.parametrize("make", [lambda: InnerProduct([3] * 4), lambda: MicroNetwork([3] * 4, (5, 2))])
def test_a_compiler_sees_one_formula_without_a_break(make: Any) -> None:
    part, v = make(), torch.randn(200, 4, 3)
    compiled = torch.compile(part, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(v), by_formula(part, v))
    dnn = DNN(12, Layers((5, 4)))
    compiled = torch.compile(dnn, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(v.flatten(1)), by_formula(dnn, v.flatten(1)))


class Plainly(Interaction):
    """As somebody new would write it, with torch's own layer."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.flat, self.width = Flatten(dims), 4
        self.layer = nn.Linear(sum(dims), 4)

    def forward(self, v: Tensor) -> Tensor:
        return torch.relu(self.layer(self.flat(v)))


def plainly(sizes: Layout, *, dropout: float = 0.5) -> Model:
    """A model with a plain linear layer, dropout and batch norm."""
    features = Plainly((3,) * sizes.fields)
    dnn = DNN(features.width, Layers((5,), norm="batch", dropout=dropout))
    return Model(Embedding(sizes, (3,) * sizes.fields), Branch(features, dnn))


def test_asking_changes_nothing_of_the_model() -> None:
    layout = Layout.of([9] * 3)
    model, ids = plainly(layout), np.zeros((300, 3), dtype=np.int32)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    model.train()
    found = {(row["part"], row["kind"]): row for row in ways_of(model, ids)}
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    slow = found["branches.0.interaction.layer", "Linear"]
    assert slow["training"] == slow["scoring"] == FORMULA
    assert slow["against"] == {"oneDNN": "a plain nn.Linear; affine() is faster"}
    assert found["branches.0.classifier.layers.0", "Affine"]["training"] == "oneDNN"


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def test_the_verb_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "ipnn", "--ways", "--batch", "300", "--json") == 0
    found = json.loads(capsys.readouterr().out)["ways"]["ipnn"]
    assert (found["step"], found["device"], found["rows"]) == ("Step", "cpu", 300)
    (inner,) = [row for row in found["parts"] if row["kind"] == "InnerProduct"]
    assert inner["training"] == inner["scoring"] == "compiled loops"
    assert run("models", "ipnn", "--ways", "--batch", "30") == 0
    said = capsys.readouterr().out
    assert "ipnn: 30 rows on cpu, trained by Step" in said
    assert "InnerProduct" in said
    assert "(compiled loops: fewer than 100 rows)" in said
    assert run("models", "gbdt", "--ways") == 2
    assert "--ways is for networks" in capsys.readouterr().err


def test_a_run_logs_them_once(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "plainly", plainly)
    config = load_config(overrides=["model.name=plainly", "train.epochs=2", "train.batch_size=100"])
    train(config, trained.data, tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    (ways,) = [event for event in events if event["event"] == "ways"]
    assert (ways["step"], ways["rows"]) == ("Step", 100)
    assert [row["part"] for row in ways["parts"] if row["kind"] == "Linear"] == ["branches.0.interaction.layer"]
