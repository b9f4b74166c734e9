"""The studies by their ids, in the order of the paper; a module is imported when its study is asked for."""

from __future__ import annotations

import importlib

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.studies.study import Study

IDS = (
    *(f"table{number}" for number in (4, 6, 7, 8, 9, 10, 11)),
    *(f"fig{number}" for number in range(7, 21)),
    *("criteo-challenge", "coupled-gradient", "parity", "layer-norm", "kernels", "seeds", "history", "worlds", "rows"),
)


def named(name: str) -> Study:
    """The study with this id; its module has the same name with underscores."""
    if name not in IDS:
        raise ConfigError(unknown("study", name, (*IDS, "all", "list", "page")))
    study = importlib.import_module(f"fieldwise.studies.{name.replace('-', '_')}").STUDY
    assert isinstance(study, Study)
    return study


def every() -> list[Study]:
    """All studies."""
    return [named(name) for name in IDS]
