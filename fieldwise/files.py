"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fieldwise.errors import FieldwiseError


@contextmanager
def whole_folder(path: Path, marker: str, force: bool = False) -> Iterator[Path]:
    """A new folder beside `path` to write into; it takes that name when the block ends well.

    What is there is replaced only with `force`, and only if it holds the `marker` file of our own folders.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        if not force:
            raise FieldwiseError(f"{path} is already there; choose another name, or replace it (--force)")
        if not (path / marker).is_file():
            raise FieldwiseError(
                f"{path} is there and holds no {marker}: it is not ours to replace; choose another name"
            )
    shown, path = path, path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    work = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    work.mkdir()
    try:
        with _full_disk_named(shown):
            yield work
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            path.rename(old)
        work.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _full_disk_named(path: Path) -> Iterator[None]:
    """A full disk, in whichever words a library says so, as one line with the path."""
    try:
        yield
    except Exception as error:
        codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if getattr(error, "errno", None) in codes or any(os.strerror(code) in str(error) for code in codes):
            way_out = "free some space, or write elsewhere"
            raise FieldwiseError(f"the disk is full; {way_out} ({path})") from error
        raise


def _sweep(path: Path) -> None:
    """Removes what killed processes left behind for this name, and this process's own."""
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
    """A new file name beside `path` to write to; the file takes its place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    work = path.with_name(f".{path.name}.{os.getpid()}.tmp{path.suffix}")
    try:
        with _full_disk_named(path):
            yield work
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)
