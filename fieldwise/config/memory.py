"""Memory: how much there is, whether an error means that it ran out, and reuse of freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Names of malloc.h.
TRIM_THRESHOLD, MMAP_MAX = -1, -4


@cache
def keep_freed_memory() -> bool:
    """Makes large arrays of a step reuse the memory of the step before; returns False if the C library cannot.

    By default glibc returns each array over 32 MB to the system and asks for the next one, whose pages the system
    fills with zeros first. That costs several times as much as reading and writing them.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))


def total(device: torch.device) -> int:
    """Bytes of memory of the GPU, or of this machine."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available(device: torch.device | None = None) -> int:
    """Free bytes on the GPU, or bytes that this process may still allocate on this machine, including swap."""
    if device is not None and device.type == "cuda":
        import torch

        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    found = _numbers(Path("/proc/meminfo"))
    if "MemAvailable:" not in found:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = 1024 * (found["MemAvailable:"] + found.get("SwapFree:", 0))
    return min([free, *_left_of_limits()])


def _left_of_limits(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes left of a container's limit, if it has one (cgroup 2 or 1); the page cache counts as free."""
    kinds = (
        (root, "memory.max", "memory.current", "file"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    )
    left = []
    for folder, limit, used, of_files in kinds:
        try:
            most, now = (int((folder / name).read_text(encoding="utf-8")) for name in (limit, used))
        except (OSError, ValueError):  # not there, or without a limit: `max`
            continue
        left.append(max(0, most - now + _numbers(folder / "memory.stat").get(of_files, 0)))
    return left


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line by the word before it; empty if there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = (line.split() for line in lines)
    return {words[0]: int(words[1]) for words in found if len(words) > 1 and words[1].isdigit()}


def ran_out(error: BaseException) -> bool:
    """Whether an error, of any library, means that memory ran out."""
    signs = ("out of memory", "can't allocate memory", "bad_alloc")
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's, not imported here
    return named or any(sign in str(error) for sign in signs)
