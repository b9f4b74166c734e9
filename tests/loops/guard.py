"""Compiled loops between pages that no one may touch: one number too far ends the process, whatever lies there else.

All arrays handed to a loop are copied to memory that ends right before such a page (side "after"), or begins right
behind one ("before"), and copied back when it is done. So is the memory of arrays that a loop makes itself. New memory
holds NaN, and freed memory stays closed until the next case: what is read without having been written shows too.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import binding
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python, nrt
from numpy.lib.array_utils import byte_bounds

SIDES = ("after", "before")
PAGE = mmap.PAGESIZE
CLOSED = 0
Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Pages:
    """Memory in whole pages, with a closed one on either side."""

    def __init__(self) -> None:
        self.side = SIDES[0]
        self.held: dict[int, tuple[mmap.mmap, Any, int]] = {}
        self.freed: list[Any] = []
        self.protect = ctypes.CDLL(None, use_errno=True).mprotect
        self.protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def take(self, size: int) -> int:
        """The address of `size` bytes."""
        pages = -(-max(size, 1) // PAGE) * PAGE
        memory = mmap.mmap(-1, pages + 2 * PAGE)
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        first = ctypes.addressof(view) + PAGE
        ctypes.memset(first, 0xFF, pages)
        self._close(first - PAGE, PAGE)
        self._close(first + pages, PAGE)
        address = first + (pages - size if self.side == "after" else 0)
        self.held[address] = memory, view, first
        return address

    def give_back(self, address: int) -> None:
        memory, view, first = self.held.pop(address)
        self._close(first, len(memory) - 2 * PAGE)
        self.freed.append((view, memory))

    def forget(self) -> None:
        """Unmaps what was given back."""
        self.freed.clear()

    def _close(self, address: int, size: int) -> None:
        if self.protect(address, size, CLOSED):
            raise OSError(ctypes.get_errno(), "mprotect")


def guard_inner_arrays(pages: Pages) -> list[Any]:
    """Lets numba take the memory of all arrays that loops make from the pages; what comes back must be kept."""
    nrt.rtsys.initialize(cpu_target.target_context)
    helpers = _nrt_python.c_helpers
    # The table of nrt_external.h: its third function turns memory of others into numba's.
    api = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p))(helpers["get_api"])()
    manage = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(api[2])
    free = Free(pages.give_back)
    allocate = Allocate(lambda size, _: manage(pages.take(size), ctypes.cast(free, ctypes.c_void_p)))
    for name in ("MemInfo_alloc", "MemInfo_alloc_safe", "MemInfo_alloc_aligned", "MemInfo_alloc_safe_aligned"):
        assert name in helpers, f"numba has no {name} any more: where does np.empty take its memory?"
        binding.add_symbol(f"NRT_{name}", ctypes.cast(allocate, ctypes.c_void_p).value)
    return [free, allocate, manage]


def guard_arguments(pages: Pages, calls: Callable[[str, str], None]) -> None:
    """Lets every compiled function that Python calls see guarded copies of its arrays; `calls` hears of it before."""
    plain = Dispatcher.__call__

    def call(self: Any, *arguments: Any) -> Any:
        arrays = _arrays(arguments)
        calls(f"{self.py_func.__module__}.{self.py_func.__name__}", " ".join(f"{a.dtype}{a.shape}" for a in arrays))
        spans = [(low, high, pages.take(high - low)) for low, high in _spans(arrays)]
        for low, high, address in spans:
            ctypes.memmove(address, low, high - low)
        try:
            return plain(self, *(_moved(one, spans) for one in arguments))
        finally:
            written = [byte_bounds(array)[0] for array in arrays if array.size and array.flags.writeable]
            for low, high, address in spans:
                if any(low <= place < high for place in written):
                    ctypes.memmove(low, address, high - low)
                pages.give_back(address)

    Dispatcher.__call__ = call


def _spans(arrays: list[Any]) -> list[tuple[int, int]]:
    """Bytes low..high of the arrays, those of arrays that share some in one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(byte_bounds(array) for array in arrays if array.size):
        if found and low < found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def _arrays(parts: Any) -> list[Any]:
    """All arrays among arguments, and in the tuples among them."""
    found: list[Any] = []
    for part in parts:
        found += [part] if isinstance(part, np.ndarray) else _arrays(part) if isinstance(part, tuple) else []
    return found


def _moved(array: Any, spans: list[tuple[int, int, int]]) -> Any:
    """The array where its span lies now, those of a tuple each; what has no numbers stays."""
    if isinstance(array, tuple):
        parts = [_moved(one, spans) for one in array]
        return type(array)(*parts) if hasattr(array, "_fields") else tuple(parts)
    if not isinstance(array, np.ndarray) or not array.size:
        return array
    place = array.__array_interface__["data"][0]
    low, high, address = next(span for span in spans if span[0] <= place < span[1])
    memory = (ctypes.c_char * (high - low)).from_address(address)
    moved: Any = np.ndarray(array.shape, array.dtype, memory, place - low, array.strides)
    moved.flags.writeable = array.flags.writeable
    return moved


def start(calls: Callable[[str, str], None]) -> Pages:
    """Guards all compiled loops of this process from now on."""
    pages = Pages()
    pages.kept = guard_inner_arrays(pages)  # type: ignore[attr-defined]
    guard_arguments(pages, calls)
    return pages


def serve(answer: Callable[[str, dict[str, Any]], Any]) -> None:
    """Answers lines of JSON, [case, side, shape], by lines of JSON; each call of a loop is told before it is made."""

    def tell(kind: str, value: Any) -> None:
        print(json.dumps([kind, value]), flush=True)

    pages = start(lambda name, arrays: tell("loop", [name, arrays]))
    for line in sys.stdin:
        case, pages.side, shape = json.loads(line)
        try:
            tell("found", answer(case, shape))
        except Exception:
            tell("failed", traceback.format_exc())
        pages.forget()


class Child:
    """A process that serves."""

    def __init__(self, module: str, root: Path) -> None:
        command, environment = [sys.executable, "-m", module], {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, cwd=root, stdin=pipe, stdout=pipe, text=True)
        self.loops: set[str] = set()

    def ask(self, case: str, side: str, shape: dict[str, Any]) -> Any:
        """What it answers. Dies with it, and says in which loop that was."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([case, side, shape]) + "\n")
        self.process.stdin.flush()
        last = "before any loop"
        for line in self.process.stdout:
            kind, value = json.loads(line)
            if kind == "loop":
                self.loops.add(value[0])
                last = f"in {value[0]} of {value[1]}"
                continue
            assert kind == "found", f"{case} {shape}, closed page {side}: {value}"
            return value
        code = self.process.wait()
        raise Died(
            f"{case} {shape}, closed page {side}: ended by {signal.Signals(-code).name if code < 0 else code} {last}"
        )

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Died(AssertionError):
    """The process is no more."""
