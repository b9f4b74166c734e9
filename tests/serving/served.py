"""A server over fake engines, in this process."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from fieldwise.abtest.event_log import EventLog
from fieldwise.abtest.router import Router
from fieldwise.serving import service as services
from fieldwise.serving.application import Application, Hooks, Limits
from fieldwise.serving.service import Service

from .fakes import FakeEngine, fingerprint, write_bundle


class Served:
    """A client of an application, and what stands behind it."""

    def __init__(self, tmp_path, arms, limits, token, with_log=True) -> None:
        self.folder = tmp_path
        self.paths = [write_bundle(tmp_path / arm, arm) for arm in arms]
        self.log_file = str(tmp_path / "events.sqlite")
        self.router = Router(tuple(arms), (1.0,) * len(arms), "user" if len(arms) > 1 else "", "s")
        log = EventLog(self.log_file) if with_log else None
        if log:
            log.declare(self.router)
        # Another process would know nothing of the fakes.
        self.service = Service(self.paths, self.router, log, trial=lambda _path: "")
        self.application = Application(self.service, token, limits, Hooks())
        self.client = TestClient(self.application.api, base_url="http://127.0.0.1", raise_server_exceptions=False)

    def post(self, path, **body):
        return self.client.post(path, json=body)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Makes a server of arms with these names; closed at the end."""
    monkeypatch.setattr(services, "Engine", FakeEngine)
    monkeypatch.setattr(services, "fingerprint", fingerprint)
    made = []

    def make(*arms, limits=None, token="", with_log=True):
        served = Served(tmp_path, arms or ("one",), limits or Limits(), token, with_log)
        served.client.__enter__()
        made.append(served)
        return served

    yield make
    for served in made:
        served.client.__exit__(None, None, None)
