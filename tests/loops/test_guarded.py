"""Every compiled loop between pages that may not be touched, over drawn shapes, beside its plain twin (guarded.py)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from numba.core.dispatcher import Dispatcher

import fieldwise
from fieldwise.loops import halves
from tests.loops.guard import SIDES, Child, Died

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pages are closed by mprotect")
ROOT = Path(fieldwise.__file__).parents[1]
LIMIT, BF16 = 1e-4, 2e-2  # of the largest number expected

# Sizes beside those of a vector's, a tile's and a block's, and any others.
FEW, SIZE = some.integers(1, 8), some.sampled_from([1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65, 128, 130])
SIZE |= some.integers(1, 130)
ROWS = some.sampled_from([1, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100, 256, 257, 300]) | some.integers(1, 300)
FIELDS, YES, SEED = some.integers(2, 6) | some.integers(2, 40), some.booleans(), some.integers(0, 1000)
VECTORS = {"fields": FIELDS, "dim": SIZE, "rows": ROWS}
MICRO = VECTORS | {"units": SIZE, "outs": FEW | SIZE, "product": YES, "own": YES}
SHAPES: dict[str, dict[str, Any]] = {
    "micro": MICRO,
    "attention": VECTORS | {"units": SIZE},
    "inner": VECTORS,
    "kernel_products": VECTORS,
    "windows": VECTORS | {"width": FEW, "channels": SIZE},
    "layer_norm": {"units": SIZE, "rows": ROWS, "bf16": YES},
    "adam_rows": {"dim": SIZE, "rows": ROWS, "ids": ROWS, "lazy": YES},
    "shallow": {
        **{"model": some.sampled_from(["lr", "fm", "ffm"]), "fields": FIELDS, "dim": some.just(4) | SIZE, "rows": ROWS},
        **{"linear": YES, "optimizer": some.sampled_from(["adam", "adagrad", "ftrl"]), "wide": YES},
    },
    "cells": {
        **{"rows": ROWS, "words": FEW, "numbers": FEW, "known": some.integers(0, 90)},
        **{"longest": some.integers(1, 40), "seed": SEED},
    },
    "words": {"known": some.integers(0, 90), "asked": ROWS, "longest": some.integers(1, 140), "seed": SEED},
    "counts": {
        **{"rows": ROWS, "keys": FEW, "kinds": some.integers(1, 2000), "delay": some.sampled_from([0.0, 3.0])},
        **{"window": some.sampled_from([0.0, 20.0]), "seed": SEED},
    },
    "trails": {
        **{"rows": ROWS, "columns": FEW, "kinds": some.integers(1, 2000), "last": FEW},
        **{"delay": some.sampled_from([0.0, 3.0]), "window": some.sampled_from([0.0, 20.0]), "seed": SEED},
    },
    "symmetric_trees": {
        **{"rows": ROWS, "columns": FEW, "values": some.integers(1, 255), "depth": some.integers(1, 8), "seed": SEED},
    },
    "world_rows": {"rows": ROWS, "fields": FIELDS, "values": some.integers(1, 60), "seed": SEED},
}
if halves.available():
    SHAPES["micro_bf16"] = MICRO
# What was wrong once.
PINNED: dict[str, list[dict[str, Any]]] = {
    "micro": [{"fields": 3, "dim": 64, "units": 40, "outs": 5, "rows": 33, "product": True, "own": False}],
    "micro_bf16": [{"fields": 2, "dim": 1, "units": 1, "outs": 1, "rows": 1, "product": False, "own": False}],
    "shallow": [{"model": "ffm", "fields": 2, "dim": 4, "rows": 71, "linear": False, "optimizer": "adagrad"}],
}


class Asked:
    """A guarded process, and another one where it died."""

    def __init__(self) -> None:
        self.child: Child | None = None

    def __call__(self, case: str, shape: dict[str, Any], sides: tuple[str, ...] = SIDES) -> list[float]:
        self.child = self.child or Child("tests.loops.guarded", ROOT)
        try:
            return [error for side in sides for error in self.child.ask(case, side, shape)]
        except Died:
            self.end()
            raise

    def end(self) -> None:
        if self.child is not None:
            self.child.end()
            self.child = None


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.end()


def small(shape: dict[str, Any], most: float = 3e6) -> dict[str, Any]:
    """The shape with fewer rows, then fewer fields, so that it takes milliseconds; sizes of vectors stay."""

    def cost() -> float:
        wide = shape.get("dim", 1) * (shape["fields"] - 1 if shape.get("model") == "ffm" else 1)
        pairs = shape["fields"] * (shape["fields"] - 1) / 2 if "fields" in shape else 1
        return float(pairs * 3 * wide * shape.get("units", wide if "model" not in shape else 1) * shape["rows"])

    shape = dict(shape)
    while "rows" in shape and cost() > most and (shape["rows"] > 40 or shape.get("fields", 2) > 2):
        name = "rows" if shape["rows"] > 40 else "fields"
        shape[name] = max(shape[name] * 2 // 3, 2)
    return shape


@pytest.mark.parametrize("case", sorted(SHAPES))
def test_no_number_too_far(case: str, asked: Asked) -> None:
    @settings(max_examples=60 if case == "micro" else 25)
    @given(some.fixed_dictionaries(SHAPES[case]).map(small))
    def holds(shape: dict[str, Any]) -> None:
        errors = asked(case, shape)
        assert max(errors) <= (BF16 if case == "micro_bf16" or shape.get("bf16") else LIMIT), (shape, errors)

    for pinned in PINNED.get(case, []):
        asked(case, pinned)
    holds()


@pytest.mark.parametrize("kind", ["argument", "inner"])
@pytest.mark.parametrize(("side", "place"), [("after", 37), ("before", -1)])
def test_a_loop_that_reads_one_number_too_far_dies(kind: str, side: str, place: int) -> None:
    # The second process has the loop from numba's cache.
    for _ in range(2):
        child = Child("tests.loops.toys", ROOT)
        assert [child.ask(kind, each, {"size": 37, "place": right}) for each in SIDES for right in (0, 36)] == [0] * 4
        with pytest.raises(Died, match=rf"closed page {side}: ended by SIG(SEGV|BUS) in .*reads_{kind}"):
            child.ask(kind, side, {"size": 37, "place": place})
        child.end()


def test_a_loop_that_reads_a_freed_array_dies() -> None:
    child = Child("tests.loops.toys", ROOT)
    with pytest.raises(Died, match="reads_freed"):
        child.ask("freed", SIDES[0], {"size": 37})
    child.end()


def test_every_compiled_loop_is_guarded(asked: Asked) -> None:
    """Those that Python calls are seen there; those that they call are read from their code."""
    for model in ("lr", "fm", "ffm"):
        shape = {"model": model, "fields": 3, "dim": 2, "rows": 9, "linear": True, "optimizer": "adam"}
        for wide in (False, True):
            asked("shallow", shape | {"wide": wide})
    asked("counts", {"rows": 300, "keys": 4, "kinds": 2000, "delay": 0.0, "window": 9.0, "seed": 0})
    asked("trails", {"rows": 300, "columns": 2, "kinds": 2000, "last": 3, "delay": 0.0, "window": 9.0, "seed": 0})
    asked("words", {"known": 9, "asked": 9, "longest": 9, "seed": 0})
    asked("cells", {"rows": 9, "words": 2, "numbers": 2, "known": 9, "longest": 9, "seed": 0})
    asked("world_rows", {"rows": 9, "fields": 3, "values": 5, "seed": 0})
    vectors = {"fields": 3, "dim": 2, "rows": 9}
    asked("micro", vectors | {"units": 3, "outs": 2, "product": True, "own": False})
    for case, more in {"attention": {"units": 3}, "windows": {"width": 2, "channels": 3}}.items():
        asked(case, vectors | more)
    for case in ("inner", "kernel_products"):
        asked(case, vectors)
    asked("layer_norm", {"units": 3, "rows": 9, "bf16": False})
    asked("adam_rows", {"dim": 2, "rows": 9, "ids": 9, "lazy": False})
    assert asked.child is not None
    loops = compiled_loops()
    called = [loops[name] for name in asked.child.loops if name in loops]
    reached: set[str] = set()
    while called:
        loop = called.pop()
        if name_of(loop) not in reached:
            reached.add(name_of(loop))
            called += [one for one in named_in(loop.py_func) if isinstance(one, Dispatcher)]
    assert len(loops) > 60
    assert not set(loops) - reached


def name_of(loop: Any) -> str:
    return f"{loop.py_func.__module__}.{loop.py_func.__name__}"


def compiled_loops() -> dict[str, Any]:
    """All compiled functions of the package by name."""
    found = {}
    for path in (ROOT / "fieldwise").rglob("*.py"):
        if "njit" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            values = vars(importlib.import_module(name)).values()
            own = [one for one in values if isinstance(one, Dispatcher) and one.py_func.__module__ == name]
            found |= {name_of(loop): loop for loop in own}
    return found


def named_in(function: Any) -> Iterator[Any]:
    """The globals that a function names."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
