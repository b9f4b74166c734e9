"""Whether this process runs a command of ours and nothing else: then no other code misses what we leave unloaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_own = False


def claim() -> None:
    """Says that this process is ours."""
    global _own
    _own = True


@contextmanager
def unloaded(*modules: str) -> Iterator[None]:
    """Within, in a process of ours, modules that are not loaded yet cannot be: what would use them does without."""
    hidden = [name for name in modules if _own and name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
