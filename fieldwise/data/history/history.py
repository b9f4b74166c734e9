"""What a field's value, or a combination of values, did before: counts, positives and rates as further fields.

Each key (`user`, or `user*item`) adds three fields: how often it was seen, how often with a response, and its smoothed
rate. No row sees its own label:

- with a time column a row sees what came strictly before it (rows of one moment do not see each other), later than
  `delay` ago not yet, longer than `window` ago no more, or fading by `half_life`; all in the column's own units
  (seconds for dates); `row` is the order of the rows themselves;
- without one, training rows are in `folds`, by row or by the columns of `group`, and a row sees the other folds;
  every other row sees all training rows. With 0 folds they are in a random order instead, and a row sees those before
  it. That is less, but what the other folds have of a value lacks the row's own fold, and so gives away a little of its
  label to a model that knows the value from other fields; what came before does not.

The rate is (positives + strength * prior) / (count + strength), the prior being the overall rate, seen in the same way;
its field is the bucket of logit(rate) - logit(prior), or, interpolated, its place between anchors. All bounds and
anchors are fixed, so that they give nothing away.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldwise.config.documents import number, parsed
from fieldwise.config.errors import BundleError, DataError
from fieldwise.data.history.counts import Counts, Events, Floats, Keys
from fieldwise.data.kinds.buckets import fine_ids, spread
from fieldwise.data.kinds.lookup import MANY, word_hashes
from fieldwise.data.read.formats import is_list, text_of
from fieldwise.data.read.moments import TEXT as DATES
from fieldwise.data.read.moments import seconds
from fieldwise.data.read.texts import hash_of, places_of, texts_of
from fieldwise.data.schema import FIRST, HISTORY_PARTS, MISSING, HistorySettings

FILES = ("history.json", "history.npz")
PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?")
COUNT_EDGES = np.array([0, 1, 2, 3, 4, *(round(4 * 2 ** (step / 2)) for step in range(1, 43))], dtype=np.float64)
LIFT_EDGES = np.concatenate([np.arange(-6, -3, 0.25), np.arange(-30, 31) / 10, np.arange(3.25, 6.01, 0.25)])
COUNT_ANCHORS = np.array([0, *(2**power for power in range(24))], dtype=np.float64)
LIFT_ANCHORS = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6])


# Several threads may look at one history: what has run ahead for one of them is not changed under another.
LOOKING = threading.Lock()


class History:
    """The settings, the counts so far, and the events that do not count yet, or will not for ever."""

    def __init__(self, settings: HistorySettings) -> None:
        self.settings = settings
        self.counts = Counts(settings.most_keys, settings.half_life)
        self.end = 0.0
        keys = len(settings.keys) + 1
        self.waiting = Events(np.empty((0, keys), dtype=np.uint64), np.empty(0), np.empty(0))
        self.added = 0
        self._ahead: History | None = None

    @property
    def names(self) -> list[str]:
        return [f"{key}:{part}" for key in self.settings.keys for part in self.settings.parts]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many ids each field has."""
        if self.settings.interpolate:
            sizes = [FIRST + len(_anchors(part)) for part in self.settings.parts]
        else:
            sizes = [FIRST + len(_edges(part)) + 1 for part in self.settings.parts]
        return tuple(sizes) * len(self.settings.keys)

    @property
    def numbers(self) -> list[Floats]:
        """The number that each id of each field stands for, NaN where it is none."""
        places = _anchors if self.settings.interpolate else _middles
        own = [np.concatenate([np.full(FIRST, np.nan), places(part)]) for part in self.settings.parts]
        return own * len(self.settings.keys)

    @property
    def width(self) -> int:
        """How many id columns each field has."""
        return max(1, self.settings.interpolate)

    def ids(self, fine: NDArray[np.int32]) -> NDArray[np.int32]:
        """The fine ids of rows, one for each field, as id columns: (n, H) -> (n, H * width)."""
        return spread(fine, self.width).reshape(len(fine), -1) if self.settings.interpolate else fine

    def ids_of_counts(self, found: Floats) -> NDArray[np.int32]:
        """Counts and positives (n, K + 1, 2), the overall ones last -> a fine id for each field, (n, H)."""
        return history_ids(found, self.settings.strength, self.settings.parts, self.settings.interpolate)

    def value_of(self, field: int, number: int) -> str:
        """The text of a field's id, for people."""
        part = self.settings.parts[field % len(self.settings.parts)]
        return value_of(part, number, bool(self.settings.interpolate))

    def keys(self, table: pa.Table, buckets: dict[str, NDArray[np.int32]]) -> Keys:
        """The 64-bit keys of rows, (n, K + 1); the last one is the same for all of them and holds the overall rate.

        A number counts by its bucket, given in `buckets`; a missing value is a value like any other.
        """
        return self.mixed_keys(hashes_of(table, self.settings.columns, buckets))

    def mixed_keys(self, hashes: Mapping[str, NDArray[np.uint64]]) -> Keys:
        """The keys of rows from the hashes of their columns."""
        rows = len(next(iter(hashes.values())))
        found = np.empty((rows, len(self.settings.keys) + 1), dtype=np.uint64)
        for place, key in enumerate(self.settings.keys):
            found[:, place] = mixed([hashes[name] for name in key.split("*")], place + 1)
        found[:, -1] = mixed([np.zeros(rows, dtype=np.uint64)], 0)
        return found

    def times(self, given: Floats | None, rows: int) -> Floats:
        """The moments of rows, of which some may be given; a row without one comes just after all that was counted."""
        return np.full(rows, self.after) if given is None else np.where(np.isnan(given), self.after, given)

    @property
    def after(self) -> float:
        """The first moment at which all rows that came in count."""
        return float(np.nextafter(self.waiting.times.max(initial=self.end) + self.settings.delay, np.inf))

    def seen(self, table: pa.Table, buckets: dict[str, NDArray[np.int32]]) -> NDArray[np.int32]:
        """The history (n, H) of rows that come after all that was counted; nothing is changed."""
        clock = self.settings.clock
        given = known_moments(table[clock], clock) if clock and clock in table.column_names else None
        return self.ids_of_counts(self.counted(self.keys(table, buckets), self.times(given, len(table))))

    def counted(self, keys: Keys, times: Floats) -> Floats:
        """The counts and positives (n, K + 1, 2) that `seen` makes ids of."""
        found, asked = np.zeros((*keys.shape, 2)), self.asked(times)
        for now in np.unique(asked):
            rows = asked == now
            found[rows] = self._looked_up(float(now), keys[rows], times[rows])
        return found

    def asked(self, times: Floats) -> Floats:
        """The moments at which the counts for rows of these times are asked for."""
        # From some moment on all that waits has come in, and nothing changes any more, unless a window closes.
        return np.maximum(times, self.end) if self.settings.window else np.clip(times, self.end, self.after)

    def replay(self, keys: Keys, labels: NDArray[Any], times: Floats) -> NDArray[np.int32]:
        """Rows in the order of time: the history (n, H) of each before it comes; then all of them are counted."""
        return self.ids_of_counts(self.replayed(keys, labels, times))

    def replayed(self, keys: Keys, labels: NDArray[Any], times: Floats) -> Floats:
        """The counts and positives (n, K + 1, 2) that `replay` makes ids of."""
        if len(times) and times[0] < self.end:
            raise DataError(f"history runs forward: it has come to {self.end:g}, found a row of {times[0]:g}")
        waiting = len(self.waiting.times)
        joined = [(self.waiting.keys, keys), (self.waiting.labels, labels), (self.waiting.times, times)]
        events = Events(*(np.concatenate(pair) for pair in joined))
        found = np.zeros((len(events.times), events.keys.shape[1], 2))
        limits = np.array([self.settings.delay, self.settings.window])
        added, expired = self.counts.stream(events, waiting, self.added, 0, limits, found)
        first = expired if self.settings.window else added
        self.waiting = Events(events.keys[first:], events.labels[first:], events.times[first:])
        self.added = added - first
        self.end = float(times[-1]) if len(times) else self.end
        self._ahead = None
        return found[waiting:]

    def _looked_up(self, now: float, keys: Keys, times: Floats) -> Floats:
        """What keys have at a moment not before the end: here, or in a copy that has run on to it."""
        if not len(self.waiting.times):
            return self.counts.lookup(keys, times)
        with LOOKING:
            ahead = self._run_ahead(now)
            if len(ahead.waiting.times):
                return ahead.counts.lookup(keys, times)
        # Nothing will change these any more, so that threads need not wait for each other.
        return ahead.counts.lookup(keys, times)

    def _run_ahead(self, now: float) -> History:
        """A copy that has run on to a moment, or to the one before it at which nothing waited any more."""
        ahead = self._ahead
        if ahead is None or ahead.end > now:
            ahead = History(self.settings)
            ahead.counts = self.counts.copy()
            ahead.waiting, ahead.added, ahead.end = self.waiting, self.added, self.end
        if ahead.end < now and len(ahead.waiting.times):
            none = Events(np.full((1, ahead.waiting.keys.shape[1]), 1, dtype=np.uint64), np.zeros(1), np.array([now]))
            ahead.replay(none.keys, none.labels, none.times)
            # Who only looks has left no event.
            left = ahead.waiting
            ahead.waiting = Events(left.keys[:-1], left.labels[:-1], left.times[:-1])
        self._ahead = ahead
        return ahead

    def save(self, folder: Path) -> None:
        state = {"end": self.end, "added": self.added}
        (folder / FILES[0]).write_text(json.dumps(state), encoding="utf-8")
        waiting = {f"waiting_{name}": getattr(self.waiting, name) for name in ("keys", "labels", "times")}
        self.counts.save(folder / FILES[1], **waiting)

    @classmethod
    def load(cls, folder: Path, settings: HistorySettings) -> History:
        history = cls(settings)
        try:
            state = parsed(folder / FILES[0])
            history.end, history.added = number(state, "end"), int(number(state, "added"))
            more = history.counts.load(folder / FILES[1])
            waiting = [more[f"waiting_{name}"] for name in ("keys", "labels", "times")]
            _check_waiting(waiting, len(settings.keys) + 1, history.added)
            history.waiting = Events(*waiting)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise BundleError(f"the history is damaged: {str(error).splitlines()[0][:300]} ({folder})") from None
        return history


