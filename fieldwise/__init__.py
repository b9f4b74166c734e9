"""fieldwise: predict a user's response from multi-field categorical data.

The public names are loaded when they are asked for, so that `import fieldwise` stays quick.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldwise.bundle.predictor import Predictor
    from fieldwise.config.errors import FieldwiseError
    from fieldwise.config.settings import Config, load_config
    from fieldwise.data.schema import Field, Schema
    from fieldwise.data.world import World
    from fieldwise.experiments.auto import AutoClassifier
    from fieldwise.train.estimator import Classifier

__version__ = "0.1.0"

# torch's OpenMP threads spin for milliseconds before they sleep, which steals the cores from our own threads and from
# other processes. It is read when torch is loaded, so that this helps only where fieldwise comes first.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

_HOMES = {
    "AutoClassifier": "fieldwise.experiments.auto",
    "Classifier": "fieldwise.train.estimator",
    "Config": "fieldwise.config.settings",
    "Field": "fieldwise.data.schema",
    "FieldwiseError": "fieldwise.config.errors",
    "Predictor": "fieldwise.bundle.predictor",
    "Schema": "fieldwise.data.schema",
    "World": "fieldwise.data.world",
    "load_config": "fieldwise.config.settings",
}

__all__ = [
    "AutoClassifier",
    "Classifier",
    "Config",
    "Field",
    "FieldwiseError",
    "Predictor",
    "Schema",
    "World",
    "load_config",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fieldwise' has no attribute '{name}'")
