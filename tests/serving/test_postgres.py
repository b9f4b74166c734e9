"""The same log in PostgreSQL, where a server can be started on this machine."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from fieldwise.abtest.analysis import report
from fieldwise.abtest.event_log import Event, EventLog, Impression
from fieldwise.abtest.router import Router
from fieldwise.export.export import write_network
from fieldwise.serving.history_follower import Closer

from .processes import Client, running


def programs():
    """The folder of PostgreSQL's programs, and who runs them: it refuses root."""
    found = [Path(path).parent for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("PostgreSQL's initdb is not installed")
    if os.geteuid():
        return found[-1], []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    return found[-1], ["runuser", "-u", "postgres", "--"]


@pytest.fixture
def address():
    """The URL of an empty database in a server of its own."""
    pytest.importorskip("psycopg")
    folder, who = programs()
    home = Path(tempfile.mkdtemp(prefix="pg"))
    if who:
        shutil.chown(home, "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(program, *arguments):
        command = [*who, str(folder / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home)

    run("initdb", "-D", f"{home}/data", "-A", "trust", "-U", "postgres")
    options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
    run("pg_ctl", "-D", f"{home}/data", "-o", options, "-w", "-l", f"{home}/log", "start")
    yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    run("pg_ctl", "-D", f"{home}/data", "-m", "immediate", "stop")
    shutil.rmtree(home)


def test_two_servers_share_one_log_in_postgresql(address):
    logs = [EventLog(address), EventLog(address)]
    logs[0].declare(Router(("a", "b"), (1.0, 1.0), "user"))
    then = time.time() - 100
    for n in range(60):
        shown = [{"item": 10**30}, {"item": "\0"}]
        logs[n % 2].show(
            Impression(f"r{n}", 0, "rank", "ab"[n % 2], f"u{n}\0", "m", {}, shown, [0, 1], [0.1, 0.2], time=then)
        )
    answers = [logs[n % 2].respond(Event(f"r{n // 2}", n % 2, int(n % 3 == 0))) for n in range(100)]
    assert all(answer.result(10) for answer in answers)
    assert logs[0].respond(Event("r0", 0, 1)).result(10) is False
    assert logs[0].outcomes(0) == logs[1].outcomes(0)
    assert [outcome.seq for outcome in logs[0].outcomes(0)] == list(range(1, 101))
    Closer(logs[1], 50).close()
    assert len(logs[0].outcomes(0)) == 120
    assert logs[0].start_of("m") == logs[1].start_of("m") == 120
    for log in logs:
        log.close()
    found = report(address)
    assert [(arm["units"], arm["shown"]) for arm in found["arms"]] == [(30, 60), (30, 60)]
    assert sum(arm["clicks"] for arm in found["arms"]) == 34


def test_a_server_of_two_workers_keeps_its_log_in_postgresql(address, everything):
    """What one worker showed, another counts the response to; a second event with one id counts once."""
    source = everything.bundle("lr", "logged")
    write_network(source, source / "online")
    with running(source, "--workers", 2, "--log", address) as (process, port):
        clicked = 0
        for n in range(8):
            # Each connection may come to another worker.
            with Client(port) as client:
                status, shown = client.post("/predict", rows=[{"user": f"u{n}"}])
                assert status == 200
            for _ in range(2):
                with Client(port) as client:
                    event = {"request_id": shown["request_id"], "candidate": 0, "label": 1, "event_id": f"e{n}"}
                    status, answer = client.post("/event", **event)
                    assert status == 200
                    clicked += answer["new"]
        with Client(port) as client:
            assert client.get("/ready") == (200, '{"status":"ready"}')
        process.terminate()
        assert process.wait(30) == 0
    (arm,) = report(address)["arms"]
    assert (clicked, arm["shown"], arm["clicks"]) == (8, 8, 8)
