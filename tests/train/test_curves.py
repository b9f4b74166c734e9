"""The linear part as curves: the design by hand, the penalty of the highest evidence, what few rows say of a line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fieldwise.data.kinds.kind import MISSING, OTHER, PAD
from fieldwise.data.schema import Layout
from fieldwise.evaluation.metrics import sigmoid
from fieldwise.train.curves import BESIDE, ID, KINDS, LINE, WAVE, WORTH, Curves, affordable, fitted

# A number in five buckets, one between anchors (two ids a row), a category, one whose words are numbers, and a set.
LAYOUT = Layout((7, 5, 4, 5, 4), (1, 2, 1, 1, 3), ordered=(0, 1))
NAN = math.nan
NUMBERS = [
    np.array([NAN, NAN, 1.0, 2.0, 4.0, 8.0, 16.0]),
    np.array([NAN, NAN, -1.0, 0.0, 5.0]),
    None,
    np.array([NAN, NAN, 10.0, 30.0, 20.0]),
    None,
]


def drawn(rows: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    number, low = random.integers(0, 7, rows), random.integers(2, 4, rows)
    high = low + random.integers(0, 2, rows)
    members = np.where(random.random((rows, 3)) < 0.5, random.integers(1, 4, (rows, 3)), PAD)
    members[:, 0] = random.integers(1, 4, rows)
    columns = [number, low, high, random.integers(1, 4, rows), random.integers(2, 5, rows), *members.T]
    return np.stack(columns, axis=1).astype(np.int32)


def test_the_weights_of_ids_are_what_the_columns_of_a_row_say() -> None:
    ids = drawn(300)
    curves = Curves.of(LAYOUT, NUMBERS, ids)
    values = np.random.default_rng(1).standard_normal(len(curves.kinds))
    weights = curves.weights(values)
    expected = []
    for row in ids.tolist():
        place, total = 0, 0.0
        for field, width in enumerate(LAYOUT.widths):
            own = [id for id in row[place : place + width] if id != PAD]
            total += sum(weights[field][id] for id in own) / len(own)
            place += width
        expected.append(total)
    np.testing.assert_allclose(curves.design(ids) @ values, expected, atol=1e-12)


def test_a_number_has_a_line_and_waves_and_a_category_an_id_each() -> None:
    ids = drawn(300)
    curves = Curves.of(LAYOUT, NUMBERS, ids)
    ends = np.split(curves.kinds, np.cumsum([table.shape[1] for table in curves.tables])[:-1])
    assert ends[0].tolist() == [ID, ID, LINE, *[WAVE] * 4]
    assert ends[2].tolist() == [ID] * 3
    assert ends[3].tolist() == [BESIDE] * 3 + [LINE]
    line = curves.tables[0][:, list(ends[0]).index(LINE)]
    rows = np.bincount(ids[:, 0], minlength=7)[2:]
    assert line[[MISSING, OTHER]].tolist() == [0, 0]
    np.testing.assert_allclose(np.diff(line[2:]) / np.diff(NUMBERS[0][2:]), (line[3] - line[2]) * np.ones(4))
    assert np.average(line[2:], weights=rows) == pytest.approx(0)
    assert np.average(line[2:] ** 2, weights=rows) == pytest.approx(1)


def test_ids_without_rows_weigh_nothing() -> None:
    ids = drawn(300)
    ids = ids[ids[:, 3] != 3]
    curves = Curves.of(LAYOUT, NUMBERS, ids)
    values = np.ones(len(curves.kinds))
    assert curves.weights(values)[2].tolist()[3] == 0


def planted(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of three kinds, of which the second says nothing, and labels."""
    random = np.random.default_rng(seed)
    x, kinds = random.standard_normal((rows, 24)), np.repeat([LINE, WAVE, ID], 8)
    truth = np.where(kinds == WAVE, 0.0, random.standard_normal(24) * np.where(kinds == LINE, 1.0, 0.3))
    return x, (random.random(rows) < sigmoid(x @ truth - 1)).astype(np.float64), kinds


