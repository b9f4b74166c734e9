"""Many runs: what is left to do, what failed, and processes that end as they should."""

import dataclasses
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.config.progress import Watch
from fieldwise.data.world import World
from fieldwise.data.world.prepared import prepare_log
from fieldwise.experiments import jobs
from fieldwise.experiments.jobs import Board, Job, run_all


@dataclass(frozen=True)
class Pretended(Job):
    """A run that writes its name and DONE, or fails in the way that its group says."""

    def attempt(self, progress=None):
        if self.group == "bad":
            return "it cannot be"
        if self.group == "large":
            self.out.mkdir(exist_ok=True)
            with (self.out / "tries").open("a") as file:
                file.write("x")
            if len((self.out / "tries").read_text()) < 2 or len(self.out.name) > len("large0"):
                return jobs.NoRoom("no room")
        if self.group == "beside":
            while len(list(self.out.parent.glob("large*/tries"))) < 2:
                time.sleep(0.01)
        if self.group == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        self.out.mkdir(exist_ok=True)
        with (self.out / "log").open("a") as file:
            file.write(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')}\n")
        (self.out / "report.json").write_text('{"seconds": 2.0}')
        (self.out / "DONE").touch()
        return ""


def made(folder, *groups):
    return [Pretended(group, f"{group} {n}", Path("data"), folder / f"{group}{n}") for n in (0, 1) for group in groups]


class Heard(Watch):
    def __init__(self):
        self.lines = []

    def moved(self, running, done, total, left):
        self.lines.append((list(running), done, total, left is not None))


def test_one_after_the_other_in_this_process(tmp_path):
    watch = Heard()
    assert run_all(made(tmp_path, "lr", "bad", "fm"), 1, watch) == {"bad": "it cannot be"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fm0", "fm1", "lr0", "lr1"]
    assert {path.read_text().split()[0] for path in tmp_path.glob("*/log")} == {str(os.getpid())}
    assert watch.lines == [
        (["lr 0"], 0, 6, False),
        (["bad 0"], 1, 6, True),
        (["fm 0"], 2, 6, True),
        (["lr 1"], 3, 6, True),
        (["fm 1"], 4, 6, True),
        ([], 5, 6, True),
    ]


def test_side_by_side_in_processes_that_are_replaced_when_they_die(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 6)
    failures = run_all(made(tmp_path, "lr", "bad", "killed"), 2)
    assert failures == {
        "bad": "it cannot be",
        "killed": "its process ended with code -9, perhaps for lack of memory; try fewer --jobs",
    }
    processes, threads = zip(*(path.read_text().split() for path in tmp_path.glob("*/log")), strict=True)
    assert str(os.getpid()) not in processes
    assert threads == ("3", "3")
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_run_that_finds_no_room_goes_on_when_another_has_ended(tmp_path):
    watch = Heard()
    assert run_all(made(tmp_path, "beside", "large"), 4, watch) == {}
    assert [(tmp_path / f"large{n}" / "tries").read_text() for n in (0, 1)] == ["xx", "xx"]
    assert watch.lines[-1] == ([], 4, 4, True)


def test_a_run_that_finds_no_room_alone_fails(tmp_path):
    (tmp_path / "deep").mkdir()
    jobs_of = [*made(tmp_path, "lr")[:1], *made(tmp_path / "deep", "large")[:1]]
    jobs_of[1] = dataclasses.replace(jobs_of[1], out=tmp_path / "large without end")
    assert run_all(jobs_of, 2) == {"large": "no room"}
    assert run_all([jobs_of[1]], 1) == {"large": "no room"}


def test_room_is_waited_for_once_where_a_process_died():
    board = Board([], 4, Watch())
    job = made(Path(), "lr")[0]
    assert board.waits(job, jobs.NoRoom("no room"), 3)
    assert board.workers == 3
    assert board.waits(job, jobs.NoRoom("no room"), 2)
    assert not board.waits(job, jobs.NoRoom("no room"), 0)
    assert not board.waits(job, "it cannot be", 3)
    died = jobs.NoRoom(f"{jobs.DIED} -9")
    assert board.waits(job, died, 2)
    assert not board.waits(job, died, 2)


@pytest.mark.parametrize("taken", [False, True])
def test_a_process_that_dies_before_it_reads_its_job_is_an_error_of_that_job(tmp_path, taken):
    (job,) = made(tmp_path, "lr")[:1]
    worker = jobs.Worker(1)
    os.kill(worker.process.pid, signal.SIGSTOP)  # it never reads
    if taken:
        worker.take(job)
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.join()
    if not taken:
        worker.take(job)
    found, problem, _ = worker.ended()
    assert (found, problem.split(",")[0]) == (job, "its process ended with code -9")


def test_a_process_runs_one_job_after_another(tmp_path):
    assert run_all(made(tmp_path, "a", "b", "c", "d"), 2) == {}
    processes = [path.read_text().split()[0] for path in tmp_path.glob("*/log")]
    assert len(processes) == 8
    assert len(set(processes)) <= 2


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_done_is_checked_here_and_not_made_again(tmp_path, workers, monkeypatch):
    run_all(made(tmp_path, "lr"))
    others = [Pretended("bad", "bad 0", Path("data"), tmp_path / "lr0")]
    assert run_all(others, workers) == {"bad": "it cannot be"}
    monkeypatch.setattr(jobs, "Worker", None)
    assert run_all(made(tmp_path, "lr"), workers) == {}


def test_time_left_is_that_of_the_model_or_of_all():
    lr, fm, pin = (Job(name, name, Path("data"), Path(name)) for name in ("lr", "fm", "pin"))
    board = Board([lr, fm, pin], 2, Watch())
    assert board.left([lr]) is None
    board.end(lr, "", 10.0)
    board.end(lr, "", 20.0)
    board.end(fm, "", 60.0)
    board.end(pin, "broken", 1.0)
    assert board.left([lr, fm, pin]) == pytest.approx((15 + 60 + 30) / 2)


def test_what_went_wrong_is_one_line(tmp_path, monkeypatch):
    job = Job("pin", "pin seed 0", tmp_path / "none", tmp_path / "out")
    assert job.attempt().startswith("not a folder that `fieldwise prepare` wrote")

    def broken(*arguments, **more):
        raise RuntimeError("out of memory\nTried to allocate")

    monkeypatch.setattr(jobs, "train", broken)
    assert job.attempt() == "RuntimeError: out of memory; see it with `fieldwise train ... --debug`"
    monkeypatch.setattr(jobs, "load_config", lambda *a, **k: (_ for _ in ()).throw(ConfigError("no such setting")))
    assert job.attempt() == "no such setting"


def test_what_nobody_reads_of_a_finished_run_is_removed(tmp_path):
    data, out = tmp_path / "data", tmp_path / "run"
    world = World("demo")
    prepare_log(world, world.span(600), data)
    settings = {"model.name": "lr", "train.epochs": 1}
    job = Job("lr", "lr", data, out, None, settings, ("checkpoint", "bundle"))
    assert job.attempt() == ""
    assert job.done
    assert {"report.json", "predictions.parquet"} <= {path.name for path in out.iterdir()}
    assert not (out / "bundle").exists()
    assert not (out / "checkpoint").exists()
    # Asked again, it is known as done; with other settings it is another run.
    assert job.attempt() == ""
    assert "settings" in Job("lr", "lr", data, out, None, settings | {"train.epochs": 2}).attempt()
