"""`prepare` and `compare` as one scikit-learn classifier: the usual models, their blend, and the best of them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fieldwise.bundle import bundle
from fieldwise.config.errors import ArgumentError, BundleError, ConfigError, DataError
from fieldwise.data.recipes.asked import Asked
from fieldwise.data.recipes.prepared import prepare_asked
from fieldwise.data.schema import Schema
from fieldwise.experiments.compare import compare
from fieldwise.experiments.lineup import lineup
from fieldwise.reporting.console import ComparisonBar
from fieldwise.train.estimator import WEIGHT, BundleClassifier, read_schema

# What is in the folder of a fit.
ROWS, DATA = "rows.parquet", "data"


class AutoClassifier(BundleClassifier):
    """What `fieldwise prepare` and `fieldwise compare` leave in `best`, as a scikit-learn classifier.

    It holds rows out of X by itself: by time where a column is one, else at random. The parameters have the names and
    meanings of the command line, and its defaults. time_column: `--split-by`, the column whose order splits the rows,
    or `none`; groups: `--split-group`, columns whose equal values stay together; time_budget: seconds, `--time`;
    models, blend: names with commas; schema: a Schema or the path of a schema.toml; seed: of the random split; verbose:
    a progress bar. Columns of an array are c0, c1 ...; their number does as well.
    """

    def __init__(
        self,
        models: str = "",
        *,
        time_column: str | int | None = None,
        groups: str | int | Sequence[str | int] | None = None,
        time_budget: float | None = None,
        seeds: int | None = None,
        blend: str = "",
        refit: bool = True,
        schema: Schema | str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.models = models
        self.time_column = time_column
        self.groups = groups
        self.time_budget = time_budget
        self.seeds = seeds
        self.blend = blend
        self.refit = refit
        self.schema = schema
        self.seed = seed
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AutoClassifier:
        """Trains the models on the rows X with responses y of two values, and keeps the best.

        `report_` is what `fieldwise compare --json` prints, `notes_` what `prepare` notes; columns that it leaves out
        are in `left_out_`, and in a warning.
        """
        if self.time_budget is not None and not self.time_budget > 0:
            raise ConfigError(f"time_budget takes seconds above 0, or None, found {self.time_budget}")
        schema = None if self.schema is None else read_schema(self.schema)
        table, label, _ = self._rows(X, y, sample_weight, schema)
        by, groups = self._columns(self.time_column, table), self._columns(self.groups, table)
        with tempfile.TemporaryDirectory() as folder, _called_x(Path(folder)):
            file = Path(folder) / ROWS
            pq.write_table(table, file)
            asked = Asked(
                files=[file],
                label=label,
                weight="" if sample_weight is None else WEIGHT,
                schema=schema,
                split_by=by[0] if by else "",
                split_group=tuple(groups),
                seed=self.seed,
                keep_rows=True,
            )
            self._compare(asked, Path(folder))
        return self

    def _compare(self, asked: Asked, folder: Path) -> None:
        data, out = folder / DATA, folder / "comparison"
        facts, plan = prepare_asked(asked, data)
        entering = lineup(data, self.models, self.blend, self.seeds)
        with ComparisonBar(not self.verbose) as bar:
            found = compare(
                entering.entrants,
                data,
                out,
                entering.seeds,
                device="" if self.device == "auto" else self.device,
                watch=bar,
                members=entering.members,
                refit=self.refit,
                limit=math.inf if self.time_budget is None else self.time_budget,
            )
        self._keep(bundle.locate(Path(found["best"]["bundle"])))
        self.report_ = found
        facts["notes"] += entering.notes
        # Who gives a schema, or a time, knows which columns are no fields.
        known = {plan.split.by} if asked.schema is None else self._feature_names
        self._note(facts, Schema.load(data / "schema.toml"), known)

    def _columns(self, named: str | int | Sequence[str | int] | None, table: pa.Table) -> list[str]:
        """The names of columns that were named, or numbered."""
        if named is None:
            return []
        names = [named] if isinstance(named, (str, int, np.integer)) else list(named)
        return [name if isinstance(name, str) else table.column_names[name] for name in names]

    @property
    def _predicts_on(self) -> str:
        return "cpu" if self.device == "auto" else self.device  # as `fieldwise predict` does

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> AutoClassifier:
        """An estimator from a run or a bundle folder; its classes are 0 and 1."""
        loaded = cls(device=device)
        loaded.classes_ = np.array([0, 1])
        loaded._keep(bundle.locate(Path(path)))
        return loaded


@contextmanager
def _called_x(folder: Path) -> Iterator[None]:
    """Names the rows X in errors, not the files that they pass through."""
    try:
        yield
    except (DataError, BundleError) as error:
        said = str(error).replace(str(folder / ROWS), "X").replace(f" ({folder / DATA})", "")
        raise ArgumentError(said) from None
