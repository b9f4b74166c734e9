"""The wheel: what is in it, and that it works outside of the repository with nothing else of ours on the path."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fieldwise

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fieldwise"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools")
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / "tools" / "build_wheel.py", out], check=True, capture_output=True)
    return next(out.glob("*.whl"))


def files_of(folder, *patterns):
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return {path.relative_to(ROOT).as_posix() for path in found if path.is_file() and "__pycache__" not in path.parts}


def test_the_wheel_holds_every_file_of_the_package_and_of_the_recipes(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fieldwise/")}
    package = files_of(PACKAGE, "**/*") | files_of(PACKAGE / "recipes", "*/*.toml")
    assert held == package
    assert {"fieldwise/serving/static/index.html", "fieldwise/recipes/frappe/pin.toml"} <= held


def test_the_version_comes_from_the_package(wheel):
    assert wheel.name == f"fieldwise-{fieldwise.__version__}-py3-none-any.whl"
    sdist = wheel.with_name(f"fieldwise-{fieldwise.__version__}.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "pyproject.toml", "examples/quickstart.py"} <= names


def test_an_installed_wheel_takes_the_first_steps(wheel, tmp_path):
    """`make wheel-check` does the same in an empty venv, with the dependencies that the wheel names."""
    own = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", own, wheel], check=True, capture_output=True)
    # Compiling the loops again, for files in a new place, would take longer than all the steps.
    environment = os.environ | {"PYTHONPATH": str(own), "FIELDWISE_NUMBA": "0", "OMP_NUM_THREADS": "1"}
    steps = [sys.executable, "-P", ROOT / "tools" / "first_steps.py", "300"]
    done = subprocess.run(steps, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"well ({own / 'fieldwise'})" in done.stdout
