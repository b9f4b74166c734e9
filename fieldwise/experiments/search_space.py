"""The search space of tuning: a range or a list of values for each option of the model and for training settings.

Ranges belong to options, not to models: a model gets those of its keyword arguments. Every range includes the base
config's value; settings that the user fixed have no range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fieldwise.bundle.bundle import build_model
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import options
from fieldwise.nn.trees import Trees
from fieldwise.parts.kernel.formula import KernelProduct
from fieldwise.train.network import batch_size

# L2 on all rows of a larger table, and its dense updates, would be too slow.
WHOLE_TABLE_ROWS = 300_000


@dataclass(frozen=True)
class OneOf:
    """A choice from some values."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value in self.values

    def with_(self, value: Any) -> OneOf:
        return self if value in self.values else OneOf((*self.values, value))


@dataclass(frozen=True)
class Between:
    """A number from `low` to `high`; `log`: on a logarithmic scale; `whole`: a whole number."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def holds(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def with_(self, value: Any) -> Between:
        """The range extended to the value; a logarithmic one cannot include zero."""
        if self.log and value <= 0:
            return self
        return replace(self, low=min(self.low, value), high=max(self.high, value))


Values = OneOf | Between


@dataclass(frozen=True)
class Axis:
    """One choice: its name, its values, the base's value (None: not among them), and the kind of L2 it is for."""

    name: str
    values: Values
    start: Any
    only_for: str = ""


def _multiples(*factors: float) -> Callable[[Any], OneOf]:
    """Multiples of a size, or of each size in a list, at least 1; a size of 1, a sub-network's output, stays."""

    def scaled(size: int, factor: float) -> int:
        return size if size == 1 else max(1, math.floor(size * factor))

    def values(default: Any) -> OneOf:
        if isinstance(default, int):
            return OneOf(tuple(scaled(default, factor) for factor in factors))
        return OneOf(tuple(tuple(scaled(size, factor) for size in default) for factor in factors))

    return values


def _norms(default: str) -> OneOf:
    """The norms to try; sub-networks have one over all of them (fused), one for each (layer), or none."""
    return OneOf(("fused", "layer", "none") if default.startswith("fused") else ("layer", "batch", "none"))


def _always(values: Values) -> Callable[[Any], Values]:
    """The same values, whatever the default is."""
    return lambda default: values


# The values of an option, given its default. Options not listed keep the base's value; switches take both.
OPTIONS: dict[str, Callable[[Any], Values]] = {
    "dim": _multiples(0.5, 1, 2, 4),
    "attention": _multiples(0.5, 1, 2, 4),
    "subnet": _multiples(0.5, 1, 2),
    "channels": _multiples(0.5, 1, 2),
    "maps": _multiples(0.5, 1, 2),
    "blocks": _multiples(0.5, 1, 2),
    "crosses": _always(OneOf((1, 2, 3, 4))),
    "exponential": _always(OneOf((1, 2, 3, 4))),
    "stacked": _always(OneOf((1, 2, 3, 4))),
    "attention_layers": _always(OneOf((1, 2, 3))),
    "norm": _norms,
    "subnet_norm": _norms,
    "dropout": _always(Between(0.0, 0.6)),
    "temperature": _always(Between(0.1, 10.0, log=True)),
    "kernel": _always(OneOf(KernelProduct.KERNELS)),
    "lr": _always(Between(0.02, 0.3, log=True)),
    "depth": _always(Between(3, 12, whole=True)),
    "min_child_weight": _always(Between(0.5, 64.0, log=True)),
    "subsample": _always(Between(0.5, 1.0)),
    "colsample": _always(Between(0.3, 1.0)),
    "l2": _always(Between(0.1, 100.0, log=True)),
    "random_strength": _always(Between(0.1, 10.0, log=True)),
    "cat_threshold": _always(Between(4, 256, log=True, whole=True)),
}


def search_space(base: Config, layout: Layout, rows: int, held: Iterable[str] = ()) -> list[Axis]:
    """The axes for a model over these fields and this number of training rows; `held` are settings not to change.

    `base` has all its options written out (train.resolve). It must build; so does the base with any value of an axis.
    """
    with torch.device("meta"):
        trees = isinstance(build_model(base, layout), Trees)
    held = set(held)
    tables = layout.rows <= WHOLE_TABLE_ROWS and ("train.sparse_mode" not in held or base.train.sparse_mode == "dense")
    axes = _option_axes(base) + ([] if trees else _hidden_axes(base) + _train_axes(base.train, rows, tables))
    free = [axis for axis in axes if not _settings_of(axis.name) & held]
    return [replace(axis, values=_buildable(axis, base, layout)) for axis in free]