def _check_waiting(waiting: Sequence[NDArray[Any]], width: int, added: int) -> None:
    """Refuses events that the compiled loops would read beyond their ends."""
    keys, labels, times = waiting
    rows = len(keys)
    shapes = keys.shape == (rows, width) and labels.shape == times.shape == (rows,)
    if not shapes or keys.dtype != np.uint64 or labels.dtype.kind not in "biuf" or times.dtype != np.float64:
        raise ValueError(f"events that wait have {width} keys, a label and a time each")
    if not (np.isfinite(labels).all() and np.isfinite(times).all()) or (times[1:] < times[:-1]).any():
        raise ValueError("events that wait have finite labels, and finite times in their order")
    if not 0 <= added <= rows:
        raise ValueError(f"of {rows} events that wait as many were added at most, found {added}")


def lifts(found: Floats, strength: float) -> Floats:
    """Counts and positives (n, K + 1, 2), the overall ones last -> logit(rate) - logit(prior) (n, K)."""
    count, positives = found[:, :-1, 0], found[:, :-1, 1]
    prior = (found[:, -1:, 1] + 0.5) / (found[:, -1:, 0] + 1)
    rate = (positives + strength * prior) / (count + strength)
    return _logit(rate) - _logit(prior)


def history_ids(
    found: Floats, strength: float, parts: Sequence[str] = HISTORY_PARTS, steps: int = 0
) -> NDArray[np.int32]:
    """Counts and positives (n, K + 1, 2), the overall ones last -> ids (n, H), fine where there are steps."""
    count, positives = found[:, :-1, 0], found[:, :-1, 1]
    lift = np.where(count > 0, lifts(found, strength), np.nan)
    numbers = dict(zip(HISTORY_PARTS, (count, positives, lift), strict=True))
    columns = [_part_ids(part, numbers[part], steps) for part in parts]
    return np.stack(columns, axis=2).reshape(len(found), -1)


