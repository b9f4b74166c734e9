"""The server against its own description of the interface: no request that it allows, or nearly allows, is a fault."""

from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode

from fieldwise.abtest import event_log as logs

FEW = settings(
    max_examples=12,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def asked_of(client, case):
    """Sends a generated request; the path, without the host that it was generated for."""
    request = case.as_transport_kwargs(base_url="http://127.0.0.1")
    for name in ("cookies", "cert", "verify", "timeout"):
        request.pop(name, None)
    url = urlsplit(request.pop("url"))
    if "data" in request:
        request["content"] = request.pop("data")
    return client.request(request.pop("method"), url.path, **request)


def statuses_of(client, operation, mode):
    """The statuses of generated requests, none of which is a fault or one that the description does not name."""
    statuses = set()

    @FEW
    @given(operation.as_strategy(mode))
    def check(case):
        found = asked_of(client, case)
        assert found.status_code < 500, (operation.path, case.body, found.text)
        assert str(found.status_code) in operation.definition.raw["responses"], (operation.path, found.status_code)
        statuses.add(found.status_code)

    check()
    return statuses


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_of_the_interface_is_a_fault(server, monkeypatch, mode):
    monkeypatch.setattr(logs, "PATIENCE", 0.0)
    served = server("a", "b")
    schema = schemathesis.openapi.from_dict(served.client.get("/openapi.json").json())
    statuses = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.POSITIVE or operation.body or operation.query:
            statuses[operation.path] = statuses_of(served.client, operation, mode)
    assert {"/predict", "/rank", "/explain", "/event"} <= set(statuses)
    if mode is GenerationMode.POSITIVE:
        assert {path for path, found in statuses.items() if 200 in found} >= {"/predict", "/model", "/metrics"}
