"""Every door of the server: what it answers, and what it refuses."""

import json
import threading
import time

import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.serving import application as applications
from fieldwise.serving.application import Limits
from fieldwise.serving.guard import read_token

from .fakes import write_bundle


def test_predict_gives_the_engines_numbers_in_order(server):
    served = server()
    rows = [{"user": "a", "price": 3}, {}, {"user": None, "item": ["x", "y"]}]
    found = served.post("/predict", rows=rows).json()
    engine = served.service.arms[0].engine
    assert found["probabilities"] == [engine.probability(row) for row in rows]
    assert found["arms"] == ["one"] * 3


def test_rank_gives_the_best_candidates_first(server):
    served = server()
    candidates = [{"item": str(number)} for number in range(10)]
    found = served.post("/rank", context={"user": "a"}, candidates=candidates, top=3).json()["candidates"]
    engine = served.service.arms[0].engine
    expected = sorted(((engine.probability({"user": "a", **c}), n) for n, c in enumerate(candidates)), reverse=True)
    assert [(row["probability"], row["index"]) for row in found] == expected[:3]


def test_explain_and_values_and_model(server):
    served = server()
    assert served.post("/explain", row={"user": "a"}).json()["fields"] == [{"fields": ["user"], "logit": 1.5}]
    assert served.client.get("/values", params={"field": "user", "prefix": "a"}).json() == {"values": ["apple", "ape"]}
    model = served.client.get("/model").json()
    assert model["arms"][0]["name"] == "one"
    assert "secret" not in json.dumps(model)


def test_an_unknown_field_is_named_with_the_nearest(server):
    served = server()
    for path, body in (
        ("/predict", {"rows": [{}, {"usr": "a"}]}),
        ("/rank", {"context": {"usr": 1}, "candidates": [{}]}),
        ("/rank", {"candidates": [{"usr": 1}]}),
        ("/explain", {"row": {"usr": 1}}),
    ):
        found = served.post(path, **body)
        assert found.status_code == 422
        assert "unknown field 'usr'; did you mean 'user'?" in found.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 422),
        (b'{"rows": 3}', 422),
        (b'{"rows": [{"user": {"a": 1}}]}', 422),
        (b'{"rows": [{"user": [["a"]]}]}', 422),
        (b'{"rows": [{"price": 1e999}]}', 422),
        (b'{"rows": [{"price": NaN}]}', 422),
        (b'{"rows": [], "path": "/etc/passwd"}', 422),
        (b'{"rows": [{"user": "\\ud800"}]}', 400),
        (b'{"rows": [], "arm": "two"}', 422),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(server, body, status):
    found = server().client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert found.status_code == status
    assert "\n" not in found.json()["detail"]


def test_too_much_is_refused(server):
    served = server(limits=Limits(max_body=1000, max_rows=3))
    assert served.post("/predict", rows=[{}] * 4).status_code == 413
    assert served.post("/rank", candidates=[{}] * 4).status_code == 413
    assert served.post("/predict", rows=[{"user": "x" * 1000}]).status_code == 413
    pieces = (b"x" * 100 for _ in range(20))
    assert served.client.post("/predict", content=pieces).status_code == 413
    assert served.post("/predict", rows=[{}] * 3).status_code == 200


def test_more_than_the_queue_holds_is_refused_at_once_and_the_rest_answered(server):
    served = server(limits=Limits(queue=4, timeout=20))
    engine = served.service.arms[0].engine
    engine.held.clear()
    found = []

    def ask():
        found.append(served.post("/predict", rows=[{"user": "a"}]))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    _until(lambda: len(found) == 6)
    assert {answer.status_code for answer in found} == {429}
    assert found[0].headers["retry-after"] == "1"
    engine.held.set()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in found) == [200] * 4 + [429] * 6
    assert served.application.gate.inside == 0


def test_one_that_takes_too_long_is_given_up(server):
    served = server(limits=Limits(timeout=0.2))
    engine = served.service.arms[0].engine
    engine.held.clear()
    assert served.post("/predict", rows=[{}]).status_code == 504
    # The thread is still busy with the first; this one never begins.
    assert served.post("/predict", rows=[{}]).status_code == 503
    engine.held.set()
    _until(lambda: served.application.gate.inside == 0)
    assert served.post("/predict", rows=[{}]).status_code == 200


