"""The bundles of a followed model: numbered folders, one of which is served by a link that is replaced at once.

In the work folder, runs/N has the weights and the optimiser of round N, and bundles/N what was or is served. Version 0
is the bundle as it was found; it is never removed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from fieldwise.bundle import bundle, freshen
from fieldwise.bundle.members import Blend
from fieldwise.config.errors import BundleError
from fieldwise.config.files import whole_folder
from fieldwise.export.export import FOLDER, WEIGHTS, write_network
from fieldwise.follow.journal import FILE

RUNS, BUNDLES = "runs", "bundles"
# Of renameat2, as Linux has them: relative to the working folder; both names change places.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def run_of(work: Path, number: int) -> Path:
    return work / RUNS / f"{number:04d}"


def bundle_of(work: Path, number: int) -> Path:
    return work / BUNDLES / f"{number:04d}"


def id_of(folder: Path) -> str:
    """The version of a bundle, as a server names it."""
    return bundle.digest_of(folder / "bundle.json")[:12]


def adopt(source: Path, work: Path, number: int) -> Path:
    """Keeps a bundle, or the run that it is in, as version `number`; returns the folder of the bundle."""
    folder = bundle.checked(source)
    run, kept = run_of(work, number), bundle_of(work, number)
    with whole_folder(run, "bundle/bundle.json", force=True) as made:
        bundle.copy_files(folder, made / "bundle")
        # The optimiser's state, without which it starts anew.
        if folder.name == "bundle" and (folder.parent / "checkpoint").is_dir():
            bundle.copy_files(folder.parent / "checkpoint", made / "checkpoint")
    with whole_folder(kept, "bundle.json", force=True) as made:
        bundle.copy_files(run / "bundle", made)
    return kept


def publish(source: Path, work: Path, number: int, later: Callable[[], Iterator[pa.Table]], counts: bool) -> Path:
    """Makes the bundle of version `number` from a run or a bundle; its history counts the `later` rows."""
    out = bundle_of(work, number)
    if out.exists():  # whole, and made by this same step
        return out
    if counts:
        freshen.update_history(source, later(), out)
    else:
        with whole_folder(out, "bundle.json") as made:
            bundle.copy_files(bundle.locate(source), made)
    return out


def export(folder: Path) -> None:
    """Writes the networks of a bundle as ONNX into it, which a server without torch needs."""
    for own in bundle.member_folders(folder) if (folder / Blend.file).is_file() else [folder]:
        if (own / WEIGHTS).is_file():
            write_network(own, own / FOLDER)


def serve(link: Path, target: Path) -> None:
    """Makes the link lead to the target, at once: who opens it finds the old bundle or the new one, never none.

    A folder in its place makes room for the link; it is kept beside it, by another name.
    """
    link = link.absolute()
    work = link.with_name(f".{link.name}.next")
    if work.is_symlink():
        work.unlink()
    elif work.exists():  # the folder of a process that was killed when both had changed places
        os.rename(work, _aside(link))
    work.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))
    if link.is_symlink() or not link.exists():
        os.replace(work, link)
    elif _exchanged(work, link):
        os.rename(work, _aside(link))
    else:
        os.rename(link, _aside(link))
        os.rename(work, link)


def _aside(link: Path) -> Path:
    """A free name for the folder that a link takes the place of."""
    names = (link.with_name(f"{link.name}.before{number or ''}") for number in itertools.count())
    return next(path for path in names if not path.exists())


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two names changed places, which not every system can do."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    found = call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return bool(found == 0)


def served(link: Path, work: Path) -> int | None:
    """The number of the version that a link leads to; None where it is none of ours."""
    if not link.is_symlink():
        return None
    found = link.resolve()
    return int(found.name) if found.parent == (work / BUNDLES).resolve() and found.name.isdecimal() else None


def work_of(link: Path) -> Path | None:
    """The work folder that a link leads into; None where nobody follows it."""
    work = link.resolve().parent.parent
    return work if served(link, work) is not None and (work / FILE).is_file() else None


def refuse_followed(link: Path, work: Path) -> None:
    """Refuses a bundle that is followed in another work folder, which has taken files and moves the link."""
    other = work_of(link)
    if other is not None and other != work.resolve():
        way_out = "leave --work out to go on there, or follow a copy of the bundle"
        raise BundleError(f"{link} is followed already, in {other}; {way_out}")


def refuse_unserved(link: Path) -> None:
    """Refuses a name that leads to no bundle."""
    if not link.exists():
        raise BundleError(f"expected a run or a bundle to follow, found nothing ({link}); train one first")


def drop_others(work: Path, versions: set[int], runs: set[int]) -> None:
    """Removes the bundles and the runs of other numbers."""
    for folder, kept in ((work / BUNDLES, versions), (work / RUNS, runs)):
        with suppress(FileNotFoundError):
            for path in list(folder.iterdir()):
                if not (path.name.isdecimal() and int(path.name) in kept):
                    shutil.rmtree(path, ignore_errors=True)
