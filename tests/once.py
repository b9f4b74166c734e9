"""What many tests need and is slow to make: made once, however many processes run the tests."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of this run of the tests, the same in all of its processes."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def once(folder: Path, name: str, make: Callable[[], T]) -> T:
    """What `make` returns. One process makes it, the others wait and read that."""
    kept = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(make()))
        found: T = pickle.loads(kept.read_bytes())
        return found
