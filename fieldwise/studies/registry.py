"""The studies by their ids; a module is imported when its study is asked for."""

from __future__ import annotations

import importlib

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.studies.study import Study

MODULES = {
    "table4": "table4",
    "table6": "table6",
    "table7": "table7",
    "table8": "table8",
    "table9": "table9",
    "table10": "table10",
    "table11": "table11",
    "fig7": "fig7",
    "fig8": "fig8",
    "fig9": "fig9",
    "fig10": "fig10",
    "fig11": "fig11",
    "fig12": "fig12",
    "fig13": "fig13",
    "fig14": "fig14",
    "fig15": "fig15",
    "fig16": "fig16",
    "fig17": "fig17",
    "fig18": "fig18",
    "fig19": "fig19",
    "fig20": "fig20",
    "criteo-challenge": "challenge",
    "coupled-gradient": "coupled_gradient",
    "parity": "parity",
    "layer-norm": "layer_norm",
    "kernels": "kernels",
    "seeds": "seeds",
    "history": "history_fields",
}


def named(name: str) -> Study:
    """The study of an id."""
    if name not in MODULES:
        raise ConfigError(unknown("study", name, (*MODULES, "all", "list", "page")))
    study = importlib.import_module(f"fieldwise.studies.{MODULES[name]}").STUDY
    assert isinstance(study, Study)
    return study


def every() -> list[Study]:
    """All studies, in the order of the paper."""
    return [named(name) for name in MODULES]
