"""A row as a public file has it, scored over HTTP, has the probability that `predict` gives it in that file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from fieldwise import cli
from fieldwise.abtest.router import Router
from fieldwise.bundle import bundle
from fieldwise.bundle.calibration import Calibration
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.recipes import find, ipinyou
from fieldwise.data.recipes.raw_columns import rows_of
from fieldwise.data.world.layouts import Simulation, write_raw
from fieldwise.export.export import export
from fieldwise.serving.application import Application, Hooks, Limits
from fieldwise.serving.engine import Engine
from fieldwise.serving.service import Service

DERIVED = {
    "avazu": {"day": "hour", "hour_of_day": "hour", "weekday": "hour"},
    "ipinyou": {"weekday": "timestamp", "hour": "timestamp", "useragent": "user_agent"},
}


class Raw:
    """A raw file of a kind, and a bundle with drawn weights over what its recipe makes of it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.source = kind, folder / kind
        write_raw(kind, Simulation(1500, 3, 0.2), self.source)
        with pytest.raises(SystemExit) as end:
            cli.main(["prepare", str(self.source), "--recipe", kind, *HISTORY[kind], "--out", str(folder / "data")])
        assert end.value.code == 0
        config = load_config(overrides=["model.name=fm", "model.dim=4"])
        torch.manual_seed(1)
        model = bundle.build_model(config, Dataset.open(folder / "data").layout)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        self.bundle = folder / "bundle"
        sources = {name: folder / "data" / name for name in ("schema.toml", "encoder")}
        bundle.write(self.bundle, config, sources, model, Calibration(), {})
        self.served = folder / "served"
        export(self.bundle, self.served)
        self.file = self.source if self.source.is_file() else sorted(self.source.rglob("imp.*"))[-1]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The file's rows as texts, cell by cell."""
        recipe = find(self.kind)
        with self.file.open(encoding=recipe.text.encoding, newline="") as file:
            if self.kind == "ipinyou":
                return [dict(zip(ipinyou.IMPRESSION, line.rstrip("\n").split("\t"), strict=True)) for line in file]
            return list(csv.DictReader(file))

    def expected(self) -> np.ndarray:
        """What `predict` says of the file."""
        predictor = Predictor.load(self.bundle)
        chunks = rows_of(predictor.schema, self.file, predictor.schema.columns)
        return np.concatenate([predictor.predict(chunk) for chunk in chunks])


HISTORY = {"avazu": ["--history", "device_model,weekday*C14"], "ipinyou": []}


@pytest.fixture(scope="module", params=["avazu", "ipinyou"])
def raw(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Raw:
    return Raw(request.param, tmp_path_factory.mktemp("raw"))


def test_a_raw_row_over_http_is_that_of_the_file(raw: Raw) -> None:
    rows, expected = raw.rows[:300], raw.expected()[:300]
    assert len(rows) == len(expected)
    assert len(set(expected.round(6))) > 50
    service = Service([raw.served], Router(("raw",), (1.0,)))
    with TestClient(Application(service, "", Limits(), Hooks()).api, base_url="http://127.0.0.1") as client:
        found = client.post("/predict", json={"rows": rows}).json()["probabilities"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        for number, row in enumerate(rows[:5]):
            assert client.post("/predict", json={"rows": [row]}).json()["probabilities"][0] == pytest.approx(
                expected[number], abs=1e-6
            )
        kinds = {field["name"]: field["kind"] for field in client.get("/model").json()["arms"][0]["fields"]}
        assert all(kinds[source] == "raw" for source in DERIVED[raw.kind].values())
        odd = client.post("/predict", json={"rows": [{"hours": "14102100"}]})
        assert odd.status_code == 422
        assert "unknown field 'hours'; did you mean 'hour'?" in odd.json()["detail"]


def test_what_a_row_gives_itself_is_not_derived_and_rankings_are_alike(raw: Raw) -> None:
    engine, rows = Engine.load(raw.served), raw.rows
    name, source = next(iter(DERIVED[raw.kind].items()))
    row = dict(rows[0])
    made = engine.value(row, name)
    assert made is not None
    plain = engine.predict([row])[0]
    without = {key: value for key, value in row.items() if key not in DERIVED[raw.kind].values()}
    given = {one: engine.value(row, one) for one in DERIVED[raw.kind]}
    assert engine.predict([without | given])[0] == plain
    assert engine.predict([row | {name: "another"}])[0] == engine.predict([row | {source: None, **given, name: "x"}])[0]
    assert engine.predict([row | {name: None}])[0] == plain
    assert engine.explain(row).values[name] == str(made)
    # The raw column stands among the candidates, then in the context.
    for inside in (True, False):
        candidates = [{key: value for key, value in one.items() if (key == source) == inside} for one in rows[:20]]
        context = {key: value for key, value in row.items() if (key == source) != inside}
        whole = engine.predict([{**context, **candidate} for candidate in candidates])
        for _ in range(3):
            order, found = engine.rank(context, candidates)
            np.testing.assert_allclose(found, whole[order], rtol=0, atol=1e-6)
