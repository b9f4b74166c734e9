"""The members of a blend behind one schema, one encoder and one model, so callers see no difference.

Members with different encoders read different ids of a row. Joined, a row has the ids of all encoders side by side, and
a field that several encoders have is one field with several columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.bundle.scoring import Scorer, Trained, reads_ranks
from fieldwise.config.documents import number, numbers, parsed
from fieldwise.config.errors import BundleError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.read.cells import Cells
from fieldwise.data.schema import Field, Layout, Schema

M = TypeVar("M", bound=Scorer)
Columns = NDArray[np.int64] | slice


@dataclass(frozen=True)
class JoinedSchema(Schema):
    """Several schemas of the same rows: the union of their fields and of the columns they read."""

    parts: tuple[Schema, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Schema]) -> JoinedSchema:
        fields: dict[str, Field] = {}
        for field in (field for part in parts for field in part.fields):
            fields.setdefault(field.name, field)
        first = parts[0]
        joined = cls(first.label, tuple(fields.values()), first.weight, recipe=first.recipe, parts=tuple(parts))
        return replace(joined, positive=first.positive, negative=first.negative)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for part in self.parts for name in part.columns))

    @property
    def optional(self) -> set[str]:
        needed = (set(part.columns) - part.optional for part in self.parts)
        return set(self.columns).difference(*needed)


class JoinedEncoder:
    """Several encoders of the same rows; `columns` are those of each encoder in the joined ids (n, C)."""

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        self.encoders = encoders
        self.names = list(dict.fromkeys(name for encoder in encoders for name in encoder.names))
        own = [[self.names.index(name) for name in encoder.names] for encoder in encoders]
        layouts = [encoder.layout for encoder in encoders]
        fields = [places[f] for places, layout in zip(own, layouts, strict=True) for f in layout.column_fields]
        # In a layout, the columns of a field are adjacent.
        self.order = np.argsort(fields, kind="stable")
        ends = np.cumsum([layout.columns for layout in layouts])
        self.columns = np.split(np.argsort(self.order), ends[:-1])
        sizes = np.zeros(len(self.names), dtype=np.int64)
        for places, layout in zip(own, layouts, strict=True):
            np.maximum.at(sizes, places, layout.sizes)
        self.layout = Layout(tuple(sizes.tolist()), tuple(np.bincount(fields).tolist()))

    def transform(self, table: pa.Table | Cells, served: bool = False) -> NDArray[np.int32]:
        """Raw columns -> joined ids (n, C); in rows that are `served`, positions are fixed."""
        return self.join([encoder.transform(table, served=served) for encoder in self.encoders])

    def join(self, ids: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """The ids of the same rows by each encoder -> joined ids (n, C)."""
        return np.ascontiguousarray(np.hstack(ids)[:, self.order])


class JoinedIds:
    """Joined ids of rows that are on disk once for each encoder; reads only the requested rows."""

    def __init__(self, encoder: JoinedEncoder, ids: Sequence[NDArray[np.int32]]) -> None:
        self.encoder, self.ids = encoder, ids

    def __len__(self) -> int:
        return len(self.ids[0])

    def __getitem__(self, rows: Any) -> NDArray[np.int32]:
        return self.encoder.join([ids[rows] for ids in self.ids])


def parts_of(encoder: Encoder | JoinedEncoder) -> list[tuple[Encoder, Columns]]:
    """The different encoders of a bundle, and the columns of each in the bundle's ids (n, C)."""
    if isinstance(encoder, JoinedEncoder):
        return list(zip(encoder.encoders, encoder.columns, strict=True))
    return [(encoder, slice(None))]


def as_served(encoder: Encoder | JoinedEncoder, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The bundle's ids (n, C) of rows as they were shown -> as they are served, with positions fixed."""
    return join(encoder, [own.served(ids[:, columns]) for own, columns in parts_of(encoder)])


def join(encoder: Encoder | JoinedEncoder, ids: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """The ids of the same rows by each encoder of `parts_of` -> the bundle's (n, C)."""
    return encoder.join(ids) if isinstance(encoder, JoinedEncoder) else ids[0]


@dataclass(frozen=True)
class Member(Generic[M]):
    """A model of a blend, its encoder, the columns of the ids that it reads, and an offset to add to its logits."""

    model: M
    encoder: Encoder
    columns: Columns
    offset: float = 0.0

    def own(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The blend's ids (n, C) -> the member's."""
        return self.read(ids[:, self.columns])

    def read(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """What its encoder gives (n, C) -> the columns that the model reads: only trees read ranks."""
        columns = ids.shape[1] if reads_ranks(self.model) else self.encoder.layout.id_columns
        return np.ascontiguousarray(ids[:, :columns])

    def corrected(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """The model's logits, corrected if it was trained on a share of the negatives."""
        return logits.astype(np.float64) + self.offset

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        return self.corrected(self.model.logits(self.own(ids)))


class Blend(Generic[M]):
    """Several models as one: logit = sum over members of weight * logit, plus a shift; at first, their mean."""

    file = "blend.json"
    reads_ranks = True

    def __init__(self, members: Sequence[Member[M]]) -> None:
        self.members = members
        self.weights, self.shift = np.full(len(members), 1 / len(members)), 0.0

    def each(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        """The logits of each member: ids (n, C) -> (K, n)."""
        return np.stack([member.logits(ids) for member in self.members])

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        return self.weighted(member.logits(ids) for member in self.members)

    def weighted(self, each: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The members' corrected logits, (n,) each -> the blend's (n,)."""
        # Summed member by member: numpy would sum a single row in another order, and a row's logit must not depend on
        # its neighbours.
        total: Any = sum(weight * own for weight, own in zip(self.weights.tolist(), each, strict=True))
        return np.asarray(total + self.shift)

    @property
    def size(self: Blend[Trained]) -> int:
        """The number of learnt parameters: those of all members, and the weights."""
        return sum(member.model.size for member in self.members) + len(self.members)

    def to(self: Blend[Trained], device: Any) -> Blend[Trained]:
        for member in self.members:
            member.model.to(device)
        return self

    def save(self, path: Path) -> None:
        values = {"weights": self.weights.tolist(), "shift": self.shift}
        path.write_text(json.dumps(values, indent=1), encoding="utf-8")

    def load(self, path: Path) -> None:
        weights, self.shift = blend_weights(path)
        self.weights = np.array(weights, dtype=np.float64)
        if len(weights) != len(self.members):
            found = f"{len(self.members)} members and {len(weights)} weights"
            raise BundleError(f"a blend needs a weight for each member, found {found} ({path})")


def blend_weights(path: Path) -> tuple[list[float], float]:
    """The weights of a blend's members, 0 or more, and its shift, from blend.json."""
    try:
        values = parsed(path)
        weights, shift = numbers(values, "weights"), number(values, "shift")
        if not weights or min(weights) < 0:
            raise ValueError("weights are one or more numbers of 0 or more")
    except (OSError, ValueError, KeyError) as error:
        raise BundleError(f"the weights of the blend are damaged: {error} ({path})") from None
    return weights, shift
