"""Runs a check in a process of its own whose Triton kernels run on the CPU, one operation after the other."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import importlib, json, sys; m, f, a = sys.argv[1:]; getattr(importlib.import_module(m), f)(*json.loads(a))"


def in_interpreter(module, function, *arguments):
    """Calls module.function(*arguments) there; its failed assertions fail here."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install triton")
    command = [sys.executable, "-c", CODE, module, function, json.dumps(arguments)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    found = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
