"""The same history everywhere, to the last digit: the server that followed events, `predict`, `prepare` on the log."""

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from fieldwise import cli
from fieldwise.abtest.event_log import EventLog
from fieldwise.abtest.router import Router
from fieldwise.bundle import bundle
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.read import formats
from fieldwise.data.schema import HistorySettings
from fieldwise.export.export import write_network
from fieldwise.serving.application import Application, Hooks, Limits
from fieldwise.serving.row_coder import column_of
from fieldwise.serving.service import Service
from fieldwise.train.loop import train

KEYS = ("user", "user*item", "price")
# Of one moment: they do not see each other.
PROBES = [{"user": f"u{n % 7}", "item": f"i{n % 5}", "price": n / 10, "moment": 2000.0} for n in range(40)]
SETTINGS = {
    "folds": HistorySettings(keys=KEYS),
    "no folds": HistorySettings(keys=KEYS, folds=0),
    "time": HistorySettings(keys=KEYS, time="moment"),
    "delay": HistorySettings(keys=KEYS, time="moment", delay=25.0),
    "window": HistorySettings(keys=KEYS, time="moment", delay=5.0, window=300.0),
    "half-life": HistorySettings(keys=KEYS, time="moment", half_life=120.0, interpolate=8),
}


def drawn(rng, first, count):
    """Rows whose moments rise."""
    return {
        "click": rng.integers(2, size=count).tolist(),
        "user": [f"u{n}" for n in rng.integers(8, size=count)],
        "item": [f"i{n}" for n in rng.integers(6, size=count)],
        "price": [None if n < 0.1 else round(float(n), 2) for n in rng.random(count)],
        "moment": np.sort(first + rng.integers(900, size=count)).astype(float).tolist(),
    }


def trained(folder, settings):
    """A small model with a history."""
    rows = pa.table(drawn(np.random.default_rng(0), 0, 300))
    prepare({"train": lambda: iter([rows])}, folder / "data", "click", drop=["moment"], history=settings)
    train(load_config(overrides=["model.name=lr", "train.epochs=1", "device=cpu"]), folder / "data", folder / "run")
    # Here rather than by the server, in a process of its own: torch is loaded already.
    write_network(folder / "run" / "bundle", folder / "run" / "bundle" / "online")
    return folder / "run"


@pytest.fixture(params=SETTINGS)
def run(request, tmp_path):
    return trained(tmp_path, SETTINGS[request.param])


def client_of(run, log):
    service = Service([run], Router(("run",), (1.0,)), EventLog(log))
    return TestClient(Application(service, "", Limits(), Hooks()).api, base_url="http://127.0.0.1"), service


def probes_of(service):
    """Ids and probabilities of the probes in a server."""
    coder, rows = service.arms[0].engine.coders[0], [asked(service, row) for row in PROBES]
    return coder.ids(column_of(rows), len(rows)), service.predict(rows, log=False).probabilities


def asked(service, row):
    """A row without the time where nobody knows it."""
    return {name: value for name, value in row.items() if name in service.columns}


def test_the_server_and_predict_and_prepare_tell_the_same(run, tmp_path):
    log, rng = str(tmp_path / "events.sqlite"), np.random.default_rng(1)
    shown = drawn(rng, 1000, 80)
    client, service = client_of(run, log)
    untouched = probes_of(service)[0]
    with client:
        columns = zip(*(shown[name] for name in ("click", "user", "item", "price", "moment")), strict=True)
        waiting = []
        for click, user, item, price, moment in columns:
            row = {"user": user, "item": item, "price": price, "moment": moment}
            found = client.post("/predict", json={"rows": [asked(service, row)]}).json()
            waiting.append({"request_id": found["request_id"], "label": click})
        # Some responses are told late, and all of them twice.
        order = np.argsort(np.arange(80) + rng.integers(0, 6, 80), kind="stable")
        for number in order:
            for new in (True, False):
                assert client.post("/event", json=waiting[number]).json() == {"new": new}
        served = probes_of(service)
    assert (served[0] != untouched).any()
    # A server that starts again rebuilds the same state.
    again, second = client_of(run, log)
    with again:
        restarted = probes_of(second)
    np.testing.assert_array_equal(restarted[0], served[0])
    assert restarted[1] == served[1]
    # Offline: the log as rows, prepared as a new day of data; the probes are its test rows.
    exported(log, tmp_path / "rows.csv", "moment" if service.arms[0].follower.clock else "")
    probes = pa.table({name: [row[name] for row in PROBES] for name in PROBES[0]} | {"click": [0] * len(PROBES)})
    known = bundle.load_encoder(run)
    sources = {"train": lambda: formats.read([tmp_path / "rows.csv"]), "test": lambda: iter([probes])}
    prepare(sources, tmp_path / "next", "click", known=known, split=Split((1.0, 0.0, 0.0)))
    history = service.arms[0].engine.coders[0].encoder.history
    prepared = Dataset.open(tmp_path / "next")
    width = len(history.names) * history.width
    columns = prepared.layout.columns
    np.testing.assert_array_equal(
        np.asarray(prepared.parts["test"].ids)[:, -width:], served[0][:, columns - width : columns]
    )
    # `predict` with the state that prepare left behind.
    predictor = Predictor.load(run)
    predictor.encoder.history = bundle.Encoder.load(tmp_path / "next" / "encoder", prepared.schema).history
    np.testing.assert_array_equal(predictor.encoder.transform(probes), served[0])
    np.testing.assert_allclose(predictor.predict(PROBES), served[1], rtol=1e-6)
    state, other = (h.counts.state() for h in (history, predictor.encoder.history))
    assert all(np.array_equal(state[name], other[name]) for name in state)


def exported(log, file, time):
    with pytest.raises(SystemExit) as end:
        cli.main(["abtest", "rows", log, "-o", str(file), "--json", *(["--time", time] if time else [])])
    assert end.value.code == 0


def test_workers_follow_one_another(tmp_path):
    run = trained(tmp_path, SETTINGS["time"])
    log = str(tmp_path / "events.sqlite")
    one, first = client_of(run, log)
    two, second = client_of(run, log)
    with one, two:
        found = one.post(
            "/rank", json={"context": {"user": "u1", "moment": 1500}, "candidates": [{"item": "i1"}]}
        ).json()
        assert two.post("/event", json={"request_id": found["request_id"]}).json() == {"new": True}
        first.catch_up()
        assert probes_of(first)[1] == probes_of(second)[1]


def test_rows_a_time_history_was_trained_on_do_not_count_again(tmp_path):
    run = trained(tmp_path, HistorySettings(keys=("user",), time="moment"))
    client, service = client_of(run, str(tmp_path / "events.sqlite"))
    with client:
        for moment, more in ((100.0, 0), (1500.0, 1)):
            before = counted(service)
            found = client.post("/predict", json={"rows": [{"user": "u1", "moment": moment}]}).json()
            client.post("/event", json={"request_id": found["request_id"]})
            assert counted(service) == before + more


def counted(service):
    """How many rows the history has, those that wait to come in included."""
    history = service.arms[0].engine.coders[0].live_history.history
    overall = history.mixed_keys({"user": np.zeros(1, dtype=np.uint64)})[:, -1:]
    return history.counts.lookup(overall)[0, 0, 0] + len(history.waiting.times)
