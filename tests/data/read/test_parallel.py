"""Work by threads: results in order, bounded look-ahead, errors where they belong."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fieldwise.data.read.parallel import in_order, using


def slow_square(number: int) -> int:
    time.sleep(0.001 * (5 - number % 5))
    return number * number


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_in_order(threads: int) -> None:
    with using(threads):
        assert list(in_order(slow_square, range(30))) == [number * number for number in range(30)]


def test_only_a_few_items_are_under_way() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with using(2):
        results = in_order(slow_square, items())
        next(results)
        assert len(taken) <= 4
        results.close()  # type: ignore[attr-defined]


def test_an_error_comes_in_its_place() -> None:
    def inverse(number: int) -> float:
        return 1 / (3 - number)

    with using(2):
        results = in_order(inverse, range(10))
        assert [next(results) for _ in range(3)] == [1 / 3, 1 / 2, 1]
        with pytest.raises(ZeroDivisionError):
            next(results)
