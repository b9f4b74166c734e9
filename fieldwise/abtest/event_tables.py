"""The tables of the event log, in SQLite or any database that SQLAlchemy knows.

`impressions` has a row for everything that one request showed to one user from one arm; `content` is that as JSON.
`events` has a row for each response; `counted` marks the first response to a shown row, the one that histories count,
in the order of `seq`. `starts` has the `seq` from which a bundle without a time column counts.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from fieldwise.config.errors import ConfigError, DataError

FORMAT = 1
# An arbitrary number: all writers to a PostgreSQL log lock it, so `seq` rises in the order of commits.
WRITER_LOCK = 0x66_69_65_6C

metadata = sql.MetaData()
impressions = sql.Table(
    "impressions",
    metadata,
    sql.Column("request_id", sql.String(64), primary_key=True),
    sql.Column("part", sql.Integer, primary_key=True),
    sql.Column("kind", sql.String(16), nullable=False),
    sql.Column("arm", sql.String(255), nullable=False),
    sql.Column("unit", sql.Text, nullable=False),
    sql.Column("forced", sql.Boolean, nullable=False),
    sql.Column("model", sql.String(64), nullable=False),
    sql.Column("time", sql.Double, nullable=False, index=True),
    # Days since 1970 in UTC, by which reports group.
    sql.Column("day", sql.Integer, nullable=False),
    sql.Column("shown", sql.Integer, nullable=False),
    sql.Column("content", sql.LargeBinary, nullable=False),
)
events = sql.Table(
    "events",
    metadata,
    sql.Column("seq", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sql.Column("event_id", sql.String(200), nullable=False, unique=True),
    sql.Column("request_id", sql.String(64), nullable=False),
    sql.Column("part", sql.Integer, nullable=False),
    sql.Column("place", sql.Integer, nullable=False),
    sql.Column("label", sql.Integer, nullable=False),
    sql.Column("time", sql.Double, nullable=False),
    sql.Column("counted", sql.Boolean, nullable=False),
    sql.Column("more", sql.LargeBinary, nullable=True),
    sql.Index("events_of_a_row", "request_id", "place"),
    sqlite_autoincrement=True,
)
starts = sql.Table(
    "starts",
    metadata,
    sql.Column("model", sql.String(64), primary_key=True),
    sql.Column("seq", sql.BigInteger, nullable=False),
    sql.Column("time", sql.Double, nullable=False),
)
arms = sql.Table(
    "arms",
    metadata,
    sql.Column("arm", sql.String(255), primary_key=True),
    sql.Column("share", sql.Double, nullable=False),
    sql.Column("place", sql.Integer, nullable=False),
    sql.Column("field", sql.Text, nullable=False),
    sql.Column("salt", sql.Text, nullable=False),
)
facts = sql.Table("facts", metadata, sql.Column("format", sql.Integer, primary_key=True))


def url_of(log: str) -> sql.URL:
    """The SQLAlchemy URL of a log, which is a URL already or the path of an SQLite file."""
    if "://" not in log:
        return sql.URL.create("sqlite", database=str(Path(log).absolute()))
    try:
        return sql.make_url(log)
    except sql.exc.ArgumentError:
        raise ConfigError("a log is a path or a SQLAlchemy URL such as postgresql+psycopg://user@host/base") from None


def connect(log: str, writing: bool) -> sql.Engine:
    """Opens a log; creates it for writing if it does not exist."""
    url = url_of(log)
    if url.get_backend_name() == "sqlite":
        if not writing and not Path(url.database or "").is_file():
            raise DataError(f"there is no event log; `fieldwise serve` writes one ({url.database})")
        if writing and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    try:
        engine = sql.create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
        if url.get_backend_name() == "sqlite":
            _configure_sqlite(engine, writing)
        _check(engine, writing, str(url.render_as_string()))
    except (sql.exc.SQLAlchemyError, ImportError, sqlite3.Error) as error:
        raise DataError(f"cannot open the event log: {_reason(error)} ({url.render_as_string()})") from None
    return engine


def _configure_sqlite(engine: sql.Engine, writing: bool) -> None:
    """Sets SQLite up for a log: readers beside one writer, and commits that wait for the disk."""

    @sql.event.listens_for(engine, "connect")
    def settings(connection: sqlite3.Connection, _record: object) -> None:
        # `begin` below starts transactions, not the driver's heuristics.
        connection.isolation_level = None
        for line in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL") if writing else ("query_only=1",):
            connection.execute(f"PRAGMA {line}")

    @sql.event.listens_for(engine, "begin")
    def begin(connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _check(engine: sql.Engine, writing: bool, shown: str) -> None:
    with engine.begin() as connection:
        lock_writers(connection)
        if writing:
            metadata.create_all(connection)
            if connection.execute(sql.select(facts.c.format)).first() is None:
                connection.execute(facts.insert().values(format=FORMAT))
        found = connection.execute(sql.select(facts.c.format)).scalar()
        if found != FORMAT:
            raise DataError(f"expected an event log of format {FORMAT}, found {found} ({shown})")


def lock_writers(connection: sql.Connection) -> None:
    """Makes other writers wait until this transaction ends; SQLite does so when one begins."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(WRITER_LOCK)))


def _reason(error: Exception) -> str:
    found: Any = getattr(error, "orig", None) or error
    return str(found).splitlines()[0]
