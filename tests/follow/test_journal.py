"""What the lines of a journal say, and a journal that was cut off."""

import os

import pytest

from fieldwise.config import documents
from fieldwise.config.errors import FieldwiseError
from fieldwise.follow.journal import Journal

ADOPTED = {"version": 0, "run": 0, "learnt": 0, "seen": 0, "id": "a", "learns": True}
FILE = {"size": 5, "modified": 1, "digest": "d", "positives": 1}


def begun(folder):
    journal = Journal(folder)
    journal.write("adopted", **ADOPTED)
    journal.write("taken", file="one", number=1, rows=10, **FILE)
    journal.write("taken", file="two", number=2, rows=7, **FILE)
    journal.write("began", round=1, version=0, first=0, cut=[10, 12], end=17)
    return journal


def test_the_state_is_what_the_lines_say(tmp_path):
    journal = begun(tmp_path)
    state = journal.state
    assert (state.rows, state.files["two"].first, state.files["two"].end) == (17, 10, 17)
    assert (state.current, state.rounds, state.judged, list(state.open)) == (0, 1, 17, ["began"])
    journal.write("published", round=1, version=1, run=1, learnt=10, seen=17, id="b", learns=True)
    assert (state.current, state.target) == (0, 1)
    journal.write("swapped", round=1, version=1)
    journal.write("done", round=1, decision="swapped", why="")
    assert (state.current, state.target, state.open, state.version.learnt) == (1, 1, {}, 10)
    assert Journal(tmp_path).state == state


def test_rejections_count_until_a_swap(tmp_path):
    journal = begun(tmp_path)
    for decision, rejected, failed in (("rejected", 1, 0), ("failed", 1, 1), ("rejected", 2, 0), ("swapped", 0, 0)):
        journal.write("done", round=1, decision=decision, why="")
        assert (journal.state.rejected, journal.state.failed) == (rejected, failed)


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path):
    journal = begun(tmp_path)
    whole = journal.path.read_bytes()
    for cut in (1, 20, 60):
        journal.path.write_bytes(whole + whole[:cut])
        assert Journal(tmp_path, mine=False).state == journal.state
        assert journal.path.read_bytes() == whole + whole[:cut]
        assert Journal(tmp_path).state == journal.state
        assert journal.path.read_bytes() == whole


def test_a_damaged_line_is_named(tmp_path):
    journal = begun(tmp_path)
    lines = journal.path.read_bytes().split(b"\n")
    journal.path.write_bytes(b"\n".join([lines[0], lines[1][:30], *lines[2:]]))
    with pytest.raises(FieldwiseError, match="the journal is damaged: line 2 is no JSON"):
        Journal(tmp_path)


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    journal = begun(tmp_path)
    whole = journal.path.read_bytes()

    def full(handle):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(documents.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.write("waits", why="nothing")
    assert journal.path.read_bytes() == whole
    assert Journal(tmp_path).state == journal.state
    assert journal.state.waits == ""
