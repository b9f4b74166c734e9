"""Analysis of an A/B test from its event log: click rates by day, which arm is better, and how certain that is.

The click rate is rows clicked per row shown. A user's rows are not independent, and the test assigns users to arms, so
variances are over users (values of the split field), by the delta method for a ratio of two sums.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Any

import sqlalchemy as sql

from fieldwise.abtest import event_tables
from fieldwise.abtest.event_tables import events, impressions
from fieldwise.config.errors import DataError

CONFIDENCE = 0.95
# Chance alone hardly gives a sample ratio with a smaller p.
RATIO_ALARM = 0.001
# With fewer, the normal distribution does not fit a click rate.
FEWEST_UNITS, FEWEST_CLICKS = 100, 30
FEWEST_DAYS = 7


@dataclass(frozen=True)
class Sums:
    """Sums over the units of an arm: units, shown n, clicked c, and n*n, c*c, n*c."""

    units: int = 0
    shown: float = 0.0
    clicks: float = 0.0
    nn: float = 0.0
    cc: float = 0.0
    nc: float = 0.0

    @property
    def rate(self) -> float | None:
        return self.clicks / self.shown if self.shown else None

    @property
    def variance(self) -> float | None:
        """The variance of the click rate, by the delta method."""
        if self.units < 2 or self.rate is None:
            return None
        rate, mean = self.rate, self.shown / self.units
        # The sum of (c - rate * n)^2; the mean of c - rate * n is 0.
        spread = self.cc - 2 * rate * self.nc + rate * rate * self.nn
        return max(0.0, spread) / (self.units - 1) / (self.units * mean * mean)


@dataclass(frozen=True)
class Comparison:
    """An arm against the first one: the relative improvement of its click rate, with an interval."""

    arm: str
    baseline: str
    improvement: float | None
    low: float | None
    high: float | None
    p: float | None
    # The smallest improvement that this much data detects with a power of 80 %.
    detectable: float | None

    @property
    def decided(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def compare(arm: str, found: Sums, baseline: str, base: Sums, comparisons: int = 1) -> Comparison:
    """The ratio of two click rates, normal on the scale of logarithms; `comparisons` share the error (Bonferroni)."""
    from scipy.stats import norm

    arm_variance, base_variance = found.variance, base.variance
    if not found.rate or not base.rate or arm_variance is None or base_variance is None:
        return Comparison(arm, baseline, None, None, None, None, None)
    log_ratio = math.log(found.rate / base.rate)
    error = math.sqrt(arm_variance / found.rate**2 + base_variance / base.rate**2)
    z = float(norm.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons))
    low, high = math.expm1(log_ratio - z * error), math.expm1(log_ratio + z * error)
    p = float(2 * norm.sf(abs(log_ratio) / error)) if error else None
    return Comparison(
        arm, baseline, math.expm1(log_ratio), low, high, p, math.expm1((z + float(norm.ppf(0.8))) * error)
    )


def sample_ratio(units: dict[str, int], shares: dict[str, float]) -> dict[str, Any] | None:
    """Pearson's chi-square test of whether the arms got their shares of units; None if there is nothing to test."""
    from scipy.stats import chi2

    used = {arm: share for arm, share in shares.items() if share > 0}
    total = sum(units.get(arm, 0) for arm in used)
    if len(used) < 2 or not total:
        return None
    expected = {arm: share / sum(used.values()) * total for arm, share in used.items()}
    statistic = sum((units.get(arm, 0) - count) ** 2 / count for arm, count in expected.items())
    return {"chi2": statistic, "p": float(chi2.sf(statistic, len(used) - 1)), "expected": expected}


def report(log: str) -> dict[str, Any]:
    """The report, as JSON values."""
    engine = event_tables.connect(log, writing=False)
    try:
        with engine.begin() as connection:
            return _report(connection)
    finally:
        engine.dispose()


def _report(connection: sql.Connection) -> dict[str, Any]:
    declared = connection.execute(sql.select(event_tables.arms).order_by(event_tables.arms.c.place)).all()
    overall = {arm: sums for arm, _, sums in _sums(connection, by_day=False)}
    if not overall:
        raise DataError("the log has no impressions yet; `fieldwise serve` logs them")
    shares = {row.arm: row.share for row in declared}
    arms = [arm for arm in shares if arm in overall] + sorted(set(overall) - set(shares))
    baseline = arms[0]
    others = [compare(arm, overall[arm], baseline, overall[baseline], len(arms) - 1) for arm in arms[1:]]
    days = _days(connection, baseline)
    ratio = sample_ratio({arm: sums.units for arm, sums in overall.items()}, shares)
    mixed = _mixed_units(connection)
    return {
        "split_field": declared[0].field if declared else "",
        "arms": [_arm(arm, overall[arm], shares.get(arm)) for arm in arms],
        "days": days,
        "comparisons": [asdict(one) | {"decided": one.decided} for one in others],
        "sample_ratio": ratio,
        "confidence": CONFIDENCE,
        "warnings": warnings(overall, others, len({row["day"] for row in days}), ratio, mixed),
    }


