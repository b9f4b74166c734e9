import numpy as np
import pytest

from fieldwise.bundle import calibration
from fieldwise.config.errors import ConfigError
from fieldwise.evaluation import metrics
from fieldwise.evaluation.metrics import sigmoid
from fieldwise.evaluation.outlook import Outlook


@pytest.fixture
def rows():
    """Labels whose true logit is 0.5 x - 1, for a model that says x."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, 50_000)
    return (random.random(len(logits)) < metrics.sigmoid(0.5 * logits - 1)).astype(float), logits


def test_platt_finds_slope_and_shift(rows):
    fitted = calibration.fit("platt", *rows)
    assert fitted.slope == pytest.approx(0.5, abs=0.03)
    assert fitted.shift == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("kind", ["shift", "platt", "isotonic"])
def test_the_mean_prediction_becomes_the_observed_rate(rows, kind):
    labels, logits = rows
    fitted = calibration.fit(kind, labels, logits)
    assert fitted.probabilities(logits).mean() == pytest.approx(labels.mean(), rel=1e-3)
    before = metrics.log_loss(labels, metrics.sigmoid(logits))
    assert metrics.log_loss(labels, fitted.probabilities(logits)) < before


@pytest.mark.parametrize("kind", calibration.KINDS)
def test_order_is_kept_and_json_round_trips(rows, kind):
    fitted = calibration.fit(kind, *rows)
    assert (np.diff(fitted.probabilities(np.linspace(-8, 8, 100))) >= 0).all()
    assert calibration.Calibration.from_json(fitted.to_json()) == fitted


def test_weights_move_the_rate(rows):
    labels, logits = rows
    weights = np.where(labels > 0, 2.0, 1.0)
    fitted = calibration.fit("shift", labels, logits, weights)
    weighted = np.average(fitted.probabilities(logits), weights=weights)
    assert weighted == pytest.approx(np.average(labels, weights=weights), rel=1e-3)


def test_one_class_alone_is_left_as_it_is(rows):
    assert calibration.fit("platt", np.zeros(10), rows[1][:10]) == calibration.Calibration()


def test_a_falling_model_is_not_turned_round():
    random = np.random.default_rng(0)
    logits = random.normal(size=5000)
    labels = (random.random(5000) < metrics.sigmoid(-logits)).astype(float)
    assert calibration.fit("platt", labels, logits).slope > 0


def test_unknown_kind():
    with pytest.raises(ConfigError, match="did you mean 'platt'"):
        calibration.fit("plat", np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("kind", ["shift", "platt"])
def test_a_few_odd_rows_are_fitted_too(kind):
    """Far-off, nearly constant, separable or falling logits: the mean prediction moves towards the observed rate."""
    random = np.random.default_rng(0)
    for _ in range(100):
        rows = random.integers(10, 80)
        logits = random.normal(random.normal() * 3, random.choice([0.01, 0.3, 2, 8]), rows)
        labels = (random.random(rows) < random.choice([0.05, 0.2, 0.5])).astype(float)
        weights = (random.random(rows) < 0.5).astype(float)
        fitted = calibration.fit(kind, labels, logits, weights)
        if fitted.kind != "none":
            before, after = (np.average(p, weights=weights) for p in (sigmoid(logits), fitted.probabilities(logits)))
            rate = np.average(labels, weights=weights)
            assert np.isfinite(after)
            # So few rows say little of the slope and of the level, unless the model is far off.
            assert abs(after - rate) <= abs(before - rate) + 0.05


@pytest.mark.parametrize(("positives", "most"), [(15, 0.1), (50, 0.2), (500, 0.15)])
def test_the_slope_of_a_good_model_stays_near_one(positives, most):
    """15 positives gave a slope of 1.22 to a model that was right."""
    slopes = [calibration.fit("platt", *good_model(positives, seed)).slope for seed in range(40)]
    assert np.abs(np.array(slopes) - 1).max() < most


@pytest.mark.parametrize(("positives", "least"), [(15, 0.4), (50, 0.6), (500, 0.9)])
def test_the_level_of_a_good_model_moves_less_than_chance(positives, least):
    """What a calibrated model says of all rows is nearer to the truth than what the rows at hand show."""
    errors = []
    for seed in range(60):
        labels, logits = good_model(positives, seed)
        fitted = calibration.fit("platt", labels, logits)
        true = sigmoid(logits).mean()
        errors.append((fitted.probabilities(logits).mean() - true, labels.mean() - true))
    ours, plain = np.sqrt(np.mean(np.square(errors), axis=0))
    assert ours < plain * least + 1e-9 if positives < 500 else ours < plain


def test_what_is_beyond_chance_is_believed():
    """A model of rows whose negatives were thinned out before anybody saw them: its level is off by ln 20."""
    labels, logits = good_model(50, 0)
    fitted = calibration.fit("platt", labels, logits + np.log(20))
    assert fitted.probabilities(logits + np.log(20)).mean() == pytest.approx(labels.mean(), rel=0.1)


def test_the_outlook_says_how_much_of_a_shift_stands():
    labels, logits = good_model(2000, 0)
    level = [
        calibration.fit("shift", labels, logits - 0.5, ahead=Outlook(keep, move, seen=2.0)).shift
        for keep, move in ((0.0, 0.0), (1.0, 0.0), (0.5, 0.1))
    ]
    assert level[0] == pytest.approx(0, abs=1e-9)
    assert level[1] == pytest.approx(0.5, abs=0.1)
    assert level[2] == pytest.approx(level[1] / 2 + 0.1)


def test_what_the_rates_did_not_move_is_the_models_own():
    """Rows of later users: the rate is that of training, and the model is too low by .5, which stays so."""
    labels, logits = good_model(2000, 0)
    steady, wild = (
        calibration.fit("shift", labels, logits - 0.5, ahead=Outlook(0.0, sd=sd, seen=0.0)).shift for sd in (0.02, 2.0)
    )
    assert steady == pytest.approx(0.5, abs=0.1)
    # Where levels jump about, it may as well be one of the jumps.
    assert 0 < wild < 0.1


def good_model(positives, seed):
    """Labels and the true logits of rows among which about so many are positive."""
    random = np.random.default_rng(seed)
    logits = random.normal(-3, 1, positives * 12)
    return (random.random(len(logits)) < sigmoid(logits)).astype(float), logits


@pytest.mark.parametrize("in_time", [True, False])
@pytest.mark.parametrize("rows", [1000, 8000])
def test_what_is_fitted_is_judged_by_rows_that_it_has_not_seen(in_time, rows):
    labels = (np.random.default_rng(0).random(rows) < 0.2).astype(np.uint8)
    rolls = in_time and rows == 8000
    told = []
    for known, others in calibration.turns(labels, in_time):
        assert not set(known) & set(others)
        assert not rolls or known.max() < others.min()
        assert not in_time or others.max() - others.min() == len(others) - 1
        assert in_time or abs(labels[others].mean() - labels.mean()) < 0.01
        told.extend(others)
    assert len(told) == len(set(told)) == (0.8 * rows if rolls else rows)
    plain = calibration.cross_fitted(labels, lambda known, others: np.full(len(others), labels[known].mean()))
    assert plain == pytest.approx(metrics.base_loss(labels), abs=1e-3)


def test_members_of_noise_gain_nothing_when_they_are_judged_by_other_rows():
    """Twelve members of which none knows anything: in sample the blend is ahead of the best, cross-fitted it is not."""
    random = np.random.default_rng(0)
    labels = (random.random(300) < 0.1).astype(np.uint8)
    logits = random.normal(-2.2, 0.7, (12, 300))

    def fitted(known, others):
        weights, _ = calibration.stack(labels[known], logits[:, known])
        blended = weights @ logits + calibration.level_shift(logits[:, known], weights)
        return calibration.fit("platt", labels[known], blended[known]).probabilities(blended[others])

    every = np.arange(300)
    inside = metrics.log_loss(labels, fitted(every, every))
    assert inside < calibration.cross_fitted(labels, fitted)


def test_a_blend_leaves_the_level_to_the_calibration():
    """The weights of members that are all too low by .5 keep that level; `fit` is what corrects it."""
    labels, logits = good_model(5000, 0)
    random = np.random.default_rng(1)
    members = np.stack([logits - 0.5 + random.normal(0, 0.3, len(logits)) for _ in range(3)])
    weights, _ = calibration.stack(labels, members)
    blended = weights @ members + calibration.level_shift(members, weights)
    assert calibration.fit("shift", labels, blended).shift == pytest.approx(0.5, abs=0.12)


def test_members_that_are_as_good_as_each_other_share_a_blend_of_few_rows():
    """Six noisy views of one truth and 200 rows: what chance says of their weights costs more than equal weights do."""
    lost = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        truth = random.normal(-1, 1.2, 4200)
        labels = (random.random(len(truth)) < metrics.sigmoid(truth)).astype(np.uint8)
        members = truth + random.normal(0, 0.8, (6, len(truth)))
        weights, _ = calibration.stack(labels[:200], members[:, :200])
        equal = metrics.log_loss(labels[200:], metrics.sigmoid(members[:, 200:].mean(0)))
        lost.append(metrics.log_loss(labels[200:], metrics.sigmoid(weights @ members[:, 200:])) - equal)
    assert np.mean(lost) < 0.001
