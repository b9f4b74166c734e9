"""Tries the wheel with the lowest and the newest dependencies: `python tools/matrix.py WHEEL OUT [3.11-lowest ...]`.

For each Python of PYTHONS that this machine has: an empty venv in OUT, the wheel with its extras, the first steps
(tools/first_steps.py) and the tests of TESTS. Prints a row of a table for each, and removes the venv again: torch for
CUDA has several GB. Writes what it ran to OUT/NAME.log. Lowest are the bounds that pyproject.toml names.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("gbdt", "tune", "serve")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "httpx", "httpx2", "pandas", "polars", "setuptools")
TESTS = (
    "test_walk.py data/encode/test_encoder.py data/read bundle export nn/test_trees.py train/test_estimator.py "
    "experiments/test_tune.py serving/test_promise.py serving/test_application.py serving/test_process.py"
)
SHOWN = ("torch", "numpy", "pyarrow", "duckdb", "scikit-learn", "numba")


def main(wheel: Path, out: Path, wanted: list[str]) -> int:
    """How many cases failed."""
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    print(f"| Python | dependencies | {' | '.join(SHOWN)} | first steps | tests |\n{'|---' * (len(SHOWN) + 4)}|")
    for version in PYTHONS:
        for choice in ("lowest", "newest"):
            if wanted and f"{version}-{choice}" not in wanted:
                continue
            python = interpreter(version)
            if python is None:
                print(f"| {version} | {choice} | not on this machine |", flush=True)
                continue
            row, well = tried(python, wheel, choice, out / f"{version}-{choice}")
            print(f"| {version} | {choice} | {' | '.join(row)} |", flush=True)
            failed += not well
    return failed


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or among pyenv's."""
    among = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    for candidate in (f"python{version}", *map(str, reversed(among))):
        try:
            asked = subprocess.run([candidate, "-c", ""], capture_output=True, check=False)
        except OSError:
            continue
        if asked.returncode == 0:
            return candidate
    return None


def tried(python: str, wheel: Path, choice: str, folder: Path) -> tuple[list[str], bool]:
    """The cells of a row, and whether everything went well."""
    shutil.rmtree(folder, ignore_errors=True)
    own = folder / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    with folder.with_suffix(f"{folder.suffix}.log").open("w") as log:

        def run(*command: object) -> bool:
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            done = subprocess.run([*map(str, command)], cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
            return done.returncode == 0

        folder.mkdir()
        bounds = folder / "lowest.txt"
        bounds.write_text("\n".join(lowest()) if choice == "lowest" else "")
        installed = run(python, "-m", "venv", folder) and run(
            own, "-m", "pip", "install", "--quiet", "--constraint", bounds, f"{wheel}[{','.join(EXTRAS)}]", *TOOLS
        )
        cells = ["not installed"] * len(SHOWN)
        if installed:
            code = f"from importlib.metadata import version as v; print(*map(v, {SHOWN}))"
            cells = subprocess.run([own, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        began = time.time()
        steps = installed and run(own, "-P", ROOT / "tools" / "first_steps.py")
        paths = [ROOT / "tests" / name for name in TESTS.split()]
        tests = installed and run(own, "-m", "pytest", "-n", "auto", "-p", "no:cacheprovider", "-W", "default", *paths)
        log.write(f"{time.time() - began:.0f} s\n")
    shutil.rmtree(folder, ignore_errors=True)
    return [*cells, "pass" if steps else "FAIL", "pass" if tests else "FAIL"], bool(steps and tests)


def lowest() -> list[str]:
    """`name==bound` for each dependency of the wheel and of EXTRAS."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [item for extra in EXTRAS for item in project["optional-dependencies"][extra]]
    return [re.sub(r">=", "==", item) for item in [*project["dependencies"], *extras]]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:]))
