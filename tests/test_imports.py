"""Imports go down the floors of the house, never up, and training needs little to run."""

import ast
import subprocess
import sys
from pathlib import Path

import fieldwise

PACKAGE = Path(fieldwise.__file__).parent
FLOORS = [
    {"errors", "toml", "files", "memory", "progress", "instructions"},
    {"predictions"},
    {"config", "options"},
    {"data"},
    {"nn", "kernels"},
    {"models", "trees"},
    {"ranking"},
    {"optim", "metrics", "calibration", "scoring", "gpu_scores", "significance"},
    {"members"},
    {"checkpoint", "bundle", "distributed"},
    {"sharded"},
    {"explain", "heat", "predictor", "pretrain", "incremental", "freshen", "steps"},
    {"drift"},
    {"runs"},
    {"boosting", "blend"},
    {"train"},
    {"estimator", "plots", "tables", "pages", "space", "trials"},
    {"jobs"},
    {"lineup"},
    {"report", "console", "explanation"},
    {"ceilings", "costs"},
    {"compare", "tune", "bench", "checks", "demo", "serve"},
    {"online"},
    {"studies"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module == "fieldwise":
            names = [f"fieldwise.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("fieldwise.")}
    return rooms - {"__version__"}


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms <= set(FLOOR_OF), f"without a floor: {rooms - set(FLOOR_OF)}"


def test_imports_go_down():
    for path in PACKAGE.rglob("*.py"):
        room = room_of(path)
        if room == "__init__":
            continue
        for other in imported_rooms(path):
            assert FLOOR_OF[other] <= FLOOR_OF[room], f"{path.relative_to(PACKAGE)} imports {other}"


def test_training_needs_only_what_a_bare_gpu_machine_has():
    heavy = ["duckdb", "sklearn", "scipy", "pandas", "polars", "matplotlib", "xgboost", "optuna"]
    code = f"import sys, fieldwise.train, fieldwise.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_verbs_that_do_not_train_start_without_torch():
    code = (
        "import sys, fieldwise.cli, fieldwise.data.prepare, fieldwise.data.recipes.plan; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_serving_starts_where_torch_is_not_installed():
    code = "import sys; sys.modules['torch'] = None; import fieldwise.cli, fieldwise.online.process; print('started')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "started", found.stderr
