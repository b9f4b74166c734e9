"""Loops that read where they may, and where they must not: what the guard is tried on (guard.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.instructions import keep, pointer
from tests.loops.guard import serve


@njit(cache=True)
def reads_argument(numbers: Any, place: Any) -> Any:
    return pointer(numbers)[place]


@njit(cache=True)
def reads_inner(size: Any, place: Any) -> Any:
    numbers = np.zeros(size, np.float32)
    found = pointer(numbers)[place]
    keep((numbers,))
    return found


@njit
def reads_freed(size: Any) -> Any:
    numbers = np.zeros(size, np.float32)
    place = pointer(numbers)
    numbers[0] = 1
    others = np.zeros(size, np.float32)
    others[0] = 1
    return place[0] + others[0]


def answer(case: str, shape: dict[str, Any]) -> float:
    if case == "argument":
        return float(reads_argument(np.zeros(shape["size"], np.float32), shape["place"]))
    return float(reads_inner(shape["size"], shape["place"]) if case == "inner" else reads_freed(shape["size"]))


if __name__ == "__main__":
    serve(answer)
