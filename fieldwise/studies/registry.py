"""The studies by their ids, in the order of the paper; a module is imported when its study is asked for."""

from __future__ import annotations

import importlib

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.studies.study import Study

IDS = (
    *(f"table{number}" for number in (4, 6, 7, 8, 9, 10, 11)),
    *(f"fig{number}" for number in range(7, 21)),
    *(
        "criteo-challenge",
        "coupled-gradient",
        "parity",
        "layer-norm",
        "kernels",
        "seeds",
        "history",
        "sequence",
        "worlds",
        "rows",
    ),
)
# Other modules have the names of their ids, with underscores.
MODULES = {"history": "history_fields"}


def named(name: str) -> Study:
    """The study with this id."""
    if name not in IDS:
        raise ConfigError(unknown("study", name, (*IDS, "all", "list", "page")))
    module = MODULES.get(name, name.replace("-", "_"))
    study = importlib.import_module(f"fieldwise.studies.{module}").STUDY
    assert isinstance(study, Study)
    return study


def every() -> list[Study]:
    """All studies."""
    return [named(name) for name in IDS]
