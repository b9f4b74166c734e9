"""The compiled loops of trails.py, in a separate module, so that numba caches them.

A table is keys (P,) and heads (P,), P a power of 2; key 0 marks an empty place, and a head is the newest event of its
key. Events are ids (E, C), times (E,) and before (E,): the next older event of the same key, -1 for none.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from fieldwise.data.history.count_loops import place_of


@njit(cache=True, inline="always")
def past(
    head: Any, ids: Any, times: Any, before: Any, now: Any, delay: Any, window: Any, found: Any, ages: Any
) -> None:
    """The newest events that are seen at a moment -> found (C, N) and how long ago they came (N,)."""
    at, count = head, 0
    while at >= 0 and count < found.shape[1]:
        time = times[at]
        if time < now and time <= now - delay:
            if window > 0 and time < now - window:
                break
            for column in range(found.shape[0]):
                found[column, count] = ids[at, column]
            ages[count] = now - time
            count += 1
        at = before[at]


@njit(cache=True, nogil=True)
def lookup(
    keys: Any, heads: Any, ids: Any, times: Any, before: Any, asked: Any, now: Any, delay: Any, window: Any,
    found: Any, ages: Any,
) -> None:  # fmt: skip
    for row in range(len(asked)):
        place = place_of(keys, asked[row])
        if keys[place] != 0:
            past(heads[place], ids, times, before, now[row], delay, window, found[row], ages[row])


@njit(cache=True, nogil=True)
def replay(
    keys: Any, heads: Any, ids: Any, times: Any, before: Any, used: Any, limit: Any, events: Any,
    new: Any, new_ids: Any, counts: Any, now: Any, delay: Any, window: Any, first: Any, found: Any, ages: Any,
) -> Any:  # fmt: skip
    """Rows in the order of time: what each sees, then its own event where it `counts`; stops where there is no room."""
    for row in range(first, len(new)):
        if used + 1 > limit or events + 1 > len(times):
            return row, used, events
        place = place_of(keys, new[row])
        if keys[place] != 0:
            past(heads[place], ids, times, before, now[row], delay, window, found[row], ages[row])
        if not counts[row]:
            continue
        before[events] = heads[place] if keys[place] != 0 else -1
        if keys[place] == 0:
            keys[place] = new[row]
            used += 1
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
            time = times[at]
            if time < end and time <= end - delay:
                if window > 0 and time < end - window:
                    break
                count += 1
            kept[at] = True
            total += 1
            at = before[at]
    return total


@njit(cache=True, nogil=True)
def place(keys: Any, heads: Any, old: Any, old_heads: Any) -> Any:
    for row in range(len(old)):
        at = place_of(keys, old[row])
        keys[at] = old[row]
        heads[at] = old_heads[row]
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