@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_has_no_slope_left_and_the_strengths_of_the_highest_evidence(weighted: bool) -> None:
    x, y, kinds = planted(600)
    w = np.random.default_rng(2).uniform(0.5, 2, len(y)) if weighted else None
    fit = fitted(x, y, kinds, w)
    worth = np.ones(len(y)) if w is None else w * w.sum() / (w**2).sum()
    # Row by row: the gradient of the penalised loss, and its second derivatives.
    gradient, hessian = np.zeros(25), np.zeros((25, 25))
    for row, label, weight in zip(x, y, worth, strict=True):
        columns = np.array([1.0, *row])
        p = 1 / (1 + math.exp(-float(columns @ np.array([fit.bias, *fit.found]))))
        gradient += weight * (p - label) * columns
        hessian += weight * p * (1 - p) * np.outer(columns, columns)
    ridge = np.array([0.0, *fit.strengths[kinds]])
    gradient += ridge * np.array([0.0, *fit.found])
    assert np.abs(np.linalg.solve(hessian + np.diag(ridge), gradient)).max() < 2e-3
    variances = np.diag(np.linalg.inv(hessian + np.diag(ridge)))[1:]
    for kind in (LINE, ID):
        own = kinds == kind
        said = own.sum() - fit.strengths[kind] * variances[own].sum()
        assert fit.strengths[kind] * (fit.found[own] ** 2).sum() == pytest.approx(said + WORTH, rel=0.1)
    # What says nothing is drawn to nothing; what says much is left alone.
    assert fit.strengths[WAVE] > 30 * fit.strengths[LINE]
    assert len(fit.strengths) == KINDS


def test_labels_that_columns_part_wholly_have_finite_weights() -> None:
    x = np.linspace(-1, 1, 40)[:, None]
    fit = fitted(x, (x[:, 0] > 0).astype(float), np.array([LINE]))
    assert np.isfinite([fit.bias, *fit.found]).all()
    assert fit.found[0] > 0


def test_few_rows_of_many_numbers_are_worth_lines_not_weights_of_buckets() -> None:
    """Thirty numbers of sixty buckets that act along lines, and 500 rows: beside the truth the curves lose less than a
    third of what a weight for each bucket loses."""
    random = np.random.default_rng(0)
    layout = Layout((62,) * 30, (1,) * 30, ordered=tuple(range(30)))
    ids = random.integers(2, 62, (20_500, 30)).astype(np.int32)
    truth = random.standard_normal(30) * 0.3
    logits = ((ids - 31.5) / 17.3) @ truth - 1
    y = (random.random(len(ids)) < sigmoid(logits)).astype(np.float64)
    middle = np.concatenate([[NAN, NAN], np.arange(60.0)])
    curves = Curves.of(layout, [middle] * 30, ids[:500])
    fit = fitted(curves.design(ids[:500]), y[:500], curves.kinds)
    plain = Curves.of(layout, [None] * 30, ids[:500])
    single = fitted(plain.design(ids[:500]), y[:500], plain.kinds)

    def lost(curves: Curves, found: np.ndarray, bias: float) -> float:
        z = curves.design(ids[500:]) @ found + bias
        own, best = (np.logaddexp(0, at) - sigmoid(logits[500:]) * at for at in (z, logits[500:]))
        return float((own - best).mean())

    assert lost(curves, fit.found, fit.bias) < 0.3 * lost(plain, single.found, single.bias)


def test_what_takes_longer_than_steps_is_not_affordable() -> None:
    assert affordable(Layout.of([50] * 10), 5_000)
    assert not affordable(Layout.of([50_000]), 1_000)
    assert not affordable(Layout.of([50] * 10), 1_000_000)
    # Who leaves room takes less.
    assert affordable(Layout.of([50] * 10), 10_000)
    assert not affordable(Layout.of([50] * 10), 10_000, 0.5)
    # A number counts as its curve, however many buckets it has.
    assert affordable(Layout((66,) * 30, (1,) * 30, ordered=tuple(range(30))), 5_000)
