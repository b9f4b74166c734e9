"""The compiled loops of trails.py, in a separate module, so that numba caches them.

A table is keys (P,), heads (P,) and waiting (P,), P a power of 2; key 0 marks an empty place, a head is the newest
event of its key, and `waiting` the oldest that was not seen at the last moment, -1 for none. So many events of one
moment, or of a long delay, are not passed again and again. Events are ids (E, C), times (E,), before (E,) and later
(E,): the next older and the next newer event of the same key, -1 for none.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from fieldwise.data.history.count_loops import place_of


@njit(cache=True, inline="always")
def waits(time: Any, now: Any, delay: Any) -> Any:
    """Whether an event is not seen yet at a moment."""
    return not (time < now and time <= now - delay)


@njit(cache=True, inline="always")
def past(
    head: Any, wait: Any, ids: Any, times: Any, before: Any, later: Any, now: Any, delay: Any, window: Any,
    found: Any, ages: Any,
) -> Any:  # fmt: skip
    """The newest events that are seen at a moment -> found (C, N) and how long ago they came (N,); returns the oldest
    that is not seen yet."""
    while wait >= 0 and not waits(times[wait], now, delay):
        wait = later[wait]
    at, count = before[wait] if wait >= 0 else head, 0
    while at >= 0 and count < found.shape[1]:
        if window > 0 and times[at] < now - window:
            break
        for column in range(found.shape[0]):
            found[column, count] = ids[at, column]
        ages[count] = now - times[at]
        count += 1
        at = before[at]
    return wait


@njit(cache=True, nogil=True)
def lookup(
    keys: Any, heads: Any, waiting: Any, ids: Any, times: Any, before: Any, later: Any, asked: Any, now: Any,
    delay: Any, window: Any, found: Any, ages: Any,
) -> None:  # fmt: skip
    for row in range(len(asked)):
        place = place_of(keys, asked[row])
        if keys[place] != 0:
            head, wait, moment = heads[place], waiting[place], now[row]
            past(head, wait, ids, times, before, later, moment, delay, window, found[row], ages[row])


@njit(cache=True, nogil=True)
def replay(
    keys: Any, heads: Any, waiting: Any, ids: Any, times: Any, before: Any, later: Any, used: Any, limit: Any,
    events: Any, new: Any, new_ids: Any, counts: Any, now: Any, delay: Any, window: Any, first: Any, found: Any,
    ages: Any,
) -> Any:  # fmt: skip
    """Rows in the order of time: what each sees, then its own event where it `counts`; stops where there is no room."""
    for row in range(first, len(new)):
        if used + 1 > limit or events + 1 > len(times):
            return row, used, events
        place = place_of(keys, new[row])
        if keys[place] != 0:
            head, wait, moment = heads[place], waiting[place], now[row]
            waiting[place] = past(head, wait, ids, times, before, later, moment, delay, window, found[row], ages[row])
        if not counts[row]:
            continue
        before[events], later[events] = -1, -1
        if keys[place] == 0:
            keys[place], waiting[place] = new[row], -1
            used += 1
        else:
            before[events] = heads[place]
            later[heads[place]] = events
        if waiting[place] < 0:
            waiting[place] = events
        for column in range(ids.shape[1]):
            ids[events, column] = new_ids[row, column]
        times[events] = now[row]
        heads[place] = events
        events += 1
    return len(new), used, events


@njit(cache=True, nogil=True)
def needed(
    keys: Any, heads: Any, times: Any, before: Any, end: Any, delay: Any, window: Any, last: Any, kept: Any
) -> Any:
    """Marks in `kept` (E,) what rows from `end` on may see: `last` events of each key, and those that wait."""
    total = 0
    for place in range(len(keys)):
        if keys[place] == 0:
            continue
        at, count = heads[place], 0
        while at >= 0 and count < last:
            if not waits(times[at], end, delay):
                if window > 0 and times[at] < end - window:
                    break
                count += 1
            kept[at] = True
            total += 1
            at = before[at]
    return total


@njit(cache=True, nogil=True)
def place(keys: Any, heads: Any, waiting: Any, old: Any, old_heads: Any, old_waiting: Any) -> Any:
    for row in range(len(old)):
        at = place_of(keys, old[row])
        keys[at] = old[row]
        heads[at], waiting[at] = old_heads[row], old_waiting[row]
    return len(old)


@njit(cache=True, nogil=True)
def listed(heads: Any, before: Any, counts: Any, order: Any) -> None:
    """The events of heads (K,), key after key, the newest first -> order (E,), and how many each has, counts (K,)."""
    done = 0
    for row in range(len(heads)):
        at = heads[row]
        while at >= 0:
            order[done] = at
            done += 1
            counts[row] += 1
            at = before[at]
