"""The same sequences everywhere: the server that followed events, `evaluate --live`, `history update`, a new server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from fastapi.testclient import TestClient

from fieldwise import cli
from fieldwise.abtest.event_log import EventLog
from fieldwise.abtest.router import Router
from fieldwise.bundle.freshen import update_history
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.kinds.past import pasts
from fieldwise.data.read.cells import cells_of
from fieldwise.data.schema import Field, HistorySettings, Schema
from fieldwise.export.export import write_network
from fieldwise.serving.application import Application, Hooks, Limits
from fieldwise.serving.service import Service
from fieldwise.train.loop import train

FIELDS = Field("user"), Field("item", min_count=1), Field("price", "numeric"), Field("seen", "sequence", like="item")
QUICK = ["model.name=ipnn", "model.dim=4", "model.hidden=[8]"]
QUICK += ["train.epochs=1", "train.batch_size=100", "device=cpu"]


def drawn(first: float, count: int, seed: int) -> dict[str, list[Any]]:
    """Rows whose moments rise, with items that nobody saw before."""
    random = np.random.default_rng(seed)
    items = [f"i{n}" for n in random.integers(12 + seed, size=count)]
    return {
        "click": random.integers(2, size=count).tolist(),
        "user": [f"u{n}" for n in random.integers(6 + seed, size=count)],
        "item": items,
        "price": random.integers(9, size=count).tolist(),
        "seen": [f"{items[n - 1]}|{items[n]}" if n % 3 else "" for n in random.integers(count, size=count)],
        "moment": np.sort(first + random.integers(count // 2, size=count)).astype(float).tolist(),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IPNN with a sequence in a cell, three of the log, with a delay and positives only, and a history beside them."""
    folder, rows = tmp_path_factory.mktemp("run"), pa.table(drawn(0, 400, 0))
    asked = [
        *pasts("item,price by user last 5 time moment gaps responses"),
        *pasts("item by user last 3 negatives time moment"),
        *pasts("item by user*price last 3 positives delay 4 time moment"),
    ]
    prepare(
        {"train": lambda: iter([rows])},
        folder / "data",
        "click",
        Schema("click", FIELDS),
        Split((0.8, 0.2, 0.0), by="moment"),
        sequences=tuple(asked),
        history=HistorySettings(keys=("user",), time="moment"),
    )
    train(load_config(overrides=QUICK), folder / "data", folder / "run")
    write_network(folder / "run" / "bundle", folder / "run" / "bundle" / "online")
    return folder / "run"


def rows_of(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    names = [name for name in table if name != "click"]
    return [dict(zip(names, values, strict=True)) for values in zip(*(table[name] for name in names), strict=True)]


def served(run: Path, log: Path) -> tuple[TestClient, Service]:
    service = Service([run], Router(("run",), (1.0,)), EventLog(str(log)))
    return TestClient(Application(service, "", Limits(), Hooks()).api, base_url="http://127.0.0.1"), service


def test_a_row_over_http_is_the_row_of_evaluate(run: Path, tmp_path: Path) -> None:
    shown, log = drawn(1000, 80, 3), tmp_path / "events.sqlite"
    client, service = served(run, log)
    answers = []
    with client:
        for row, click in zip(rows_of(shown), shown["click"], strict=True):
            found = client.post("/predict", json={"rows": [row]}).json()
            answers += found["probabilities"]
            client.post("/event", json={"request_id": found["request_id"], "label": click})
        explained = client.post("/explain", json={"row": rows_of(shown)[-1]}).json()
    predictor = Predictor.load(run)
    (live,) = predictor.labelled([pa.table(shown)], live=True)
    np.testing.assert_allclose(answers, live.probabilities, rtol=1e-5)
    still = Predictor.load(run).predict(pa.table(shown))
    assert np.abs(live.probabilities - still).max() > 1e-4
    words = explained["values"]["item by user"].split(", ")
    assert 1 <= len(words) <= 5
    # Rows that come next: here, in a server that starts again, and by a bundle that was brought up to date.
    later = rows_of(drawn(2000, 20, 1))
    update_history(run, iter([pa.table(shown)]), tmp_path / "fresh")
    expected = Predictor.load(tmp_path / "fresh").predict(later)
    np.testing.assert_allclose(service.predict(later, log=False).probabilities, expected, rtol=1e-5)
    again, second = served(run, log)
    with again:
        np.testing.assert_allclose(second.predict(later, log=False).probabilities, expected, rtol=1e-5)
    assert np.abs(np.array(expected) - Predictor.load(run).predict(later)).max() > 1e-4


def test_a_file_is_predicted_as_its_rows_are(run: Path, tmp_path: Path) -> None:
    rows = drawn(1000, 60, 2)
    pacsv.write_csv(pa.table(rows).drop_columns(["click"]), tmp_path / "rows.csv")
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", str(run), str(tmp_path / "rows.csv"), "-o", str(tmp_path / "p.csv")])
    assert end.value.code == 0
    found = np.loadtxt(tmp_path / "p.csv", skiprows=1)
    np.testing.assert_allclose(found, Predictor.load(run).predict(rows_of(rows)), rtol=1e-6)
    # Cells as they lie in the file are read in another way than columns, to the same ids.
    encoder = Predictor.load(run).encoder
    names = [name for name in rows if name != "click"]
    lines = (tmp_path / "rows.csv").read_bytes().replace(b'"', b"").split(b"\n", 1)[1]
    cells = cells_of(lines, names, names, ",")
    assert cells is not None
    assert (encoder.transform(cells) == encoder.transform(pa.table(rows))).all()


def test_a_ranking_has_the_past_of_its_user(run: Path, tmp_path: Path) -> None:
    _, service = served(run, tmp_path / "events.sqlite")
    engine = service.arms[0].engine
    context, candidates = {"user": "u1", "moment": 500.0, "seen": ["i1", "i2"]}, [{"item": f"i{n}"} for n in range(9)]
    order, found = engine.rank(context, candidates)
    alone = engine.predict([{**context, **candidate} for candidate in candidates])
    np.testing.assert_allclose(found, alone[order], rtol=1e-5)
    facts = {field.name: field.kind for field in engine.fields}
    assert (facts["moment"], facts["seen"], facts["user"]) == ("time", "sequence", "categorical")
