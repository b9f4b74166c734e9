"""Whether this process runs a command of ours and nothing else: then no other code misses what we leave unloaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

_own = False


def claim() -> None:
    """Says that this process is ours."""
    global _own
    _own = True


class _NoPandas(MetaPathFinder):
    """Finds pandas missing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def pyarrow_alone() -> None:
    """In a process of ours pyarrow does without pandas, which it loads when it sees its first array: that takes as
    long as to predict a thousand rows. Where pandas is not there it does not look again."""
    if _own and "pandas" not in sys.modules:
        import pyarrow

        # Not by None in sys.modules: what is compiled by Cython takes that for the module.
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pyarrow.array([0.0]).to_numpy()
        finally:
            sys.meta_path.remove(finder)


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
