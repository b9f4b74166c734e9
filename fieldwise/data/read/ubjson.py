"""XGBoost's UBJSON -> plain values: only what XGBoost itself writes is understood, and every length is checked.

XGBoost trusts what it reads; this is how a file is looked at before XGBoost sees it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# A file of trees has six levels.
DEEPEST = 16
NUMBERS = {
    marker.encode(): np.dtype(kind)
    for marker, kind in (
        ("i", ">i1"),
        ("U", ">u1"),
        ("I", ">i2"),
        ("l", ">i4"),
        ("L", ">i8"),
        ("d", ">f4"),
        ("D", ">f8"),
    )
}
LITERALS = {b"T": True, b"F": False, b"Z": None}


def loads(data: bytes) -> dict[str, Any]:
    """The object that the bytes are, all of them; typed arrays are numpy arrays. ValueError for anything else.

    >>> loads(b"{L" + (1).to_bytes(8, "big") + b"a" + b"[$U#L" + (2).to_bytes(8, "big") + bytes([3, 4]) + b"}")
    {'a': array([3, 4], dtype=uint8)}
    """
    reader = _Reader(data)
    if reader.take(1) != b"{":
        raise ValueError("it does not begin with an object")
    found = reader.object(0)
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at:,} bytes follow its end")
    return found


class _Reader:
    """A place in the bytes, and what begins there."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if count < 0 or len(found) < count:
            raise ValueError(f"it is cut off or has a wrong length at byte {self.at:,}")
        self.at += count
        return found

    def value(self, depth: int) -> Any:
        marker = self.take(1)
        if marker in NUMBERS:
            return self._numbers(marker, 1)[0].item()
        if marker == b"S":
            return self._text()
        if marker in (b"{", b"["):
            if depth == DEEPEST:
                raise ValueError(f"it is more than {DEEPEST} levels deep")
            return self.object(depth + 1) if marker == b"{" else self._array(depth + 1)
        if marker in LITERALS:
            return LITERALS[marker]
        raise ValueError(f"unknown marker {marker!r} at byte {self.at - 1:,}")

    def object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.data[self.at : self.at + 1] != b"}":
            key = self._text()
            if key in found:
                raise ValueError(f"'{key[:40]}' is there twice")
            found[key] = self.value(depth)
        self.at += 1
        return found

    def _array(self, depth: int) -> Any:
        kind = b""
        if self.data[self.at : self.at + 1] == b"$":
            kind = self.take(2)[1:]
            if kind not in NUMBERS:
                raise ValueError(f"an array of {kind!r} at byte {self.at:,}")
        if self.take(1) != b"#":
            raise ValueError(f"an array without a length at byte {self.at:,}")
        count = self._length()
        # Each value of an array without a type takes a byte or more.
        if count > len(self.data) - self.at:
            raise ValueError(f"it is cut off or has a wrong length at byte {self.at:,}")
        return self._numbers(kind, count) if kind else [self.value(depth) for _ in range(count)]

    def _numbers(self, marker: bytes, count: int) -> Any:
        kind = NUMBERS[marker]
        return np.frombuffer(self.take(count * kind.itemsize), kind)

    def _length(self) -> int:
        if self.take(1) != b"L":
            raise ValueError(f"a length of another type at byte {self.at - 1:,}")
        return int.from_bytes(self.take(8), "big", signed=True)

    def _text(self) -> str:
        return self.take(self._length()).decode()
