"""Which files are taken, which wait, which are refused, and what is kept of their rows."""

import os
import time

import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from fieldwise.bundle.bundle import load_encoder
from fieldwise.config.errors import DataError
from fieldwise.follow import intake
from fieldwise.follow.journal import Taken
from tests.follow.days import day, text_of, write_day, write_gz


def taken(path, runs, name="history", **more):
    encoders = [load_encoder(runs[name])]
    target = path.parent.parent / "rows.parquet"
    reading = intake.Reading(encoders, intake.clock_of(encoders), **more)
    return intake.take(path, reading, target), target


def test_files_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("day-10.csv", "day-9.csv", ".day-8.csv", "day-8.csv.tmp", "_SUCCESS", "day-7.csv~", "day-11.csv.part"):
        (tmp_path / name).write_text("a\n1\n")
    (tmp_path / "older").mkdir()
    assert [path.name for path in intake.listed(tmp_path, "")] == ["day-9.csv", "day-10.csv"]
    assert [path.name for path in intake.listed(tmp_path, "day-9.csv")] == ["day-10.csv"]
    with pytest.raises(DataError, match="expected a folder of logs, found nothing"):
        intake.listed(tmp_path / "none", "")


def test_what_is_still_written_waits(tmp_path):
    text = text_of(day(3, 50))
    plain, packed, columns = tmp_path / "a.csv", tmp_path / "a.csv.gz", tmp_path / "a.parquet"
    plain.write_text(text)
    assert intake.unfinished(plain, 0) == ""
    assert "--min-age" in intake.unfinished(plain, 60)
    os.utime(plain, (time.time() - 61,) * 2)
    assert intake.unfinished(plain, 60) == ""
    plain.write_text(text[:-4])
    assert "last line has no end" in intake.unfinished(plain, 0)
    whole = write_gz(packed, text)
    assert intake.unfinished(packed, 0) == ""
    packed.write_bytes(whole[:-9])
    assert "end of the gzip file is not there" in intake.unfinished(packed, 0)
    write_gz(packed, text[:-4])
    assert "last line has no end" in intake.unfinished(packed, 0)
    packed.write_bytes(whole[:40] + bytes(20) + whole[60:])
    with pytest.raises(DataError, match="cannot read the file"):
        intake.unfinished(packed, 0)
    parquet.write_table(day(3, 50), columns)
    assert intake.unfinished(columns, 0) == ""
    columns.write_bytes(columns.read_bytes()[:-3])
    assert "parquet file is not there" in intake.unfinished(columns, 0)


def test_names_of_one_number_have_an_order(tmp_path):
    for name in ("day-9.csv", "day-09.csv", "day-009.csv"):
        (tmp_path / name).write_text("a\n1\n")
    found = [path.name for path in intake.listed(tmp_path, "")]
    assert found == ["day-009.csv", "day-09.csv", "day-9.csv"]
    assert intake.listed(tmp_path, "day-09.csv") == []


def test_a_time_ahead_of_the_clock_is_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n")
    os.utime(path, (time.time() + 3600,) * 2)
    assert intake.unfinished(path, 60) == "its time is 3,600 seconds ahead of the clock here"
    assert intake.unfinished(path, 0) == ""


def test_the_same_rows_by_another_name_are_refused(tmp_path, runs):
    """Logs are renamed and packed when they are rotated."""
    path = write_day(tmp_path / "logs", 3)
    facts, _ = taken(path, runs)
    packed = path.with_name("day-3.csv.1.gz")
    write_gz(packed, path.read_text())
    for name in (path.rename(path.with_name("old.csv")), packed.rename(packed.with_name("day-3.csv.gz"))):
        with pytest.raises(DataError, match=r"it holds what day-3.csv held, whose rows were taken"):
            taken(name, runs, contents={facts["content"]: "day-3.csv"})
    assert taken(name, runs)[0]["content"] == facts["content"]


