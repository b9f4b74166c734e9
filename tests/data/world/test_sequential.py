"""The world of sequences: its truth by a loop, and its log by the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv
import pytest

from fieldwise import cli
from fieldwise.data.world.sequential import FADE, LAST, SequentialWorld


def test_the_truth_is_that_of_the_loop_and_the_last_items_decide() -> None:
    world = SequentialWorld(seed=3, users=5, items=12)
    log = world.log(400, seed=1)
    truth = np.random.default_rng((3, 0))
    people, things = (truth.standard_normal((n, world.dim)) for n in (5, 12))
    turn, _ = np.linalg.qr(truth.standard_normal((world.dim, world.dim)))
    shown: dict[str, list[int]] = {}
    for row, expected in zip(log.table.to_pylist(), log.probability, strict=True):
        user, item = int(row["user"][1:]), int(row["item"][1:])
        before = shown.setdefault(row["user"], [])
        wanted = sum(
            (FADE**age * things[one] @ turn for age, one in enumerate(before[::-1][:LAST])), np.zeros(world.dim)
        )
        logit = world.bias + (world.own * people[user] + world.strength * wanted) @ things[item] / np.sqrt(world.dim)
        assert expected == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-9)
        before.append(item)
    assert abs(log.table["click"].to_numpy().mean() - log.probability.mean()) < 0.1
    assert world.log(400, seed=1).table == log.table


def test_simulated_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*more: str) -> int:
        with pytest.raises(SystemExit) as end:
            cli.main(["simulate", "--kind", "sequence", "--rows", "300", "--out", str(tmp_path / "log.csv"), *more])
        return int(end.value.code or 0)

    assert run("--truth") == 0
    table = pacsv.read_csv(tmp_path / "log.csv")
    assert table.column_names == ["click", "user", "item", "category", "true_probability"]
    for more in (["--rate", "0.1"], ["--days", "3"], ["--first-day", "2"]):
        assert run(*more) == 2
        assert "leave out" in capsys.readouterr().err
