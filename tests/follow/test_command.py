"""The command: once and for ever, its end by a signal, its status, two at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fieldwise import cli
from fieldwise.cli import STOPPED
from fieldwise.follow import rounds
from fieldwise.follow.service import Service
from tests.config.test_interrupts import lose, lost
from tests.follow.days import write_day

SHORT = ["--min-age", "0s", "--min-rows", "100", "--set", "train.epochs=1", "--margin", "100"]


def arguments(folder, run, *more):
    link = folder / "live"
    if not link.is_symlink():
        link.symlink_to(run)
    return ["follow", str(folder / "logs"), "--bundle", str(link), *SHORT, *more]


def started(folder, run, *more):
    command = [sys.executable, "-m", "fieldwise", *arguments(folder, run, *more)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell that runs the tests in its background has its children ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)


def error_of(capsys, *given):
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main([str(one) for one in given])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_once_and_its_status(tmp_path, runs, run, capsys):
    write_day(tmp_path / "logs", 3)
    found = run(*arguments(tmp_path, runs["history"], "--once"))
    assert (found["version"], found["files"], found["rows"], found["not_learnt"]) == (1, 1, 300, 90)
    (only,) = found["rounds"]
    assert (only["decision"], only["version"], only["rows"]) == ("swapped", 1, 45)
    again = run("follow", "--bundle", tmp_path / "live", "--status")
    assert again == found
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["follow", "--bundle", str(tmp_path / "live"), "--status"])
    shown = capsys.readouterr().out
    assert "1 swapped" in shown
    assert f"version 1 ({found['id']}) is in service; 1 files, 300 rows, of which 90 are not learnt yet" in shown
    back = run("follow", "--bundle", tmp_path / "live", "--rollback", 0)
    assert (back["version"], (tmp_path / "live").resolve().name) == (0, "0000")


def test_what_is_said_of_each_step(tmp_path, runs, capsys):
    write_day(tmp_path / "logs", 3)
    with pytest.raises(SystemExit):
        cli.main(arguments(tmp_path, runs["plain"], "--once"))
    said = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said[1].startswith("took day-3.csv: 300 rows, ")
    assert said[2] == "round 1: 210 rows to train on, 45 to stop by, 45 to judge by"
    assert said[-2] == "round 1: version 1 is in service"
    assert said[-1].startswith("round 1: swapped: its log loss is ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--every", "soon"], "--every takes a time such as 90s, 30m or 2h, found 'soon'"),
        (["--split", "1,0,0"], "--split needs rows to train on"),
        (["--set", "train.epoch=3"], "unknown train setting 'epoch'"),
        (["--on-bad-rows", "keep"], "--on-bad-rows takes stop or skip"),
        (["--server", "localhost"], "--server takes addresses such as"),
        (["--rollback", "9"], "nothing was followed here yet"),
        (["--margin", "inf"], "--margin takes 0 or more, found inf"),
    ],
)
def test_mistakes_are_one_line(tmp_path, runs, capsys, more, message):
    (tmp_path / "logs").mkdir()
    assert message in error_of(capsys, *arguments(tmp_path, runs["plain"], "--once", *more))


def test_a_round_that_failed_ends_with_2(tmp_path, runs, capsys):
    """Who starts it by cron hears of it; the next one tries it again."""
    write_day(tmp_path / "logs", 3)
    given = arguments(tmp_path, runs["plain"], "--once")
    for more, code in ((["--set", "train.optimizer=none"], 2), ([], 0), ([], 0)):
        with pytest.raises(SystemExit) as end:
            cli.main([*given, *more])
        assert end.value.code == code
    said = capsys.readouterr()
    assert "round 1: could not be trained: " in said.out
    assert "round 2: swapped" in said.out
    assert said.err == ""


def test_a_bundle_that_is_followed_knows_its_folder(tmp_path, runs, run, capsys):
    """Without --work the folder is the one that the link leads into, and no other one takes the files again."""
    write_day(tmp_path / "logs", 3)
    work = tmp_path / "elsewhere"
    run(*arguments(tmp_path, runs["plain"], "--once", "--work", work))
    assert run("follow", "--bundle", tmp_path / "live", "--status")["version"] == 1
    other = ["--once", "--work", tmp_path / "other"]
    assert "is followed already, in " in error_of(capsys, *arguments(tmp_path, runs["plain"], *other))
    assert not (tmp_path / "other").exists()
    assert "no version 9 to go back to" in error_of(capsys, "follow", "--bundle", tmp_path / "live", "--rollback", 9)
    assert run("follow", "--bundle", tmp_path / "live", "--rollback", 0)["version"] == 0
    assert (tmp_path / "live").resolve().parent.parent == work
    assert not (tmp_path / "live.follow").exists()


def test_mistakes_of_folders_are_one_line(tmp_path, runs, capsys):
    assert "expected a folder of logs, found nothing" in error_of(capsys, *arguments(tmp_path, runs["plain"], "--once"))
    assert "nothing was followed here yet" in error_of(capsys, "follow", "--bundle", tmp_path / "b", "--status")
    own = tmp_path / "own" / "runs" / "fm"
    own.mkdir(parents=True)
    found = error_of(capsys, *arguments(tmp_path, runs["plain"], "--once", "--work", tmp_path / "own"))
    assert "expected an empty folder to work in, or one with our journal.jsonl, found runs; name another" in found
    assert own.exists()
    assert "the folder to follow is missing" in error_of(capsys, "follow", "--bundle", tmp_path / "live")


def test_it_goes_on_for_ever_until_a_signal_ends_it(tmp_path, runs):
    """One process at a time; what is wrong with a file does not end it; SIGTERM ends it with 143."""
    path = write_day(tmp_path / "logs", 3)
    process = started(tmp_path, runs["plain"], "--every", "0.05s", "--json")
    try:
        steps = []
        while "done" not in steps:
            steps.append(json.loads(process.stdout.readline())["step"])
        other = started(tmp_path, runs["plain"], "--once")
        _, said = other.communicate()
        assert other.returncode == 2
        assert f"another process (pid {process.pid}) is following into {tmp_path / 'live'}; end it first" in said
        with path.open("a") as file:
            file.write("1,u1,desk,3999\n")
        assert "refused" in process.stdout.readline()
        path.unlink()
        write_day(tmp_path / "logs", 4)
        while steps.count("done") < 2:
            steps.append(json.loads(process.stdout.readline())["step"])
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert "a file that was taken must not change" in said
    assert said.splitlines()[-1] == "stopped; the same command goes on where it was"
    assert (tmp_path / "live").resolve().name == "0002"


def test_an_interrupt_ends_it_with_130(tmp_path, runs):
    (tmp_path / "logs").mkdir()
    process = started(tmp_path, runs["plain"])
    while not (tmp_path / "live.follow" / "journal.jsonl").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, STOPPED + "\n")


@lost
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("then", [None, OSError("cancelled")])
def test_a_signal_that_was_lost_ends_it_before_it_sleeps(tmp_path, runs, monkeypatch, kind, code, then):
    """Also where a library made an error of it, which would be a failure to try again."""
    write_day(tmp_path / "logs", 3)

    def prepared(*given, **more):
        lose(kind)
        raise then

    if then:
        monkeypatch.setattr(rounds, "carry_out", prepared)
    else:
        monkeypatch.setattr(Service, "tell_servers", lambda service: lose(kind))
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("asleep"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as end:
            cli.main(arguments(tmp_path, runs["plain"]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == code
    lines = (tmp_path / "live.follow" / "journal.jsonl").read_text().splitlines()
    assert "failed" not in [json.loads(line)["step"] for line in lines]
