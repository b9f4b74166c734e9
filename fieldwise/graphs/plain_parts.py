"""A trained network as plain parts: kinds, settings and numpy arrays. ONNX graphs are built from them without torch."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fieldwise.config.documents import parsed
from fieldwise.config.errors import BundleError

FILES = ("parts.json", "parts.safetensors")
# The types of a part's arrays, by their names in safetensors.
KINDS = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "I64": np.int64}


@dataclass(frozen=True)
class Part:
    """A part of a network: its kind, settings and weights, and the parts inside it."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def walk(self, path: str = "") -> Iterator[tuple[str, Part]]:
        """This part and all parts inside it, each with the prefix of its arrays' names."""
        yield path, self
        for number, part in enumerate(self.parts):
            yield from part.walk(f"{path}{number}.")


def save(part: Part, folder: Path) -> None:
    """Writes parts.json and parts.safetensors."""
    (folder / FILES[0]).write_text(json.dumps(_described(part), indent=1), encoding="utf-8")
    arrays = {path + name: array for path, each in part.walk() for name, array in each.arrays.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / FILES[1])
    # safetensors lets only the owner read its file; both files get the same permissions.
    (folder / FILES[1]).chmod((folder / FILES[0]).stat().st_mode)


def load(folder: Path) -> Part:
    """Reads what `save` wrote."""
    try:
        return _part(parsed(folder / FILES[0]), "", _mapped(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        raise BundleError(f"the exported network is damaged: {reason} ({folder})") from None


def places(folder: Path) -> dict[str, int]:
    """The offset of each array in parts.safetensors, in bytes."""
    return {name: place for name, (place, _) in _head(folder).items()}


def _head(folder: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """The offset and the header entry of each array."""
    with (folder / FILES[1]).open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
    head.pop("__metadata__", None)
    return {name: (8 + length + facts["data_offsets"][0], facts) for name, facts in head.items()}


def _mapped(folder: Path) -> dict[str, NDArray[Any]]:
    """All arrays, mapped from the file: processes that serve the same folder share the memory."""
    whole = np.memmap(folder / FILES[1], mode="r")
    found = {}
    for name, (place, facts) in _head(folder).items():
        if facts["dtype"] not in KINDS:
            raise ValueError(f"'{name[:100]}' must be {', '.join(KINDS)}, found {str(facts['dtype'])[:20]}")
        kind = np.dtype(KINDS[facts["dtype"]])
        count = int(np.prod(facts["shape"]))
        bytes_of = np.asarray(whole[place : place + count * kind.itemsize])
        found[name] = array = bytes_of.view(kind).reshape(facts["shape"])
        # If the sum is finite, so are all numbers.
        if kind.kind == "f" and not (np.isfinite(array.sum(dtype=np.float64)) or np.isfinite(array).all()):
            raise ValueError(f"weights must be finite numbers, found others in '{name[:100]}'")
    return found


def _described(part: Part) -> dict[str, Any]:
    below = [_described(each) for each in part.parts]
    return {"kind": part.kind, "settings": part.settings, "arrays": list(part.arrays), "parts": below}


def _part(described: dict[str, Any], path: str, arrays: dict[str, NDArray[Any]]) -> Part:
    below = tuple(_part(each, f"{path}{number}.", arrays) for number, each in enumerate(described["parts"]))
    own = {name: arrays[path + name] for name in described["arrays"]}
    for name, value in described["settings"].items():
        # Settings are numbers, words and lists of whole numbers; like weights, they must be finite.
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name[:100]} must be a finite number, found {value}")
    return Part(described["kind"], described["settings"], own, below)
