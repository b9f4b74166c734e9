"""A run's state survives its JSON form, also that of older checkpoints; the plan says what follows each step."""

import json
import math

from fieldwise.config.settings import TrainSettings
from fieldwise.train.state import Plan, State, Stopwatch


def test_the_state_comes_back_from_json():
    state = State(step=7, best_loss=0.5, best_step=6, bad=1, seconds=2.5, log_bytes=80, losses=[0.7, 0.6])
    assert State.of(json.loads(json.dumps(state.to_json()))) == state
    assert State.of(json.loads(json.dumps(State().to_json()))) == State()  # a loss of infinity too


def test_an_older_checkpoint_may_lack_a_fact_or_have_more():
    assert State.of({"step": 3, "best_loss": 0.4, "gone": 1}) == State(step=3, best_loss=0.4)


def test_only_a_lower_loss_is_better():
    state = State(step=5)
    assert (state.best_loss, state.take_best(0.5), state.best_step, state.bad) == (math.inf, True, 5, 0)
    state.step = 6
    assert (state.take_best(0.5), state.best_step, state.bad) == (False, 5, 1)
    state.step = 7
    assert (state.take_best(0.4), state.best_loss, state.best_step, state.bad) == (True, 0.4, 7, 0)


def due(steps, epochs=1, **settings):
    """The steps after which each thing is due."""
    plan = Plan(TrainSettings(**settings), steps)
    found = [(step, plan.after(step)) for step in range(1, epochs * steps + 1)]
    return tuple([step for step, one in found if getattr(one, name)] for name in ("log", "evaluate", "save"))


def test_an_epoch_ends_with_a_line_an_evaluation_and_a_checkpoint():
    assert due(3, epochs=2, evaluations=1) == ([1, 2, 3, 4, 5, 6], [3, 6], [3, 6])
    log, evaluate, save = due(25, evaluations=3)
    assert log == [*range(2, 25, 2), 25]
    assert evaluate == save == [8, 16, 25]  # 24 would leave one step to the end


def test_a_checkpoint_is_due_after_some_minutes_and_all_workers_must_agree():
    assert due(4, checkpoint_minutes=0.0)[2] == [1, 2, 3, 4]
    plan = Plan(TrainSettings(checkpoint_minutes=5.0), 4, agree=lambda own: not own)
    assert plan.after(1).save  # another worker's clock
    assert not Plan(TrainSettings(checkpoint_minutes=5.0), 4).after(1).save


def test_the_parts_of_a_run_add_up_to_the_whole(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr("fieldwise.train.state.time.monotonic", lambda: next(clock))
    watch = Stopwatch("setup")  # 0
    watch.go_on("steps")  # 1
    assert watch.lap() == 2.0  # 3
    with watch.during("evaluations"):  # 6
        pass  # 10
    watch.lap()  # 15
    assert watch.seconds == {"setup": 1.0, "steps": 2.0 + 3.0 + 5.0, "evaluations": 4.0}
