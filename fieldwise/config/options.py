"""Options of a model, which are the keyword arguments of the function that builds it.

An argument whose default is a dataclass, such as the DNN's layers, is a group: each of its fields is an option.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.settings import coerce


def options_of(build: Callable[..., Any]) -> dict[str, Any]:
    """All options and their defaults, with groups expanded.

    >>> options_of(lambda sizes, *, dim=10, norm="layer": None)
    {'dim': 10, 'norm': 'layer'}
    """
    found: dict[str, Any] = {}
    for option, default in _keywords(build).items():
        found |= dataclasses.asdict(default) if _is_group(default) else {option: default}
    return found


def check_names(build: Callable[..., Any], settings: dict[str, Any]) -> None:
    """Refuses options that the model does not have."""
    known = options_of(build)
    for key in settings:
        if key not in known:
            raise ConfigError(f"model {build.__name__}: {unknown('option', key, known)}")


def arguments(build: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for these settings, each converted to the type of its default."""
    check_names(build, settings)
    known = options_of(build)
    where = f"model {build.__name__}"
    left = {key: coerce(value, type(known[key]), f"model.{key}", where) for key, value in settings.items()}
    found: dict[str, Any] = {}
    for option, default in _keywords(build).items():
        if _is_group(default):
            own = {f.name: left[f.name] for f in dataclasses.fields(default) if f.name in left}
            found[option] = dataclasses.replace(default, **own)
        elif option in left:
            found[option] = left[option]
    return found


def check_sizes(name: str, found: Sequence[int]) -> None:
    """Refuses sizes that are not positive whole numbers."""
    if not all(type(size) is int and size > 0 for size in found):
        raise ConfigError(f"{name} must be positive whole numbers, found {found}")


def check_dropout(found: float) -> None:
    """Refuses a dropout outside of [0, 1)."""
    if not 0 <= found < 1:
        raise ConfigError(f"dropout is the probability of dropping, in [0, 1), found {found}")


def _keywords(build: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _is_group(default: Any) -> bool:
    return dataclasses.is_dataclass(default)
