"""Assignment is sticky, salted and in proportion."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.abtest.router import Router
from fieldwise.config.errors import ConfigError


def test_shares_are_kept_and_units_stick():
    router = Router(("a", "b", "c"), (50, 30, 20), "user", "x")
    found = [router.arm(f"u{number}", "r") for number in range(20_000)]
    assert found == [router.arm(f"u{number}", "another request") for number in range(20_000)]
    shares = np.bincount(found, minlength=3) / len(found)
    assert np.abs(shares - [0.5, 0.3, 0.2]).max() < 0.015


def test_another_salt_is_an_independent_assignment():
    one, two = (Router(("a", "b"), (1, 1), "user", salt) for salt in ("x", "y"))
    both = np.array([[router.arm(f"u{number}", "") for number in range(10_000)] for router in (one, two)])
    assert abs(np.corrcoef(both)[0, 1]) < 0.03


def test_rows_without_a_unit_are_spread_by_request():
    router = Router(("a", "b"), (1, 1), "user")
    assert {router.arm("", f"request {number}") for number in range(50)} == {0, 1}
    assert router.unit({"user": None}) == router.unit({}) == ""
    assert router.unit({"user": 3.0}) == router.unit({"user": "3"}) == "3"


@given(st.text())
def test_a_share_of_0_gets_nobody(unit):
    assert Router(("a", "b"), (0, 1), "user").arm(unit, "r") == 1


@pytest.mark.parametrize("shares", [(1,), (0, 0), (-1, 2), (float("nan"), 1)])
def test_bad_shares_are_refused(shares):
    with pytest.raises(ConfigError):
        Router(("a", "b"), shares, "user")