def warnings(
    overall: dict[str, Sums], others: list[Comparison], days: int, ratio: dict[str, Any] | None, mixed: int
) -> list[str]:
    """Reasons not to draw conclusions yet, one line each."""
    found = []
    if not others:
        found.append("one arm alone: there is nothing to compare")
    if ratio and ratio["p"] < RATIO_ALARM:
        found.append(
            f"the arms did not get the shares of the split (p = {ratio['p']:.2g}): assignment or logging is at fault, "
            "so trust no comparison"
        )
    if mixed:
        found.append(f"{mixed:,} units saw more than one arm: the split or the salt changed; start a new log")
    for arm, sums in overall.items() if others else ():
        if sums.units < FEWEST_UNITS or sums.clicks < FEWEST_CLICKS:
            found.append(
                f"{arm} has {sums.units:,} units and {sums.clicks:,.0f} clicks: too few for an interval "
                f"({FEWEST_UNITS} and {FEWEST_CLICKS} are needed)"
            )
    for one in others:
        if one.low is not None and not one.decided:
            found.append(
                f"{one.arm} against {one.baseline}: the interval includes 0, so nothing can be concluded yet; "
                f"this much data shows improvements of {one.detectable:.1%} or more"
            )
    if others and days < FEWEST_DAYS:
        found.append(f"{days} day{'s' * (days != 1)} of data: weekdays differ, so wait for {FEWEST_DAYS}")
    return found


def _arm(name: str, sums: Sums, share: float | None) -> dict[str, Any]:
    """An arm's sums and its click rate, with an interval by the normal distribution."""
    from scipy.stats import norm

    facts = {"arm": name, "share": share, "units": sums.units, "shown": int(sums.shown), "clicks": int(sums.clicks)}
    if sums.rate is None or sums.variance is None:
        return facts | {"ctr": sums.rate, "standard_error": None, "ctr_low": None, "ctr_high": None}
    error = math.sqrt(sums.variance)
    margin = float(norm.ppf(0.5 + CONFIDENCE / 2)) * error
    low, high = max(0.0, sums.rate - margin), min(1.0, sums.rate + margin)
    return facts | {"ctr": sums.rate, "standard_error": error, "ctr_low": low, "ctr_high": high}


def _days(connection: sql.Connection, baseline: str) -> list[dict[str, Any]]:
    """A row for each day and arm, with the improvement over the first arm on that day."""
    found: dict[int, dict[str, Sums]] = {}
    for arm, day, sums in _sums(connection, by_day=True):
        found.setdefault(day, {})[arm] = sums
    rows = []
    for day, arms in sorted(found.items()):
        for arm, sums in arms.items():
            row = {"day": str(date(1970, 1, 1) + timedelta(days=day))} | _arm(arm, sums, None)
            if arm != baseline and baseline in arms:
                one = compare(arm, sums, baseline, arms[baseline])
                row |= {"improvement": one.improvement, "low": one.low, "high": one.high}
            rows.append(row)
    return rows


def _sums(connection: sql.Connection, by_day: bool) -> list[tuple[str, int, Sums]]:
    """(arm, day, sums over units); requests that asked for an arm by name are left out."""
    clicked = (
        sql.select(events.c.request_id, events.c.part, sql.func.count(sql.distinct(events.c.place)).label("clicks"))
        .where(events.c.label == 1)
        .group_by(events.c.request_id, events.c.part)
        .subquery()
    )
    same = (impressions.c.request_id == clicked.c.request_id) & (impressions.c.part == clicked.c.part)
    # A row without a unit got its arm by its request.
    unit = sql.case((impressions.c.unit == "", impressions.c.request_id), else_=impressions.c.unit)
    day = impressions.c.day if by_day else sql.literal(0)
    groups = [impressions.c.arm, unit, impressions.c.day] if by_day else [impressions.c.arm, unit]
    by_unit = (
        sql.select(
            impressions.c.arm,
            day.label("day"),
            sql.cast(sql.func.sum(impressions.c.shown), sql.Double).label("n"),
            sql.cast(sql.func.sum(sql.func.coalesce(clicked.c.clicks, 0)), sql.Double).label("c"),
        )
        .select_from(impressions.outerjoin(clicked, same))
        .where(sql.not_(impressions.c.forced))
        .group_by(*groups)
        .subquery()
    )
    n, c = by_unit.c.n, by_unit.c.c
    sums = [sql.func.count(), *(sql.func.sum(term) for term in (n, c, n * n, c * c, n * c))]
    asked = sql.select(by_unit.c.arm, by_unit.c.day, *sums).group_by(by_unit.c.arm, by_unit.c.day)
    return [(arm, int(of), Sums(*values)) for arm, of, *values in connection.execute(asked)]


def _mixed_units(connection: sql.Connection) -> int:
    """How many units saw more than one arm."""
    several = (
        sql.select(impressions.c.unit)
        .where(impressions.c.unit != "", sql.not_(impressions.c.forced))
        .group_by(impressions.c.unit)
        .having(sql.func.count(sql.distinct(impressions.c.arm)) > 1)
        .subquery()
    )
    return int(connection.execute(sql.select(sql.func.count()).select_from(several)).scalar() or 0)
