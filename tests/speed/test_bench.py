"""`fieldwise bench` goes through training's own step, counts what the formulas say, and refuses what makes no sense."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fieldwise import cli
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.speed import bench
from fieldwise.speed.costs import bytes_per_row, flops_per_row


def run(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", *arguments.split()])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_every_figure_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--models lr,poly2 --vocab 1e3,2e3 --rows 64 --batch 32 --json", capsys)
    found = json.loads(out)
    assert code == 0
    assert found["ceilings"]["matmul_flops"] > 0
    assert [(row["model"], row["vocab"]) for row in found["results"]] == [
        (model, vocab) for vocab in (975, 1989) for model in ("lr", "poly2")
    ]
    for row in found["results"]:
        assert list(row["ms"]) == ["data", "forward", "backward", "optimiser"]
        assert min(row["rows_per_s"], row["rows_per_cpu_s"], row["scored_rows_per_s"], row["peak_bytes"]) > 0
        assert row["copy_share"] > 0


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--models lr --vocab 1e3 --rows 64 --batch 32", capsys)
    assert code == 0
    assert len(out.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models lm", "did you mean 'lr'"),
        ("--vocab many", "--vocab takes numbers"),
        ("--vocab 10", "at least two categories"),
        ("--rows 5", "--rows must be at least --batch"),
        ("--precision half", "train.precision"),
    ],
)
def test_mistakes_are_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(arguments, capsys)
    assert code == 2
    assert message in err


def test_arithmetic_of_pin_is_what_the_formula_says() -> None:
    """Forward, and twice that backward: 741 pairs with 60 x 40 and 40 x 5, and the DNN."""
    layout = Layout.of([2] * 39)
    found = flops_per_row(build("pin", layout, bench.shape_of("pin")[1]), layout, rows=4)  # type: ignore[arg-type]
    dnn = 741 * 5 * 700 + 4 * 700 * 700 + 700
    assert found["products"] == pytest.approx(3 * 2 * (741 * (60 * 40 + 40 * 5) + dnn), rel=1e-3)
    assert 0 < found["others"] < found["products"]


def test_bytes_count_distinct_rows_once() -> None:
    layout = Layout.of([4, 4])
    step = bench.made_step("lr", layout, bench.Setting())
    ids = np.array([[0, 0], [0, 1], [0, 1]], dtype=np.int32)
    # Ids, 3 distinct rows and the bias, each with two moments, read and written.
    assert bytes_per_row(step.model, step.optimizer, ids, layout) == pytest.approx((6 * 4 + (3 + 1) * 6 * 4) / 3)


def test_ids_follow_zipf_and_stay_in_their_fields() -> None:
    part = bench.drawn_rows(Layout.of([1000] * 3), 20_000, seed=1)
    assert part.ids.min() == 0
    assert part.ids.max() < 1000
    # P(0) = ln 2 / ln 1000.
    assert (part.ids == 0).mean() == pytest.approx(np.log(2) / np.log(1000), rel=0.05)
