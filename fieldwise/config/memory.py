"""Memory: how much there is, what says that there is none left, and what becomes of what was freed."""

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
    """Lets large arrays of a step reuse those of the step before; False where the C library cannot.

    As it is, glibc gives each array over 32 MB back to the system and takes the next from there: every page of it is
    then filled with zeros first, which costs several times what reading and writing it does.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))


def total(device: torch.device) -> int:
    """Bytes of the card, or of this machine."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available(device: torch.device | None = None) -> int:
    """Bytes that are free on the card, or that this process may still take of this machine, swap included."""
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
    """What a container may still take, where it has a limit (cgroup 2, or 1); pages of files can be given back."""
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
    """The first number of each line by the word before it; nothing where there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = (line.split() for line in lines)
    return {words[0]: int(words[1]) for words in found if len(words) > 1 and words[1].isdigit()}


def ran_out(error: BaseException) -> bool:
    """Whether an error, of whichever library, says that memory is used up."""
    signs = ("out of memory", "can't allocate memory", "bad_alloc")
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's, not imported here
    return named or any(sign in str(error) for sign in signs)
