"""A trained network as plain parts: kinds, settings and numpy arrays, from which ONNX graphs are built without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fieldwise.errors import BundleError

FILES = ("parts.json", "parts.safetensors")


@dataclass(frozen=True)
class Part:
    """A part of a network: what it is, its settings, its weights, and the parts that it is made of."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def walk(self, path: str = "") -> Iterator[tuple[str, Part]]:
        """This part and all below it, with the paths that their arrays are named by."""
        yield path, self
        for number, part in enumerate(self.parts):
            yield from part.walk(f"{path}{number}.")


def save(part: Part, folder: Path) -> None:
    """Writes parts.json and parts.safetensors."""
    (folder / FILES[0]).write_text(json.dumps(_described(part), indent=1), encoding="utf-8")
    arrays = {path + name: array for path, each in part.walk() for name, array in each.arrays.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / FILES[1])


def load(folder: Path) -> Part:
    """Reads what `save` wrote."""
    try:
        described = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))
        return _part(described, "", load_file(folder / FILES[1]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"the exported network is damaged: {str(error).splitlines()[0]} ({folder})") from None


def places(folder: Path) -> dict[str, int]:
    """Where in parts.safetensors the numbers of each array begin, in bytes."""
    with (folder / FILES[1]).open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
    return {name: 8 + length + facts["data_offsets"][0] for name, facts in head.items() if name != "__metadata__"}


def _described(part: Part) -> dict[str, Any]:
    below = [_described(each) for each in part.parts]
    return {"kind": part.kind, "settings": part.settings, "arrays": list(part.arrays), "parts": below}


def _part(described: dict[str, Any], path: str, arrays: dict[str, NDArray[Any]]) -> Part:
    below = tuple(_part(each, f"{path}{number}.", arrays) for number, each in enumerate(described["parts"]))
    own = {name: arrays[path + name] for name in described["arrays"]}
    return Part(described["kind"], described["settings"], own, below)
