"""Ctrl-C anywhere in `prepare`: one line, exit code 130, and the same command goes on with what is staged.

A signal whose exception is lost ends a verb all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldwise import cli
from fieldwise.cli import STOPPED
from fieldwise.config.interrupts import Terminated, answered, check, interrupts, terminations
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import prepare
from fieldwise.data.read import line_blocks
from fieldwise.train.state import State

# Runs the command line in a process of its own and interrupts it for real: in a function, or in the middle of a query.
DRIVER = """
import importlib, os, signal, sys, threading
from fieldwise import cli

moment, arguments = sys.argv[1], sys.argv[2:]
PLACES = {
    "loading": ("importlib", "import_module", 3),
    "reading": ("fieldwise.data.read.line_blocks", "_parsed", 6),
    "staging": ("fieldwise.data.encode.stage", "write_staged", 9),
    "history": ("fieldwise.data.encode.timeline", "fold_counts", 2),
    "encoding": ("fieldwise.data.dataset", "ArrayFile.append", 9),
}

def press():
    os.kill(os.getpid(), signal.SIGINT)

if moment == "loading":
    importlib.import_module("fieldwise.commands.app")
else:
    importlib.import_module("fieldwise.data.read.line_blocks").BLOCK = 4000

if moment == "fitting":
    def counts(group):
        # A thread of DuckDB's own would take the only task, and not look for signals until it is done.
        group.base.execute("SET threads = 1")
        threading.Timer(0.2, press).start()
        group.base.sql("SELECT count(*) FROM range(1000000000000) WHERE hash(range) = 7").fetchall()
    importlib.import_module("fieldwise.data.encode.fit").Group.counts = property(counts)
else:
    module, name, calls = PLACES[moment]
    owner = importlib.import_module(module)
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    name = name.split(".")[-1]
    real, seen = getattr(owner, name), [0]
    def function(*given, **more):
        seen[0] += 1
        if seen[0] == calls:
            press()
        return real(*given, **more)
    setattr(owner, name, function)
cli.main(arguments)
"""
MOMENTS = ("loading", "reading", "staging", "fitting", "history", "encoding")


def test_an_interrupted_prepare_goes_on(
    tmp_path: Path, run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    lines = [f"{a},u{b},{c}" for a, b, c in zip(*(random.integers(0, n, 3000) for n in (2, 50, 500)), strict=True)]
    log, out = tmp_path / "log.csv", tmp_path / "out"
    log.write_text("\n".join(["click,user,price", *lines]) + "\n")
    command = ["prepare", log, "--label", "click", "--history", "user", "--threads", 2, "--out"]
    for moment in MOMENTS:
        arguments = [sys.executable, "-c", DRIVER, moment, *map(str, command), str(out)]
        ended = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", STOPPED + "\n"), moment
        assert not out.exists()
        journal = tmp_path / ".out.started" / "stage" / "journal.jsonl"
        assert journal.exists() == (moment != "loading")
    monkeypatch.setattr(line_blocks, "BLOCK", 4000)
    notes = run(*command, out)["notes"]
    assert "went on after an interrupted run: 3,000 rows were staged already" in notes
    run(*command, tmp_path / "whole")
    assert Dataset.open(out).fingerprint == Dataset.open(tmp_path / "whole").fingerprint


def test_the_code_is_130_in_the_text_of_a_program_too(tmp_path: Path) -> None:
    """Many imports execute a text. Python remembers that the signal came there, and would end by it."""
    lines = (
        "import importlib",
        "from fieldwise import cli",
        "importlib.import_module = lambda name: exec('import signal; signal.raise_signal(signal.SIGINT)')",
        "cli.main(['models'])",
    )
    (tmp_path / "driver.py").write_text("\n".join(lines))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "driver"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ended = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended.returncode, ended.stderr) == (130, STOPPED + "\n")


class _Dropped:
    def __init__(self, kind: signal.Signals) -> None:
        self.kind = kind

    def __del__(self) -> None:
        signal.raise_signal(self.kind)


def lose(kind: signal.Signals = signal.SIGINT) -> None:
    """A signal whose exception is lost: Python drops what a destructor raises."""
    _Dropped(kind)


# What pytest makes of a lost exception.
lost = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def _heeded() -> Iterator[None]:
    """Processes that a shell starts in the background ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@lost
@pytest.mark.usefixtures("_heeded")
def test_a_lost_signal_is_noted() -> None:

    def library() -> None:
        lose(signal.SIGTERM)
        raise ValueError("what it made of the signal")

    with interrupts():
        check()
        lose()
        with pytest.raises(KeyboardInterrupt):
            check()
    with terminations():
        check()
        with pytest.raises(Terminated), interrupts():
            library()
        with pytest.raises(Terminated), interrupts():
            raise AssertionError("nothing begins any more")
        answered()
        check()
        lose(signal.SIGTERM)
    check()


@lost
@pytest.mark.usefixtures("_heeded")
@pytest.mark.parametrize("then", [None, RuntimeError("cancelled")])
def test_verbs_end_at_a_lost_interrupt(
    tmp_path: Path, run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], then: Exception | None
) -> None:
    """Also where a library made another exception of it, which `compare` would take for a failed run."""
    log, data = tmp_path / "log.csv", tmp_path / "data"
    run("simulate", "--kind", "demo", "--rows", 2000, "--out", log)
    prepared = ["prepare", log, "--label", "click", "--out", data]

    def interrupted(owner: object, name: str, *command: object) -> None:
        real = getattr(owner, name)

        def function(*given: Any, **more: Any) -> Any:
            lose()
            if then:
                raise then
            return real(*given, **more)

        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(owner, name, function)
            with pytest.raises(SystemExit) as end:
                cli.main([*map(str, command), "--json"])
        assert (end.value.code, capsys.readouterr()) == (130, ("", STOPPED + "\n"))

    interrupted(prepare, "_schema", *prepared)
    assert not data.exists()
    run(*prepared)
    for model in ("fm", "symmetric"):
        interrupted(State, "take_best", "train", data, "--model", model, "--out", tmp_path / model)
        assert not (tmp_path / model / "DONE").exists()
    interrupted(State, "take_best", "compare", data, "--models", "lr,fm", "--seeds", 1, "--out", tmp_path / "compared")
    assert not list((tmp_path / "compared").glob("**/FAILED"))


def test_only_an_interrupt_is_taken_for_one() -> None:
    # Processes that a shell starts in the background ignore interrupts.
    outer, before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.default_int_handler
    with pytest.raises(ValueError, match="other"), interrupts():
        raise ValueError("other")

    def library() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    with pytest.raises(KeyboardInterrupt), interrupts(), interrupts():
        library()
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, outer)
