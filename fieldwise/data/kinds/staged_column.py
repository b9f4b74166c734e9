"""A column of the staged training rows, counted by DuckDB out of memory: what the kinds fit on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.data.kinds.buckets import Histogram
from fieldwise.data.read.formats import text_of

# Texts that `text_of` may spell in another way.
RESPELT = "suffix(v, '.0') OR v IN ('True', 'False')"


@dataclass(frozen=True)
class StagedColumn:
    """A column as DuckDB sees it: the connection, the rows, its name there, and the label's."""

    base: Any
    source: str
    name: str
    label: str

    @property
    def is_list(self) -> bool:
        """Whether its cells hold several values."""
        return str(self.base.sql(f"SELECT {self.name} FROM {self.source} LIMIT 0").types[0]).endswith("[]")

    def most(self, expression: str) -> int:
        """The largest value of an expression over the rows; 0 where all are missing."""
        return int(self.base.sql(f"SELECT max({expression}) FROM {self.source}").fetchall()[0][0] or 0)

    def counted(self, cell: str = "") -> Counted:
        """What an expression gives for the cells, or what they hold without one; the last count holds alone."""
        cells = f"SELECT {cell or self.name} AS v, {self.label} AS label FROM {self.source}"
        counts = f"SELECT v, count(*) AS n, sum(label) AS p FROM ({cells}) GROUP BY v"
        self.base.execute(f"CREATE OR REPLACE TEMP TABLE counts AS {counts}")
        return Counted(self.base)


@dataclass(frozen=True)
class Counted:
    """The table `counts` in DuckDB: each value v, in how many rows n, and how many of these are positive, p."""

    base: Any

    def texts(self, least: int) -> list[tuple[str, int]]:
        """How often each text occurs; of those below `least` only some.

        Rare ones stay inside of DuckDB: there may be more of them than memory holds. But texts that say the same, such
        as 3 and 3.0, count together, so that all of these are needed.
        """
        if str(self.base.sql("SELECT v FROM counts LIMIT 0").types[0]) != "VARCHAR":
            return summed((text_of(v) or "", n) for v, n in self.base.sql("SELECT v, n FROM counts").fetchall())
        respelt = self.base.sql(f"SELECT v, n FROM counts WHERE {RESPELT}").fetchall()
        enough = f"n >= {least}"
        if respelt:
            self.base.register("same", pa.table({"v": pa.array([text_of(v) for v, _ in respelt], pa.string())}))
            enough += " OR v IN (FROM same)"
        query = f"SELECT v, n FROM counts WHERE ({enough}) AND NOT ({RESPELT})"
        plain: list[tuple[str, int]] = self.base.sql(query).fetchall()
        return summed((text_of(v) or "", n) for v, n in [*plain, *respelt]) if respelt else plain

    def odd_texts(self) -> list[str]:
        """The first of the texts that DuckDB takes for no number."""
        query = "SELECT v FROM counts WHERE TRY_CAST(v AS DOUBLE) IS NULL AND v IS NOT NULL ORDER BY v LIMIT 100"
        return [text for (text,) in self.base.sql(query).fetchall()]

    def histogram(self) -> Histogram:
        """The finite numbers."""
        numbers = "SELECT TRY_CAST(v AS DOUBLE) AS x, sum(n)::BIGINT AS n, sum(p)::BIGINT AS p"
        found = self.base.sql(f"{numbers} FROM counts GROUP BY x ORDER BY x").fetchnumpy()
        values = np.ma.filled(np.ma.asarray(found["x"], dtype=np.float64), np.nan)
        keep = np.isfinite(values)
        return Histogram(values[keep], *(np.asarray(found[name], dtype=np.int64)[keep] for name in ("n", "p")))


def summed(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Counts of texts that different raw values share, such as 3 and 3.0."""
    total: dict[str, int] = {}
    for text, n in pairs:
        total[text] = total.get(text, 0) + n
    return list(total.items())
