"""A simulated click world with a known truth: logs, candidates to rank for a request, the true probability.

    logit = bias + linear + bilinear pairs + tanh-network pairs + rules of three fields

A column is a list of values with a latent vector each. A row is one code per column, and its truth follows from the
vectors at its codes. Large fields live: day by day some of their categories die and others are born.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fieldwise.errors import ConfigError, DataError, unknown

RANK, HIDDEN, BLOCK = 4, 4, 50_000
ACTIVE = 0.3  # the share of field pairs that interact
LARGE, STABLE, TREND = 200, 0.7, 0.15  # in a LARGE field, STABLE of the slots never change; TREND: see Field.draw
CATEGORICAL, NUMERIC = ("word", "hex", "number"), ("integer", "float")
PARTS = {"linear": 0.8, "bilinear": 1.5, "net": 1.2, "rule": 0.25}  # of the logit, with their deviations

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
Vectors = dict[str, NDArray[np.float32]]  # per field (RANK + 1, B): the latent vector, then the linear effect


@dataclass(frozen=True)
class Column:
    """What a column looks like; `of` names the column that owns it, as an item owns its category."""

    name: str
    size: int
    style: str = "word"  # CATEGORICAL, NUMERIC, "set", or from the clock: "day", "weekday", "hour", "stamp"
    of: str = ""
    skew: float = 1.1  # the exponent of Zipf's law
    item: bool = False  # differs between the candidates of a request; owned columns follow their owner
    missing: float = 0.0
    words: str = ""  # the values, or the members of a set
    first: int = 0  # where a "number" starts


def _columns(text: str, style: str = "word", first: int = 0, item: bool = False) -> list[Column]:
    """Columns from words like `site_domain:3487:site_id`: the name, the size and the owner."""
    parts = [f"{word}:".split(":") for word in text.split()]
    return [Column(name, int(size), style, of[0], item=item, first=first) for name, size, *of in parts]


DEVICES = "phone tablet laptop desktop tv watch car console speaker reader"
SHOPS = "art baby bikes books cars coffee film food games garden music news pets shoes sport tea tools toys travel wine"
GENRES = "action comedy crime drama family horror mystery romance science war western"
DEMO = (
    Column("day", 0, "day"),
    Column("hour", 24, "hour"),
    Column("weekday", 7, "weekday", words="mon tue wed thu fri sat sun"),
    Column("user", 2000, skew=0.9),
    Column("city", 60, of="user"),
    Column("device", 10, words=DEVICES),
    Column("item", 1000, skew=1.05, item=True),
    Column("category", 20, of="item", words=SHOPS),
    Column("advertiser", 60, of="item"),
    Column("price", 500, "float", of="item", missing=0.03),
    Column("genres", 150, "set", of="item", words=GENRES),
)
# The sizes of the paper's data sets, the largest cut; what they count for unknown values is left out.
INTEGERS = (4389, 5000, 329, 5000, 2646, 428, 233, 5000, 295, 11, 173, 5000, 585)
CATEGORIES = (147117, 19845, 14830, 6916, 18687, 4, 6646, 1272, 46, 141085, 64381, 63692, 11)
AD_CATEGORIES = (2156, 7806, 61, 5, 928, 15, 147387, 116331, 145634, 57186, 9307, 63, 34)
OWNERS = {"C9": "C8", "C13": "C8", "C16": "C14", "C17": "C14", "C19": "C14", "C25": "C15"}
CRITEO = (
    *(Column(f"I{i}", size, "integer", missing=0.08 * (i % 5)) for i, size in enumerate(INTEGERS, 1)),
    *(
        Column(f"C{i}", size, "hex", OWNERS.get(f"C{i}", ""), item=i > 13, missing=0.1 * (i % 4 == 3))
        for i, size in enumerate(CATEGORIES + AD_CATEGORIES, 1)
    ),
)
AVAZU = (
    Column("hour", 24, "stamp"),
    *_columns("C1:7", "number", first=1001),
    *_columns("banner_pos:7", "number"),
    *_columns("site_id:3135 site_domain:3487:site_id site_category:24:site_id", "hex"),
    *_columns("app_id:4002 app_domain:252:app_id app_category:28:app_id", "hex"),
    *_columns("device_id:101449 device_ip:200000 device_model:5925", "hex"),
    *_columns("device_type:5:device_model device_conn_type:4", "number"),
    *_columns("C14:2417 C15:8:C14 C16:9:C14 C17:426:C14 C18:4:C14 C19:67:C14", "number", first=50, item=True),
    *_columns("C20:166", "number", first=100_000),
    *_columns("C21:60:C14", "number", first=10),
)
IPINYOU = (
    Column("weekday", 7, "weekday"),
    Column("hour", 24, "hour"),
    *_columns("IP:200000", "hex"),
    *_columns("region:35:city city:370:IP adexchange:5", "number", first=1),
    *_columns("domain:51321:slotid slotid:180695", "hex"),
    *_columns("slotwidth:21:slotid slotheight:14:slotid", "number", first=60),
    *_columns("slotvisibility:11:slotid slotformat:4:slotid", "number"),
    *_columns("creative:131", "hex", item=True),
    *_columns("advertiser:9:creative", "number", first=1458),
    *_columns("useragent:40"),
    *_columns("slotprice:5", "number"),
)
APPSTORE = (
    Column("user", 60_000, skew=0.8),
    *_columns("app:5000", item=True),
    *_columns("category:30:app"),
    *_columns("position:20", "number", first=1),
    Column("hour", 24, "hour"),
    *_columns("device:200 city:300:user last_category:30"),
    Column("tags", 400, "set", of="app", words=" ".join(f"tag_{i}" for i in range(40))),
)


_KINDS: dict[str, tuple[tuple[Column, ...], float, float]] = {  # the usual base rate, the strength of PARTS
    "demo": (DEMO, 0.2, 1.0),
    "criteo": (CRITEO, 0.5, 0.85),
    "avazu": (AVAZU, 0.17, 0.85),
    "ipinyou": (IPINYOU, 0.0007, 0.7),
    "appstore": (APPSTORE, 0.008, 0.85),
}
KINDS = tuple(_KINDS)


class Field:
    """A column of one world: its values, their latent vectors, who owns them and who is alive when."""

    def __init__(self, column: Column, owner_size: int, days: int, rng: np.random.Generator) -> None:
        self.column = column
        self.size = size = {"day": days, "stamp": days * 24}.get(column.style, column.size)
        self.vectors = rng.standard_normal((size + 2, RANK + 1)).astype(np.float32)
        self.vectors[size + 1] = 0  # the codes after the values: `size` is missing, `size + 1` unseen
        self.first, self.members = np.arange(size), dict[str, NDArray[np.float32]]()  # of equal numbers; of sets
        self.values = self._values(rng)
        living = not column.of and column.style in CATEGORICAL and size >= LARGE and days > 1
        self.slots = int(size / (2 - STABLE)) if living else size
        changed = rng.permutation(self.slots)[: size - self.slots]
        self.successor, self.change = np.arange(self.slots), np.full(self.slots, days)
        self.successor[changed] = np.arange(self.slots, size)
        self.change[changed] = rng.integers(1, max(days, 2), len(changed))
        self.shift = rng.integers(self.slots, size=days) if living else np.zeros(days, np.int64)
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

    def draw(self, rng: np.random.Generator, day: Codes, distinct: int = 0) -> Codes:
        """Codes for rows at these days; in each run of `distinct` rows they differ.

        A slot is a place in the order of popularity, filled by one category until its successor is born. Popularity
        drifts: TREND of the rows follow an order that is new each day.
        """
        if self.column.style in NUMERIC:
            return self.first[rng.integers(self.size, size=len(day))]
        slot = self._zipf(rng.random(len(day)))
        slot = np.where(rng.random(len(day)) < TREND, (slot + self.shift[day]) % self.slots, slot)
        while distinct:
            runs = slot.reshape(-1, distinct)
            order = np.argsort(runs, axis=1, kind="stable")
            row, place = np.nonzero(np.diff(np.take_along_axis(runs, order, axis=1)) == 0)
            if not len(row):
                break
            runs[row, order[row, place + 1]] = rng.integers(self.slots, size=len(row))
        return np.where(day >= self.change[slot], self.successor[slot], slot)

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
        found = pc.index_in(text, self.values.cast(pa.string())).fill_null(self.size + 1).to_numpy()
        missing = pc.equal(text, "").fill_null(True).to_numpy(zero_copy_only=False)
        return self.vectors[np.where(missing, self.size, found)]


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


@dataclass(frozen=True)
class Log:
    """Rows in time order, the label first where there is one, and the true P(click=1 | row) of each."""

    table: pa.Table
    probability: Floats

    def __len__(self) -> int:
        return len(self.probability)

    def __getitem__(self, rows: slice) -> Log:
        return Log(self.table[rows], self.probability[rows])


def _join(logs: Sequence[Log]) -> Log:
    return Log(pa.concat_tables([log.table for log in logs]), np.concatenate([log.probability for log in logs]))


def _require(right: bool, rule: str, found: object) -> None:
    if not right:
        raise ConfigError(f"{rule}, found {found}")


def _sigmoid(logit: Floats) -> Floats:
    return 1 / (1 + np.exp(-logit))


class World:
    """A click world of one of KINDS; the same kind, seed, base rate and days give the same world.

    >>> world = World("demo", seed=1)
    >>> log = world.log(rows=1000)
    >>> bool(abs(log.probability - world.probability(log.table)).max() < 1e-6)
    True
    """

    label = "click"

    def __init__(self, kind: str = "demo", seed: int = 0, base_rate: float | None = None, days: int = 10) -> None:
        if kind not in _KINDS:
            raise ConfigError(unknown("kind", kind, KINDS))
        self.kind, self.seed, self.days = kind, seed, days
        columns, usual_rate, strength = _KINDS[kind]
        self.base_rate = usual_rate if base_rate is None else base_rate
        _require(0 < self.base_rate < 1, "base_rate must lie between 0 and 1", base_rate)
        _require(days >= 1, "days must be at least 1", days)
        rng = self._rng(zlib.crc32(kind.encode()))
        self.columns = {column.name: column for column in columns}
        self.field_names = list(self.columns)
        self.fields: dict[str, Field] = {}
        for name in sorted(self.field_names, key=lambda name: len(self._line(name))):
            owner = self.columns[name].of
            self.fields[name] = Field(self.columns[name], self.fields[owner].size if owner else 0, days, rng)
        self.effects = self._plant(rng)
        self.active_pairs = [(e.fields[0], e.fields[1]) for e in self.effects if len(e.fields) == 2]
        self._scale(strength)

    def _rng(self, *stream: int) -> np.random.Generator:
        _require(min(self.seed, *stream) >= 0, "seed must not be negative", min(self.seed, *stream))
        return np.random.default_rng([self.seed, *stream])

    def _line(self, name: str) -> list[str]:
        """The column, its owner, and so on up to the root."""
        owner = self.columns[name].of
        return [name, *(self._line(owner) if owner else [])]

    def _plant(self, rng: np.random.Generator) -> list[Effect]:
        """Effects with random weights, the strongest pairs first. Fields of one root do not interact, for the root
        alone would tell; small fields do more often, so that a log of ordinary size can show it."""
        names = [name for name in self.field_names if self.columns[name].style != "day"]
        ease = {
            name: min(f.size, 50 if f.column.style in NUMERIC else f.size) ** -0.5 for name, f in self.fields.items()
        }

        def pick(order: int, count: int) -> list[tuple[str, ...]]:
            free = [c for c in combinations(names, order) if len({self._line(name)[-1] for name in c}) == order]
            odds = np.array([np.prod([ease[name] for name in c]) for c in free])
            return [free[i] for i in rng.choice(len(free), count, replace=False, p=odds / odds.sum())]

        def weights(*shapes: tuple[int, ...]) -> tuple[NDArray[np.float32], ...]:
            return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)

        effects = [Effect("linear", (name,)) for name in names]
        for i, pair in enumerate(pick(2, round(ACTIVE * len(self.fields) * (len(self.fields) - 1) / 2))):
            net = weights((HIDDEN, RANK), (HIDDEN, RANK), (HIDDEN, 1), (HIDDEN,))
            effect = Effect("net", pair, net) if i % 2 else Effect("bilinear", pair, weights((RANK, RANK)))
            effects.append(replace(effect, scale=1 / (1 + i / 20)))
        return effects + [Effect("rule", triple) for triple in pick(3, 4)]

    def _scale(self, strength: float) -> None:
        """Give each part its standard deviation and the world its base rate, on a fixed sample of rows."""
        rows = min(100_000, 4_000_000 // len(self.active_pairs))
        codes = self._draw(self._rng(1), *self._clock(rows, 0, rows, 0, self.days - 1))
        for name, code in codes.items():
            self.fields[name].standardize(code)
        vectors, logit = self._vectors(codes), np.zeros(rows)
        for part, deviation in PARTS.items():
            effects = [effect for effect in self.effects if effect.part == part]
            for effect in effects:
                effect.scale *= effect.scale / max(effect(vectors).std(), 1e-3)
            total = np.sum([effect(vectors) for effect in effects], axis=0)
            for effect in effects:
                effect.scale *= strength * deviation / total.std()
            logit += total * strength * deviation / total.std()
        low, high = -100.0, 100.0
        while high - low > 1e-9:
            self.bias = (low + high) / 2
            over = _sigmoid(logit + self.bias).mean() > self.base_rate
            low, high = (low, self.bias) if over else (self.bias, high)

    @staticmethod
    def _clock(rows: int, start: int, stop: int, first: int, last: int) -> tuple[Codes, Codes]:
        """The day and the hour of the rows start..stop out of `rows` that fill the days evenly, the nights thinly."""
        time = first + (np.arange(start, stop) + 0.5) / rows * (last - first + 1)
        day = time.astype(np.int64)
        traffic = np.cumsum(1 - 0.8 * np.cos(2 * np.pi * (np.arange(24) - 3) / 24))
        return day, np.searchsorted(traffic / traffic[-1], time - day)

    def _draw(
        self, rng: np.random.Generator, day: Codes, hour: Codes, only: Collection[str] = (), distinct: int = 0
    ) -> dict[str, Codes]:
        """Codes of rows at these times; if asked, of some fields only, and with distinct runs in their first root."""
        clock = {"day": day, "weekday": day % 7, "hour": hour, "stamp": day * 24 + hour}
        codes: dict[str, Codes] = {}
        for name, field in self.fields.items():
            column = field.column
            if only and name not in only:
                continue
            if column.style in clock:
                codes[name] = clock[column.style]
            elif column.of:
                codes[name] = field.owned[codes[column.of]]
            else:
                codes[name], distinct = field.draw(rng, day, distinct), 0
            if column.missing:
                codes[name] = np.where(rng.random(len(day)) < column.missing, field.size, codes[name])
        return codes

    def _vectors(self, codes: dict[str, Codes]) -> Vectors:
        return {name: np.ascontiguousarray(self.fields[name].vectors[code].T) for name, code in codes.items()}

    def _truth(self, vectors: Vectors, parts: Collection[str] = tuple(PARTS)) -> Floats:
        return _sigmoid(np.sum([e(vectors) for e in self.effects if e.part in parts], axis=0) + self.bias)

    def _raw(self, codes: dict[str, Codes]) -> dict[str, pa.Array]:
        """The columns as they are logged, null where missing."""
        indices = {n: pa.array(codes[n], mask=codes[n] == self.fields[n].size) for n in self.field_names}
        return {name: self.fields[name].values.take(index) for name, index in indices.items()}

    def _blocks(self, rows: int, seed: int, first: int, last: int) -> Iterator[Log]:
        """The log in blocks with a random stream each, so that it is the same however it is cut."""
        _require(rows >= 1, "rows must be at least 1", rows)
        _require(0 <= first <= last < self.days, f"days must lie within 0..{self.days - 1}", f"{first}..{last}")
        for start in range(0, rows, BLOCK):
            rng = self._rng(2, seed, first, start)
            codes = self._draw(rng, *self._clock(rows, start, min(start + BLOCK, rows), first, last))
            probability = self._truth(self._vectors(codes))
            clicks = (rng.random(len(probability)) < probability).astype(np.int8)
            yield Log(pa.table({self.label: clicks, **self._raw(codes)}), probability)

    def log(self, rows: int, seed: int = 0, first_day: int = 0, last_day: int | None = None) -> Log:
        """`rows` impressions from first_day to last_day (to the end of the world if not said), in time order."""
        return _join(list(self._blocks(rows, seed, first_day, self.days - 1 if last_day is None else last_day)))

    def chunks(
        self, rows: int, seed: int = 0, chunk: int = 200_000, first_day: int = 0, last_day: int | None = None
    ) -> Iterator[Log]:
        """The rows of `log`, `chunk` at a time."""
        _require(chunk >= 1, "chunk must be at least 1", chunk)
        blocks = self._blocks(rows, seed, first_day, self.days - 1 if last_day is None else last_day)
        held = next(blocks)
        while len(held):
            while len(held) < chunk and (block := next(blocks, None)):
                held = _join([held, block])
            yield held[:chunk]
            held = held[chunk:] if len(held) > chunk else next(blocks, held[:0])

    def candidates(self, requests: int, per_request: int, day: int = 0, seed: int = 0) -> Log:
        """Rows to rank, without a label: those of one `request` share its context and differ in the item."""
        items = [name for name in self.field_names if self.columns[self._line(name)[-1]].item]
        most = next(self.fields[name].slots for name in items if not self.columns[name].of)
        _require(requests >= 1, "requests must be at least 1", requests)
        _require(1 <= per_request <= most, f"per_request must lie within 1..{most}", per_request)
        _require(0 <= day < self.days, f"day must lie within 0..{self.days - 1}", day)
        rng = self._rng(3, seed, day)
        request = np.repeat(np.arange(requests), per_request)
        days, hours = self._clock(requests, 0, requests, day, day)
        context = self._draw(rng, days, hours, only=set(self.field_names) - set(items))
        codes = {name: code[request] for name, code in context.items()}
        codes |= self._draw(rng, days[request], hours[request], items, distinct=per_request)
        return Log(pa.table({"request": request, **self._raw(codes)}), self._truth(self._vectors(codes)))

    def probability(self, table: pa.Table, parts: Collection[str] = tuple(PARTS)) -> Floats:
        """The true P(click=1 | row) of any rows with this world's fields; of some `parts` of the logit, if asked."""
        for name in self.field_names:
            if name not in table.column_names:
                raise DataError(f"column '{name}' is missing; {self.kind} has {', '.join(self.field_names)}")
        found = [np.zeros(0)]
        for start in range(0, table.num_rows, BLOCK):
            rows = table.slice(start, BLOCK)
            vectors = {name: np.ascontiguousarray(field.look_up(rows[name]).T) for name, field in self.fields.items()}
            found.append(self._truth(vectors, parts))
        return np.concatenate(found)


