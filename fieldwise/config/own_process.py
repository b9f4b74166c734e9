"""Whether this process runs a command of ours and nothing else: then no other code misses what we leave unloaded."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

_own = False
# How much rarer a collection of all objects is.
RARER = 10
# Libraries that complain of each of their objects that is still there when Python has ended.
COUNTING = {"duckdb", "onnx"}


def claim() -> None:
    """Says that this process is ours, and has Python look less often for garbage among all its objects.

    torch and numba make hundreds of thousands, of which none is garbage: to look through them again and again took a
    third of the time to load them, and as long once more in the end, where the system takes all memory back anyway.
    """
    global _own
    _own = True
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, RARER * old)
    atexit.register(_leave)
    sys.meta_path.insert(0, _NoLinearAlgebra())


def _leave() -> None:
    """Spares Python the search for garbage among the objects of torch before it ends."""
    if "torch" in sys.modules and not COUNTING & sys.modules.keys():
        gc.freeze()


class _NoLinearAlgebra(MetaPathFinder):
    """Finds scipy.linalg missing where numba looks for it while it is loaded. A loop that needs it finds it later."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "scipy.linalg" and _is_loading("numba.np.arraymath"):
            raise ModuleNotFoundError(name)


def _is_loading(module: str) -> bool:
    """Whether this import is one of that module's."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] == module:
            return True
    return False


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
