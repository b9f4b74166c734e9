"""The studies by their ids; a module is imported when its study is asked for."""

from __future__ import annotations

import importlib

from fieldwise.errors import ConfigError, unknown
from fieldwise.studies.study import Study

MODULES = {
    "table10": "table10",
    "fig8": "fig8",
    "fig9": "fig9",
    "fig10": "fig10",
    "fig20": "fig20",
    "table11": "table11",
    "coupled-gradient": "coupled_gradient",
    "parity": "parity",
    "layer-norm": "layer_norm",
    "kernels": "kernels",
    "seeds": "seeds",
    "history": "history",
}


def named(name: str) -> Study:
    """The study of an id."""
    if name not in MODULES:
        raise ConfigError(unknown("study", name, (*MODULES, "all", "list")))
    study = importlib.import_module(f"fieldwise.studies.{MODULES[name]}").STUDY
    assert isinstance(study, Study)
    return study


def every() -> list[Study]:
    """All studies, in the order of the paper."""
    return [named(name) for name in MODULES]
