"""Ctrl-C anywhere in `prepare`: one line, exit code 130, and the same command goes on with what is staged."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldwise.cli import STOPPED
from fieldwise.config.interrupts import interrupts
from fieldwise.data.dataset import Dataset
from fieldwise.data.read import line_blocks

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