def _part_ids(part: str, numbers: Floats, steps: int) -> NDArray[np.int32]:
    if steps:
        return fine_ids(numbers, _anchors(part), steps)
    buckets = FIRST + np.searchsorted(_edges(part), numbers)
    return np.where(np.isnan(numbers), MISSING, buckets).astype(np.int32)


def _edges(part: str) -> Floats:
    return LIFT_EDGES if part == "rate" else COUNT_EDGES


def _anchors(part: str) -> Floats:
    return LIFT_ANCHORS if part == "rate" else COUNT_ANCHORS


def _middles(part: str) -> Floats:
    """The middle of each bucket; of the first and the last one their only bound."""
    ends = np.concatenate([_edges(part)[:1], _edges(part), _edges(part)[-1:]])
    return np.asarray((ends[1:] + ends[:-1]) / 2)


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-p))


def value_of(part: str, number: int, interpolated: bool = False) -> str:
    """The text of an id of a count, a count of positives or a rate."""
    if number < FIRST:
        return ("(missing)", "(other)")[number]
    unit = "lift " if part == "rate" else ""
    if interpolated:
        return f"{unit}{_anchors(part)[number - FIRST]:g}"
    if part != "rate" and number - FIRST < 5:
        return f"{number - FIRST}"
    bounds = ["-inf" if part == "rate" else "0", *(f"{edge:g}" for edge in _edges(part)), "inf"]
    return f"{unit}({bounds[number - FIRST]}, {bounds[number - FIRST + 1]}]"


