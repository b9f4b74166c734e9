"""The checks of `bench --check` find what is right to be right, and say so of nothing else."""

import numpy as np
import pytest
import torch

from fieldwise.data.schema import Layout
from fieldwise.parts.ways import FORMULA, formulas_alone, listening, no_loops
from fieldwise.speed.bench import Setting, layout_of, made_model
from fieldwise.speed.checks import (
    AUC_LIMIT,
    LIMITS,
    PARTS,
    Check,
    Epoch,
    Paths,
    Shape,
    adam_error,
    drawn_shapes,
    error,
    learnable,
    part_errors,
    score_error,
)

CPU = torch.device("cpu")


def test_adam_on_rows_is_right():
    assert adam_error(3, CPU) <= LIMITS["float32"]


def test_a_part_is_right_in_both_precisions():
    for precision, limit in LIMITS.items():
        found = part_errors(PARTS["kernel products"], precision, CPU, Shape(4, rows=20))
        assert all(value <= limit for value in found.values()), found


def test_an_error_is_seen():
    assert error(torch.tensor([1.0, 2.2]), torch.tensor([1.0, 2.0])) > 0.05
    assert not Check("something", "float32", 2e-5, 1e-5).right
    assert not Check("something", "float32", float("nan"), 1e-5).right


def test_labels_can_be_learnt():
    part = learnable(Layout.of([50] * 39), 2000, seed=1)
    assert 0.1 < part.labels.mean() < 0.9
    assert part.ids.max() < 50


@pytest.mark.parametrize("name", ["fm", "deepfm"])
def test_an_epoch_starts_anew(name):
    epoch = Epoch(name, Setting(batch=500), rows=2000, held_out=1000)
    first, logits = epoch.auc(0), epoch.step.model.logits(epoch.held_out.ids)
    assert epoch.auc(1) != first
    epoch.auc(0, moved=True)
    away = np.abs(epoch.step.model.logits(epoch.held_out.ids) - logits).max()
    assert 0 < away < 0.1 * np.abs(logits).max()
    assert epoch.auc(0) == first


def paths(shift, spread, seeds=4):
    random = np.random.default_rng(0)
    plain, moved, fast = 0.8 + spread * random.normal(size=(3, seeds))
    return Paths(list(plain), list(moved), list(fast + shift))


def test_the_auc_check_finds_what_chance_does_not_explain():
    right = [[check.right for check in paths(shift, 1e-5).checks("fm")] for shift in (0.0, -5e-4, 5e-4)]
    assert right == [[True, True], [False, True], [False, True]]


def test_the_auc_check_fails_where_chance_could_hide_anything():
    assert [check.right for check in paths(0.0, 1e-2).checks("pin")][1] is False


def test_chance_is_what_repeated_draws_say():
    """Over many draws without any difference, about one in 370 goes beyond three standard errors."""
    random = np.random.default_rng(1)
    drawn = [Paths(*(list(row) for row in random.normal(size=(3, 50)))) for _ in range(400)]
    assert np.std([each.difference for each in drawn]) == pytest.approx(
        np.mean([each.chance for each in drawn]) / 3, rel=0.1
    )
    assert np.mean([abs(each.difference) <= AUC_LIMIT + each.chance for each in drawn]) > 0.98


def test_scores_are_held_against_float64():
    model, ids = made_model("fnn", layout_of(100), Setting()), np.zeros((5, 39), dtype=np.int32)
    ids[:, 0] = [0, 1, 0, 1, 0]
    assert 0 < score_error(model, ids, "float32") < 1e-5 < score_error(model, ids, "bf16") < 0.05


def test_drawn_shapes_are_right_and_vectors_longer_than_units_among_them():
    shapes = list(drawn_shapes(4, seed=0))
    assert shapes == list(drawn_shapes(4, seed=0)) != list(drawn_shapes(4, seed=1))
    assert any(shape.dim > shape.units for shape in shapes)
    for what, make in PARTS.items():
        for precision, limit in LIMITS.items():
            found = part_errors(make, precision, CPU, min(shapes, key=lambda shape: shape.units))
            assert all(value <= limit for value in found.values()), (what, precision, found)


def test_the_other_side_of_a_comparison_takes_no_compiled_loop():
    taken = []

    def heard(choice):
        if choice.formula.__qualname__ == "MicroNetwork.forward":
            taken.append((choice.inputs[1].dtype, choice.way))

    with listening(heard):
        part_errors(PARTS["nifm's micro networks"], "float32", CPU, Shape(3, 4, 5, 2, 100))
    assert {way for dtype, way in taken if dtype == torch.float64} == {FORMULA}
    assert {way for dtype, way in taken if dtype == torch.float32} == {"compiled loops"}
    assert not no_loops(torch.zeros(1))
    with formulas_alone():
        assert no_loops(torch.zeros(1))
