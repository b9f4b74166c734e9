"""The pictures of reports (as SVG text) and of studies. Without pyplot, so without global state.

They are drawn at the width of a phone, so letters stay readable when scaled to a screen.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fieldwise.config.files import whole_file

# Okabe and Ito's colours, distinct to colour-blind eyes; markers and, after six runs, strokes differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
STROKES = ("-", "--", ":", "-.")
INK, GRID, PAPER = "#333333", "#E3E6EA", "#F3F4F6"
BLUES = LinearSegmentedColormap.from_list("fieldwise", ["#FFFFFF", "#A9CBE6", "#0072B2", "#0B2C4D"])
WIDTH = 4.6
FONT = "DejaVu Sans"
NAME_LENGTH = 18


def training_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Training and validation loss over the rows seen; `runs`: name -> the records of its log."""
    figure = _figure(5.4)
    top, bottom = figure.subplots(2, 1, sharex=True)
    for number, (name, records) in enumerate(runs.items()):
        for axes, event, value in ((top, "train", "loss"), (bottom, "valid", "log_loss")):
            points = [(r["rows"], r[value]) for r in records if r["event"] == event and r[value] is not None]
            x, y = np.array(points, dtype=float).reshape(-1, 2).T
            style = _style(number) if event == "valid" else _style(number) | {"marker": ""}
            axes.plot(x, y, label=_shown(name), **style)
            if event == "valid" and len(y) and np.isfinite(y).any():
                best = int(np.nanargmin(y))
                axes.plot(x[best], y[best], "o", ms=10, mfc="none", mec=_style(number)["color"], mew=1.2)
    for axes, label in ((top, "Training log loss"), (bottom, "Validation log loss")):
        _style_axes(axes, "", label)
        _cut_peaks(axes)
    bottom.set_xlabel("Training rows seen (ring: best)", fontsize=9.5, color=INK)
    bottom.xaxis.set_major_formatter(EngFormatter(sep=""))
    bottom.xaxis.set_major_locator(MaxNLocator(6))
    bottom.set_xlim(left=0)
    _legend(figure, bottom)
    return _svg(figure, "Training and validation log loss of each run over the training rows seen")