def test_a_token_is_asked_for_everywhere_but_where_probes_and_pages_are(server):
    served = server(token="t" * 20)
    bearer = {"authorization": "Bearer " + "t" * 20}
    for path in ("/model", "/metrics"):
        assert served.client.get(path).status_code == 401
        assert served.client.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert served.client.get(path, headers=bearer).status_code == 200
    for path in ("/predict", "/rank", "/explain", "/event", "/reload"):
        assert served.post(path, rows=[]).status_code == 401
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert served.client.get(path).status_code == 200


def test_without_a_token_pages_of_other_sites_are_refused(server):
    served = server()
    assert served.client.post("/reload", headers={"origin": "https://elsewhere.example"}).status_code == 403
    assert served.client.post("/reload", headers={"host": "elsewhere.example"}).status_code == 403
    assert served.client.post("/reload", headers={"origin": "http://localhost:8400"}).status_code == 200


def test_tokens_come_from_a_file_and_only_loopback_goes_without(tmp_path):
    with pytest.raises(ConfigError, match="needs --token-file"):
        read_token(None, "0.0.0.0")
    assert read_token(None, "::1") == ""
    file = tmp_path / "token"
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="16 or more"):
        read_token(file, "0.0.0.0")
    file.write_text("0123456789abcdef\n")
    assert read_token(file, "0.0.0.0") == "0123456789abcdef"


def test_docs_fetch_nothing_from_elsewhere(server):
    served = server()
    page = served.client.get("/docs").text
    assert "//cdn" not in page
    for file in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"/static-offline-docs/{file}" in page
        assert served.client.get(f"/static-offline-docs/{file}").status_code == 200
    assert served.client.get("/static/../application.py").status_code == 404


def test_the_report_of_the_test_is_there_to_watch(server, monkeypatch):
    monkeypatch.setattr(applications, "REPORT_SECONDS", -1.0)
    served = server("a", "b")
    assert "no impressions yet" in served.client.get("/abtest").json()["warnings"][0]
    found = served.post("/predict", rows=[{"user": "u"}]).json()
    served.post("/event", request_id=found["request_id"])
    (arm,) = served.client.get("/abtest").json()["arms"]
    assert (arm["arm"], arm["shown"], arm["clicks"]) == (found["arms"][0], 1, 1)


def test_meters_count_what_happened(server):
    served = server("a", "b")
    for number in range(20):
        served.post("/predict", rows=[{"user": f"u{number}"}])
    served.post("/predict", rows=[{"usr": 1}])
    text = served.client.get("/metrics").text
    assert 'fieldwise_requests_total{path="/predict",status="200"} 20.0' in text
    assert 'fieldwise_requests_total{path="/predict",status="422"} 1.0' in text
    assert 'fieldwise_request_seconds_count{path="/predict"} 21.0' in text
    rows = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("fieldwise_rows_total")]
    assert len(rows) == 2
    assert sum(rows) == 20


def test_reload_swaps_what_changed_and_keeps_the_old_where_the_new_is_broken(server):
    served = server("a", "b")
    before = served.post("/predict", rows=[{"user": "u"}], arm="a").json()["probabilities"]
    write_bundle(served.folder / "a", "newer")
    assert served.client.post("/reload").json()["changed"] == {"a": True, "b": False}
    after = served.post("/predict", rows=[{"user": "u"}], arm="a").json()["probabilities"]
    assert before != after
    (served.folder / "a" / "bundle.json").write_text("{")
    refused = served.client.post("/reload")
    assert refused.status_code == 409
    assert "damaged" in refused.json()["detail"]
    assert served.post("/predict", rows=[{"user": "u"}], arm="a").json()["probabilities"] == after


def test_a_link_may_lead_to_another_bundle(server, tmp_path):
    served = server("a")
    folder = served.folder / "a"
    folder.rename(served.folder / "first")
    write_bundle(served.folder / "second", "second")
    folder.symlink_to(served.folder / "second")
    assert served.client.post("/reload").json()["changed"] == {"a": True}
    assert served.service.arms[0].engine.name == "second"


def _until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
