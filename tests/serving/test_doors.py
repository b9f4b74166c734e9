"""Who may come in: other sites' pages, headers without end, connections without number, and what they leave behind."""

import json
import re
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fieldwise import cli
from fieldwise.abtest.event_log import Event, Impression
from fieldwise.config.errors import unknown
from fieldwise.serving.service import new_id

from .processes import Client, running

TOKEN = "t" * 20
BEARER = {"authorization": f"Bearer {TOKEN}"}
JSON = {"content-type": "application/json"}
POSTS = ("/predict", "/rank", "/explain", "/event", "/reload")
ELSEWHERE = (
    "null",
    "",
    "file://",
    "file:///home/me/page.html",
    "data:text/html,hello",
    "about:blank",
    "http://",
    "http://[::1",
    "http://a b",
    "http://localhost:99999999",
    "http://user@localhost",
    "http://localhost/path",
    "localhost",
    "chrome-extension://abcdef",
    "https://localhost.elsewhere.example",
)


@pytest.mark.parametrize("origin", ELSEWHERE)
@pytest.mark.parametrize("token", ["", TOKEN])
def test_nothing_is_changed_for_a_page_without_a_place_of_its_own(server, origin, token):
    served = server(token=token)
    if token and "elsewhere" in origin:
        pytest.skip("behind a proxy the server does not know its own name: the token is what counts")
    for path in POSTS:
        found = served.client.post(path, content=b"{}", headers={"origin": origin} | JSON | BEARER)
        assert found.status_code == 403, path
    assert served.client.post("/reload", headers=BEARER).status_code == 200


@pytest.mark.parametrize("token", ["", TOKEN])
def test_what_a_browser_says_comes_from_another_site_is_refused(server, token):
    served = server(token=token)
    for path in POSTS:
        found = served.client.post(path, json={}, headers={"sec-fetch-site": "cross-site"} | BEARER)
        assert found.status_code == 403, path
    # The page's own requests, and a link to it from elsewhere.
    own = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1"} | BEARER
    assert served.client.post("/predict", json={"rows": [{}]}, headers=own).status_code == 200
    assert served.client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["elsewhere.example", "127.0.0.1.elsewhere.example", "[::1", "localhost:x", "0.0.0.0", ""]
)
def test_without_a_token_every_path_has_a_host_of_this_machine(server, host):
    served = server()
    paths = {route.path for route in served.application.api.routes} | {"/openapi.json", "/nowhere"}
    paths |= {"/static/page.js", "/static/plotly.min.js", "/static-offline-docs/swagger-ui.css"}
    assert {"/", "/docs", "/health", "/ready", "/metrics", "/model", *POSTS} <= paths
    for path in sorted(paths):
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            found = served.client.request(method, path or "/", headers={"host": host})
            assert found.status_code == 403, (method, path)


def test_two_hosts_are_one_too_many(server):
    headers = [("host", "127.0.0.1"), ("host", "elsewhere.example")]
    assert server().client.get("/health", headers=headers).status_code == 400


def test_a_body_that_is_not_said_to_be_json_is_none(server):
    served = server()
    for path in ("/predict", "/rank", "/explain", "/event"):
        for kind in ({}, {"content-type": ""}, {"content-type": "text/plain"}, {"content-type": "x" * 5000}):
            found = served.client.post(path, content=b'{"rows": [{}]}', headers=kind)
            assert found.status_code == 415
            assert len(found.json()["detail"]) < 300


