"""The report: rates, intervals that respect users, the sample ratio, and honest warnings."""

import json

import numpy as np
import pytest
from scipy import stats

from fieldwise import cli
from fieldwise.abtest.analysis import Sums, compare, report, sample_ratio
from fieldwise.abtest.event_log import DAY, Event, EventLog, Impression
from fieldwise.abtest.router import Router


def sums_of(n, c):
    return Sums(len(n), n.sum(), c.sum(), (n * n).sum(), (c * c).sum(), (n * c).sum())


def users(rng, count, rate):
    """Users who differ in how much they see and in how much they like it."""
    n = rng.geometric(0.2, count).astype(float)
    return n, rng.binomial(n.astype(int), rng.beta(2, 2 / rate - 2, count)).astype(float)


def test_the_variance_of_a_rate_is_that_of_a_slow_twin():
    n, c = users(np.random.default_rng(0), 500, 0.1)
    rate = c.sum() / n.sum()
    slow = sum((ci - rate * ni) ** 2 for ni, ci in zip(n, c, strict=True)) / (len(n) - 1) / len(n) / n.mean() ** 2
    assert sums_of(n, c).variance == pytest.approx(slow, rel=1e-9)


def test_the_interval_is_that_of_a_bootstrap_over_users():
    rng = np.random.default_rng(1)
    a, b = users(rng, 3000, 0.1), users(rng, 3000, 0.12)
    found = compare("b", sums_of(*b), "a", sums_of(*a))

    def drawn():
        rates = []
        for n, c in (a, b):
            chosen = rng.integers(len(n), size=len(n))
            rates.append(c[chosen].sum() / n[chosen].sum())
        return rates[1] / rates[0] - 1

    low, high = np.quantile([drawn() for _ in range(2000)], [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.02)
    # Rows taken as independent would give an interval that is too narrow.
    naive = np.sqrt(sum((1 - c.sum() / n.sum()) / c.sum() for n, c in (a, b)))
    assert np.log1p(found.high) - np.log1p(found.low) > 1.1 * 2 * 1.96 * naive


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(400):
        one = compare("b", sums_of(*users(rng, 400, 0.1)), "a", sums_of(*users(rng, 400, 0.1)))
        covered += one.low <= 0 <= one.high
    assert stats.binomtest(covered, 400, 0.95).pvalue > 0.001


def test_the_sample_ratio_is_pearsons():
    found = sample_ratio({"a": 480, "b": 550}, {"a": 0.5, "b": 0.5})
    assert (found["chi2"], found["p"]) == pytest.approx(tuple(stats.chisquare([480, 550])))
    assert sample_ratio({"a": 480}, {"a": 1.0}) is None


def write(log_file, rates, users=400, days=8, shares=(1.0, 1.0)):
    """A log with users in arms by the router, and clicks at known rates."""
    log = EventLog(log_file)
    router = Router(tuple(rates), shares, "user", "x")
    log.declare(router)
    rng = np.random.default_rng(3)
    number = 0
    for user in range(users):
        arm = router.arms[router.arm(f"u{user}", "")]
        for _ in range(rng.integers(1, 6)):
            number += 1
            moment = DAY * (20_000 + int(rng.integers(days))) + 5.0
            shown = Impression(
                f"r{number}", 0, "rank", arm, f"u{user}", "m", {}, [{}, {}], [0, 1], [0.1, 0.1], time=moment
            )
            log.show(shown)
            for place in (0, 1):
                if rng.random() < rates[arm]:
                    log.respond(Event(f"r{number}", place, 1))
    log.show(Impression("forced", 0, "rank", "a", "u1", "m", {}, [{}] * 50, [*range(50)], [0.1] * 50, True))
    log.close()


def test_report_of_a_log_with_a_clear_winner(tmp_path, capsys):
    file = str(tmp_path / "log.sqlite")
    write(file, {"a": 0.1, "b": 0.2})
    found = report(file)
    one, two = found["arms"]
    assert one["ctr"] == pytest.approx(0.1, abs=0.02)
    assert two["ctr"] == pytest.approx(0.2, abs=0.03)
    for row in (one, two, *found["days"]):
        reach = 1.959964 * row["standard_error"]
        assert (row["ctr_low"], row["ctr_high"]) == pytest.approx((max(0, row["ctr"] - reach), row["ctr"] + reach))
    assert one["units"] + two["units"] == 400
    assert sum(row["shown"] for row in found["days"]) == one["shown"] + two["shown"]
    assert sum(row["clicks"] for row in found["days"]) == one["clicks"] + two["clicks"]
    assert len({row["day"] for row in found["days"]}) == 8
    (against,) = found["comparisons"]
    assert against["improvement"] == pytest.approx(two["ctr"] / one["ctr"] - 1)
    assert 0 < against["low"] < against["improvement"] < against["high"]
    assert against["decided"]
    assert found["warnings"] == []
    assert run("abtest", "report", file, "--json", capsys=capsys) == found
    cli_text = run_text("abtest", "report", file, capsys=capsys)
    assert "b against a: +" in cli_text


def test_report_says_when_nothing_can_be_concluded(tmp_path):
    file = str(tmp_path / "log.sqlite")
    write(file, {"a": 0.1, "b": 0.1}, users=60, days=2)
    text = "\n".join(report(file)["warnings"])
    assert "too few for an interval" in text
    assert "the interval includes 0" in text
    assert "2 days of data" in text


def test_report_sees_a_wrong_ratio_and_units_in_two_arms(tmp_path):
    file = str(tmp_path / "log.sqlite")
    write(file, {"a": 0.1, "b": 0.2})
    log = EventLog(file)
    log.declare(Router(("a", "b"), (0.7, 0.3), "user"))
    for arm in ("a", "b"):
        log.show(Impression(f"more {arm}", 0, "rank", arm, "u1", "m", {}, [{}], [0], [0.1]))
    log.close()
    text = "\n".join(report(file)["warnings"])
    assert "did not get the shares" in text
    assert "1 units saw more than one arm" in text


def run_text(*arguments, capsys):
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert end.value.code == 0, captured.err
    return captured.out


def run(*arguments, capsys):
    return json.loads(run_text(*arguments, capsys=capsys))
