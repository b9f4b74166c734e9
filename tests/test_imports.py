"""Imports go down the floors of the house, never up, and training needs little to run."""

import ast
import subprocess
import sys
from pathlib import Path

import fieldwise

PACKAGE = Path(fieldwise.__file__).parent
# From the ground up. Rooms of one floor may use each other; rooms of data/ have floors of their own.
FLOORS = [
    {"config", "loops"},
    {"data.read", "data.draws"},
    {"data.kinds"},
    {"data.schema"},
    {"data.dataset", "data.batches", "data.feed", "data.hiding"},
    {"data.history"},
    {"data.encode"},
    {"data.recipes"},
    {"data.world"},
    {"graphs"},
    {"parts"},
    {"nn"},
    {"later_models"},
    {"models"},
    {"optim"},
    {"bundle", "evaluation"},
    {"train"},
    {"export", "abtest", "reporting", "speed"},
    {"serving"},
    {"experiments", "follow"},
    {"studies"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ROOT = {"__init__.py", "__main__.py", "cli.py", "later_models.py", "models.py"}


def room_of(module: str) -> str:
    """The room of a module that is named without `fieldwise.`: the rooms of data/ are rooms by themselves."""
    names = module.split(".")
    return ".".join(names[:2]) if names[0] == "data" else names[0]


def module_of(path: Path) -> str:
    names = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fieldwise":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("fieldwise.") for name in found if name.startswith("fieldwise.")} - {"__version__"}


def test_every_room_has_a_floor():
    rooms = {room_of(module_of(path)) for path in PACKAGE.rglob("*.py")} - {"", "data"}
    assert rooms == set(FLOOR_OF), f"without a floor, or without a room: {rooms ^ set(FLOOR_OF)}"


def test_the_root_holds_the_models_and_the_entry_alone():
    assert {path.name for path in PACKAGE.glob("*.py")} == ROOT


def test_imports_go_down():
    for path in PACKAGE.rglob("*.py"):
        module = module_of(path)
        for other in imported(path) if module else ():
            below = FLOOR_OF[room_of(other)] <= FLOOR_OF[room_of(module)]
            assert below, f"{path.relative_to(PACKAGE)} imports {other}"


def test_training_needs_only_what_a_bare_gpu_machine_has():
    heavy = ["duckdb", "sklearn", "scipy", "pandas", "polars", "matplotlib", "xgboost", "optuna"]
    code = f"import sys, fieldwise.train.network, fieldwise.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_verbs_that_do_not_train_start_without_torch():
    code = (
        "import sys, fieldwise.cli, fieldwise.data.encode.prepare, fieldwise.data.recipes.asked\n"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_serving_starts_where_torch_is_not_installed():
    code = "import sys; sys.modules['torch'] = None; import fieldwise.cli, fieldwise.serving.process; print('started')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "started", found.stderr
