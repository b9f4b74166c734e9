"""A log of clicks, prepared with all the folders that are made inside of the first one, for tests of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import prepare

ROWS = 1200


def click_log() -> pa.Table:
    random = np.random.default_rng(4)
    users, items = random.integers(0, 30, ROWS), random.integers(0, 20, ROWS)
    clicks = random.random(ROWS) < 0.1 + 0.8 * (users % 3 == 0)
    names = {"click": clicks.astype(int), "user": [f"u{u}" for u in users], "item": [f"i{i}" for i in items]}
    return pa.table({**names, "price": random.random(ROWS)})


def prepared(log: pa.Table, out: Path, **settings: Any) -> dict[str, Any]:
    """What `prepare` says of the log; all that can be made of the rows that it keeps is made."""
    facts = prepare({"train": lambda: iter([log])}, out, "click", keep_rows=True, **settings)
    for name in (*facts["rows_kept_for"], "refit/rates", "refit/order"):
        made(out / name)
    return facts
