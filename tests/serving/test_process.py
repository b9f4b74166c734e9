"""What only real processes can show: hot swap under load, a kill, a polite end, several workers."""

import http.client
import json
import re
import shlex
import shutil
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from fieldwise import cli
from fieldwise.abtest.event_log import read_outcomes
from fieldwise.abtest.event_tables import connect
from fieldwise.commands.app import app
from fieldwise.config.settings import load_config
from fieldwise.train.loop import train

from .processes import Client, running

ROW = {"user": "u3", "price": 0.4, "tags": "a|b"}


@pytest.fixture(scope="module")
def second(trained, tmp_path_factory):
    """Another model of the same data."""
    run = tmp_path_factory.mktemp("second") / "run"
    train(load_config(overrides=["model.name=lr", "train.epochs=1", "device=cpu"]), trained.data, run)
    return run


def test_reload_under_load_loses_no_request_and_reaches_all_workers(trained, second, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(trained.run)
    statuses, answers, stop = [], [], threading.Event()

    def ask(port):
        with Client(port) as client:
            while not stop.is_set():
                status, found = client.post("/predict", rows=[ROW], log=False)
                statuses.append(status)
                answers.append(found["probabilities"][0] if status == 200 else None)

    with (
        running(link, "--workers", "2", "--log", tmp_path / "log.sqlite") as (process, port),
        Client(port, timeout=200) as admin,
    ):
        threads = [threading.Thread(target=ask, args=[port]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for target in (second, trained.run, second):
            _point(link, target)
            status, found = admin.post("/reload")
            assert (status, found["workers"], found["changed"]) == (200, 2, {"current": True})
        # A broken one is refused and the old one stays.
        broken = tmp_path / "broken"
        shutil.copytree(second / "bundle", broken)
        (broken / "weights.safetensors").write_bytes(b"cut off")
        (broken / "metrics.json").write_text("{}")
        _point(link, broken)
        status, found = admin.post("/reload")
        assert status == 409
        assert "changed or cut off" in found["detail"]
        # The same by a signal.
        _point(link, trained.run)
        process.send_signal(signal.SIGHUP)
        before = len(answers)
        expected = answers[0]
        _until(lambda: len(answers) > before + 40 and set(answers[-40:]) == {expected})
        stop.set()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200}
        assert len(set(answers)) == 2
        text = admin.get("/metrics")[1]
        assert f'fieldwise_requests_total{{path="/predict",status="200"}} {float(len(statuses))}' in text


def test_kill_loses_nothing_that_was_acknowledged(trained, tmp_path):
    log = tmp_path / "log.sqlite"
    acknowledged, lock = set(), threading.Lock()
    with running(trained.run, "--log", log) as (process, port):

        def click(number):
            with Client(port) as client, suppress(OSError, http.client.HTTPException, json.JSONDecodeError):
                for place in range(200):
                    status, found = client.post("/rank", context={"user": f"u{number}"}, candidates=[{"price": place}])
                    event = {"request_id": found["request_id"], "event_id": f"{number}-{place}"}
                    status, _ = client.post("/event", **event)
                    if status == 200:
                        with lock:
                            acknowledged.add(event["event_id"])

        threads = [threading.Thread(target=click, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        _until(lambda: len(acknowledged) >= 200)
        process.kill()
        for thread in threads:
            thread.join()
    engine = connect(str(log), writing=False)
    with engine.connect() as connection:
        found = {row[0] for row in connection.exec_driver_sql("select event_id from events")}
    assert len(acknowledged) >= 200
    assert acknowledged <= found
    assert len(read_outcomes(engine, 0, 10_000)) == len(found)
    engine.dispose()


def test_sigterm_ends_what_is_under_way(trained, tmp_path):
    log = tmp_path / "log.sqlite"
    with running(trained.run, "--log", log) as (process, port):
        body = json.dumps({"rows": [ROW]}).encode()
        head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}"
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body[:5])
            # Once a later request is answered, the server has read this one's head.
            with Client(port) as other:
                assert other.get("/health")[0] == 200
            process.terminate()
            time.sleep(0.3)
            client.sendall(body[5:])
            answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        assert process.wait(20) == 0
    engine = connect(str(log), writing=False)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("select count(*) from impressions").scalar() == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--host", "0.0.0.0"], "needs --token-file"),
        (["--split", "50,50"], "a split needs a share for each arm, found 2 for run; write --split 100"),
        (["--workers", "0"], "workers are 1 or more"),
        (["--queue", "0"], "--queue must be above 0"),
        (["--split-field", "usr"], "did you mean 'user'?"),
        (["--log", "nosuch://x"], "cannot open the event log"),
    ],
)
def test_mistakes_are_one_line(trained, tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["serve", str(trained.run), "--port", "0", *arguments])
    assert end.value.code == 2
    (found,) = capsys.readouterr().err.splitlines()
    assert line in found


@pytest.mark.parametrize("source", ["live", "work/../live/"])
def test_an_arm_has_the_name_of_the_link_that_is_served(trained, tmp_path, monkeypatch, capsys, source):
    """Not that of the version which it leads to: the event log would have another arm after each restart."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "live").symlink_to(trained.run)
    with pytest.raises(SystemExit):
        cli.main(["serve", source, "--port", "0", "--split", "50,50"])
    assert "found 2 for live" in capsys.readouterr().err


def test_commands_of_the_docs_that_run_for_ever_are_understood():
    page = (Path(__file__).parents[2] / "docs" / "online.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 6
    verbs = typer.main.get_command(app)
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "fieldwise"
        command = verbs
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        # Parses and checks the options, and does no more.
        command.make_context(command.name, arguments)


def _point(link, target):
    new = link.with_name("new")
    new.symlink_to(target)
    new.replace(link)


def _until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
