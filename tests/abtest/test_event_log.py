"""The event log: durable, idempotent, in order; and the histories that follow it."""

import json
import time

import pytest

from fieldwise.abtest import event_log as logs
from fieldwise.abtest import event_tables
from fieldwise.abtest.analysis import report
from fieldwise.abtest.event_log import BusyError, Event, EventLog, Impression, UnknownRequestError
from fieldwise.config.errors import ConfigError, DataError
from fieldwise.serving.history_follower import Closer
from fieldwise.serving.replay import tables_of


@pytest.fixture
def log(tmp_path):
    opened = EventLog(str(tmp_path / "log.sqlite"))
    yield opened
    opened.close()


def shown(log, request, rows, user="u", **more):
    probabilities = [0.5] * len(rows)
    log.show(
        Impression(request, 0, "rank", "a", user, "m", {"user": user}, rows, [*range(len(rows))], probabilities, **more)
    )


def test_a_response_is_in_the_file_once_it_is_acknowledged(log, tmp_path):
    shown(log, "r", [{"item": "x"}, {"item": "y"}])
    assert log.respond(Event("r", 1, 1)).result(5) is True
    # Another connection, as another process has it.
    other = event_tables.connect(str(tmp_path / "log.sqlite"), writing=False)
    (outcome,) = logs.read_outcomes(other, 0, 10)
    assert (outcome.row, outcome.label, outcome.place) == ({"user": "u", "item": "y"}, 1, 1)
    with other.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    other.dispose()


def test_the_writer_waits_for_the_disk(log):
    with log._writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_the_same_event_counts_once(log):
    shown(log, "r", [{}])
    answers = [log.respond(Event("r", 0, 1, "e")) for _ in range(5)]
    assert [answer.result(5) for answer in answers] == [True, False, False, False, False]
    # Without an id a row has one event of each label; histories count only the first of them.
    assert log.respond(Event("r", 0, 1)).result(5) is True
    assert log.respond(Event("r", 0, 1)).result(5) is False
    assert log.respond(Event("r", 0, 0)).result(5) is True
    assert [outcome.label for outcome in log.outcomes(0)] == [1]


def test_a_response_to_nothing_is_refused(log, monkeypatch):
    monkeypatch.setattr(logs, "PATIENCE", 0.1)
    shown(log, "r", [{}])
    for event in (Event("q", 0, 1), Event("r", 1, 1)):
        with pytest.raises(UnknownRequestError, match="was shown"):
            log.respond(event).result(5)


def test_a_response_waits_for_an_impression_that_another_process_writes(log, tmp_path):
    answer = log.respond(Event("late", 0, 1))
    time.sleep(0.05)
    other = EventLog(str(tmp_path / "log.sqlite"))
    shown(other, "late", [{}])
    assert answer.result(5) is True
    other.close()


def test_responses_of_two_writers_have_one_order(log, tmp_path):
    other = EventLog(str(tmp_path / "log.sqlite"))
    shown(log, "r", [{"item": str(n)} for n in range(200)])
    log.respond(Event("r", 0, 1)).result(5)
    waiting = [(log, other)[n % 2].respond(Event("r", n, n % 3 == 0)) for n in range(1, 200)]
    assert all(answer.result(10) for answer in waiting)
    found = log.outcomes(0)
    assert sorted(outcome.place for outcome in found) == list(range(200))
    assert [outcome.seq for outcome in found] == sorted(outcome.seq for outcome in found)
    assert found == other.outcomes(0)
    other.close()


def test_a_database_that_is_away_is_told_and_what_was_shown_is_kept(log, monkeypatch):
    def away(*_):
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(event_tables, "lock_writers", away)
        shown(log, "r", [{}])
        with pytest.raises(BusyError, match="gone"):
            log.respond(Event("r", 0, 1)).result(5)
        assert not log.healthy
    assert log.respond(Event("r", 0, 1)).result(5) is True
    assert log.healthy


def test_a_log_that_is_behind_takes_no_more(log, monkeypatch):
    monkeypatch.setattr(logs, "MOST_WAITING", 0)
    with pytest.raises(BusyError, match="behind"):
        shown(log, "r", [{}])


def test_rows_nobody_responded_to_become_0_once(log):
    now = time.time()
    shown(log, "old", [{"item": "x"}, {"item": "y"}], time=now - 100)
    shown(log, "young", [{"item": "z"}], time=now)
    log.respond(Event("old", 1, 1)).result(5)
    closer = Closer(log, 50)
    closer.close()
    closer.close()
    assert [(o.request_id, o.place, o.label) for o in log.outcomes(0)] == [("old", 1, 1), ("old", 0, 0)]
    # A click that comes too late counts in the report, and in no history.
    log.respond(Event("old", 0, 1)).result(5)
    assert len(log.outcomes(0)) == 2
    assert report(log.address)["arms"][0]["clicks"] == 2


