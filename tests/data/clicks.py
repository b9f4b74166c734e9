"""A log of clicks, and how it is prepared, for tests of the folders that `prepare` leaves inside of the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.data.encode.prepare import prepare

ROWS = 1200


def click_log() -> pa.Table:
    random = np.random.default_rng(4)
    users, items = random.integers(0, 30, ROWS), random.integers(0, 20, ROWS)
    clicks = random.random(ROWS) < 0.1 + 0.8 * (users % 3 == 0)
    names = {"click": clicks.astype(int), "user": [f"u{u}" for u in users], "item": [f"i{i}" for i in items]}
    return pa.table({**names, "price": random.random(ROWS)})


def prepared(log: pa.Table, out: Path, **settings: Any) -> dict[str, Any]:
    """What `prepare` says of the log; it leaves rates too."""
    return prepare({"train": lambda: iter([log])}, out, "click", with_rates=True, **settings)
