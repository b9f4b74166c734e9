"""MovieLens 1M and 100K: who likes which film; a film's genres are a set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fieldwise.config.errors import DataError
from fieldwise.data.read import delimited
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.delimited import Text
from fieldwise.data.recipes.recipe import Derived, Join, Recipe, fields
from fieldwise.data.schema import Field

RATINGS = ("user", "movie", "rating", "timestamp")
UNRATED = ("user", "movie", "timestamp")
FIELDS = (
    *fields("user movie gender age occupation zip", min_count=1),
    Field("genres", "set", min_count=1, max_values=8),
)
# The columns of u.item that say 1 where a film is of the genre.
GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
COLONS, TABS, BARS = (Text(mark, bare=True, encoding="latin-1") for mark in ("::", "\t", "|"))


@dataclass(frozen=True)
class Beside:
    """A file beside the ratings, and its columns, the first of which the ratings have too."""

    name: str
    columns: tuple[str, ...]
    text: Text

    def table(self, ratings: Path, recipe: str) -> pa.Table:
        """Its rows; where it has a column for each genre, a set of them instead."""
        file = ratings.with_name(self.name)
        if not file.is_file():
            raise DataError(f"recipe '{recipe}' needs {self.name} beside the ratings, found none ({ratings.parent})")
        text = Text(self.text.delimiter, self.columns, self.text.bare, self.text.encoding)
        found = len(text.first_cells(file))
        if found != len(self.columns):
            most = ", ".join(self.columns[:5]) + (" ..." if len(self.columns) > 5 else "")
            expected = f"{len(self.columns)} columns ({most}) between '{text.delimiter}'"
            raise DataError(f"expected {expected}, found {found} ({file})")
        table = pa.concat_tables(delimited.read(file, text, self.columns, self.columns, BadRows()))
        return _with_genres(table) if GENRES[0] in self.columns else table


def _with_genres(films: pa.Table) -> pa.Table:
    own = np.column_stack([pc.equal(films[name], "1").fill_null(False).to_numpy() for name in GENRES])
    texts = ["|".join(np.array(GENRES)[row]) for row in own]
    return films.drop_columns(list(GENRES)).append_column("genres", pa.array(texts, pa.string()))


def with_people_and_films(recipe: str, *files: Beside) -> Callable[[Path], Join]:
    """What the files beside the ratings say of each row's user and film."""

    def beside(path: Path) -> Join:
        tables = [file.table(path, recipe) for file in files]

        def join(rows: pa.Table) -> pa.Table:
            for table in tables:
                key = table.column_names[0]
                places = pc.index_in(rows[key], table[key].combine_chunks()).combine_chunks()
                for name in table.column_names[1:]:
                    rows = rows.append_column(name, table[name].combine_chunks().take(places))
            return rows

        return join

    return beside


def _recipe(name: str, text: Text, beside: tuple[Beside, Beside], **more: Any) -> Recipe:
    return Recipe(
        name=name,
        terms="GroupLens: research, no redistribution without permission, no commercial use without permission",
        label="liked",
        layouts=(RATINGS, UNRATED),
        text=text,
        header=False,
        cells={"user": r"\d+", "movie": r"\d+", "rating": "[1-5]", "timestamp": r"\d+"},
        fields=FIELDS,
        derived=(Derived("liked", "rating", lambda rating: int(float(rating) >= 4)),),
        join=with_people_and_films(name, *beside),
        joined=("user", "movie"),
        remarks=(
            "timestamp and title are columns, not fields: --split-by timestamp, --history-set time=timestamp, "
            "--sequence 'movie by user last 50'",
        ),
        **more,
    )


MOVIELENS = _recipe(
    "movielens-1m",
    COLONS,
    (
        Beside("users.dat", ("user", "gender", "age", "occupation", "zip"), COLONS),
        Beside("movies.dat", ("movie", "title", "genres"), COLONS),
    ),
    title="MovieLens 1M: a rating of 4 or 5 is a like; 7 fields, genres as a set",
    link="GroupLens: MovieLens 1M dataset (ml-1m.zip)",
    files="ratings.dat with users.dat and movies.dat beside it, or their folder",
    parts={"train": r"ratings\.dat(\.gz)?"},
    aside=r"(users|movies)\.dat|README.*",
    rows={"train": 1_000_209},
)
SMALL = _recipe(
    "movielens-100k",
    TABS,
    (
        Beside("u.user", ("user", "age", "gender", "occupation", "zip"), BARS),
        Beside("u.item", ("movie", "title", "released", "on_video", "link", *GENRES), BARS),
    ),
    title="MovieLens 100K: a rating of 4 or 5 is a like; 7 fields, genres as a set",
    link="GroupLens: MovieLens 100K dataset (ml-100k.zip)",
    files="u.data with u.user and u.item beside it, or their folder",
    parts={"train": r"u\.data(\.gz)?"},
    aside=r"u\.(user|item|genre|info|occupation)|README.*",
    rows={"train": 100_000},
)
