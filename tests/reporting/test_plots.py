"""The pictures: well-formed, the same each time, and able to bear any run and any name."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from fieldwise.reporting.plots import COLOURS, _shown, heat_map, reliability_diagram, training_curves

WILD = [
    "$x_1$",
    "a&b",
    "<b>",
    'qu"ote',
    "字段",
    "tab\tnew\nline",
    "",
    "a_very_long_field_name_" * 5,
    "$",
    "--",
]


def elements(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter())


def drawn(svg: str, colour: str) -> int:
    """How many elements have this stroke or fill."""
    return sum(colour.lower() in element.get("style", "").lower() for element in elements(svg))


def log(points: int = 20, event: str = "train", key: str = "loss") -> list[dict[str, Any]]:
    return [{"event": event, "rows": 1000 * n, key: 0.4 + 0.3 / n} for n in range(1, points + 1)]


def both() -> list[dict[str, Any]]:
    return log() + log(4, "valid", "log_loss")


def bins(scale: float = 1.0) -> dict[str, list[float]]:
    predicted = (np.linspace(0.01, 0.9, 15) ** 2 * scale).tolist()
    return {"predicted": predicted, "observed": [0.9 * p for p in predicted], "weight": [10.0] * 15}


@pytest.mark.parametrize("count", [0, 1, 6, 14])
def test_any_number_of_runs(count: int) -> None:
    curves = training_curves({f"run {n}": both() for n in range(count)})
    diagram = reliability_diagram({f"run {n}": bins() for n in range(count)})
    for svg in (curves, diagram):
        assert [drawn(svg, colour) > 0 for colour in COLOURS] == [n < count for n in range(6)]


def test_curves_of_runs_that_have_only_begun() -> None:
    assert elements(
        training_curves({"nothing": [], "no valid": log(), "one": log(1), "lost": log(3, "valid", "log_loss")})
    )
    assert elements(training_curves({"nan": [{"event": "valid", "rows": 10, "log_loss": math.nan}] * 9}))
    assert elements(training_curves({"none": [{"event": "valid", "rows": 10, "log_loss": None}]}))


@pytest.mark.parametrize("scale", [1.0, 0.05, 1e-4])
def test_reliability_from_common_to_rare(scale: float) -> None:
    run = bins(scale)
    run["observed"][0] = 0.0
    assert elements(reliability_diagram({"pin": run}))


def test_a_run_keeps_its_colour_when_another_is_unfinished() -> None:
    svg = reliability_diagram({"a": {}, "b": bins()})
    assert not drawn(svg, COLOURS[0])
    assert drawn(svg, COLOURS[1])


def test_reliability_of_constant_and_zero_predictions() -> None:
    for value in (0.0, 0.3, 1.0):
        assert elements(
            reliability_diagram({"flat": {"predicted": [value] * 3, "observed": [value] * 3, "weight": [1] * 3}})
        )


@pytest.mark.parametrize("fields", [1, 2, 7, 12, 39])
def test_heat_maps_of_any_size(fields: int) -> None:
    matrix = np.add.outer(np.arange(fields), np.arange(fields)) / fields
    assert len(elements(heat_map(matrix, [f"field {n}" for n in range(fields)], "pin"))) > fields


def test_a_heat_map_leaves_its_matrix_alone_and_bears_zeros() -> None:
    matrix = np.zeros((3, 3))
    assert elements(heat_map(matrix, ["a", "b", "c"], "lr"))
    assert not matrix.any()


def test_wild_names_are_drawn() -> None:
    assert elements(heat_map(np.ones((len(WILD), len(WILD))), WILD, 'all "of" <them> & $more'))
    assert elements(training_curves({name: both() for name in WILD}))
    assert elements(reliability_diagram({name: bins() for name in WILD}))


def test_long_names_keep_both_ends() -> None:
    assert _shown("user_device_operating_system") == "user_device…system"
    assert _shown("hour") == "hour"
    assert _shown("字段\n") == "???"


def test_pictures_repeat_and_can_stand_in_one_page() -> None:
    first, again = (training_curves({"pin": both()}) for _ in range(2))
    assert first == again
    other = reliability_diagram({"pin": bins()})
    ids = [{e.get("id") for e in elements(svg)} - {None} for svg in (first, other)]
    assert ids[0]
    assert ids[1]
    assert not ids[0] & ids[1]
    assert "<style" not in first
    assert "<?xml" not in first


def test_settings_of_matplotlib_are_left_alone() -> None:
    before = dict(matplotlib.rcParams)
    training_curves({"pin": both()})
    assert dict(matplotlib.rcParams) == before
