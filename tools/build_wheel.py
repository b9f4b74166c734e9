"""Builds the sdist, and from the sdist the wheel: `python tools/build_wheel.py dist`. Needs setuptools, and no network.

A wheel made from the sdist cannot hold a file that the sdist lacks.
"""

import os
import sys
import tarfile
import tempfile
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).parent.parent


def build(out: Path) -> Path:
    """The path of the wheel; the sdist lies beside it."""
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        # Elsewhere than in the tree: what setuptools notes there would be read by the next build.
        os.chdir(ROOT)
        sdist = build_meta.build_sdist(str(out), {"--global-option": ["egg_info", "--egg-base", folder]})
        with tarfile.open(out / sdist) as archive:
            archive.extractall(folder, filter="data")
        os.chdir(Path(folder) / sdist.removesuffix(".tar.gz"))
        wheel = build_meta.build_wheel(str(out))
        os.chdir(ROOT)
    return out / wheel


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