def write_log(
    world: World,
    rows: int,
    path: str | Path,
    seed: int = 0,
    truth: bool = False,
    first_day: int = 0,
    last_day: int | None = None,
) -> None:
    """Write a log by the ending: csv, tsv, txt (tabs, no header), each also .gz, or parquet; all of it or nothing."""
    path = Path(path)
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if ending not in ("csv", "tsv", "txt", "parquet") or path.name.endswith(".parquet.gz"):
        raise DataError(f"expected a name ending in .csv, .tsv, .txt (or these with .gz) or .parquet, found {path}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with contextlib.ExitStack() as stack:
            writer = None
            for log in world.chunks(rows, seed, first_day=first_day, last_day=last_day):
                table = log.table.append_column("true_probability", [log.probability]) if truth else log.table
                writer = writer or stack.enter_context(_writer(stack, part, ending, table.schema))
                writer.write_table(table)
        part.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _writer(stack: contextlib.ExitStack, part: Path, ending: str, schema: pa.Schema) -> Any:
    sink: Any = stack.enter_context(part.open("wb"))
    if ending == "parquet":
        return pq.ParquetWriter(sink, schema)
    if ".gz." in part.name:  # without the time of writing: the same log, the same bytes
        sink = stack.enter_context(gzip.GzipFile("", "wb", 5, sink, mtime=0))
    separator = "," if ending == "csv" else "\t"
    if ending != "txt":
        sink.write(f"{separator.join(schema.names)}\n".encode())
    options = pacsv.WriteOptions(include_header=False, delimiter=separator, quoting_style="none")
    return pacsv.CSVWriter(sink, schema, write_options=options)
