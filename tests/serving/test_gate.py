"""Which work is done in place, and that what takes the short way is answered as what takes the long one."""

import asyncio
import threading

import pytest
from fastapi.testclient import TestClient

from fieldwise.abtest.event_log import Event, Impression
from fieldwise.serving.application import Limits
from fieldwise.serving.gate import FullError, Gate


class Gauge:
    def __init__(self):
        self.value = 0

    def inc(self):
        self.value += 1

    def dec(self):
        self.value -= 1


@pytest.fixture
def gate():
    made = Gate(3, 5.0, Gauge())
    yield made
    made.close()


def where():
    return threading.current_thread().name


def test_the_first_goes_to_the_other_thread_and_quick_ones_stay(gate):
    async def ask():
        return [await gate.score(1, where) for _ in range(2)]

    first, second = asyncio.run(ask())
    assert first.startswith("scoring")
    assert second == threading.main_thread().name
    assert gate.inside == gate.gauge.value == 0


def test_many_rows_and_slow_ones_go_to_the_other_thread(gate):
    gate.seconds = 0.001
    assert asyncio.run(gate.score(100, where)).startswith("scoring")
    gate.seconds = 0.1
    assert asyncio.run(gate.score(1, where)).startswith("scoring")


def test_several_at_once_are_counted_before_any_is_done_in_place(gate):
    gate.seconds = 0.0001

    async def ask():
        return await asyncio.gather(*(gate.score(1, where) for _ in range(4)), return_exceptions=True)

    found = asyncio.run(ask())
    assert [isinstance(one, FullError) for one in found] == [False, False, False, True]
    assert all(one.startswith("scoring") for one in found[:3])
    assert gate.inside == gate.gauge.value == 0


def test_what_fails_in_place_leaves_its_place(gate):
    gate.seconds = 0.0

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(gate.score(1, fail))
    assert gate.inside == gate.gauge.value == 0


BODIES = [
    ("/predict", b'{"rows": [{"user": "a"}, {}], "log": false}'),
    ("/predict", b'{"rows": [{"usr": "a"}]}'),
    ("/predict", b'{"rows": [{"user": [[1]]}]}'),
    ("/predict", b'{"rows": [{}, {}, {}, {}]}'),
    ("/predict", b'{"rows": 3}'),
    ("/predict", b"{"),
    ("/rank", b'{"candidates": [{"item": "x"}, {"item": "y"}], "log": false}'),
    ("/rank", b'{"candidates": [], "top": 0}'),
    ("/explain", b'{"row": {"user": "a"}}'),
    ("/event", b'{"request_id": "no"}'),
]


JSON = {"content-type": "application/json"}


def test_both_ways_to_a_handler_answer_alike(server):
    """The guard hands a POST to its handler; without that, FastAPI's routes do."""
    served = server(limits=Limits(max_rows=3))
    api, routed = served.application.api, TestClient(served.application.api, base_url="http://127.0.0.1")
    answers = [[served.client.post(path, content=body, headers=JSON) for path, body in BODIES]]
    answers[0].append(served.client.post("/predict", content=b"x", headers={"content-type": "text/plain"}))
    posted = dict(served.application._posted)
    served.application._posted.clear()
    assert api is routed.app
    answers.append([routed.post(path, content=body, headers=JSON) for path, body in BODIES])
    answers[1].append(routed.post("/predict", content=b"x", headers={"content-type": "text/plain"}))
    served.application._posted.update(posted)
    for short, long in zip(*answers, strict=True):
        assert short.status_code == long.status_code
        assert short.headers == long.headers
        own, other = short.json(), long.json()
        assert {**own, "request_id": ""} == {**other, "request_id": ""}
    assert [short.status_code for short in answers[0]] == [200, 422, 422, 413, 422, 400, 200, 422, 200, 422, 415]


def test_impressions_wait_for_each_other_and_a_response_waits_for_nobody(server, monkeypatch):
    monkeypatch.setattr("fieldwise.abtest.event_log.LINGER", 60.0)
    log = server().service.log
    for number in range(3):
        log.show(Impression(f"{number}" * 32, 0, "rank", "one", "", "m", {}, [{"user": "a"}], [0], [0.5]))
    assert log.respond(Event("1" * 32, 0, 1)).result(10)
    assert log.healthy
