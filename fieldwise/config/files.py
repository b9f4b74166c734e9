"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fieldwise.config.errors import FieldwiseError, WorkerLost
from fieldwise.config.interrupts import interrupts

# The file in an unfinished folder that says which inputs and settings it was started with.
STAMP = "STARTED"
# The file that names the process that works in a folder.
HOLDER = ".holder"
# What a system says of a full disk.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WAIT = "wait for it, or choose another name"


class Hold:
    """An exclusive lock on a folder until it is released or the process ends, even if it was killed.

    `doing` says what for; the error of a second process repeats it, and says the `way_out`.
    """

    def __init__(self, folder: Path, doing: str, way_out: str = WAIT) -> None:
        import fcntl

        self.note = folder / HOLDER
        self.opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.opened)
            raise FieldwiseError(f"another process{self._holder()} is {doing}; {way_out}") from None
        except OSError:
            pass  # a file system without locks

    def _holder(self) -> str:
        try:
            return f" ({self.note.read_text(encoding='utf-8').strip()})"
        except OSError:
            return ""

    def sign(self) -> None:
        """Writes this process's id into the folder. The caller first checks that it may write there."""
        self.note.write_text(f"pid {os.getpid()}", encoding="utf-8")

    def unsign(self) -> None:
        self.note.unlink(missing_ok=True)

    def release(self) -> None:
        """Releases the lock by closing it: a forked child that closes its copy does not release its parent's."""
        if self.opened >= 0:
            self.unsign()
            os.close(self.opened)
            self.opened = -1


@contextmanager
def held_folder(folder: Path, doing: str, way_out: str = WAIT) -> Iterator[Path]:
    """Locks a folder for this process within the block; creates it if needed, and removes it if it ends up empty."""
    folder.mkdir(parents=True, exist_ok=True)
    hold = Hold(folder, doing, way_out)
    try:
        hold.sign()
        yield folder
    finally:
        hold.release()
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """This process's turn at a folder: it waits while another has it. Of one that was killed the system lets go."""
    import fcntl

    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: there is no way to know of others
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


@contextmanager
def whole_folder(path: Path, marker: str, force: bool = False) -> Iterator[Path]:
    """A new folder beside `path` to write into; it is renamed to `path` when the block succeeds.

    An existing folder is replaced only with `force`, and only if it has the `marker` file of our folders.
    """
    shown, path = path, _checked_path(path, marker, force)
    work = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    work.mkdir()
    try:
        with _full_disk_named(shown):
            yield work
        _take_place(work, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def resumed_folder(path: Path, marker: str, stamp: str, force: bool = False) -> Iterator[Path]:
    """Like `whole_folder`, but after a kill a process with the same stamp continues; another stamp starts again.

    An error removes the work; an interrupt, or the loss of a cluster's workers, keeps it. One process at a time writes
    to `path`.
    """
    shown, path = path, _checked_path(path, marker, force)
    work = path.with_name(f".{path.name}.started")
    work.mkdir(exist_ok=True)
    hold = Hold(work, f"writing {shown}")
    try:
        _keep_if_stamped(work, stamp)
        hold.sign()
        try:
            with _full_disk_named(shown), interrupts():
                yield work
            (work / STAMP).unlink()
            hold.unsign()
            _take_place(work, path)
        except WorkerLost:
            raise
        except Exception:
            shutil.rmtree(work, ignore_errors=True)
            raise
    finally:
        hold.release()


def _keep_if_stamped(work: Path, stamp: str) -> None:
    """Empties a folder that has another stamp."""
    file = work / STAMP
    if not file.is_file() or file.read_text(encoding="utf-8") != stamp:
        for left in work.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
        file.write_text(stamp, encoding="utf-8")


def _checked_path(path: Path, marker: str, force: bool) -> Path:
    """The absolute path, after checking that it may be written."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        if not force:
            raise FieldwiseError(f"{path} is already there; choose another name, or replace it (--force)")
        if not (path / marker).is_file():
            raise FieldwiseError(
                f"{path} is there and holds no {marker}: it is not ours to replace; choose another name"
            )
    path = path.absolute()
    _make_parent(path)
    _sweep(path)
    return path


def check_no_folder(path: Path) -> None:
    """Refuses a folder as the name of a file to write."""
    if path.is_dir():
        raise FieldwiseError(f"expected the name of a file to write, found a folder ({path}); name a file in it")


def _make_parent(path: Path) -> None:
    """Makes the parent folder of a path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FieldwiseError(f"cannot make the folder {path.parent}: {error.strerror} ({error.filename})") from None


def _take_place(work: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    if path.exists():
        path.rename(old)
    work.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def linked(source: str | Path, target: str | Path) -> None:
    """The same file by another name, or a copy where the disk has no second names. Nobody writes into such a file."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def drop_folder(path: Path) -> None:
    """Removes a folder of ours whole: it has another name before its files go, so no reader finds a part of it."""
    path = path.absolute()
    _sweep(path)
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    with suppress(FileNotFoundError):
        path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _full_disk_named(path: Path) -> Iterator[None]:
    """Turns any library's error on a full disk into one line with the path."""
    try:
        yield
    except Exception as error:
        if getattr(error, "errno", None) in FULL or any(os.strerror(code) in str(error) for code in FULL):
            way_out = "free some space, or write elsewhere"
            raise FieldwiseError(f"the disk is full; {way_out} ({path})") from error
        raise


def _sweep(path: Path) -> None:
    """Removes temporary files for this name that killed processes, or this one, left behind."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        owner, _, kind = left.name.removeprefix(f".{path.name}.").partition(".")
        ours = owner.isdigit() and kind.split(".")[0] in ("tmp", "old")
        if ours and (int(owner) == os.getpid() or not _alive(int(owner))):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; it is renamed to `path` when the block succeeds."""
    check_no_folder(path)
    _make_parent(path)
    _sweep(path)
    work = path.with_name(f".{path.name}.{os.getpid()}.tmp{path.suffix}")
    try:
        with _full_disk_named(path):
            yield work
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)


@contextmanager
def whole_anywhere(path: Path) -> Iterator[Path]:
    """`whole_file` for a folder that several machines write into: a process id means nothing to the others."""
    work = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield work
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file that appears whole or not at all."""
    with whole_file(path) as file:
        file.write_text(text, encoding="utf-8")
