"""MovieLens 1M: who likes which film; a film's genres are a set."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fieldwise.config.errors import DataError
from fieldwise.data.read import delimited
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.delimited import Text
from fieldwise.data.recipes.recipe import Derived, Join, Recipe, fields
from fieldwise.data.schema import Field

RATINGS = ("user", "movie", "rating", "timestamp")
USERS = ("user", "gender", "age", "occupation", "zip")
MOVIES = ("movie", "title", "genres")
TEXT = Text("::", bare=True, encoding="latin-1")


def with_people_and_films(path: Path) -> Join:
    """What users.dat and movies.dat, beside the ratings, say of each row's user and film."""
    tables = [_beside(path, name, columns) for name, columns in (("users.dat", USERS), ("movies.dat", MOVIES))]

    def join(rows: pa.Table) -> pa.Table:
        for table in tables:
            key = table.column_names[0]
            places = pc.index_in(rows[key], table[key].combine_chunks()).combine_chunks()
            for name in table.column_names[1:]:
                rows = rows.append_column(name, table[name].combine_chunks().take(places))
        return rows

    return join


def _beside(path: Path, name: str, columns: tuple[str, ...]) -> pa.Table:
    file = path.with_name(name)
    if not file.is_file():
        raise DataError(f"recipe 'movielens-1m' needs {name} beside the ratings, found none ({path.parent})")
    text = Text(TEXT.delimiter, columns, TEXT.bare, TEXT.encoding)
    found = len(text.first_cells(file))
    if found != len(columns):
        raise DataError(f"expected {len(columns)} columns ({', '.join(columns)}) between '::', found {found} ({file})")
    return pa.concat_tables(delimited.read(file, text, columns, columns, BadRows()))


MOVIELENS = Recipe(
    name="movielens-1m",
    title="MovieLens 1M: a rating of 4 or 5 is a like; 7 fields, genres as a set",
    link="GroupLens: MovieLens 1M dataset (ml-1m.zip)",
    terms="GroupLens: research, no redistribution without permission, no commercial use without permission",
    files="ratings.dat with users.dat and movies.dat beside it, or their folder",
    label="liked",
    layouts=(RATINGS, ("user", "movie", "timestamp")),
    text=TEXT,
    header=False,
    cells={"user": r"\d+", "movie": r"\d+", "rating": "[1-5]", "timestamp": r"\d+"},
    fields=(
        *fields("user movie gender age occupation zip", min_count=1),
        Field("genres", "set", min_count=1, max_values=8),
    ),
    derived=(Derived("liked", "rating", lambda rating: int(float(rating) >= 4)),),
    join=with_people_and_films,
    joined=("user", "movie"),
    parts={"train": r"ratings\.dat(\.gz)?"},
    aside=r"(users|movies)\.dat|README.*",
    rows={"train": 1_000_209},
    remarks=("timestamp and title are columns, not fields: --split-by timestamp, --history-set time=timestamp",),
)
