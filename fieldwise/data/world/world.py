"""A simulated click world with a known truth: logs, candidates to rank for a request, the true probability.

    logit = bias + linear + bilinear pairs + tanh-network pairs + rules of three fields (+ the taste of each pair)

A column is a list of values with a latent vector each. A row is one code per column, and its truth follows from the
vectors at its codes. Large fields live: day by day some of their categories die and others are born.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, DataError, unknown
from fieldwise.data.world.effects import HIDDEN, PARTS, TASTE, Effect, Packed, Returns, Vectors
from fieldwise.data.world.fields import RANK, Codes, Field, Floats
from fieldwise.data.world.kinds import KINDS, NUMERIC
from fieldwise.data.world.logs import Log, join

BLOCK = 50_000
ACTIVE = 0.3  # the share of field pairs that interact
NETWORKS = 0.5  # the share of these whose effect is a small network; the others' is bilinear


def _require(right: bool, rule: str, found: object) -> None:
    if not right:
        raise ConfigError(f"{rule}, found {found}")


def _sigmoid(logit: Floats) -> Floats:
    return 1 / (1 + np.exp(-logit))


@dataclass(frozen=True)
class Span:
    """Which log of a world: how many rows, by which seed, from which day to which."""

    rows: int
    seed: int
    first_day: int
    last_day: int

    @property
    def starts(self) -> range:
        """The first row of each block."""
        return range(0, self.rows, BLOCK)


@dataclass(frozen=True)
class Block:
    """Some rows of a log: a code (B,) for each field, the true probabilities (B,) and the clicks (B,)."""

    codes: dict[str, Codes]
    probability: Floats
    clicks: NDArray[np.int8]


class World:
    """A click world of one of KINDS; the same kind, seed, base rate and days give the same world.

    With `churn` this share of the values of each large field, such as users and items, die each day, and others are
    born; without it about a third of them change once in the life of the world.

    >>> world = World("demo", seed=1)
    >>> log = world.log(rows=1000)
    >>> bool(abs(log.probability - world.probability(log.table)).max() < 1e-6)
    True
    """

    label = "click"

    def __init__(
        self,
        kind: str = "demo",
        seed: int = 0,
        base_rate: float | None = None,
        days: int = 10,
        networks: float = NETWORKS,
        active: float = ACTIVE,
        churn: float = 0.0,
    ) -> None:
        if kind not in KINDS:
            raise ConfigError(unknown("kind", kind, KINDS))
        self.kind, self.seed, self.days = kind, seed, days
        chosen = KINDS[kind]
        self.base_rate = chosen.rate if base_rate is None else base_rate
        _require(0 < self.base_rate < 1, "base_rate must lie between 0 and 1", base_rate)
        _require(days >= 1, "days must be at least 1", days)
        _require(0 <= networks <= 1, "networks must lie within 0..1", networks)
        _require(0 < active <= 1, "active must lie above 0 and at most at 1", active)
        _require(0 <= churn <= 1, "churn must lie within 0..1", churn)
        self.networks, self.active = networks, active
        rng = self._rng(zlib.crc32(kind.encode()))
        self.columns = {column.name: column for column in chosen.columns}
        self.field_names = list(self.columns)
        self.fields: dict[str, Field] = {}
        for name in sorted(self.field_names, key=lambda name: len(self._line(name))):
            owner = self.columns[name].of
            self.fields[name] = Field(self.columns[name], self.fields[owner].size if owner else 0, days, rng, churn)
        self.effects = self._plant(rng)
        self.active_pairs = [(e.fields[0], e.fields[1]) for e in self.effects if len(e.fields) == 2]
        repeats = chosen.repeats
        self.returns = Returns(repeats, self.fields[repeats.user], self.fields[repeats.item], seed) if repeats else None
        self._scale(chosen.strength)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of this world's logit."""
        return (*PARTS, TASTE) if self.returns else tuple(PARTS)

    @property
    def item_names(self) -> list[str]:
        """The fields in which the candidates of a request differ; the others are its context."""
        return [name for name in self.field_names if self.columns[self._line(name)[-1]].item]

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
            count = min(count, len(free))
            return [free[i] for i in rng.choice(len(free), count, replace=False, p=odds / odds.sum())]

        def weights(*shapes: tuple[int, ...]) -> tuple[NDArray[np.float32], ...]:
            return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)

        effects = [Effect("linear", (name,)) for name in names]
        for i, pair in enumerate(pick(2, round(self.active * len(self.fields) * (len(self.fields) - 1) / 2))):
            net = weights((HIDDEN, RANK), (HIDDEN, RANK), (HIDDEN, 1), (HIDDEN,))
            is_net = int((i + 1) * self.networks) > int(i * self.networks)
            effect = Effect("net", pair, net) if is_net else Effect("bilinear", pair, weights((RANK, RANK)))
            effects.append(replace(effect, scale=1 / (1 + i / 20)))
        return effects + [Effect("rule", triple) for triple in pick(3, 4)]

    def _scale(self, strength: float) -> None:
        """Give each part its standard deviation and the world its base rate, on a fixed sample of rows."""
        rows = min(100_000, 4_000_000 // len(self.active_pairs))
        codes = self._draw(self._rng(1), *self._clock(rows, 0, rows, 0, self.days - 1))
        for name, code in codes.items():
            self.fields[name].standardize(code)
        vectors, logit = self._vectors(codes), np.zeros(rows)
        for part, deviation in self._deviations().items():
            effects = [effect for effect in self.effects if effect.part == part]
            for effect in effects:
                effect.scale *= effect.scale / max(effect(vectors).std(), 1e-3)
            total = np.sum([effect(vectors) for effect in effects], axis=0)
            for effect in effects:
                effect.scale *= strength * deviation / total.std()
            logit += total * strength * deviation / total.std()
        logit += self._taste(codes)
        low, high = -100.0, 100.0
        while high - low > 1e-9:
            self.bias = (low + high) / 2
            over = _sigmoid(logit + self.bias).mean() > self.base_rate
            low, high = (low, self.bias) if over else (self.bias, high)

    def _deviations(self) -> dict[str, float]:
        """The standard deviation of each part of the logit; that of all pairs together is the same in every world."""
        if self.networks == NETWORKS:
            return PARTS
        shares = {"bilinear": (1 - self.networks) * PARTS["bilinear"] ** 2, "net": self.networks * PARTS["net"] ** 2}
        pairs, total = PARTS["bilinear"] ** 2 + PARTS["net"] ** 2, sum(shares.values())
        own = {part: (pairs * share / total) ** 0.5 for part, share in shares.items()}
        return {part: own.get(part, deviation) for part, deviation in PARTS.items() if own.get(part, deviation)}

    @staticmethod
    def _clock(rows: int, start: int, stop: int, first: int, last: int) -> tuple[Codes, Codes]:
        """The day and the hour of the rows start..stop out of `rows` that fill the days evenly, the nights thinly."""
        time = first + (np.arange(start, stop) + 0.5) / rows * (last - first + 1)
        day = time.astype(np.int64)
        traffic = np.cumsum(1 - 0.8 * np.cos(2 * np.pi * (np.arange(24) - 3) / 24))
        return day, np.searchsorted(traffic / traffic[-1], time - day)

    def _draw(
        self,
        rng: np.random.Generator,
        day: Codes,
        hour: Codes,
        only: Collection[str] = (),
        distinct: int = 0,
        known: Mapping[str, Codes] | None = None,
    ) -> dict[str, Codes]:
        """Codes of rows at these times; if asked, of some fields only, and with distinct runs in their first root.

        `known` are codes of the same rows that were drawn before, such as those of the user whose items these are.
        """
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
            elif column.style in NUMERIC:
                codes[name] = field.numbers(rng, len(day))
            else:
                slot = field.slots_of(rng, day)
                if self.returns and name == self.returns.repeats.item:
                    slot = self.returns.draw(rng, slot, {**(known or {}), **codes}[self.returns.repeats.user], day)
                slot, distinct = (field.told_apart(rng, slot, distinct), 0) if distinct else (slot, 0)
                codes[name] = field.alive(slot, day)
            if column.missing:
                codes[name] = np.where(rng.random(len(day)) < column.missing, field.size, codes[name])
        return codes

    def _vectors(self, codes: dict[str, Codes]) -> Vectors:
        return {name: np.ascontiguousarray(self.fields[name].vectors[code].T) for name, code in codes.items()}

    def _taste(self, codes: Mapping[str, Codes]) -> Floats | float:
        """What the pairs of user and item add to the logit, in a world of repeats."""
        if self.returns is None:
            return 0.0
        return self.returns.taste(codes[self.returns.repeats.user], codes[self.returns.repeats.item])

    def _truth(self, vectors: Vectors, codes: Mapping[str, Codes], parts: Collection[str]) -> Floats:
        logit = np.sum([e(vectors) for e in self.effects if e.part in parts], axis=0) + self.bias
        return _sigmoid(logit + (self._taste(codes) if TASTE in parts else 0.0))

    def raw(self, codes: dict[str, Codes]) -> dict[str, pa.Array]:
        """The columns as they are logged, null where missing."""
        indices = {n: pa.array(codes[n], mask=codes[n] == self.fields[n].size) for n in self.field_names}
        return {name: self.fields[name].values.take(index) for name, index in indices.items()}

    @cached_property
    def _packed(self) -> Packed:
        return Packed(self.fields, self.effects, self.bias)

    def span(self, rows: int, seed: int = 0, first_day: int = 0, last_day: int | None = None) -> Span:
        """The log of these rows from first_day to last_day, to the end of the world if not said."""
        last = self.days - 1 if last_day is None else last_day
        _require(rows >= 1, "rows must be at least 1", rows)
        _require(0 <= first_day <= last < self.days, f"days must lie within 0..{self.days - 1}", f"{first_day}..{last}")
        return Span(rows, seed, first_day, last)

    def codes(self, span: Span, start: int) -> dict[str, Codes]:
        """The codes of a block's rows, without their truth."""
        return self._codes(self._stream(span, start), span, start)

    def block(self, span: Span, start: int) -> Block:
        """The block of a log that begins with row `start`. Each has a separate random stream, so that a log is the same
        however it is cut, and whichever process draws its blocks, in any order."""
        rng = self._stream(span, start)
        codes = self._codes(rng, span, start)
        probability = _sigmoid(self._packed.logits(codes) + self._taste(codes))
        return Block(codes, probability, (rng.random(len(probability)) < probability).astype(np.int8))

    def _stream(self, span: Span, start: int) -> np.random.Generator:
        return self._rng(2, span.seed, span.first_day, start)

    def _codes(self, rng: np.random.Generator, span: Span, start: int) -> dict[str, Codes]:
        stop = min(start + BLOCK, span.rows)
        return self._draw(rng, *self._clock(span.rows, start, stop, span.first_day, span.last_day))

    def _blocks(self, span: Span) -> Iterator[Log]:
        for start in span.starts:
            block = self.block(span, start)
            yield Log(pa.table({self.label: block.clicks, **self.raw(block.codes)}), block.probability)

    def log(self, rows: int, seed: int = 0, first_day: int = 0, last_day: int | None = None) -> Log:
        """`rows` impressions from first_day to last_day (to the end of the world if not said), in time order."""
        return join(list(self._blocks(self.span(rows, seed, first_day, last_day))))

    def chunks(
        self, rows: int, seed: int = 0, chunk: int = 200_000, first_day: int = 0, last_day: int | None = None
    ) -> Iterator[Log]:
        """The rows of `log`, `chunk` at a time."""
        _require(chunk >= 1, "chunk must be at least 1", chunk)
        blocks = self._blocks(self.span(rows, seed, first_day, last_day))
        held = next(blocks)
        while len(held):
            while len(held) < chunk and (block := next(blocks, None)):
                held = join([held, block])
            yield held[:chunk]
            held = held[chunk:] if len(held) > chunk else next(blocks, held[:0])

    def candidates(self, requests: int, per_request: int, day: int = 0, seed: int = 0) -> Log:
        """Rows to rank, without a label: those of one `request` share its context and differ in the item."""
        items = self.item_names
        most = next(self.fields[name].slots for name in items if not self.columns[name].of)
        _require(requests >= 1, "requests must be at least 1", requests)
        _require(1 <= per_request <= most, f"per_request must lie within 1..{most}", per_request)
        _require(0 <= day < self.days, f"day must lie within 0..{self.days - 1}", day)
        rng = self._rng(3, seed, day)
        request = np.repeat(np.arange(requests), per_request)
        days, hours = self._clock(requests, 0, requests, day, day)
        context = self._draw(rng, days, hours, only=set(self.field_names) - set(items))
        codes = {name: code[request] for name, code in context.items()}
        codes |= self._draw(rng, days[request], hours[request], items, per_request, codes)
        return Log(
            pa.table({"request": request, **self.raw(codes)}), self._truth(self._vectors(codes), codes, self.parts)
        )

    def probability(self, table: pa.Table, parts: Collection[str] | None = None) -> Floats:
        """The true P(click=1 | row) of any rows with this world's fields; of some `parts` of the logit, if asked."""
        for name in self.field_names:
            if name not in table.column_names:
                raise DataError(f"column '{name}' is missing; {self.kind} has {', '.join(self.field_names)}")
        found = [np.zeros(0)]
        for start in range(0, table.num_rows, BLOCK):
            rows = table.slice(start, BLOCK)
            vectors = {name: np.ascontiguousarray(field.look_up(rows[name]).T) for name, field in self.fields.items()}
            paired = (self.returns.repeats.user, self.returns.repeats.item) if self.returns else ()
            codes = {name: self.fields[name].codes_of(rows[name]) for name in paired}
            found.append(self._truth(vectors, codes, self.parts if parts is None else parts))
        return np.concatenate(found)
