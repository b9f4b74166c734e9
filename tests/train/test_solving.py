"""train.optimizer = newton: LR fitted at once, as a run like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import prepare
from fieldwise.evaluation.metrics import sigmoid
from fieldwise.train.incremental import settings_of
from fieldwise.train.loop import train

NEWTON = {"model.name": "lr", "train.optimizer": "newton", "device": "cpu"}


def log(rows: int, seed: int = 0) -> pa.Table:
    """Twelve numbers that act along lines, a count of few values, a category; every tenth number is missing."""
    random = np.random.default_rng(seed)
    x, count, shop = random.standard_normal((rows, 12)), random.integers(0, 20, rows), random.integers(0, 4, rows)
    logits = x @ np.linspace(-0.6, 0.6, 12) + 0.15 * (count - 10) + np.array([0.0, 1.0, -1.0, 0.5])[shop] - 1
    click = random.random(rows) < sigmoid(logits)
    x[random.random(x.shape) < 0.1] = np.nan
    columns: dict[str, Any] = {f"x{n}": pa.array(x[:, n], from_pandas=True) for n in range(12)}
    shops = np.array(["a", "b", "c", "d"])[shop]
    return pa.table({"click": click.astype(np.int64), **columns, "count": count, "shop": shops})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solving") / "data"
    prepare({"train": lambda: iter([log(1500)])}, folder, "click", keep_rows=True)
    return folder


def trained(data: Path, out: Path, **more: Any) -> dict[str, Any]:
    return train(load_config(base={**NEWTON, **more}), data, out, pairs=False)


def test_it_learns_lines_of_few_rows_better_than_steps_learn_buckets(data: Path, tmp_path: Path) -> None:
    report = trained(data, tmp_path / "run")
    steps = trained(data, tmp_path / "steps", **{"train.optimizer": "adam", "train.lr": 0.02})
    assert report["test"]["log_loss"] < steps["test"]["log_loss"] - 0.01
    assert report["epochs"] == report["best_epoch"] == 1
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["valid"]
    assert len(events[0]["strengths"]) == 4


def test_its_bundle_predicts_and_scores_new_values(data: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run")
    rows = log(200, seed=1).drop_columns(["click"])
    found = Predictor.load(tmp_path / "run").predict(rows)
    assert np.isfinite(found).all()
    new = rows.set_column(rows.column_names.index("shop"), "shop", pa.array(["new"] * 200))
    assert 0.7 < Predictor.load(tmp_path / "run").predict(new).mean() / found.mean() < 1.4


def test_it_is_the_same_again_and_done_when_asked_twice(data: Path, tmp_path: Path) -> None:
    first, second = (trained(data, tmp_path / name) for name in ("a", "b"))
    assert first["test"] == second["test"]
    config = load_config(base=NEWTON)
    assert train(config, data, tmp_path / "a", resume=True, pairs=False)["test"] == first["test"]


def test_it_reads_rates_between_anchors_too(data: Path, tmp_path: Path) -> None:
    from fieldwise.data.encode.on_demand import made

    report = trained(made(data / "rates"), tmp_path / "run")
    assert report["test"]["log_loss"] < report["test"]["log_loss"] / (1 - report["test"]["rig"])


def test_an_id_knows_its_number(data: Path) -> None:
    from fieldwise.data.encode.on_demand import made

    plain, rates = Dataset.open(data), Dataset.open(made(data / "rates"))
    coders = [Encoder.load(one.path / "encoder", one.schema) for one in (plain, rates)]
    for one, coder in zip((plain, rates), coders, strict=True):
        for field, size in enumerate(one.layout.sizes):
            numbers = coder.numbers_of(field)
            if field in one.layout.ordered:
                assert numbers is not None
                assert np.isnan(numbers[:2]).all()
                assert (np.diff(numbers[2:]) > 0).all()
            assert numbers is None or len(numbers) == size
    names = plain.names
    counts = coders[0].numbers_of(names.index("count"))
    assert counts is not None
    assert sorted(counts[2:].tolist()) == list(range(20))
    assert coders[0].numbers_of(names.index("shop")) is None


def test_its_weights_go_on_in_steps(data: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run")
    config = load_config(base={"train.epochs": 1}, start=settings_of(tmp_path / "run"))
    assert config.train.optimizer == "adam"
    report = train(config, data, tmp_path / "more", pairs=False)
    events = [json.loads(line) for line in (tmp_path / "more" / "log.jsonl").read_text().splitlines()]
    assert "fitted at once" in next(event for event in events if event["event"] == "continued")["note"]
    assert report["part_rows"]["train"] == Dataset.open(data).parts["train"].rows


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.name": "fm"}, "fits lr alone, found fm"),
        ({"train.lr": 0.1}, "train.lr has no meaning for newton, found 0.1"),
        ({"train.epochs": 3}, "train.epochs has no meaning for newton, found 3"),
    ],
)
def test_what_it_cannot_do_is_said(data: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trained(data, tmp_path / "run", **changes)


def test_too_many_ids_are_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    users = [f"u{number}" for number in random.integers(0, 3000, 30_000)]
    table = pa.table({"click": random.integers(0, 2, 30_000), "user": users})
    prepare({"train": lambda: iter([table])}, tmp_path / "data", "click")
    with pytest.raises(ConfigError, match="takes few rows and at most about 2,000 ids"):
        trained(tmp_path / "data", tmp_path / "run")
