"""The two pictures most studies show, described by the keys of their rows: lines over a key, and points in panels.

Labels are templates that a row's keys fill in: "{model} {data}" makes a line for each model on each data set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from fieldwise.reporting import plots
from fieldwise.studies.study import Results

Draw = Callable[[Results], Figure]


def curves(
    x: str,
    line: str,
    xlabel: str,
    logarithmic: Sequence[str] = (),
    where: Mapping[str, Collection[Any]] | None = None,
) -> Draw:
    """Test AUC over the key `x`, the mean over seeds; rows without the values of `where` are left out."""

    def draw(results: Results) -> Figure:
        chosen = results.among(where or {})
        lines: dict[str, dict[Any, float]] = {}
        for row in chosen.rows:
            keys = {key: value for key, value in row.items() if f"{{{key}}}" in line}
            lines.setdefault(line.format(**row), {})[row[x]] = chosen.mean("auc", **keys, **{x: row[x]})
        series = {name: (list(points), list(points.values())) for name, points in lines.items()}
        return plots.curves(series, xlabel, "Test AUC", logarithmic)

    return draw


def panels(
    row: str,
    points: str,
    label: str = "Test AUC",
    panel: str = "{data}",
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, Collection[Any]] | None = None,
) -> Draw:
    """A panel for each data set, or as `panel` says; in it a row of points, one for each seed, in colours by `points`.

    `columns` are the measured values by the name that {column} stands for in a template; by default AUC alone.
    """

    def draw(results: Results) -> Figure:
        parts: dict[str, dict[str, dict[str, list[float]]]] = {}
        for one in results.among(where or {}).rows:
            for column, key in (columns or {"AUC": "auc"}).items():
                title, name, kind = (text.format(**one, column=column) for text in (panel, row, points))
                found = parts.setdefault(title, {}).setdefault(name, {}).setdefault(kind, [])
                if one.get(key) is not None:
                    found.append(float(one[key]))
        return plots.panels(parts, label)

    return draw
