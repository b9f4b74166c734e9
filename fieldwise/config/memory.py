"""How this process treats memory that it has freed."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

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
