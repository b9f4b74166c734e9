"""The files of examples/deploy: what they name exists, and the load test loads a real server."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from fieldwise.commands import follow, online
from fieldwise.export.export import write_network
from fieldwise.serving.guard import OPEN
from fieldwise.serving.meters import PATHS, Meters
from tests.serving.bundles import Prepared
from tests.serving.processes import running

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"


def options_of(words: list[str], expected: str) -> dict[str, Any]:
    """The options of a `fieldwise VERB ...`, by the command line's own reading; an unknown one is an error."""
    program, verb, *arguments = words
    assert (Path(program).name, verb) == ("fieldwise", expected)
    room = {"serve": online, "follow": follow}[verb]
    command: Any = typer.main.get_command(room.app)
    return dict(command.commands[verb].make_context(verb, arguments).params)


def served_with(words: list[str]) -> dict[str, Any]:
    return options_of(words, "serve")


def unit(name: str = "fieldwise.service") -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes="#")
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string((DEPLOY / name).read_text(encoding="utf-8"))
    return found


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, with their continued lines."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


def test_the_unit_starts_a_server_that_there_is() -> None:
    service = unit()["Service"]
    options = served_with(shlex.split(service["ExecStart"]))
    assert options["workers"] > 1
    # Beyond this machine a server needs a token.
    assert options["token_file"] is not None or options["host"] == "127.0.0.1"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    home = f"/var/lib/{service['StateDirectory']}"
    assert all(path.startswith(home) for path in (options["log"], str(options["sources"][0])))


def test_the_unit_beside_it_follows_the_bundle_that_is_served() -> None:
    server, follower = (unit(name)["Service"] for name in ("fieldwise.service", "fieldwise-follow.service"))
    served = served_with(shlex.split(server["ExecStart"]))
    followed = options_of(shlex.split(follower["ExecStart"]), "follow")
    assert [followed["bundle"]] == served["sources"]
    assert followed["token_file"] == served["token_file"]
    assert followed["server"] == [f"http://127.0.0.1:{served['port']}"]
    assert (followed["once"], followed["status"]) == (False, False)
    # What SIGTERM ends is no failure.
    assert follower["SuccessExitStatus"] == "143"
    same = ("User", "StateDirectory", "LoadCredential", "ProtectSystem")
    assert [follower[name] for name in same] == [server[name] for name in same]


@pytest.mark.parametrize("name", ["fieldwise.service", "fieldwise-follow.service"])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_no_fault_in_the_unit(name: str) -> None:
    command = ["systemd-analyze", "verify", str(DEPLOY / name)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    faults = [line for line in said.splitlines() if name in line]
    # The program is not installed where the unit expects it.
    assert [line for line in faults if "is not executable: No such file" not in line] == []


def test_the_containerfile_names_what_there_is() -> None:
    found = instructions()
    known = "FROM RUN WORKDIR COPY USER ENV EXPOSE HEALTHCHECK STOPSIGNAL ENTRYPOINT CMD"
    assert {name for name, _ in found} <= set(known.split())
    assert found[0][0] == "FROM"
    last = dict(found)
    options = served_with([*json.loads(last["ENTRYPOINT"]), *json.loads(last["CMD"])])
    assert str(options["port"]) == last["EXPOSE"]
    assert options["token_file"] is not None
    copied = [source for name, text in found if name == "COPY" for source in text.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    installed = next(text for name, text in found if name == "RUN" and "-c constraints.txt" in text)
    names = installed.partition("-c constraints.txt")[2].split()
    assert [name for name in names if name.replace("-", "_") not in {one.replace("-", "_") for one in pinned}] == []
    (asked,) = re.findall(r"http://127\.0\.0\.1:8400(/\w+)", last["HEALTHCHECK"])
    assert asked in OPEN


def metrics() -> dict[str, set[str]]:
    """The names of all series of /metrics, with their labels."""
    meters = Meters()
    meters.request("/predict", 500, 0.01)
    meters.scored("/predict", {"arm": 3})
    meters.events.labels("1", "true").inc()
    meters.reloads.labels("swapped").inc()
    found: dict[str, set[str]] = {}
    for line in meters.text().decode().splitlines():
        if not line.startswith("#") and "_created" not in line:
            name, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})? .*", line).groups()  # type: ignore[union-attr]
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


def test_the_dashboard_draws_every_metric_and_no_other() -> None:
    board, known = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8")), metrics()
    drawn = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            names = set(re.findall(r"\bfieldwise_\w+", expression))
            assert names <= known.keys(), panel["title"]
            allowed = set.intersection(*(known[name] for name in names)) | {"instance"}
            by = {label.strip() for text in re.findall(r"by \(([^)]*)\)", expression) for label in text.split(",")}
            filters = set(re.findall(r"(\w+)=~?\"", expression))
            assert by | filters | set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= allowed, panel["title"]
            assert set(re.findall(r"/[a-z]+", expression)) <= PATHS
            drawn |= names
    assert drawn == known.keys()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    scraped = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
    assert re.findall(r"metrics_path: (\S+)", scraped)[0] in PATHS


def test_the_load_test_loads_a_server(everything: Prepared) -> None:
    source = everything.bundle("lr", "loaded")
    write_network(source, source / "online")
    with running(source, "--log", "none") as (process, port):
        command = [sys.executable, str(DEPLOY / "load_test.py"), f"http://127.0.0.1:{port}"]
        asked = ["--seconds", "0.5", "--clients", "2", "--rows", "5"]
        done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
        found = json.loads(done.stdout)
        assert done.returncode == 0, done.stderr
        assert found["requests"] > 0
        assert found["failed"] == 0
        assert found["p99_ms"] >= found["p50_ms"] > 0
        process.terminate()
        assert process.wait(20) == 0
    gone = subprocess.run([*command, "--seconds", "0.2"], capture_output=True, text=True, check=False)
    assert gone.returncode == 1
    assert "answered nothing" in gone.stderr
