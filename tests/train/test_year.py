"""Twelve days of benchmarks/year.py: tables that forget stay small, and are as good as those that keep everything."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "year.py"


@pytest.fixture(scope="module")
def year() -> ModuleType:
    found = importlib.util.spec_from_file_location("year", FILE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["year"] = module
    found.loader.exec_module(module)
    return module


def test_twelve_days(year: ModuleType, tmp_path: Path) -> None:
    """`Chain.learn` checks the ids of living values after each day, and the end bundles of the past."""
    *days, whole = year.year(tmp_path, days=12, rows=500, warm=4, expire=["user=5", "item=5"], churn=0.05)
    assert [record["day"] for record in days] == list(range(4, 16))
    forgets, keeps = ([record[name]["rows"] for record in days] for name in ("forgets", "keeps"))
    # From the sixth day on as many values leave as come; those who keep them have more each day.
    assert max(forgets[6:]) < 1.1 * forgets[6]
    assert all(later > earlier for earlier, later in pairwise(keeps))
    assert keeps[-1] > 1.3 * forgets[-1]
    assert sum(record["forgets"]["expired"] for record in days) > 300
    assert whole["bundles_unchanged"] == 2
    assert abs(whole["more_by_forgetting"]["mean"]) < 0.02