@pytest.mark.parametrize("long", ["x" * 1_000_000, "a\nb" * 1000])
def test_names_are_cut_where_they_are_repeated(server, long):
    served = server("a", "b")
    answers = [
        served.post("/predict", rows=[{long: 1}]),
        served.post("/predict", rows=[{long: float("1e300")}]),
        served.post("/predict", rows=[{long: {}}]),
        served.post("/predict", rows=[], arm=long),
        served.post("/predict", **{long: 1}),
        served.post("/rank", context={long: 1}, candidates=[{}]),
        served.post("/rank", candidates=[{long: 1}]),
        served.post("/explain", row={long: 1}),
        served.post("/event", request_id=long),
        served.post("/event", request_id="0" * 32, event_id=long),
        served.client.get("/values", params={"field": long[:8000]}),
        served.client.get("/values", params={"field": "user", "arm": long[:8000]}),
        served.client.get("/values", params={"field": "user", "limit": long[:8000]}),
    ]
    for found in answers:
        assert found.status_code == 422
        detail = found.json()["detail"]
        assert len(detail) < 600
        assert "\n" not in detail


def test_a_long_name_is_cut_before_the_nearest_is_sought():
    began = time.perf_counter()
    line = unknown("field", "user" * 1_000_000, ["user", "item"])
    assert line.startswith("unknown field 'useruser")
    assert len(line) < 200
    assert time.perf_counter() - began < 5


def test_no_id_of_a_client_uses_up_the_default_event_of_another(server):
    served = server("a")
    mine, other = (served.post("/predict", rows=[{"user": user}]).json()["request_id"] for user in "uv")
    for label in (0, 1):
        for wild in (f"{other}:0:{label}", f"{other} 0 {label}", f"{other}:0:none"):
            served.post("/event", request_id=mine, label=1, event_id=wild)
    for label in (1, 0):
        assert served.post("/event", request_id=other, label=label).json() == {"new": True}
        assert served.post("/event", request_id=other, label=label).json() == {"new": False}
    counted = {(outcome.request_id, outcome.label) for outcome in served.service.log.outcomes(0)}
    assert counted == {(mine, 1), (other, 1)}


def test_no_id_of_a_client_keeps_a_row_from_being_closed(server):
    log = server("a").service.log
    mine, other, then = new_id(), new_id(), time.time() - 100
    for request in (mine, other):
        log.show(Impression(request, 0, "rank", "a", "u", "m", {}, [{}], [0], [0.5], time=then))
    assert log.respond(Event(mine, 0, 1, f"{other}:0:none")).result(5)
    log.close_unanswered(0.0, then + 1)
    assert {(outcome.request_id, outcome.label) for outcome in log.outcomes(0)} == {(mine, 1), (other, 0)}


LIMITS = ("--header-timeout", "1", "--connections", "20", "--timeout", "1")


@pytest.fixture(scope="module")
def door(everything, tmp_path_factory):
    """A real server with a token, little time and few connections; its port."""
    folder = tmp_path_factory.mktemp("door")
    (folder / "token").write_text(TOKEN)
    bundle = everything.bundle("gbdt", out="gbdt-behind-a-door")
    with running(bundle, "--log", "none", "--token-file", folder / "token", *LIMITS) as (process, port):
        yield port
        assert process.poll() is None


def connected(port):
    return closing(socket.create_connection(("127.0.0.1", port), timeout=20))


def said(client):
    """All that the server says until it closes."""
    found = b""
    while piece := client.recv(65536):
        found += piece
    return found


def alive(port):
    with Client(port) as client:
        return client.get("/health")[0] == 200


