"""A raw row scored over HTTP has the probability that the same row has in a file."""

import csv

import numpy as np
import pytest
from fastapi.testclient import TestClient

from fieldwise.abtest.router import Router
from fieldwise.bundle.predictor import Predictor
from fieldwise.data.read import formats
from fieldwise.serving.application import Application, Hooks, Limits
from fieldwise.serving.service import Service


@pytest.fixture
def client(trained):
    service = Service([trained.run], Router(("run",), (1.0,)))
    with TestClient(Application(service, "", Limits(), Hooks()).api, base_url="http://127.0.0.1") as opened:
        yield opened


def test_http_gives_the_probabilities_of_predict(trained, client):
    predictor = Predictor.load(trained.run)
    chunks = formats.read([trained.log], predictor.schema.columns, predictor.schema.numbers)
    expected = np.concatenate([predictor.predict(chunk) for chunk in chunks])
    with trained.log.open(encoding="utf-8", newline="") as file:
        rows = [{name: row[name] for name in ("user", "price", "tags")} for row in csv.DictReader(file)]
    together = client.post("/predict", json={"rows": rows}).json()["probabilities"]
    np.testing.assert_allclose(together, expected, rtol=1e-6)
    alone = [client.post("/predict", json={"rows": [row]}).json()["probabilities"][0] for row in rows[:20]]
    np.testing.assert_allclose(alone, expected[:20], rtol=1e-6)
    # As candidates, and with numbers and lists as JSON has them.
    typed = [
        {"user": row["user"], "price": float(row["price"]) if row["price"] else None, "tags": row["tags"].split("|")}
        for row in rows[:50]
    ]
    ranked = client.post("/rank", json={"context": {}, "candidates": typed}).json()["candidates"]
    assert [row["index"] for row in ranked] == np.argsort(-expected[:50], kind="stable").tolist()
    np.testing.assert_allclose([row["probability"] for row in ranked], np.sort(expected[:50])[::-1], rtol=1e-6)
    explained = client.post("/explain", json={"row": rows[0]}).json()
    assert explained["probability"] == pytest.approx(expected[0], rel=1e-6)
    assert explained["exact"]
