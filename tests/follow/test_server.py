"""Telling a server: its answers and its silence."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fieldwise.config.errors import FieldwiseError
from fieldwise.follow import server
from fieldwise.follow.follower import Follower
from tests.follow.days import follow, lines, wanted, write_day


class Answering(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"]))
        status, body = self.server.answers.pop(0) if self.server.answers else (200, self.server.usual())
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *given):
        pass


@contextmanager
def answering(*answers, usual=lambda: {}):
    """A server that gives these answers one after the other, and then the usual one."""
    found = HTTPServer(("127.0.0.1", 0), Answering)
    found.answers, found.asked, found.usual = list(answers), [], usual
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found, f"http://127.0.0.1:{found.server_port}"
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


def test_a_server_is_told_with_its_token():
    answer = {"changed": {"live": True}, "models": {"live": "abc"}, "workers": 2}
    with answering((200, answer)) as (found, address):
        assert server.reload(address + "/", "secret", "abc") == answer
        assert found.asked == [("/reload", "Bearer secret")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {"detail": "the token is missing"}), "the server answers 401: the token is missing"),
        ((409, {"detail": "the bundle's config.toml\nis changed"}), "409: the bundle's config.toml is changed"),
        ((502, b"<html>"), "the server answers 502: Bad Gateway"),
        ((200, b"hello"), "the server does not answer"),
        ((200, []), r"expected the answer of `fieldwise serve`, found \[\]"),
        ((200, {"models": None}), "expected the answer of `fieldwise serve`"),
        ((200, {"models": {"live": "old"}}), "asked to serve abc, found live old; start it with the path"),
    ],
)
def test_other_answers_are_one_line(answer, message):
    with answering(answer) as (_, address), pytest.raises(FieldwiseError, match=message):
        server.reload(address, "", "abc")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"HTTP/1.1 500 no\r\nContent-Length: 500\r\n\r\n{",
        b"",
    ],
)
def test_what_is_no_whole_answer_is_one_line(answer):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once():
            asked, _ = listening.accept()
            with asked:
                asked.recv(10_000)
                asked.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        with pytest.raises(FieldwiseError, match=r"the server (does not answer|answers 500): .+") as found:
            server.reload(f"http://127.0.0.1:{listening.getsockname()[1]}", "", "abc")
        thread.join()
    assert "\n" not in str(found.value)


def test_no_answer_is_one_line():
    with answering() as (_, address):
        pass
    with pytest.raises(FieldwiseError, match=r"the server does not answer: .*refused"):
        server.reload(address, "", "abc")


def test_a_server_that_refuses_is_told_again(tmp_path, runs):
    write_day(tmp_path / "logs", 3)
    refusal = (409, {"detail": "the old one stays"})
    with answering(refusal, refusal, refusal) as (found, address):
        follower = Follower(wanted(tmp_path, runs["plain"], servers=(address,)))
        found.usual = lambda: {"models": {"live": follower.state.version.id}, "workers": 1}
        assert follower.cycle()
        assert "409" in follower.state.silent[address]
        assert not follower.cycle()
        # The same refusal is said once for each version.
        assert len(lines(follower.journal, "not told")) == 1
        assert (tmp_path / "live").resolve().name == "0001"
        follower.cycle()
        follower.cycle()
        assert [entry["version"] for entry in lines(follower.journal, "told")] == [1]
        assert len(found.asked) == 4
        follower.cycle()
        assert len(found.asked) == 4
    follow(tmp_path, runs["plain"])
