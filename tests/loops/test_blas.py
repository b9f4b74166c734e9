"""The threads of numpy's BLAS."""

from collections.abc import Callable

import numpy as np
import pytest

from fieldwise.loops.blas import _threads, one_blas_thread


def stopped_within(known: Callable[[], int]) -> None:
    with one_blas_thread():
        assert known() == 1
        raise ValueError("stop")


def test_within_numpy_has_one_thread_and_after_an_error_as_many_as_before():
    found = _threads()
    if found is None:
        pytest.skip("numpy has no OpenBLAS of its own here")
    known, choose = found
    before = known()
    choose(2)
    try:
        with pytest.raises(ValueError, match="stop"):
            stopped_within(known)
        assert known() == 2
    finally:
        choose(before)


def test_products_are_the_same_with_one_thread():
    x = np.random.default_rng(0).normal(size=(300, 40))
    with one_blas_thread():
        found = x.T @ x
    np.testing.assert_allclose(found, x.T @ x, rtol=1e-12)
