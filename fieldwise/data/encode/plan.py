"""What to prepare: the rows of each part, and what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fieldwise.config.errors import ConfigError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.expiry import Expiry
from fieldwise.data.encode.split import Rows, Split
from fieldwise.data.kinds.past import PastField
from fieldwise.data.read.labels import ZERO_ONE, Classes
from fieldwise.data.schema import HistorySettings, Schema


@dataclass(frozen=True)
class Inputs:
    """The files that rows come from, and how they are read where that is a choice."""

    files: Sequence[Path]
    reading: str = ""


@dataclass(frozen=True)
class Plan:
    """What `prepare` makes of rows.

    `sources` holds rows for `train` and, where they are given apart, `valid` and `test`; without them the
    training rows are split, beside test rows into training and validation rows. Without a schema all columns but those
    to `drop` may become fields, with one all of its fields but those. `names` say
    where the rows of a source come from, for errors. `keep_negatives` is the share of negatives that training
    rows keep, drawn by the split's seed; probabilities are corrected for it. `gbdt_leaves` trees add a field each,
    `history` those of what came before; without it the schema's own stands, and `auto` in it gives way to the keys that
    are proposed. `sequences` are fields of earlier rows that the schema gets beside its own. With a `known` encoder its
    schema and ids stay, and its history goes on; the training rows only add ids behind the old ones. `recipe` is how
    the raw files were read, for those that will read more of them. `threads` (0: all cores) change nothing but the
    time. With the `inputs` that the rows come from, a killed `prepare` goes on where it was. `keep_rows` leaves the raw
    rows in the folder too, for what on_demand.py makes of them. `classes` are the label's two values, if they are not
    the schema's. `position` is the field that says where a row was shown. `expire_after`
    says after how long without a row values lose their ids (expiry.py); without it a known encoder's rule stands.
    """

    sources: Mapping[str, Rows]
    label: str
    schema: Schema | None = None
    split: Split = field(default_factory=Split)
    weight: str = ""
    drop: Collection[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    keep_negatives: float = 1.0
    gbdt_leaves: int = 0
    history: HistorySettings | None = None
    sequences: tuple[PastField, ...] = ()
    known: Encoder | None = None
    recipe: str = ""
    threads: int = 0
    inputs: Inputs | None = None
    keep_rows: bool = False
    classes: Classes | None = None
    position: str = ""
    expire_after: Sequence[str] = ()

    def __post_init__(self) -> None:
        said = (self.expire_after,) if isinstance(self.expire_after, str) else tuple(self.expire_after)
        object.__setattr__(self, "expire_after", said)
        Expiry(said)
        if not 0 < self.keep_negatives <= 1:
            raise ConfigError(f"--keep-negatives takes a share above 0 and at most 1, found {self.keep_negatives}")
        if self.threads < 0:
            raise ConfigError(f"--threads takes a number of threads, 0 for all cores, found {self.threads}")
        if (self.split.by or self.split.group) and not self.divides:
            raise ConfigError("--split-by splits the training rows; leave it out where --valid is given")

    @property
    def parting(self) -> Split:
        """The split, as it is beside the sources that are given."""
        return self.split.beside(self.sources)

    @property
    def divides(self) -> bool:
        """Whether training rows are split."""
        return self.parting.divides(self.sources)

    @property
    def past(self) -> HistorySettings:
        """The history that is asked for, or the schema's own."""
        schema = self.known.schema if self.known else self.schema
        return self.history or (schema.history if schema else HistorySettings())

    @property
    def given(self) -> Schema | None:
        """The schema that stands before a row is read: the known one, or the one that was given, without what is to
        be dropped."""
        schema = self.known.schema if self.known else self.schema and self.schema.without(self.drop)
        return self.with_past(schema).with_position(self.position) if schema else None

    def with_past(self, schema: Schema) -> Schema:
        """A schema with the history and the sequences that are asked for."""
        new = tuple(field for field in self.sequences if field not in schema.fields)
        return replace(schema, history=self.past, fields=(*schema.fields, *new))

    @property
    def log_fields(self) -> list[PastField]:
        """The fields that are made of earlier rows: those of the schema, and those that are asked for."""
        schema = self.given
        return [field for field in (schema.fields if schema else self.sequences) if isinstance(field, PastField)]

    @property
    def values(self) -> Classes:
        """The two values of the label."""
        return self.classes or (self.given.classes if self.given else ZERO_ONE)
