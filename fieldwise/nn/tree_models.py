"""The models that are boosted trees, by name. This file and what it imports do without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fieldwise.nn.symmetric import symmetric
from fieldwise.nn.trees import Trees, gbdt

TREES: Mapping[str, Callable[..., Trees]] = {"gbdt": gbdt, "symmetric": symmetric}
