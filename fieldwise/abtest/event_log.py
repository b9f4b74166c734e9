"""The event log: what was shown and how people responded, on disk before it is acknowledged.

One thread writes everything that waits in one transaction, so many responses share one wait for the disk.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sql

from fieldwise.abtest import event_tables
from fieldwise.abtest.event_tables import events, impressions, starts
from fieldwise.abtest.router import Router
from fieldwise.config.errors import FieldwiseError

# The largest transaction, and how many entries may wait.
BATCH = 1000
MOST_WAITING = 20_000
# How long impressions wait for more of them: writing each at once would slow down the next request.
LINGER = 0.02
# How long a response waits for an impression that another process may be about to write.
PATIENCE = 1.0
DAY = 86_400


class UnknownRequestError(FieldwiseError):
    """A response to a row that was never shown."""


class BusyError(FieldwiseError):
    """Too much is waiting; the client should try again later."""


@dataclass(frozen=True)
class Impression:
    """The rows that one request showed to one unit from one arm: `context`, overwritten by each of `rows`.

    `places` are the rows' indices in the request.
    """

    request_id: str
    part: int
    kind: str
    arm: str
    unit: str
    model: str
    context: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    places: Sequence[int]
    probabilities: Sequence[float]
    forced: bool = False
    time: float = field(default_factory=time.time)

    def values(self) -> dict[str, Any]:
        content = {
            "context": self.context,
            "rows": self.rows,
            "places": self.places,
            "probabilities": self.probabilities,
        }
        names = ("request_id", "part", "kind", "arm", "unit", "model", "forced", "time")
        shown = {
            "shown": len(self.rows),
            "day": int(self.time // DAY),
            "content": _json(content),
        }
        unit = self.unit.encode("utf-8", "replace").decode().replace("\0", " ")
        return {name: getattr(self, name) for name in names} | shown | {"unit": unit}


def default_id(request_id: str, place: int, what: int | str) -> str:
    """The id of an event that came without one."""
    return f"{request_id} {place} {what}"


@dataclass(frozen=True)
class Event:
    """A response to the row at `place` of a request. The same `event_id` counts once.

    A default id has a space in it, which a client's id may not have, so no client can take another event's id.
    """

    request_id: str
    place: int
    label: int
    event_id: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    @property
    def id(self) -> str:
        return self.event_id or default_id(self.request_id, self.place, self.label)


@dataclass(frozen=True)
class Outcome:
    """A shown row with its response, in the order in which histories count them.

    `rank` is where a ranking had the row, 1 first; None of other requests, whose rows have no order.
    """

    seq: int
    arm: str
    request_id: str
    place: int
    label: int
    time: float
    row: dict[str, Any]
    rank: int | None = None


class EventLog:
    """Writes to a log and reads its new entries."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._writer = event_tables.connect(address, writing=True)
        self._reader = event_tables.connect(address, writing=False)
        self._waiting: queue.Queue[Impression | tuple[Event, Future[bool]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._write_all, name="event log", daemon=True)
        self._hurry = threading.Event()
        self._failure = ""
        self._unwritten: list[Impression] = []
        self._thread.start()

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and not self._failure

    def show(self, impression: Impression) -> None:
        """Logs an impression soon, before any response that is given to this object later."""
        self.check_room()
        self._waiting.put(impression)

    def check_room(self) -> None:
        """Raises BusyError if too much waits to be written."""
        if self._waiting.qsize() + len(self._unwritten) >= MOST_WAITING:
            raise BusyError(f"the event log is behind: {MOST_WAITING:,} entries wait to be written")

    def respond(self, event: Event) -> Future[bool]:
        """Logs a response; the future is done when it is on disk, and says whether it was new."""
        self.check_room()
        done: Future[bool] = Future()
        self._put_now((event, done))
        return done

    def _put_now(self, item: tuple[Event, Future[bool]] | None) -> None:
        """Queues something that a caller waits for."""
        self._waiting.put(item)
        self._hurry.set()

    def close(self) -> None:
        """Writes what is queued and stops."""
        if self._thread.is_alive():
            self._put_now(None)
            self._thread.join()
        self._writer.dispose()
        self._reader.dispose()

    def _write_all(self) -> None:
        going = True
        while going:
            batch = [self._waiting.get()]
            if isinstance(batch[0], Impression) and self._waiting.qsize() < BATCH:
                self._hurry.wait(LINGER)
            self._hurry.clear()
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            going = None not in batch
            self._write_batch([item for item in batch if item is not None])

    def _write_batch(self, batch: list[Impression | tuple[Event, Future[bool]]]) -> None:
        shown = self._unwritten + [item for item in batch if isinstance(item, Impression)]
        responses = [item for item in batch if not isinstance(item, Impression)]
        try:
            with self._writer.begin() as connection:
                event_tables.lock_writers(connection)
                if shown:
                    connection.execute(impressions.insert(), [one.values() for one in shown])
                answers = _insert_events(connection, [event for event, _ in responses])
            self._failure, self._unwritten = "", []
        except Exception as error:
            # A full disk or an unreachable database: the callers get an error, and the next batch tries again.
            self._failure, self._unwritten = str(error).splitlines()[0], shown
            for _, done in responses:
                done.set_exception(BusyError(f"the event log cannot be written: {self._failure}"))
            return
        for (event, done), answer in zip(responses, answers, strict=True):
            self._answer(event, done, answer)

    def _answer(self, event: Event, done: Future[bool], answer: bool | None) -> None:
        if answer is not None:
            done.set_result(answer)
        elif time.time() - event.time < PATIENCE:
            # Another process may have shown the row and not logged it yet.
            retry = threading.Timer(0.02, self._put_now, [(event, done)])
            retry.daemon = True
            retry.start()
        else:
            rule = f"no row {event.place} of a request '{event.request_id}' was shown"
            done.set_exception(UnknownRequestError(f"{rule}; send the request_id of an answer of this server"))

    def close_unanswered(self, after: float, before: float, most: int = 500) -> float:
        """Writes a response of 0 for rows shown between two times that have none; returns the time it reached.

        A later response is logged and counts in reports, but no longer in histories.
        """
        with self._writer.begin() as connection:
            event_tables.lock_writers(connection)
            answered = sql.select(sql.func.count()).where(
                events.c.request_id == impressions.c.request_id,
                events.c.part == impressions.c.part,
                events.c.counted,
            )
            open_ones = (
                sql.select(impressions.c.request_id, impressions.c.content, impressions.c.time)
                .where(
                    impressions.c.time >= after,
                    impressions.c.time < before,
                    impressions.c.shown > answered.scalar_subquery(),
                )
                .order_by(impressions.c.time, impressions.c.request_id, impressions.c.part)
                .limit(most)
            )
            found = connection.execute(open_ones).all()
            missing = [
                Event(request_id, place, 0, default_id(request_id, place, "none"))
                for request_id, content, _ in found
                for place in json.loads(content)["places"]
            ]
            _insert_events(connection, missing, only_first=True)
            return float(found[-1].time) if len(found) == most else before

    def start_of(self, model: str) -> int:
        """The last `seq` before a bundle was first served with this log; its training data has nothing later."""
        with self._writer.begin() as connection:
            event_tables.lock_writers(connection)
            found = connection.execute(sql.select(starts.c.seq).where(starts.c.model == model)).scalar()
            if found is None:
                found = connection.execute(sql.select(sql.func.coalesce(sql.func.max(events.c.seq), 0))).scalar() or 0
                connection.execute(starts.insert().values(model=model, seq=found, time=time.time()))
            return int(found)

    def declare(self, router: Router) -> None:
        """Writes the share that each arm should get, which the report compares with the sample ratio."""
        rows = [
            {"arm": arm, "share": share, "place": place, "field": router.field, "salt": router.salt}
            for place, (arm, share) in enumerate(router.expected.items())
        ]
        with self._writer.begin() as connection:
            event_tables.lock_writers(connection)
            connection.execute(event_tables.arms.delete())
            connection.execute(event_tables.arms.insert(), rows)

    def outcomes(self, after: int, most: int = 5000) -> list[Outcome]:
        """Counted responses after a `seq`, in order."""
        return read_outcomes(self._reader, after, most)


def read_outcomes(log: sql.Engine, after: int, most: int) -> list[Outcome]:
    """At most `most` counted responses after a `seq`, in order."""
    same = (impressions.c.request_id == events.c.request_id) & (impressions.c.part == events.c.part)
    columns = (events.c.seq, events.c.request_id, events.c.place, events.c.label, events.c.time)
    asked = (
        sql.select(*columns, impressions.c.arm, impressions.c.kind, impressions.c.content)
        .join(impressions, same)
        .where(events.c.seq > after, events.c.counted)
        .order_by(events.c.seq)
        .limit(most)
    )
    with log.begin() as connection:
        found = connection.execute(asked).all()
    return [_outcome(*row) for row in found]


def _outcome(
    seq: int, request_id: str, place: int, label: int, moment: float, arm: str, kind: str, content: str | bytes
) -> Outcome:
    shown = json.loads(content)
    rank = 1 + shown["places"].index(place) if kind == "rank" else None
    return Outcome(seq, arm, request_id, place, label, moment, shown_row(shown, place), rank)


def _json(values: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(values)
    except TypeError:
        # Integers of more than 64 bits.
        return json.dumps(values, separators=(",", ":")).encode()


def shown_row(content: dict[str, Any], place: int) -> dict[str, Any]:
    """The complete row at a place of what was shown."""
    return {**content["context"], **content["rows"][content["places"].index(place)]}


def _insert_events(connection: sql.Connection, wanted: Sequence[Event], only_first: bool = False) -> list[bool | None]:
    """Inserts the new events; returns for each whether it was new, or None if its row was never shown."""
    if not wanted:
        return []
    requests = {event.request_id for event in wanted}
    parts = _parts(connection, requests)
    known = set(_select_in(connection, events.c.event_id, {event.id for event in wanted}))
    answered = {tuple(row) for row in _select_in(connection, events.c.request_id, requests, events.c.place)}
    answers: list[bool | None] = []
    rows = []
    for event in wanted:
        place = (event.request_id, event.place)
        if place not in parts:
            answers.append(None)
            continue
        first = place not in answered
        new = event.id not in known and (first or not only_first)
        answers.append(new)
        if new:
            known.add(event.id)
            answered.add(place)
            rows.append(_event_values(event, parts[place], first))
    if rows:
        connection.execute(events.insert(), rows)
    return answers


def _event_values(event: Event, part: int, first: bool) -> dict[str, Any]:
    return {
        "event_id": event.id,
        "request_id": event.request_id,
        "part": part,
        "place": event.place,
        "label": event.label,
        "time": event.time,
        "counted": first,
        "more": _json(dict(event.more)) if event.more else None,
    }


def _parts(connection: sql.Connection, requests: Iterable[str]) -> dict[tuple[str, int], int]:
    """(request, place) -> the part of the request that showed it."""
    shown = _select_in(connection, impressions.c.request_id, requests, impressions.c.part, impressions.c.content)
    return {(request, place): part for request, part, content in shown for place in json.loads(content)["places"]}


def _select_in(
    connection: sql.Connection, column: sql.Column[Any], values: Iterable[str], *more: sql.Column[Any]
) -> Iterable[Any]:
    """The rows whose column has one of the values: that column alone, or with more."""
    rows = connection.execute(sql.select(column, *more).where(column.in_(list(values))))
    return rows.all() if more else rows.scalars().all()
