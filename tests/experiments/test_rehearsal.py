"""The rehearsal of an A/B test: the same requests for all, the incumbent goes on, verdicts can fail."""

from __future__ import annotations

import numpy as np
import pytest

from fieldwise.abtest.analysis import report
from fieldwise.config.errors import ConfigError
from fieldwise.data.world import World
from fieldwise.experiments.rehearsal import CHALLENGER, INCUMBENT, Plan, Tally, _day_row, rehearse, slates_of, verdicts

PLAN = Plan(days=2, incumbent_days=2, challenger_days=1, rows=300, requests=40, candidates=6, top=2, rate=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rehearsal") / "test"


@pytest.fixture(scope="module")
def found(folder):
    return rehearse(PLAN, folder)


def test_every_day_has_both_arms_and_lies_below_the_oracle(found, folder):
    assert [row["day"] for row in found["days"]] == [1, 2]
    assert all(row["expected"] < row["oracle"] for row in found["days"])
    assert (folder / "days.png").stat().st_size > 1000
    assert "simulation" in (folder / "table.md").read_text(encoding="utf-8")


def test_the_log_tells_the_same_click_rates_by_day(found, folder):
    told = {(row["day"], row["arm"]): row for row in report(str(folder / "events.sqlite"))["days"]}
    days = sorted({day for day, _ in told})
    assert len(days) == PLAN.days
    for day, row in zip(days, found["days"], strict=True):
        for arm, key in ((INCUMBENT, "incumbent"), (CHALLENGER, "challenger")):
            assert told[day, arm]["ctr"] == pytest.approx(row[key])
        assert sum(told[day, arm]["shown"] for arm in (INCUMBENT, CHALLENGER)) == PLAN.requests * PLAN.top


def test_the_incumbent_has_learned_every_day(found, folder):
    assert [path.name for path in sorted((folder / "runs").glob("ftrl-*"))] == ["ftrl-002", "ftrl-003"]
    assert (folder / "arms" / INCUMBENT).resolve().name == "ftrl-003"


def test_slates_are_the_same_for_whoever_asks():
    world = World(PLAN.kind, PLAN.seed, PLAN.rate, 4)
    one, two = (slates_of(world, PLAN, 3) for _ in range(2))
    assert one.contexts == two.contexts
    assert one.candidates == two.candidates
    assert np.array_equal(one.clicked, two.clicked)
    for context, candidates in zip(one.contexts, one.candidates, strict=True):
        assert "app" not in context
        assert len({row["app"] for row in candidates}) == PLAN.candidates
        assert not set(context) & set(candidates[0])


def test_a_day_by_hand():
    truth = np.array([[0.1, 0.4, 0.2], [0.3, 0.0, 0.2]])
    row = _day_row(1, {INCUMBENT: Tally(10, 2, 2.0), CHALLENGER: Tally(8, 2, 2.4)}, truth, top=1)
    assert row["improvement"] == pytest.approx(0.25)
    assert row["expected"] == pytest.approx(0.5)
    assert row["oracle"] == pytest.approx(0.35 / 0.2 - 1)
    assert row["random"] == pytest.approx(0.2 / 0.2 - 1)


@pytest.mark.parametrize(
    ("improvements", "expected", "holds"),
    [
        ([0.1] * 12 + [-0.1] * 2, 0.1, [True, True, True]),
        ([0.1] * 11 + [-0.1] * 3, 0.1, [False, True, True]),
        ([0.1] * 14, 0.9, [True, True, False]),
        ([-0.1] * 13 + [None], 0.1, [False, False, True]),
    ],
)
def test_verdicts_can_fail(improvements, expected, holds):
    days = [{"improvement": value, "expected": expected, "oracle": 0.5} for value in improvements]
    assert [verdict["holds"] for verdict in verdicts(days)] == holds


def test_a_challenger_cannot_learn_longer_than_the_world_is_old():
    with pytest.raises(ConfigError, match="--challenger-days must be from 1 to --incumbent-days, found 9 and 3"):
        Plan(incumbent_days=3, challenger_days=9)
