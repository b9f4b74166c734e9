"""A world with sequential taste: what a user clicks depends on the last three items that he was shown.

    logit = bias + own * <user, item> + strength * sum over the last three items j of fade^(age) <item, R j>

R turns what was seen into what is wanted next, so that an item is not wanted for being like the last one. All vectors
are drawn by the seed; the truth of each row is known. No field of the row itself knows more than the first two terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import ConfigError
from fieldwise.data.world.fields import Codes, Floats
from fieldwise.data.world.logs import Log

KIND = "sequence"
LAST, FADE = 3, 0.7


@dataclass(frozen=True)
class SequentialWorld:
    """A world of users and items; the same seed and sizes give the same world.

    >>> log = SequentialWorld(users=20, items=30).log(500)
    >>> log.table.column_names, bool(0.2 < log.probability.mean() < 0.5)
    (['click', 'user', 'item', 'category'], True)
    """

    seed: int = 0
    users: int = 400
    items: int = 60
    categories: int = 12
    dim: int = 3
    bias: float = -1.0
    own: float = 0.5
    strength: float = 1.5

    def chunks(self, rows: int, seed: int = 0, **days: int | None) -> Iterator[Log]:
        """The log, all of it in one piece: the last items may be anywhere before a row. There are no days."""
        if any(days.values()):
            raise ConfigError("a world of sequences has no days; leave out --first-day and --last-day")
        yield self.log(rows, seed)

    def log(self, rows: int, seed: int = 0) -> Log:
        """Rows in the order of time, and the truth of each."""
        truth, drawn = np.random.default_rng((self.seed, 0)), np.random.default_rng((self.seed, 1, seed))
        people, things = (truth.standard_normal((n, self.dim)) for n in (self.users, self.items))
        turn, _ = np.linalg.qr(truth.standard_normal((self.dim, self.dim)))
        category = truth.integers(0, self.categories, self.items)
        user, item = drawn.integers(0, self.users, rows), drawn.integers(0, self.items, rows)
        wanted = self._wanted(user, item, things @ turn)
        taste = self.own * people[user] + self.strength * wanted
        logit = self.bias + (taste * things[item]).sum(axis=1) / np.sqrt(self.dim)
        probability = 1 / (1 + np.exp(-logit))
        columns = {
            "click": pa.array((drawn.random(rows) < probability).astype(np.int8)),
            "user": pa.array([f"u{n}" for n in user]),
            "item": pa.array([f"i{n}" for n in item]),
            "category": pa.array([f"c{n}" for n in category[item]]),
        }
        return Log(pa.table(columns), probability)

    def _wanted(self, user: Codes, item: Codes, turned: Floats) -> Floats:
        """What each row's user wants after the last items that he was shown, (n, D)."""
        found = np.zeros((len(user), self.dim))
        order = np.argsort(user, kind="stable")
        for age in range(1, LAST + 1):
            now, before = order[age:], order[:-age]
            same = user[now] == user[before]
            found[now[same]] += FADE ** (age - 1) * turned[item[before[same]]]
        return found