def reliability_diagram(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Observed rate over predicted probability; `runs`: name -> metrics.reliability's bins, {} for none yet.

    Both axes are logarithmic if all rates are small; rare clicks would otherwise crowd in a corner.
    """
    figure = _figure(4.9)
    axes = figure.subplots()
    bins = [run for run in runs.values() if run]
    rates = [rate for run in bins for key in ("predicted", "observed") for rate in run[key] if rate > 0]
    low, high = (min(rates), max(rates)) if rates else (1.0, 1.0)
    rare = high < 0.1 and high > 10 * low
    limits = (low / 1.4, high * 1.4) if rare else (0.0, min(1.0, high * 1.08))
    for number, (name, run) in enumerate(runs.items()):
        if not run:
            continue
        x, y = np.asarray(run["predicted"], dtype=float), np.asarray(run["observed"], dtype=float)
        shown = (x > 0) & (y > 0) if rare else np.ones(len(x), dtype=bool)
        axes.plot(x[shown], y[shown], label=_shown(name), **_style(number))
    axes.plot(limits, limits, color="#8A9099", lw=1, ls=(0, (4, 3)), label="perfect")
    _style_axes(axes, "Predicted probability", "Observed rate")
    if rare:
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
        axes.tick_params(which="minor", length=0)
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    _legend(figure, axes)
    return _svg(figure, "Observed rate over predicted probability for each run")


def spread(models: Mapping[str, Sequence[float]], label: str) -> str:
    """A line for each model with a point for each of its seeds and a bar at their mean."""
    figure = _figure(1.1 + 0.3 * len(models))
    axes = figure.subplots()
    places = range(len(models))
    for place, values in zip(places, models.values(), strict=True):
        axes.plot(values, [place] * len(values), "o", color=COLOURS[0], ms=5, alpha=0.6, mew=0)
        axes.plot([float(np.mean(values))], [place], "|", color=INK, ms=14, mew=1.6)
    _style_axes(axes, label, "")
    axes.set_yticks(places, [_shown(name) for name in models], parse_math=False, color=INK)
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return _svg(figure, f"{label} of each model, a point for each seed")


def heat_map(matrix: ArrayLike, names: Sequence[str], title: str, unit: str = "Strength (logits)") -> str:
    """A symmetric matrix (F, F) of field pairs, darker for stronger; the picture grows with F."""
    values = np.array(matrix, dtype=float)
    fields = len(names)
    cell = min(0.72, max(0.17, 2.9 / fields))
    shown = [_shown(name) for name in names]
    margin = 0.075 * max(map(len, shown)) + 0.25
    width = max(WIDTH, fields * cell + margin + 0.9)
    figure = _figure(max(2.2, fields * cell + margin + 0.35), width)
    axes = figure.subplots()
    np.fill_diagonal(values, np.nan)
    top = float(np.nanmax(values, initial=0.0)) or 1.0
    axes.set_facecolor(PAPER)
    image = axes.pcolormesh(values, cmap=BLUES, vmin=0, vmax=top, edgecolors="#FFFFFF", linewidth=0.4)
    axes.set(xlim=(0, fields), ylim=(fields, 0), aspect="equal")
    size = 8.5 if fields <= 15 else 7.5
    places = np.arange(fields) + 0.5
    axes.set_xticks(places, shown, rotation=90, fontsize=size, parse_math=False, color=INK)
    axes.set_yticks(places, shown, fontsize=size, parse_math=False, color=INK)
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)
    axes.set_title(_shown(title, 60), fontsize=10.5, color=INK, loc="left", parse_math=False)
    if fields <= 7:
        _write_values(axes, values, top)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=22, pad=0.03)
    bar.set_label(unit, fontsize=8.5, color=INK)
    bar.ax.tick_params(labelsize=8, length=0, colors=INK)
    bar.outline.set_visible(False)
    return _svg(figure, f"Strength of each pair of fields, {title}")


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    logarithmic: Sequence[str] = (),
) -> Figure:
    """A line for each series of points (x, y); `logarithmic` names the logarithmic axes, x or y."""
    figure = _figure(3.4)
    axes = figure.subplots()
    for number, (name, (x, y)) in enumerate(series.items()):
        style = _style(number) if len(x) <= 40 else _style(number) | {"marker": ""}
        axes.plot(x, y, label=_shown(name, 28), **style)
    _style_axes(axes, xlabel, ylabel)
    for axis in logarithmic:
        axes.set(**{f"{axis}scale": "log"})
        # Plain numbers: powers of ten need fonts that not every machine has.
        scale = axes.xaxis if axis == "x" else axes.yaxis
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        scale.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    _legend(figure, axes)
    return figure


def panels(parts: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], label: str) -> Figure:
    """A panel for each part; in it a line for each name, and on it the points of each kind, one for each seed."""
    heights = [0.75 + 0.24 * len(part) for part in parts.values()]
    figure = _figure(0.5 + sum(heights))
    grid = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, part) in zip(grid, parts.items(), strict=True):
        kinds = list(dict.fromkeys(kind for points in part.values() for kind in points))
        for place, points in enumerate(part.values()):
            for kind, values in points.items():
                number = kinds.index(kind)
                look = {"color": COLOURS[number], "marker": MARKERS[number], "ls": "", "ms": 5, "mew": 0}
                axes.plot(values, [place] * len(values), label=kind if place == 0 else None, **look)
        _style_axes(axes, label if axes is grid[-1] else "", "")
        axes.set_title(_shown(title, 50), fontsize=10, color=INK, loc="left", parse_math=False)
        axes.set_yticks(range(len(part)), [_shown(name) for name in part], parse_math=False, color=INK)
        axes.set_ylim(len(part) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    _legend(figure, grid[0])
    return figure


def surfaces(parts: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]], labels: Sequence[str]) -> Figure:
    """A 3-D surface z(x, y) for each part, side by side; `labels` are those of x, y and z."""
    figure = _figure(3.0, 2.9 * len(parts))
    for number, (title, (x, y, z)) in enumerate(parts.items()):
        axes: Any = figure.add_subplot(1, len(parts), number + 1, projection="3d")
        grid = [_thinned(np.asarray(values)) for values in (x, y, z)]
        axes.plot_surface(*grid, cmap="viridis", lw=0, rstride=1, cstride=1)
        # Zoomed out, or the frame would cut off the labels of the axes.
        axes.set_box_aspect(None, zoom=0.76)
        axes.set_title(title, fontsize=9, color=INK)
        for axis, text in zip((axes.xaxis, axes.yaxis, axes.zaxis), labels, strict=True):
            axis.set_label_text(text, fontsize=8, color=INK)
            axis.set_tick_params(labelsize=6, colors=INK, pad=0)
    return figure


def heat_grid(maps: Mapping[str, ArrayLike], columns: int) -> Figure:
    """Square maps of field pairs, `columns` in a row, each on its own scale."""
    count = max(1, -(-len(maps) // columns))
    figure = _figure(0.2 + 1.75 * count, 0.3 + 1.6 * columns)
    grid = figure.subplots(count, columns, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for axes, (title, matrix) in zip(grid, maps.items(), strict=False):
        values = np.array(matrix, dtype=float)
        np.fill_diagonal(values, np.nan)
        axes.pcolormesh(values, cmap=BLUES, vmin=0, vmax=float(np.nanmax(values, initial=0.0)) or 1.0)
        axes.set(ylim=(len(values), 0), aspect="equal")
        axes.set_title(_shown(title, 28), fontsize=8, color=INK, loc="left", parse_math=False)
    return figure


def _thinned(values: NDArray[Any], most: int = 18) -> NDArray[Any]:
    """Some rows and columns of a grid, including its edges, which keeps the picture small."""
    places = [np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int)) for size in values.shape]
    return np.asarray(values[np.ix_(*places)])


def save(figure: Figure, path: Path, words: str) -> None:
    """Writes the figure as PATH.svg and PATH.png."""
    with whole_file(path.with_suffix(".svg")) as file:
        # A hundredth of a point is finer than any screen, and surfaces have thousands of corners.
        file.write_text(re.sub(r"(\d\.\d\d)\d+", r"\1", _svg(figure, words)), encoding="utf-8")
    with whole_file(path.with_suffix(".png")) as file:
        figure.savefig(file, format="png", dpi=90, facecolor="white", metadata={"Software": None})


def _figure(height: float, width: float = WIDTH) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def _style(number: int) -> dict[str, Any]:
    """The style of the run with this number, the same in every picture."""
    turn, place = divmod(number, len(COLOURS))
    stroke = STROKES[turn % len(STROKES)]
    return {"color": COLOURS[place], "marker": MARKERS[place], "ls": stroke, "lw": 1.6, "ms": 4.2}


def _style_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    axes.set_axisbelow(True)
    axes.grid(color=GRID, lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#B5BAC1")
    axes.tick_params(labelsize=9, colors=INK, length=0, pad=5)
    axes.set_xlabel(xlabel, fontsize=9.5, color=INK)
    axes.set_ylabel(ylabel, fontsize=9.5, color=INK)


def _cut_peaks(axes: Axes) -> None:
    """Cuts off the peaks of the first steps or of a diverging run, which would flatten the rest."""
    values = np.array([value for line in axes.lines for value in np.asarray(line.get_ydata(), dtype=float)])
    values = values[np.isfinite(values)]
    if len(values) < 8:
        return
    low, middle, high = np.quantile(values, [0.0, 0.5, 0.95])
    ceiling = max(high, middle + 1.5 * (middle - low))
    if values.max() > ceiling + 0.5 * (ceiling - low) > low:
        axes.set_ylim(low - 0.06 * (ceiling - low), ceiling + 0.06 * (ceiling - low))


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    longest = max(map(len, labels))
    columns = max(1, min(len(labels), 4, 46 // (longest + 5)))
    legend = figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, fontsize=9, frameon=False, handlelength=2.4
    )
    for text in legend.get_texts():
        text.set(parse_math=False, color=INK)


def _write_values(axes: Axes, values: NDArray[np.float64], top: float) -> None:
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5}
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "#FFFFFF" if value > 0.45 * top else INK
            axes.text(column + 0.5, row + 0.5, f"{value:.2g}", color=colour, **middle)


def _shown(name: str, length: int = NAME_LENGTH) -> str:
    """A name as a picture can show it: shortened in the middle, with '?' for characters that the font lacks."""
    drawable = get_font(findfont(FONT)).get_char_index
    text = "".join(sign if sign.isprintable() and drawable(ord(sign)) else "?" for sign in str(name))
    if len(text) <= length:
        return text
    return f"{text[: length - length // 3 - 1]}…{text[-(length // 3) :]}"


def _svg(figure: Figure, words: str) -> str:
    """The figure as an <svg> element for a page: deterministic, with unique ids."""
    for text in figure.findobj(Text):
        text.set(fontfamily=FONT)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = file.getvalue().partition("<svg")[2].partition(">")[2]
    # The style element would apply to the whole page; its two rules are attributes of the svg instead.
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = _unique_ids(re.sub(r"\s+", " ", body))
    width, height = figure.get_size_inches() * 72
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(words)}" stroke-linejoin="round" stroke-linecap="butt" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">{body}'
    )


def _unique_ids(body: str) -> str:
    """Renames the ids that are referred to after a digest of the picture, and removes the others."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    names = {found: f"@{n}" for n, found in enumerate(re.findall(r' id="([^"]+)"', body)) if found in used}

    def rename(match: re.Match[str]) -> str:
        before, found, after = match.groups()
        return f"{before}{names[found]}{after}" if found in names else ""

    body = re.sub(r'( id="|xlink:href="#|url\(#)([^")]+)("|\))', rename, body)
    return body.replace("@", f"f{hashlib.sha256(body.encode()).hexdigest()[:8]}-")