def test_headers_are_limited_before_the_token_is_looked_at(door):
    for head in (
        b"X: " + b"x" * 33_000,
        b"".join(b"X-%d: y\r\n" % number for number in range(4000)),
        b"X" * 40_000 + b": y",
    ):
        with connected(door) as client:
            client.sendall(b"GET /model HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + b"\r\n\r\n")
            found = said(client)
        assert found.startswith(b"HTTP/1.1 431 ")
        assert json.loads(found.partition(b"\r\n\r\n")[2])["detail"] == "headers have at most 32,000 bytes"
    with connected(door) as client:
        client.sendall(b"GET /" + b"x" * 100_000)
        assert said(client).startswith(b"HTTP/1.1 431 ")
    with connected(door) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 31_000 + b"\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert alive(door)


def test_large_bodies_take_nothing_from_the_headers_of_the_next_request(door):
    body = json.dumps({"rows": [{"user": "u" * 31_000}]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    one = f"{head}X: {'x' * 20_000}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with connected(door) as client:
        for _ in range(5):
            client.sendall(one)
            found = b""
            while b"probabilities" not in found:
                piece = client.recv(65536)
                assert piece
                found += piece
            assert found.startswith(b"HTTP/1.1 200 ")
        # Several at once, cut anywhere.
        client.sendall(one * 3)
        found = b""
        while found.count(b"probabilities") < 3:
            piece = client.recv(65536)
            assert piece
            found += piece
        assert found.count(b"HTTP/1.1 200 ") == 3


def test_headers_and_bodies_that_trickle_are_given_up(door):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with ExitStack() as open_ones:
        clients = [open_ones.enter_context(connected(door)) for _ in range(5)]
        silent, slow, between, tokenless, body = clients
        slow.sendall(head)
        between.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert between.recv(65536).startswith(b"HTTP/1.1 200 ")
        between.sendall(b"GET /health HTTP/1.1\r\nHo")
        tokenless.sendall(head + b"Content-Length: 1000\r\n\r\n{")
        body.sendall(head + BEARER["authorization"].join(("Authorization: ", "\r\n")).encode())
        body.sendall(b"Content-Length: 1000\r\n\r\n{")
        assert tokenless.recv(65536).startswith(b"HTTP/1.1 401 ")
        answers = dict.fromkeys(clients, b"")
        going, until = set(clients), time.monotonic() + 15
        while going and time.monotonic() < until:
            for client in list(going):
                client.settimeout(0.02)
                try:
                    client.sendall(b"" if client is silent else b"x")
                    piece = client.recv(65536)
                except TimeoutError:
                    continue
                except OSError:
                    piece = b""
                answers[client] += piece
                if not piece:
                    going.discard(client)
            time.sleep(0.1)
        assert not going
    assert b"HTTP/1.1 408 " in answers[slow]
    assert b"headers must arrive within 1 seconds" in answers[slow]
    assert b"HTTP/1.1 408 " in answers[between]
    assert b"HTTP/1.1 408 " in answers[body]
    assert b"the body must arrive" in answers[body]
    assert alive(door)


def test_connections_without_number_are_turned_away_and_all_is_well_afterwards(door):
    with ExitStack() as open_ones:
        first = [open_ones.enter_context(connected(door)) for _ in range(20)]
        # They hold their places until they are late; whoever comes meanwhile is told so.
        with Client(door) as client:
            status, found = client.get("/health")
            assert status == 503
            assert json.loads(found)["detail"] == "20 connections are open already; come back in a second"
        others = []
        for _ in range(2000):
            others.append(open_ones.enter_context(connected(door)))
            if len(others) % 100 == 0:
                for one in others:
                    one.close()
                others.clear()
        assert all(client.fileno() >= 0 for client in first)
    until = time.monotonic() + 20
    while True:
        try:
            if alive(door):
                break
        except OSError:
            pass
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_is_not_there_to_be_served_leaves_no_log(tmp_path, monkeypatch, capsys, trained):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, line in (
            (["missing"], "expected a run or a bundle folder"),
            (["missing", "--workers", "2"], "a worker could not start"),
            ([trained.run, "--split-field", "usr"], "did you mean 'user'?"),
            ([trained.run, "--port", taken.getsockname()[1]], "cannot listen on 127.0.0.1"),
        ):
            with pytest.raises(SystemExit) as end:
                cli.main(["serve", "--port", "0", *map(str, arguments)])
            assert end.value.code == 2
            assert line in capsys.readouterr().err
            assert list(Path(tmp_path).iterdir()) == []


def test_the_limits_are_those_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "online.md").read_text(encoding="utf-8")
    for option in ("--max-headers", "--header-timeout", "--connections"):
        assert re.search(rf"`{option}`", page)