def fold_counts(history: History, keys: Keys, labels: NDArray[Any], folds: NDArray[np.int64], inside: Counts) -> None:
    """Counts training rows: in all, and inside of each fold."""
    history.counts.add(keys, labels)
    inside.add(_in_fold(keys, folds), labels)


def out_of_fold(history: History, keys: Keys, folds: NDArray[np.int64], inside: Counts) -> NDArray[np.int32]:
    """The history (n, H) of training rows: that of the other folds."""
    return history.ids_of_counts(other_folds(history, keys, folds, inside))


def other_folds(history: History, keys: Keys, folds: NDArray[np.int64], inside: Counts) -> Floats:
    """The counts and positives (n, K + 1, 2) that the other folds have."""
    return np.maximum(history.counts.lookup(keys) - inside.lookup(_in_fold(keys, folds)), 0)


def _in_fold(keys: Keys, folds: NDArray[np.int64]) -> Keys:
    return mixed([keys, np.broadcast_to(folds[:, None].astype(np.uint64), keys.shape)], 1)


def folds_of(settings: HistorySettings, table: pa.Table, first_row: int) -> NDArray[np.int64]:
    """The fold of each row, by its number or by what it has in the group's columns."""
    return (_drawn(settings, table, first_row) % np.uint64(settings.folds)).astype(np.int64)


def shuffled(settings: HistorySettings, table: pa.Table, first_row: int) -> Floats:
    """The moment of each row in a random order of the rows, or of the groups, whose rows then have the same one."""
    return _drawn(settings, table, first_row) / 2.0**64


def _drawn(settings: HistorySettings, table: pa.Table, first_row: int) -> NDArray[np.uint64]:
    """A random number for each row, or for what it has in the group's columns."""
    if settings.group:
        return mixed(list(hashes_of(table, settings.group, {}).values()), settings.seed)
    return mixed([np.arange(first_row, first_row + len(table), dtype=np.uint64)], settings.seed)


