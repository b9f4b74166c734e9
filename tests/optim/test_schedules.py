from __future__ import annotations

import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.optim import FTRL, Adam, learning_rate, set_learning_rate
from tests.optim.batches import table


def rates(steps: int, **settings: object) -> list[float]:
    return [learning_rate(2.0, step, 10, **settings) for step in range(steps)]  # type: ignore[arg-type]


def test_constant() -> None:
    assert rates(12) == [2.0] * 12


def test_step_drops_at_equal_distances_and_stays() -> None:
    found = rates(12, schedule="step", decay=0.5, drops=4)
    assert found == [2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125]


def test_cosine_ends_at_decay_times_base() -> None:
    found = rates(12, schedule="cosine", decay=0.1)
    assert found[0] == 2.0
    assert found[5] == pytest.approx(1.1)
    assert found[10:] == [pytest.approx(0.2)] * 2
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_warmup_rises_to_base_and_hands_over(schedule: str) -> None:
    found = rates(10, schedule=schedule, warmup=4)
    assert found[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert max(found) == 2.0


def test_warmup_longer_than_the_run() -> None:
    assert rates(10, schedule="cosine", warmup=20)[-1] == 1.0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
        ({"warmup": -1}, "warmup must not be negative, found -1"),
        ({"decay": 1.5}, r"decay must be in \[0, 1\], found 1.5"),
        ({"drops": -1}, "drops must not be negative, found -1"),
    ],
)
def test_settings_out_of_range(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        rates(1, **settings)


def test_all_groups_get_the_rate() -> None:
    optimizer = Adam([{"params": [table()]}, {"params": [table()], "lr": 0.5}])
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_ftrl_cannot_follow_a_schedule() -> None:
    optimizer = FTRL([table()], 0.1)
    set_learning_rate(optimizer, 0.1)
    with pytest.raises(ConfigError, match="ftrl needs the constant schedule without warmup"):
        set_learning_rate(optimizer, 0.05)
