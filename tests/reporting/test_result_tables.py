"""Tables on terminals: names stay in one line, columns give way."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fieldwise.reporting.result_tables import NAME_WIDTH, Column, lines, show

COLUMNS = (Column("auc", "AUC", ".4f", None, "sd"), Column("rows", "Rows", ","), Column("seconds", "Seconds", ",.0f"))
ROW = {"auc": 0.8050, "sd": 0.0056, "rows": 2_039_489, "seconds": 7}


def shown(width: int, names: tuple[str, ...]) -> list[str]:
    file = io.StringIO()
    show(Console(file=file, width=width), COLUMNS, lines([{"name": name, **ROW} for name in names], COLUMNS))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [44, 60, 99, 100, 120])
def test_where_all_columns_fit_all_are_shown(width: int) -> None:
    found = shown(width, ("gbdt-rates", "lr"))
    assert len(found) == 4
    assert found[0].split() == ["Model", "AUC", "Rows", "Seconds"]
    assert found[2].split() == ["gbdt-rates", "0.8050", "±", "0.0056", "2,039,489", "7"]


@pytest.mark.parametrize(("width", "left"), [(43, ["Seconds"]), (36, ["Seconds"]), (35, ["Rows", "Seconds"])])
def test_columns_that_do_not_fit_are_named_below(width: int, left: list[str]) -> None:
    found = shown(width, ("gbdt-rates", "lr"))
    assert found[-1] == f"a wider terminal shows {', '.join(left)} too"
    assert found[2].startswith("gbdt-rates")
    assert not any(title in found[0] for title in left)


def test_a_long_name_is_folded_before_it_takes_a_column() -> None:
    name = "n" * (NAME_WIDTH + 10)
    found = shown(NAME_WIDTH + 35, (name,))
    assert "Seconds" in found[0]
    assert "".join(line.split()[0] for line in found[2:]) == name
