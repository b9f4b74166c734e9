"""Freed memory is kept where the C library can, and asked for once."""

import sys

import numpy as np
import pytest

from fieldwise.config.memory import keep_freed_memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone can")
def test_freed_memory_is_used_again():
    assert keep_freed_memory() == keep_freed_memory()
    if keep_freed_memory():
        places = set()
        for _ in range(4):
            array = np.ones(10_000_000)
            places.add(array.ctypes.data)
            del array
        assert len(places) < 4


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory.__wrapped__() is False
