"""The folders inside of a prepared one, each made once, from the rows that it keeps, when somebody asks for it."""

from __future__ import annotations

import errno
from pathlib import Path

from fieldwise.config.errors import FieldwiseError
from fieldwise.config.files import drop_folder, turn
from fieldwise.data.dataset import is_prepared
from fieldwise.data.encode import folds, kept, rates, refit
from fieldwise.data.encode.kept import Kept
from fieldwise.data.encode.staged import Progress, quiet
from fieldwise.data.read.parallel import cores, using

MADE = (*rates.FOLDS, *folds.FOLDERS, refit.FOLDER)


def offered(folder: Path) -> bool:
    """Whether a folder inside of a prepared one is there, or would be made."""
    return is_prepared(folder) or folder.name in Kept.of(folder.parent).makes


def made(folder: Path, progress: Progress = quiet) -> Path:
    """A prepared folder; one that is not there is made where the one around it keeps the rows for it.

    It appears whole or not at all. A second process waits for the first, and finds the folder. Rates of the rows with
    those of the test part come after the rates of the others, and take from them what training is to hide.
    """
    if is_prepared(folder) or folder.name not in MADE:
        return folder
    data = made(folder.parent, progress)
    if offered(folder):
        like = made(data.parent / folder.name, progress) if data.name == refit.FOLDER else None
        with turn(data / kept.FOLDER), using(cores()):
            if not is_prepared(folder):
                _make(folder, progress, like if like and is_prepared(like) else None)
    return folder


def forget(folder: Path) -> None:
    """Removes a folder inside of a prepared one that `made` can make again, the same; leaves every other."""
    if folder.name in Kept.of(folder.parent).makes:
        with turn(folder.parent / kept.FOLDER):
            drop_folder(folder)


def _make(folder: Path, progress: Progress, like: Path | None) -> None:
    try:
        if folder.name == refit.FOLDER:
            refit.make_refit(folder.parent, progress)
        elif folder.name in folds.FOLDERS:
            folds.make_fold(folder.name, folder.parent, progress)
        else:
            rates.make_rates(folder.name, folder.parent, progress, like)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        way_out = "copy the prepared folder to where you may write, or choose models that read its ids alone"
        raise FieldwiseError(f"cannot make the folder {folder}: {error.strerror}; {way_out}") from None
