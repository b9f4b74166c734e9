"""The compiled loops of counts.py, in a separate module, so that numba caches them.

A table is keys (P,), values (P, 2) and last (P,), P a power of 2; key 0 marks an empty place. `used` are the places
taken and `limit` how many may be: a loop that would need more stops and says how far it came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, inline="always")
def place_of(keys: Any, key: Any) -> Any:
    mask = np.uint64(len(keys) - 1)
    place = key & mask
    while keys[place] != 0 and keys[place] != key:
        place = (place + np.uint64(1)) & mask
    return place


@njit(cache=True, inline="always")
def count(keys: Any, values: Any, last: Any, used: Any, key: Any, label: Any, time: Any, decay: Any, w: Any) -> Any:
    place = place_of(keys, key)
    if keys[place] == 0:
        keys[place] = key
        last[place] = time
        used += 1
    elif decay > 0 and time > last[place]:
        fade = np.exp(-decay * (time - last[place]))
        values[place, 0] *= fade
        values[place, 1] *= fade
    if time > last[place]:
        last[place] = time
    # Taking back stops at nothing: what a dropped key had before is not known any more.
    values[place, 0] = max(0.0, values[place, 0] + w)
    values[place, 1] = max(0.0, values[place, 1] + w * label)
    return used


@njit(cache=True, inline="always")
def read(keys: Any, values: Any, last: Any, key: Any, time: Any, decay: Any, found: Any) -> None:
    place = place_of(keys, key)
    if keys[place] != 0:
        fade = np.exp(-decay * max(0.0, time - last[place])) if decay > 0 else 1.0
        found[0] = values[place, 0] * fade
        found[1] = values[place, 1] * fade


@njit(cache=True, nogil=True)
def add(
    keys: Any, values: Any, last: Any, used: Any, limit: Any, new: Any, labels: Any, times: Any,
    decay: Any, weight: Any, done: Any,
) -> Any:  # fmt: skip
    for row in range(done, len(new)):
        if used + new.shape[1] > limit:
            return row, used
        for column in range(new.shape[1]):
            used = count(keys, values, last, used, new[row, column], labels[row], times[row], decay, weight)
    return len(new), used


@njit(cache=True, nogil=True)
def lookup(keys: Any, values: Any, last: Any, asked: Any, times: Any, decay: Any, found: Any) -> None:
    """Counts and positives of the keys `asked` (n, K), as of the rows' `times` (n,) -> found (n, K, 2).

    `decay` is the rate at which counts fade, 0 for none. `found` stays unchanged for an unknown key.
    """
    for row in range(len(asked)):
        for column in range(asked.shape[1]):
            read(keys, values, last, asked[row, column], times[row], decay, found[row, column])


@njit(cache=True, nogil=True)
def stream(
    keys: Any, values: Any, last: Any, used: Any, limit: Any, asked: Any, labels: Any, times: Any, decay: Any,
    delay: Any, window: Any, first: Any, added: Any, expired: Any, found: Any,
) -> Any:  # fmt: skip
    for row in range(first, len(times)):
        now = times[row]
        while added < row and times[added] < now and times[added] <= now - delay:
            if used + asked.shape[1] > limit:
                return row, added, expired, used
            for column in range(asked.shape[1]):
                key = asked[added, column]
                used = count(keys, values, last, used, key, labels[added], times[added], decay, 1.0)
            added += 1
        while window > 0 and expired < added and times[expired] < now - window:
            for column in range(asked.shape[1]):
                key = asked[expired, column]
                # A key that was dropped meanwhile has nothing to take back.
                if keys[place_of(keys, key)] != 0:
                    count(keys, values, last, used, key, labels[expired], times[expired], decay, -1.0)
            expired += 1
        for column in range(asked.shape[1]):
            read(keys, values, last, asked[row, column], now, decay, found[row, column])
    return len(times), added, expired, used


@njit(cache=True, nogil=True)
def place(keys: Any, values: Any, last: Any, old: Any, old_values: Any, old_last: Any) -> Any:
    for row in range(len(old)):
        at = place_of(keys, old[row])
        keys[at] = old[row]
        values[at] = old_values[row]
        last[at] = old_last[row]
    return len(old)
