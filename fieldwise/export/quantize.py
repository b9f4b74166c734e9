"""Quantized embedding tables: half floats, or bytes with a scale for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, unknown

KINDS = ("fp32", "fp16", "int8")


def stored_table(weight: NDArray[np.float32], kind: str) -> dict[str, NDArray[Any]]:
    """A table as it is stored: `weight` and, for int8, the `scale` (rows, 1) to multiply its bytes by.

    With int8, a row of one number is a half float: its scale would be as large as the row.
    """
    if kind not in KINDS:
        raise ConfigError(unknown("kind of tables", kind, KINDS))
    if kind == "fp32":
        return {"weight": weight}
    if kind == "fp16" or weight.shape[1] == 1:
        return {"weight": np.clip(weight, -65504, 65504).astype(np.float16)}
    scale = np.abs(weight).max(axis=1, keepdims=True) / 127
    rounded = np.rint(weight / np.where(scale > 0, scale, 1)).astype(np.int8)
    return {"weight": rounded, "scale": scale.astype(np.float32)}
