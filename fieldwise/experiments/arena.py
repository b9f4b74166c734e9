"""Where a simulated A/B test runs: in this process, or through a real server."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fieldwise.abtest.event_log import Event, EventLog
from fieldwise.abtest.router import Router
from fieldwise.config.errors import FieldwiseError
from fieldwise.serving.service import Service, fingerprint

LOG = "events.sqlite"
Row = Mapping[str, Any]


class Shown(NamedTuple):
    request_id: str
    arm: str
    order: list[int]


class Arena(Protocol):
    """Arms in `folder/arms` with equal shares of the traffic; the log is `folder/events.sqlite`."""

    def __init__(self, folder: Path, arms: Sequence[str], split_field: str) -> None: ...

    def rank(self, context: Row, candidates: Sequence[Row], top: int) -> Shown: ...

    def click(self, request_id: str, place: int) -> None: ...

    def __enter__(self) -> Arena: ...

    def __exit__(self, *error: object) -> None: ...

    def swap(self) -> None:
        """Reloads the arms from their folders."""

    @contextmanager
    def at(self, moment: float) -> Iterator[None]:
        """Requests within the block get this time, if the arena can set it; at its end all of them are logged."""


class InProcess:
    """The service without HTTP; the log has the simulated times."""

    def __init__(self, folder: Path, arms: Sequence[str], split_field: str) -> None:
        self._now = 0.0
        self._router = Router(tuple(arms), (1.0,) * len(arms), split_field)
        self._paths = [folder / "arms" / arm for arm in arms]
        self._log = str(folder / LOG)
        self._waiting: list[Any] = []

    def __enter__(self) -> InProcess:
        log = EventLog(self._log)
        log.declare(self._router)
        self._service = Service(self._paths, self._router, log, lambda: self._now, trial=fingerprint)
        return self

    def __exit__(self, *error: object) -> None:
        self._service.close()

    def rank(self, context: Row, candidates: Sequence[Row], top: int) -> Shown:
        found = self._service.rank(context, candidates, top)
        return Shown(found.request_id, found.arm, found.order)

    def click(self, request_id: str, place: int) -> None:
        self._waiting.append(self._service.respond(Event(request_id, place, 1, time=self._now)))

    def swap(self) -> None:
        self._service.reload()

    @contextmanager
    def at(self, moment: float) -> Iterator[None]:
        self._now = moment
        yield
        for answer in self._waiting:
            answer.result()
        self._waiting.clear()


class OverHttp:
    """A server in another process; its log has the real times."""

    def __init__(self, folder: Path, arms: Sequence[str], split_field: str) -> None:
        self._token = secrets.token_urlsafe()
        self._token_file = folder / "token"
        paths = [str(folder / "arms" / arm) for arm in arms]
        options = {
            "--names": ",".join(arms),
            "--split-field": split_field,
            "--log": str(folder / LOG),
            "--token-file": str(self._token_file),
            "--port": "0",
        }
        given = [word for option in options.items() for word in option]
        self._command = [sys.executable, "-m", "fieldwise", "serve", *paths, *given]

    def __enter__(self) -> OverHttp:
        self._token_file.touch(0o600)
        self._token_file.write_text(self._token, encoding="utf-8")
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port(), timeout=60)
        return self

    def _port(self) -> int:
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                return int(found[1])
        raise FieldwiseError(f"the server did not start: {' '.join(said)[-500:]}")

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._token_file.unlink()

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        head = {"content-type": "application/json", "authorization": f"Bearer {self._token}"}
        waits = [0.1, 0.5, 2.0]
        while True:
            self._connection.request("POST", path, json.dumps(body), head)
            answer = self._connection.getresponse()
            found = json.loads(answer.read())
            if answer.status == 200:
                return found
            if answer.status not in (429, 503) or not waits:
                raise FieldwiseError(f"the server answered {answer.status} to {path}: {found}")
            time.sleep(waits.pop(0))

    def rank(self, context: Row, candidates: Sequence[Row], top: int) -> Shown:
        found = self._post("/rank", {"context": context, "candidates": candidates, "top": top})
        return Shown(found["request_id"], found["arm"], [each["index"] for each in found["candidates"]])

    def click(self, request_id: str, place: int) -> None:
        self._post("/event", {"request_id": request_id, "candidate": place, "label": 1})

    def swap(self) -> None:
        self._post("/reload", {})

    @contextmanager
    def at(self, moment: float) -> Iterator[None]:
        yield
