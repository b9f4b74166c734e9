"""Environments of other libraries, made once in the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path


def environment(name: str, pins: Sequence[str], needed: Sequence[str] = (), alone: bool = True) -> str:
    """The python of an environment with these packages; one that is not `alone` gets them without what they ask for,
    and sees the packages of this one, torch above all. What cannot be had is named and left out."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fieldwise" / name
    python = cache / "bin" / "python"
    ready = cache / "-".join(["ready", *(pin.partition("==")[2] for pin in pins)])
    if not ready.exists():
        venv.create(cache, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", *([] if alone else ["--no-deps"])]
        for package in (*pins, *needed):
            if subprocess.run([*install, package], check=False).returncode:
                print(f"{package} cannot be had here")
        if not alone:
            _see_this_one(python)
        ready.touch()
    return str(python)


def _see_this_one(python: Path) -> None:
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    where = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    # Not the folder's name alone: an editable install, as ours is, stands in a .pth file of it.
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(where, "host.pth").write_text(line, encoding="utf-8")
