"""Files and folders appear whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fieldwise.config import files
from fieldwise.config.errors import FieldwiseError
from fieldwise.config.files import HOLDER, Hold, held_folder, whole_file, whole_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with whole_folder(out, "a") as work:
        (work / "a").write_text("1")
        assert not out.exists()
    assert (out / "a").read_text() == "1"
    assert names(out.parent) == ["out"]


def write_and_fail(path: Path) -> None:
    path.write_text("1")
    raise ZeroDivisionError


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "out", "a") as work:
        write_and_fail(work / "a")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "a.csv") as file:
        write_and_fail(file)
    assert names(tmp_path) == []


def test_what_is_there_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with whole_folder(out, "a"):  # An empty folder holds nothing to lose.
        pass
    (out / "a").write_text("old")
    with pytest.raises(FieldwiseError, match=r"is already there.*--force"), whole_folder(out, "a"):
        pass
    with pytest.raises(ZeroDivisionError), whole_folder(out, "a", force=True):
        raise ZeroDivisionError
    assert (out / "a").read_text() == "old"
    with whole_folder(out, "a", force=True) as work:
        (work / "b").write_text("new")
    assert names(out) == ["b"]
    assert names(tmp_path) == ["out"]


def test_force_replaces_only_our_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("precious")
    for name in ("file", "folder"):
        with pytest.raises(FieldwiseError, match="not ours to replace"), whole_folder(tmp_path / name, "a", force=True):
            pass
    assert (tmp_path / "file").read_text() == "a file"
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "precious"


def test_files_and_old_folders_of_the_dead_are_swept_too(tmp_path: Path) -> None:
    for name in (".out.4194303.tmp", ".out.4194303.old"):
        (tmp_path / name).mkdir()
    (tmp_path / ".out.json.4194303.tmp.json").touch()
    with whole_folder(tmp_path / "out", "a"):
        pass
    with whole_file(tmp_path / "out.json") as file:
        file.touch()
    assert names(tmp_path) == ["out", "out.json"]


def test_the_folder_one_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with whole_folder(Path(), "a") as work:
        (work / "a").touch()
    assert names(here) == ["a"]


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    """The dead one's folder goes, that of a living process stays."""
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    for owner in (dead.stdout.strip(), str(os.getppid()), "other"):
        (tmp_path / f".out.{owner}.tmp").mkdir()
    with whole_folder(tmp_path / "out", "a"):
        pass
    assert names(tmp_path) == sorted([f".out.{os.getppid()}.tmp", ".out.other.tmp", "out"])


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.csv.gz"
    for text in ("1", "2"):
        with whole_file(path) as work:
            assert work.suffix == ".gz"
            work.write_text(text)
        assert path.read_text() == text
    assert names(path.parent) == ["a.csv.gz"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("I/O error: No space left on device")]
)
def test_a_full_disk_is_named(tmp_path: Path, error: Exception) -> None:
    with (
        pytest.raises(FieldwiseError, match=r"the disk is full; free some space.*out\)"),
        whole_folder(tmp_path / "out", "a"),
    ):
        raise error
    with (
        pytest.raises(FieldwiseError, match=r"the disk is full; free some space.*a\.csv\)"),
        whole_file(tmp_path / "a.csv"),
    ):
        raise error
    assert names(tmp_path) == []


HOLDS = """
import sys, time
from pathlib import Path
from fieldwise.config.files import Hold
hold = Hold(Path(sys.argv[1]), "busy")
hold.sign()
print("held", flush=True)
time.sleep(60)
"""


def test_a_folder_is_one_process_s_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(FieldwiseError, match=rf"another process \(pid {other.pid}\) is at work here; wait for it"):
            Hold(tmp_path, "at work here")
        other.kill()
    assert names(tmp_path) == [HOLDER]  # what it said of itself is left, and of no meaning
    Hold(tmp_path, "at work here").release()
    assert names(tmp_path) == []


def test_a_file_system_without_locks_holds_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    Hold(tmp_path, "at work here").release()
    assert names(tmp_path) == []


def test_a_held_folder_is_made_and_left_only_with_something_in_it(tmp_path: Path) -> None:
    for name in ("empty", "full"):
        with held_folder(tmp_path / name, "busy") as folder:
            with pytest.raises(FieldwiseError, match=rf"another process \(pid {os.getpid()}\) is busy"):
                Hold(folder, "busy")
            if name == "full":
                (folder / "a").write_text("1")
    assert names(tmp_path) == ["full"]
    assert names(tmp_path / "full") == ["a"]


def test_a_linked_file_is_the_same_file_or_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("rows")
    files.linked(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").samefile(tmp_path / "one")

    def refuse(*_: object) -> None:
        raise OSError("no second names here")

    monkeypatch.setattr(os, "link", refuse)
    files.linked(tmp_path / "one", tmp_path / "three")
    assert not (tmp_path / "three").samefile(tmp_path / "one")
    assert (tmp_path / "three").read_text() == "rows"


def test_a_dropped_folder_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for _ in range(2):
        files.drop_folder(tmp_path / "folder")
        assert not list(tmp_path.iterdir())