def test_the_rows_of_a_file_are_kept(tmp_path, runs):
    path = write_day(tmp_path / "logs", 3)
    facts, target = taken(path, runs)
    assert (facts["rows"], facts["positives"]) == (300, sum(day(3)["click"].to_pylist()))
    assert facts["until"] == day(3)["moment"][-1].as_py()
    kept = parquet.read_table(target)
    assert kept["user"].to_pylist() == day(3)["user"].to_pylist()
    assert set(kept.column_names) == {"click", "user", "device", "moment"}


def test_rows_that_are_not_in_order_are_sorted(tmp_path, runs):
    rows = day(3)
    mixed = rows.take(list(range(150, 300)) + list(range(150)))
    path = tmp_path / "logs" / "a.csv"
    path.parent.mkdir()
    path.write_text(text_of(mixed))
    _, target = taken(path, runs)
    assert parquet.read_table(target)["moment"].to_pylist() == [str(one) for one in rows["moment"].to_pylist()]


@pytest.mark.parametrize("mixed", [False, True])
def test_rows_that_come_too_late_are_refused_or_left_out(tmp_path, runs, mixed):
    rows = day(3)
    path, until = tmp_path / "logs" / "a.csv", float(rows["moment"][40].as_py()) + 0.5
    path.parent.mkdir()
    path.write_text(text_of(rows.take(list(range(150, 300)) + list(range(150))) if mixed else rows))
    late = sum(moment < until for moment in rows["moment"].to_pylist())
    with pytest.raises(DataError, match=f"history runs forward: it has come to {until:g}, found .*, row 1\\)"):
        taken(path, runs, until=until)
    facts, target = taken(path, runs, until=until, skip=True)
    assert (facts["rows"], facts["skipped"]) == (300 - late, late)
    assert len(parquet.read_table(target)) == 300 - late
    assert facts["positives"] == pc.sum(rows["click"].slice(late)).as_py()


def test_bad_rows_are_named_or_left_out(tmp_path, runs):
    path = write_day(tmp_path / "logs", 3)
    text = path.read_text().splitlines()
    text[5] = text[5].replace(text[5][0], "maybe", 1)
    path.write_text("\n".join(text) + "\n")
    with pytest.raises(DataError, match=r"label 'click'.*found 'maybe'.*line 6"):
        taken(path, runs)
    facts, _ = taken(path, runs, skip=True)
    assert (facts["rows"], facts["skipped"]) == (299, 1)
    assert "skipped 1 row" in facts["notes"][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("click,user,device,moment\n", "there are no rows in it"),
        ("click,user,moment\n1,u1,3000\n", "column 'device' is missing"),
        ("clicked,user,device,moment\n1,u1,desk,3000\n", "column 'click' is missing"),
        ("click,user,device,moment\n1,u1,desk,\n", "must have a value in every row"),
        ("click,user,device,moment\n1,u1,desk,inf\n", r"must have a value in every row, found inf \(row 1\)"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, runs, text, message):
    path = tmp_path / "logs" / "a.csv"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        taken(path, runs)
    assert not (tmp_path / "rows.parquet").exists()


def test_a_file_that_changes_after_it_was_taken(tmp_path, runs):
    path = write_day(tmp_path / "logs", 3)
    facts, _ = taken(path, runs)
    known = {name: facts[name] for name in ("file", "size", "modified", "digest", "content", "rows")}
    files = {"day-3.csv": Taken(number=1, first=0, **known)}
    folder = path.parent
    assert list(intake.changed(folder, files)) == []
    os.utime(path, (1, 1))  # copied back: the same bytes
    assert list(intake.changed(folder, files)) == []
    with path.open("a") as file:
        file.write("1,u1,desk,3999\n")
    ((found, why),) = intake.changed(folder, files)
    assert found == path
    assert why.startswith("a file that was taken must not change")
    path.unlink()
    assert list(intake.changed(folder, files)) == []