def mixed(parts: Sequence[NDArray[np.uint64]], seed: int) -> NDArray[np.uint64]:
    """One well-mixed 64-bit number from several, in their order; never 0, which marks an empty place.

    The mixer is splitmix64's.
    """
    total = np.full(parts[0].shape, (seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)
    for part in parts:
        total = (total ^ part) + np.uint64(0x9E3779B97F4A7C15)
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total = total ^ (total >> np.uint64(31))
    return np.maximum(total, np.uint64(1))


def hashes_of(
    table: pa.Table, names: Sequence[str], buckets: Mapping[str, NDArray[np.int32]]
) -> dict[str, NDArray[np.uint64]]:
    """What columns hold as hashes: of its bucket where it has one, else of its text."""
    found, there = {}, frozenset(table.column_names)
    for name in names:
        if name in buckets:
            found[name] = buckets[name].astype(np.int64).astype(np.uint64)
        elif name in there:
            column = table[name]
            cells = map(spelt, column.to_pylist()) if is_list(column.type) else None
            found[name] = column_hashes(column) if cells is None else text_hashes(cells)
        else:
            raise DataError(f"history needs the column '{name}'; the table has: {', '.join(table.column_names)}")
    return found


def column_hashes(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """A hash of the text of each row."""
    if pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type) and column.num_chunks == 1:
        words = column.chunk(0).dictionary
        if len(words) >= MANY:
            hashes, odd = word_hashes(words)
            for place in np.flatnonzero(odd).tolist():
                hashes[place] = hash_of(text_of(words[place].as_py()) or "")
            hashes = np.append(hashes, np.uint64(hash_of("")))
            return np.asarray(hashes[places_of(column.chunk(0))])
    texts, places = texts_of(column)
    return text_hashes(texts)[places]


def text_hashes(texts: Iterable[str | None]) -> NDArray[np.uint64]:
    """A hash of each text; a missing one has its own."""
    return np.array([hash_of(text or "") for text in texts], dtype=np.uint64)


def spelt(value: Any) -> str | None:
    """The text by which a value counts; a list is spelt by its members."""
    return str([text_of(member) for member in value]) if isinstance(value, (list, tuple)) else text_of(value)


def moments(column: pa.ChunkedArray, name: str, passed: int = 0) -> Floats:
    """A time column as numbers: numbers as they are, dates and times in seconds, NaN where there is none."""
    kind = column.type
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
            column = pc.cast(column, pa.string())
            try:
                column = pc.cast(column, pa.float64())
            except pa.ArrowInvalid:
                column = _dates(column)
        if pa.types.is_temporal(column.type):
            whole = pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64())
            return np.asarray(whole.to_numpy(), dtype=np.float64) / 1e6
        return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    except pa.ArrowException as error:
        way_out = "numbers, dates, or texts like 2014-10-21 or 2014-10-21 13:00:00"
        reason = str(error).splitlines()[0]
        raise DataError(
            f"the time column '{name}' must hold {way_out}: {reason} (rows {passed + 1} to {passed + len(column)})"
        ) from None


def _dates(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as times; those with a zone, or with slashes, are looked at one by one."""
    try:
        return pc.cast(column, pa.timestamp("us"))
    except pa.ArrowInvalid:
        texts, places = texts_of(column)
        found = seconds(texts, DATES)
        if any(text is not None and np.isnan(moment) for text, moment in zip(texts, found, strict=True)):
            raise
        return pa.chunked_array([pa.array(found[places], from_pandas=True)])


def known_moments(column: pa.ChunkedArray, name: str) -> Floats:
    """What `moments` gives; NaN also for what is no time, because a row to predict for is never refused for it."""
    try:
        return moments(column, name)
    except DataError:
        texts, places = texts_of(column)
        found = [known_moment(text, name) for text in texts]
        return np.array([np.nan if one is None else one for one in found], dtype=np.float64)[places]


def known_moment(value: Any, name: str) -> float | None:
    """What `moment` gives for one value; None also for what is no time."""
    try:
        return moment(value, name)
    except DataError:
        return None


def every_moment(column: pa.ChunkedArray, name: str, passed: int, of: str = "") -> Floats:
    """What `moments` gives for rows each of which must have a time; `of` says to people whose rows they are."""
    times = moments(column, name, passed)
    odd = np.flatnonzero(~np.isfinite(times))
    if len(odd):
        found = "none" if np.isnan(times[odd[0]]) else f"{times[odd[0]]:g}"
        where = f"row {passed + int(odd[0]) + 1}{of}"
        raise DataError(f"the time column '{name}' must have a value in every row, found {found} ({where})")
    return times


def moment(value: Any, name: str) -> float | None:
    """What `moments` gives for one value; None where there is none."""
    text = spelt(value)
    if text is None:
        return None
    if PLAIN_NUMBER.fullmatch(text):
        return float(text)
    try:
        found = float(moments(pa.chunked_array([pa.array([text], pa.string())]), name)[0])
    except DataError as error:
        raise DataError(str(error).rpartition(" (rows")[0]) from None
    return None if math.isnan(found) else found
