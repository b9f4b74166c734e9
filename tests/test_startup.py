"""What a command loads: one that predicts a few rows is done before torch would be there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import csv

from fieldwise.config.own_process import COUNTING
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World
from tests.experiments.test_compare import run

# Large libraries that predicting with trees has no use for.
UNUSED = ("torch", "numba", "sklearn", "matplotlib", "torch._dynamo")
CLAIMED = "import gc; from fieldwise.config import own_process; own_process.claim(); "
SCRIPT = """
import sys
from fieldwise.cli import main
sys.argv = ["fieldwise", *sys.argv[1:]]
try:
    main()
finally:
    print([name for name in {names} if name in sys.modules])
"""


def loaded(names: tuple[str, ...], *arguments: object) -> str:
    """Which of these modules a command of its own process has loaded in the end, as its last line says."""
    script = SCRIPT.replace("{names}", repr(names))
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr, "a library misses objects of its own that Python has not freed"
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup") / "clicks"
    log = World("demo").log(1000).table
    prepare({"train": lambda: iter([log])}, folder, "click", keep_rows=True)
    return folder


def test_trees_on_rates_predict_a_row_without_torch_numba_or_scikit_learn(data: Path, tmp_path: Path) -> None:
    rates = data / "rates"
    assert run("train", rates, "--model", "gbdt", "--set", "model.rounds=3", "--out", tmp_path / "run", "--json") == 0
    row = World("demo").log(1).table.to_pylist()[0]
    (tmp_path / "row.csv").write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    asked = ("predict", tmp_path / "run", tmp_path / "row.csv", "-o", tmp_path / "out.csv", "--json")
    assert loaded(UNUSED, *asked) == "[]"
    assert json.loads((tmp_path / "run" / "report.json").read_text())["model"] == "gbdt"


def test_a_small_file_is_prepared_and_predicted_without_pandas_and_numba(data: Path, tmp_path: Path) -> None:
    """Compiled loops take half a second to load, and pyarrow would load pandas."""
    rates = data / "rates"
    assert run("train", rates, "--model", "gbdt", "--set", "model.rounds=3", "--out", tmp_path / "run", "--json") == 0
    log = World("demo").log(1000).table
    csv.write_csv(log, tmp_path / "rows.csv")
    large = ("torch", "numba", "pandas", "matplotlib", "sklearn")
    asked = ("prepare", tmp_path / "rows.csv", "--label", "click", "--out", tmp_path / "clicks", "--json")
    assert loaded(large, *asked) == "[]"
    asked = ("predict", tmp_path / "run", tmp_path / "rows.csv", "-o", tmp_path / "out.csv", "--json")
    assert loaded(large, *asked) == "[]"


def test_very_few_rows_are_compared_and_predicted_without_torch(data: Path, tmp_path: Path) -> None:
    """It takes more processor time to load than their trees and LR to train."""
    asked = ("compare", data, "--time", "1s", "--out", tmp_path / "out", "--json")
    assert loaded(("torch", "sklearn", "pandas"), *asked) == "[]"
    assert run("train", data, "--model", "lr", "--set", "train.optimizer=newton", "--out", tmp_path / "lr") == 0
    csv.write_csv(World("demo").log(20).table, tmp_path / "rows.csv")
    asked = ("predict", tmp_path / "lr", tmp_path / "rows.csv", "-o", tmp_path / "out.csv", "--json")
    assert loaded(UNUSED, *asked) == "[]"


def test_pandas_is_there_for_who_asks_for_it() -> None:
    script = f"{CLAIMED}import fieldwise.data.read.formats, pandas; print(pandas.DataFrame({{'a': [1]}}).a[0])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_training_on_a_cpu_loads_what_it_needs(data: Path, tmp_path: Path) -> None:
    """No compiler of torch, and none of the libraries that numba and pyarrow would use if they are there."""
    asked = ("train", data, "--model", "fm", "--set", "train.epochs=1", "--device", "cpu", "--out", tmp_path / "run")
    compilers = ("torch._inductor.compile_fx", "torch._dynamo.eval_frame")
    others = ("scipy.linalg", "pandas", "sklearn", "duckdb", "matplotlib", "xgboost", "optuna", "fastapi")
    assert loaded((*compilers, *others), *asked, "--json") == "[]"


@pytest.mark.parametrize("library", sorted(COUNTING))
def test_a_library_that_counts_its_objects_misses_none_in_the_end(library: str) -> None:
    script = f"{CLAIMED}import torch, {library}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_loading_does_not_look_for_garbage_among_all_objects() -> None:
    script = f"{CLAIMED}import fieldwise.train.loop, numba; print(gc.get_stats()[2]['collections'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_loops_of_others_have_numbas_linear_algebra() -> None:
    script = f"{CLAIMED}import numba, numpy; print(numba.njit(lambda a: a @ a)(numpy.full((2, 2), 3.0))[0, 1])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "18.0"


def test_the_package_alone_loads_nothing_large() -> None:
    script = "import sys, fieldwise; print([name for name in ('torch', 'numpy', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
