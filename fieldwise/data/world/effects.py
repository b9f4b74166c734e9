"""The terms of a world's logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.history.history import mixed
from fieldwise.data.world.fields import RANK, Codes, Field, Floats
from fieldwise.data.world.kinds import Repeats

HIDDEN = 4
PARTS = {"linear": 0.8, "bilinear": 1.5, "net": 1.2, "rule": 0.25}  # of every logit, with their deviations
TASTE = "taste"  # the part that only kinds with repeats have

Vectors = dict[str, NDArray[np.float32]]  # per field (RANK + 1, B): the latent vector, then the linear effect


@dataclass
class Effect:
    """One term of the logit: its part, its fields and its weights."""

    part: str
    fields: tuple[str, ...]
    weights: tuple[NDArray[np.float32], ...] = ()
    scale: float = 1.0

    def __call__(self, vectors: Vectors) -> Floats:
        """Its contribution (B,) to the logit."""
        v = [vectors[name][:RANK] for name in self.fields]
        value: NDArray[Any]
        if self.part == "linear":
            value = vectors[self.fields[0]][RANK]
        elif self.part == "bilinear":
            value = (v[0] * (self.weights[0] @ v[1])).sum(0)
        elif self.part == "net":  # four mirrored units cancel what either field would do alone
            left, right, c, out = self.weights
            a, b = left @ v[0], right @ v[1]
            value = out @ (np.tanh(a + b + c) - np.tanh(a + b - c) - np.tanh(a - b + c) + np.tanh(a - b - c))
        else:  # up or down where the first latent signs of all three agree
            value = np.trunc(np.mean([np.sign(vector[0]) for vector in v], axis=0))
        return self.scale * value.astype(np.float64)


class Packed:
    """A world's effects as one compiled loop has them: what `Effect` says, for the rows of a log."""

    def __init__(self, fields: Mapping[str, Field], effects: Sequence[Effect], bias: float) -> None:
        from fieldwise.data.world import world_loops

        self.loop, self.bias = world_loops.logits, bias
        number = {name: place for place, name in enumerate(fields)}
        vectors = [field.vectors for field in fields.values()]
        self.table, self.firsts = np.concatenate(vectors), np.cumsum([0, *map(len, vectors)])
        self.kinds = np.array([list(PARTS).index(effect.part) for effect in effects])
        # Every effect has three fields here; those that it does not have are not looked at.
        self.fields = np.array([[*(number[name] for name in effect.fields), 0, 0][:3] for effect in effects])
        weights = [_flat(effect) for effect in effects]
        self.places = np.cumsum([0, *map(len, weights)])
        self.weights = np.concatenate(weights).astype(np.float32)

    def logits(self, codes: Mapping[str, Codes]) -> Floats:
        """The logits (B,) of codes of all fields, without tastes."""
        every = np.stack(list(codes.values()))
        found = np.empty(every.shape[1])
        effects = (self.kinds, self.fields, self.places, self.weights)
        self.loop(every, self.firsts, self.table, *effects, self.bias, found)
        return found


def _flat(effect: Effect) -> Floats:
    """The numbers that a compiled loop needs of an effect: world_loops.py says what for."""
    if effect.part in ("linear", "rule"):
        return np.array([effect.scale])
    weights = [weight.astype(np.float64) for weight in effect.weights]
    if effect.part == "bilinear":
        return effect.scale * weights[0].reshape(-1)
    left, right, c, out = weights
    power = 2 * np.log2(np.e)  # exp(2 x) as a power of 2
    sides = np.stack([2 * np.cosh(2 * c[:, 0]), effect.scale * 4 * np.sinh(2 * c[:, 0]) * out], axis=1)
    return np.hstack([power * left, power * right, sides]).reshape(-1)


class Returns:
    """The planted repeats of one world: which items a user returns to, and the taste of each pair.

    Both come from hashes of the codes, so that rows can be drawn in any order and the truth of any row is known.
    """

    def __init__(self, repeats: Repeats, users: Field, items: Field, seed: int) -> None:
        self.repeats, self.users, self.items, self.seed = repeats, users, items, seed

    def taste(self, users: Codes, items: Codes) -> Floats:
        """What each pair adds to the logit; nothing where one of the two is missing or unknown."""
        known = (users < self.users.size) & (items < self.items.size)
        first, second = (self._uniform(users, items, stream) for stream in (1, 2))
        normal = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
        return np.where(known, self.repeats.deviation * normal, 0.0)

    def favourites(self, users: Codes) -> Codes:
        """The slots (B, favourites) of the items that users return to."""
        numbers = np.arange(self.repeats.favourites)
        uniform = self._uniform(users[:, None] + 0 * numbers, 0 * users[:, None] + numbers, 3)
        return (uniform * self.items.slots).astype(np.int64).clip(max=self.items.slots - 1)

    def draw(self, rng: np.random.Generator, slot: Codes, users: Codes, day: Codes) -> Codes:
        """The slots with a favourite of the user in its `share` of the rows; odds follow exp(taste / deviation)."""
        returning = np.flatnonzero(rng.random(len(slot)) < self.repeats.share)
        who, when = users[returning], day[returning, None]
        favourites = self.favourites(who)
        taste = self.taste(np.broadcast_to(who[:, None], favourites.shape), self.items.alive(favourites, when))
        chosen = (taste / self.repeats.deviation + rng.gumbel(size=favourites.shape)).argmax(1)
        slot = slot.copy()
        slot[returning] = favourites[np.arange(len(returning)), chosen]
        return slot

    def _uniform(self, first: Codes, second: Codes, stream: int) -> Floats:
        """A number in (0, 1) for each pair of codes, the same each time."""
        bits = mixed([first.astype(np.uint64), second.astype(np.uint64)], 8 * self.seed + stream)
        return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
