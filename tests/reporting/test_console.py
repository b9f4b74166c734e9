"""Who sees no bar hears how far it is, in plain lines."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from fieldwise.reporting import console


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What standard error is redirected to, with a pulse each twentieth of a second."""
    monkeypatch.setattr(console, "PULSE", 0.05)
    written = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=written))
    return written


def wait_for(file: io.StringIO, text: str, times: int = 1) -> None:
    end = time.monotonic() + 20
    while file.getvalue().count(text) < times and time.monotonic() < end:
        time.sleep(0.01)
    assert file.getvalue().count(text) >= times, file.getvalue()


def test_a_comparison_says_each_run_and_goes_on_saying_which_is_under_way(file: io.StringIO) -> None:
    with console.ComparisonBar() as bar:
        bar.making("encoding", 1000)
        wait_for(file, "making folders: encoding 1,000 rows\n")
        file.truncate(file.seek(0))
        bar.moved(["lr seed 0"], 0, 2, None)
        assert file.getvalue().endswith("0 of 2 runs done, lr seed 0\n")
        wait_for(file, "0 of 2 runs done, lr seed 0\n", times=3)
        bar.evaluated({"epoch": 2, "log_loss": 0.5})
        wait_for(file, "0 of 2 runs done, lr seed 0 epoch 2, valid 0.5000\n")
        bar.moved(["fm seed 0"], 1, 2, 90.0)
        assert "1 of 2 runs done, fm seed 0, about 0:01:30 left\n" in file.getvalue()


def test_training_and_tuning(file: io.StringIO) -> None:
    with console.TrainingBar("fm") as bar:
        bar.start(100, 2, 0)
        bar.step(50, 0.7, 1)
        bar.evaluated({"log_loss": 0.69})
        wait_for(file, "fm epoch 1, loss 0.700, valid 0.6900\n")
    with console.TuningBar("fm") as tuning:
        tuning.trial(3, 9, 1e300, (0.5, 1))
        wait_for(file, "fm trial 3 of 9, best 0.50000 (trial 1)\n")
        tuning.say("trial 3: done")
    assert file.getvalue().endswith("trial 3: done\n")


def test_the_last_line_of_training_is_where_it_ended(file: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PULSE", 60.0)
    with console.TrainingBar("fm") as bar:
        bar.start(100, 2, 0)
        bar.step(50, 0.7, 1)
    assert file.getvalue() == "fm epoch 1, loss 0.700\n"


def test_what_counts_rows(file: io.StringIO) -> None:
    with console.counting("preparing") as move:
        wait_for(file, "preparing\n")
        move("reading", 1000)
        wait_for(file, "preparing: reading, 1,000")


@pytest.mark.parametrize("where", ["quiet", "terminal"])
def test_nothing_where_it_is_quiet_or_a_bar_is_seen(
    file: io.StringIO, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "terminal":
        monkeypatch.setattr(console, "err", Console(file=file, force_terminal=True))
    quiet = where == "quiet"
    bars: list[Any] = [console.ComparisonBar(quiet), console.TrainingBar("fm", quiet), console.TuningBar("fm", quiet)]
    for bar in bars:
        bar.pulse.start()
        assert bar.pulse.thread.ident is None
        bar.pulse.tell("a line")
    assert file.getvalue() == ""