def apply(base: Config, point: dict[str, Any]) -> Config:
    """The config at a point: the base with the chosen values, by the names of the axes."""
    chosen = {name: value for name, value in point.items() if name.startswith(("model.", "train."))}
    if "hidden width" in point:
        chosen["model.hidden"] = (point["hidden width"],) * point["hidden depth"]
    if point.get("l2 on") == "tables":
        chosen |= {"train.l2": 0.0, "train.sparse_mode": "dense"}
    elif "l2 on" in point:
        chosen["train.l2_full"] = 0.0
    parts: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
    for name, value in chosen.items():
        section, key = name.split(".")
        parts[section][key] = value
    return replace(base, options={**base.options, **parts["model"]}, train=replace(base.train, **parts["train"]))


def _settings_of(name: str) -> set[str]:
    """The settings that an axis determines."""
    l2 = {"train.l2", "train.l2_full", "train.l2_reduction"}
    if name.startswith("hidden"):
        return {"model.hidden"}
    return l2 if name == "l2 on" or name in l2 else {name}


def _option_axes(base: Config) -> list[Axis]:
    axes = []
    for name, default in options(base.model).items():
        if isinstance(default, bool):
            axes.append(_axis(f"model.{name}", OneOf((True, False)), base.options[name]))
        elif name in OPTIONS:
            axes.append(_axis(f"model.{name}", OPTIONS[name](default), base.options[name]))
    return axes


def _hidden_axes(base: Config) -> list[Axis]:
    """Layers of equal width; a base with different widths is not on these axes, but is still tried."""
    hidden = base.options.get("hidden")
    if hidden is None:
        return []
    even = len(set(hidden)) == 1
    return [
        _axis("hidden width", Between(100, 1200, log=True, whole=True), hidden[0] if even else None),
        _axis("hidden depth", Between(1, 3, whole=True), len(hidden) if even else None),
    ]


def _train_axes(settings: TrainSettings, rows: int, tables: bool) -> list[Axis]:
    adam = settings.optimizer == "adam"
    step = Between(3e-4, 1e-2, log=True) if adam else Between(settings.lr / 10, settings.lr * 10, log=True)
    size = batch_size(settings, rows)
    sizes = OneOf(tuple(dict.fromkeys(max(1, int(size * factor)) for factor in (0.5, 1, 2, 4))))
    axes = [_axis("train.lr", step, settings.lr), _axis("train.batch_size", sizes, size)]
    if adam or settings.optimizer == "adagrad":
        axes.append(_axis("train.eps", Between(1e-8, 1e-3, log=True), settings.eps))
    if settings.init == "normal":
        axes.append(_axis("train.init_scale", Between(1e-3, 0.3, log=True), settings.init_scale))
    return axes + (_l2_axes(settings, adam and tables) if settings.l2_reduction == "mean" else [])


def _l2_axes(settings: TrainSettings, tables: bool) -> list[Axis]:
    """L2 on the looked-up rows or, if `tables`, on all rows of the tables; never on both."""
    kinds = ("rows", "tables") if tables else ("rows",)
    known = {(True, False): "rows", (False, True): "tables"}
    kind = known.get((settings.l2 > 0, settings.l2_full > 0))
    if kind == "tables" and settings.sparse_mode != "dense":
        kind = None
    weight = Between(1e-5, 1e-1, log=True)
    return [
        Axis("l2 on", OneOf(kinds), kind if kind in kinds else None),
        replace(_axis("train.l2", weight, settings.l2 if kind == "rows" else None), only_for="rows"),
        replace(_axis("train.l2_full", weight, settings.l2_full if kind == "tables" else None), only_for="tables"),
    ]


def _axis(name: str, values: Values, start: Any) -> Axis:
    """An axis that includes the base's value, if possible."""
    if start is None:
        return Axis(name, values, None)
    values = values.with_(start)
    return Axis(name, values, start if values.holds(start) else None)


def _buildable(axis: Axis, base: Config, layout: Layout) -> Values:
    """The values that the model accepts with the base's other options."""
    if isinstance(axis.values, Between) or not axis.name.startswith("model."):
        return axis.values
    return OneOf(tuple(value for value in axis.values.values if _builds(apply(base, {axis.name: value}), layout)))


def _builds(config: Config, layout: Layout) -> bool:
    try:
        with torch.device("meta"):
            build_model(config, layout)
    except ConfigError:
        return False
    return True
