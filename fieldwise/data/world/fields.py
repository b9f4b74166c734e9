"""A column of one world: values, latent vectors, popularity, births and deaths."""

from __future__ import annotations

import zlib
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldwise.data.world.kinds import CATEGORICAL, NUMERIC, Column

RANK = 4
LARGE, STABLE, TREND = 200, 0.7, 0.15  # in a LARGE field, STABLE of the slots never change; TREND: see Field.slots_of

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]


class Field:
    """A column of one world: its values, their latent vectors, who owns them and who is alive when.

    With `churn` a LARGE field has as many values alive as its column has, and each day this share of them die.
    """

    def __init__(
        self, column: Column, owner_size: int, days: int, rng: np.random.Generator, churn: float = 0.0
    ) -> None:
        self.column, self.days = column, days
        large = not column.of and column.style in CATEGORICAL and column.size >= LARGE and days > 1
        self.births = _births(column.size, days, churn, rng) if large and churn else None
        born = 0 if self.births is None else len(self.births)
        self.size = size = {"day": days, "stamp": days * 24}.get(column.style, column.size + born)
        self.vectors = rng.standard_normal((size + 2, RANK + 1)).astype(np.float32)
        self.vectors[size + 1] = 0  # the codes after the values: `size` is missing, `size + 1` unseen
        self.first, self.members = np.arange(size), dict[str, NDArray[np.float32]]()  # of equal numbers; of sets
        self.values = self._values(rng)
        living = large and not born
        self.slots = size - born if born else int(size / (2 - STABLE)) if living else size
        changed = rng.permutation(self.slots)[: size - self.slots - born]
        self.successor, self.change = np.arange(self.slots), np.full(self.slots, days)
        self.successor[changed] = np.arange(self.slots, size - born)
        self.change[changed] = rng.integers(1, max(days, 2), len(changed))
        self.shift = rng.integers(self.slots, size=days) if large else np.zeros(days, np.int64)
        self.owned = self._zipf(rng.random(owner_size + 1)) if column.of else np.zeros(0, np.int64)

    def _values(self, rng: np.random.Generator) -> pa.Array:
        """The values in the order of their codes; dates, numbers and sets also decide their vectors."""
        name, style, words = self.column.name, self.column.style, self.column.words.split()
        codes = np.arange(self.size)
        if style == "stamp":
            self.vectors[codes] = self.vectors[codes % 24]
            days = [date(2014, 10, 21) + timedelta(day) for day in range(self.size // 24)]
            return pa.array([int(f"{day:%y%m%d}{hour:02}") for day in days for hour in range(24)])
        if style in NUMERIC:  # log-logistic; the effect swings with the quantile
            scale, shape = (10.0, 0.5) if style == "float" else (10 ** rng.uniform(0, 3), rng.uniform(0.6, 1.2))
            numbers = scale * ((codes + 0.5) / (self.size - codes - 0.5)) ** shape
            numbers = numbers.round(2) if style == "float" else numbers.astype(np.int64)
            self.first = np.searchsorted(numbers, numbers)
            wave = self.first[:, None] / self.size * rng.uniform(0.5, 1.5, RANK + 1) + rng.random(RANK + 1)
            self.vectors[codes] = np.sin(2 * np.pi * wave)
            return pa.array(numbers)
        if style == "set":
            self.members = dict(zip(words, self.vectors.copy(), strict=False))
            cells = ["|".join(sorted(rng.choice(words, rng.integers(1, 5), replace=False))) for _ in codes]
            self.vectors[codes] = [self._mean(cell) for cell in cells]
            return pa.array(cells)
        if style == "hex":  # an odd factor keeps the 32-bit numbers apart
            digits = ((codes * 2654435761 + zlib.crc32(name.encode())) % 2**32).astype(">u4").tobytes().hex()
            return pa.array([digits[i : i + 8] for i in range(0, len(digits), 8)])
        if words or style == "word":
            return pa.array(words or [f"{name.removeprefix('last_')}_{code}" for code in codes])
        return pa.array(codes + self.column.first)

    def _mean(self, cell: str | None) -> NDArray[np.float32]:
        """The mean vector of a set's known members."""
        known = [self.members[word] for word in (cell or "").split("|") if word in self.members]
        vector: NDArray[np.float32] = np.mean(known, axis=0) if known else self.vectors[self.size + bool(cell)]
        return vector

    def standardize(self, codes: Codes) -> None:
        """Vectors of mean 0 and deviation 1 over these rows, so that a pair's effect is not one field's own."""
        sample = self.vectors[codes]
        mean, deviation = sample.mean(0), sample.std(0).clip(min=1e-3)
        self.vectors[:-1] = (self.vectors[:-1] - mean) / deviation
        self.members = {word: (vector - mean) / deviation for word, vector in self.members.items()}

    def _zipf(self, uniform: Floats) -> Codes:
        """Slots, the most popular first, by Zipf's law (Mandelbrot's form, inverted as if continuous)."""
        power = 1 - self.column.skew
        low, high = 2**power, (self.slots + 2) ** power
        slots: Codes = ((low + uniform * (high - low)) ** (1 / power) - 2).astype(np.int64)
        return slots.clip(0, self.slots - 1)

    def numbers(self, rng: np.random.Generator, rows: int) -> Codes:
        """Codes of a number for `rows` rows."""
        return np.take(self.first, rng.integers(self.size, size=rows))

    def slots_of(self, rng: np.random.Generator, day: Codes) -> Codes:
        """Slots for rows at these days.

        A slot is a place in the order of popularity, filled by one category until its successor is born. Popularity
        drifts: TREND of the rows follow an order that is new each day.
        """
        from fieldwise.data.world import world_loops

        slot = self._zipf(rng.random(len(day)))
        drifts = rng.random(len(day)) < TREND
        found: Codes = world_loops.drift(slot, drifts, day, self.shift, self.slots)
        return found

    def told_apart(self, rng: np.random.Generator, slot: Codes, run: int) -> Codes:
        """The slots with others in place of those that come twice within a run of `run` rows."""
        runs = slot.reshape(-1, run)
        while True:
            order = np.argsort(runs, axis=1, kind="stable")
            row, place = np.nonzero(np.diff(np.take_along_axis(runs, order, axis=1)) == 0)
            if not len(row):
                return runs.reshape(-1)
            runs[row, order[row, place + 1]] = rng.integers(self.slots, size=len(row))

    def alive(self, slot: Codes, day: Codes) -> Codes:
        """The codes of the categories that fill slots at these days."""
        from fieldwise.data.world import world_loops

        days = np.broadcast_to(day, slot.shape)
        if self.births is not None:
            last = np.searchsorted(self.births, slot * self.days + days, side="right") - 1
            return (
                np.where(self.births[last] // self.days == slot, self.slots + last, slot) if len(self.births) else slot
            )
        found: Codes = world_loops.alive(slot.ravel(), days.ravel(), self.change, self.successor)
        return found.reshape(slot.shape)

    def look_up(self, column: pa.ChunkedArray) -> NDArray[np.float32]:
        """The vectors (B, RANK + 1) of raw cells; missing and unseen ones have a vector too."""
        text = column.cast(pa.string()).combine_chunks()
        if self.column.style == "set":
            cells = text.dictionary_encode()
            table = np.array([self._mean(cell) for cell in [*cells.dictionary.to_pylist(), None]])
            indices: Codes = cells.indices.fill_null(len(table) - 1).to_numpy()
            return table[indices]
        if self.column.style in NUMERIC:
            valid = pc.match_substring_regex(text, r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
            numbers = pc.if_else(valid, text, None).cast(pa.float64()).to_numpy(zero_copy_only=False)
            codes = np.searchsorted(self.values.to_numpy(), numbers).clip(max=self.size - 1)
            return self.vectors[np.where(np.isnan(numbers), self.size, codes)]
        return self.vectors[self.codes_of(column)]

    def codes_of(self, column: pa.ChunkedArray) -> Codes:
        """The codes of raw cells of a category."""
        text = column.cast(pa.string()).combine_chunks()
        found = pc.index_in(text, self.values.cast(pa.string())).fill_null(self.size + 1).to_numpy()
        missing = pc.equal(text, "").fill_null(True).to_numpy(zero_copy_only=False)
        return np.where(missing, self.size, found).astype(np.int64)


def _births(slots: int, days: int, churn: float, rng: np.random.Generator) -> Codes:
    """Which slot gets another category on which day, as slot * days + day, in rising order."""
    until = np.floor(slots * churn * np.arange(days)).astype(np.int64)
    found = [rng.choice(slots, n, replace=False) * days + day for day, n in enumerate(np.diff(until), 1)]
    return np.sort(np.concatenate(found))
