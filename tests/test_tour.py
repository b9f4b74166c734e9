"""The tour names what is in the tree: each room, each of its files, and no other."""

import re
from pathlib import Path

import fieldwise

PACKAGE = Path(fieldwise.__file__).parent
TOUR = (PACKAGE.parent / "docs" / "tour.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_/]+)/` \| ([^|]+) \|", TOUR, re.MULTILINE))


def held(folder: Path) -> set[str]:
    """The modules of a folder, and the rooms in it that have no row of their own."""
    inner = {path.parent for path in folder.glob("*/__init__.py")}
    rooms = {f"{path.name}/" for path in inner if path.relative_to(PACKAGE).as_posix() not in ROWS}
    return {path.stem for path in folder.glob("*.py")} - {"__init__"} | rooms


def test_the_tour_has_every_room():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == {room.split("/")[0] for room in ROWS}


def test_each_room_has_the_files_that_the_tour_names():
    for room, files in ROWS.items():
        assert held(PACKAGE / room) == set(files.split(", ")), room


def test_rooms_of_models_are_named_in_the_order_of_floors():
    order = [
        room
        for room in ROWS
        if room in ("config", "data", "graphs", "parts", "nn", "optim", "train", "serving", "commands")
    ]
    assert order == ["config", "data", "graphs", "parts", "nn", "optim", "train", "serving", "commands"]
