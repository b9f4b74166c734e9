"""Runs a check in a process of its own whose Triton kernels run on the CPU, one operation after the other."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRITON = Path(sys.prefix) / "interpreter"  # where nothing but these tests sees it
CODE = """
import importlib, json, sys
from triton.runtime import interpreter

def patched(tensor, scope, before=interpreter._patch_lang_tensor):
    before(tensor, scope)
    # Triton 3.6 takes int() of an array of one number, which numpy refuses from 2.4 on.
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

interpreter._patch_lang_tensor = patched
module, function, arguments = sys.argv[1:]
getattr(importlib.import_module(module), function)(*json.loads(arguments))
"""


def over_shapes(check, examples, **sizes):
    """check(**shape) of some shapes that hypothesis draws, each size from its strategy: for use over there."""
    from hypothesis import given, settings
    from hypothesis import strategies as some

    drawn = given(some.fixed_dictionaries(sizes))(lambda shape: check(**shape))
    settings(max_examples=examples, deadline=None, derandomize=True, database=None)(drawn)()


def in_interpreter(module, function, *arguments):
    """Calls module.function(*arguments) there; its failed assertions fail here."""
    if importlib.util.find_spec("triton") is None and not TRITON.exists():
        pytest.skip("triton is not installed: make interpreter")
    command = [sys.executable, "-c", CODE, module, function, json.dumps(arguments)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TRITON)}
    found = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