def test_many_rows_are_closed_in_small_steps(log):
    then = time.time() - 100
    for number in range(7):
        shown(log, f"r{number}", [{}], time=then)
    log.respond(Event("r6", 0, 1)).result(5)
    after, steps = 0.0, 0
    while after < then + 1:
        after, steps = log.close_unanswered(after, then + 1, most=2), steps + 1
        assert steps < 10
    assert len(log.outcomes(0)) == 7


def test_the_log_as_rows_to_train_on(log):
    shown(log, "r", [{"item": 3.0, "tags": ["a", "b"]}, {"item": "y"}])
    log.respond(Event("r", 1, 0)).result(5)
    log.respond(Event("r", 0, 1)).result(5)
    (table,) = tables_of(log.address, "click")
    assert table.drop_columns(["logged_at"]).to_pylist() == [
        {"click": 0, "user": "u", "item": "y", "tags": None},
        {"click": 1, "user": "u", "item": "3", "tags": "a|b"},
    ]


def test_rows_to_train_on_say_where_a_ranking_had_them(log):
    best, plain = [{"item": "best"}, {"item": "next"}], [{"item": "x"}, {"item": "y", "slot": 7}]
    log.show(Impression("r", 0, "rank", "a", "u", "m", {}, best, [2, 0], [0.4, 0.2]))
    log.show(Impression("p", 0, "predict", "a", "u", "m", {}, plain, [0, 1], [0.1, 0.1]))
    for request, candidate in (("r", 0), ("r", 2), ("p", 0), ("p", 1)):
        log.respond(Event(request, candidate, 1)).result(5)
    (table,) = tables_of(log.address, "click", position="slot")
    found = {row["item"]: row["slot"] for row in table.to_pylist()}
    # Rows of /predict are in no order: only the client knows where they were shown, and may say so.
    assert found == {"best": "1", "next": "2", "x": None, "y": "7"}
    with pytest.raises(ConfigError, match="--position names a column of its own, found 'click'"):
        next(tables_of(log.address, "click", position="click"))


def test_a_bundle_counts_what_came_after_it_was_first_served(log):
    shown(log, "r", [{}, {}])
    log.respond(Event("r", 0, 1)).result(5)
    first = log.start_of("bundle")
    log.respond(Event("r", 1, 1)).result(5)
    assert log.start_of("bundle") == first
    assert [outcome.place for outcome in log.outcomes(first)] == [1]


def test_a_file_that_is_no_log_is_refused(tmp_path):
    file = tmp_path / "log.sqlite"
    file.write_bytes(b"not a database at all" * 100)
    with pytest.raises(DataError, match="cannot open the event log"):
        EventLog(str(file))
    with pytest.raises(DataError, match="there is no event log"):
        report(str(tmp_path / "nowhere.sqlite"))


def test_what_the_server_shows_is_logged_and_histories_follow(server):
    served = server("a", "b")
    for number in range(30):
        found = served.post("/rank", context={"user": f"u{number % 3}"}, candidates=[{"item": "x"}, {}], top=1).json()
        event = {"request_id": found["request_id"], "candidate": found["candidates"][0]["index"]}
        assert served.post("/event", **event, label=number % 2).json() == {"new": True}
        assert served.post("/event", **event, label=number % 2).json() == {"new": False}
    # Both arms learn from all responses, whoever showed the row, and have done so before the answer.
    for arm in served.service.arms:
        assert arm.engine.counts == {"u0": (10, 5), "u1": (10, 5), "u2": (10, 5)}
    served.client.post("/predict", json={"rows": [{"user": "u0"}], "log": False})
    assert sum(arm["shown"] for arm in report(served.log_file)["arms"]) == 30


def test_histories_are_rebuilt_from_the_log(server):
    served = server("a")
    found = served.post("/predict", rows=[{"user": "u"}, {"user": "v"}]).json()
    served.post("/event", request_id=found["request_id"], candidate=1)
    again = type(served.service)(served.paths, served.router, EventLog(served.log_file))
    assert again.arms[0].engine.counts == {"v": (1, 1)}
    again.close()


def test_wild_units_do_not_harm_the_log(server):
    served = server("a", "b")
    for user in ("\0", "ü" * 1000, 10**40, ["x"], True, None, "'; drop table events; --"):
        found = served.post("/predict", rows=[{"user": user}]).json()
        assert served.post("/event", request_id=found["request_id"]).json() == {"new": True}
    assert len(served.service.log.outcomes(0)) == 7
    assert json.loads(served.client.get("/ready").text) == {"status": "ready"}


def test_without_a_log_events_are_refused(server):
    found = server(with_log=False).post("/event", request_id="0" * 32)
    assert found.status_code == 409
    assert "keeps no event log" in found.json()["detail"]
