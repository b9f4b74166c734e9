"""Processes that share a GPU: the daemon is started, tried, and ended, and whatever fails leaves them to take turns."""

import os

import pytest

from fieldwise.experiments import gpu_sharing
from fieldwise.experiments.gpu_sharing import LOGS, PIPES, side_by_side

DAEMON = """#!/bin/sh
if [ "$1" = -d ]; then echo "start $CUDA_MPS_PIPE_DIRECTORY" >> {log}; exit {code}; fi
echo "$(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {log}
"""


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """Puts a daemon on the PATH that notes what it is told; returns the file of its notes and a function for it."""
    log = tmp_path / "log"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.delenv(LOGS, raising=False)
    monkeypatch.setattr(gpu_sharing, "USUAL", tmp_path / "usual")

    def installed(code=0, tried="pass"):
        file = tmp_path / gpu_sharing.CONTROL
        file.write_text(DAEMON.format(log=log, code=code))
        file.chmod(0o755)
        monkeypatch.setattr(gpu_sharing, "TRY", tried)

    return log, installed


def test_processes_find_the_daemon_and_it_ends_with_them(daemon):
    log, installed = daemon
    installed()
    with side_by_side():
        place = os.environ[PIPES]
        assert os.environ[LOGS] == place
        assert log.read_text() == f"start {place}\n"
    assert PIPES not in os.environ
    assert LOGS not in os.environ
    assert log.read_text() == f"start {place}\nquit {place}\n"
    assert not os.path.exists(place)


def test_an_error_inside_ends_the_daemon_too(daemon):
    log, installed = daemon
    installed()
    with pytest.raises(RuntimeError), side_by_side():
        raise RuntimeError
    assert "quit" in log.read_text()
    assert PIPES not in os.environ


@pytest.mark.parametrize(
    ("how", "told"), [({"code": 1}, ["start"]), ({"tried": "raise SystemExit(1)"}, ["start", "quit"])]
)
def test_one_that_does_not_work_is_left_out(daemon, how, told):
    log, installed = daemon
    installed(**how)
    with side_by_side():
        assert PIPES not in os.environ
    assert [line.split()[0] for line in log.read_text().splitlines()] == told


def test_somebody_elses_daemon_is_taken_as_it_is(daemon, monkeypatch, tmp_path):
    log, installed = daemon
    installed()
    monkeypatch.setenv(PIPES, "theirs")
    with side_by_side():
        assert os.environ[PIPES] == "theirs"
    monkeypatch.delenv(PIPES)
    (tmp_path / "usual").mkdir()
    with side_by_side():
        assert PIPES not in os.environ
    assert not log.exists()


def test_without_a_daemon_nothing_happens(daemon, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with side_by_side():
        assert PIPES not in os.environ
