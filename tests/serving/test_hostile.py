"""A stranger's bundle: whatever its files hold, and though their digests fit, it is refused in one line."""

import gzip
import json
import shutil
import time

import numpy as np
import pyarrow as pa
import pytest
import torch
from fastapi.testclient import TestClient
from pyarrow import parquet
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from fieldwise import cli
from fieldwise.abtest.router import Router
from fieldwise.bundle import bundle
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import BundleError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.tabular import Features
from fieldwise.data.encode.tree_file import load_booster
from fieldwise.data.read import ubjson
from fieldwise.data.schema import Schema
from fieldwise.export.export import export
from fieldwise.serving import service as services
from fieldwise.serving import trial
from fieldwise.serving.application import Application, Hooks, Limits
from fieldwise.serving.engine import Engine
from fieldwise.serving.service import Service

from . import hostile
from .bundles import FIELDS, log, prepared
from .processes import Client, running

DEEP = 100_000
ROW = {key: value for key, value in log(1)[0].items() if key != "click"}


@pytest.fixture(scope="session")
def trees(everything):
    return everything.bundle("gbdt", out="trees-of-a-stranger")


@pytest.fixture
def spoilt(trees, tmp_path):
    """A bundle of trees to spoil; `seal` makes its digests fit."""
    return hostile.copied(trees, tmp_path / "spoilt")


def refused(load, folder, *words):
    """Loading says no in one line, with these words."""
    with pytest.raises(BundleError) as error:
        load(folder)
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 1000
    for word in (*words, str(folder)):
        assert word in line
    return line


@pytest.mark.parametrize("attack", hostile.TREES)
def test_trees_that_are_none_are_refused(spoilt, attack):
    change, word = hostile.TREES[attack]
    hostile.edited_trees(spoilt / "trees.ubj.gz", change)
    hostile.reseal(spoilt)
    for load in (Predictor.load, Engine.load):
        refused(load, spoilt, "the trees are damaged", word)


def test_the_trees_of_leaf_fields_are_looked_at_too(tmp_path):
    made = prepared(tmp_path, Schema("click", FIELDS[:3]), leaves=2)
    for attack in ("a child far away", "a node below itself", "a split of no column"):
        encoder = tmp_path / attack
        shutil.copytree(made.data / "encoder", encoder)
        hostile.edited_trees(encoder / "leaves.ubj", hostile.TREES[attack][0])
        refused(
            lambda folder: Encoder.load(folder, Schema.load(made.data / "schema.toml")), encoder, "trees are damaged"
        )


def test_predict_says_so_on_the_command_line(spoilt, tmp_path, capsys):
    hostile.edited_trees(spoilt / "trees.ubj.gz", hostile.TREES["a child far away"][0])
    hostile.reseal(spoilt)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW) + "\n")
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", str(spoilt), str(rows), "-o", str(tmp_path / "out.csv")])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "children must be nodes after their parent" in line
    assert not (tmp_path / "out.csv").exists()


def test_bytes_that_were_changed_at_random_are_refused_or_still_trees(trees, tmp_path):
    encoder = Encoder.load(trees / "encoder", Schema.load(trees / "schema.toml"))
    features, good = Features(encoder.layout), hostile.unpacked(trees / "trees.ubj.gz")
    ids = encoder.transform(pa.Table.from_pylist([{k: v for k, v in row.items() if k != "click"} for row in log(50)]))
    random, file, loaded = np.random.default_rng(0), tmp_path / "trees.ubj", 0
    for _ in range(150):
        data = bytearray(good)
        for place in random.integers(len(data), size=random.integers(1, 4)):
            data[place] = random.integers(256)
        file.write_bytes(bytes(data))
        try:
            booster = load_booster(file, features, "a test")
        except BundleError:
            continue
        loaded += 1
        assert np.isfinite(booster.inplace_predict(features(ids), predict_type="margin")).all()
    # Most bytes are numbers: what a leaf adds may be any.
    assert 0 < loaded < 150


def test_packed_trees_that_unpack_to_a_flood_are_refused(spoilt):
    (spoilt / "trees.ubj.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    hostile.reseal(spoilt)
    for load in (Predictor.load, Engine.load):
        refused(load, spoilt, "the trees are damaged", "unpacks to more than")


@pytest.mark.parametrize(
    "bad", [b"\x1f\x8b", b"\x1f\x8b\x08nothing that was packed", gzip.compress(b"{}", mtime=0)[:-6]]
)
def test_packed_trees_that_are_cut_or_none_are_refused(spoilt, bad):
    (spoilt / "trees.ubj.gz").write_bytes(bad)
    hostile.reseal(spoilt)
    for load in (Predictor.load, Engine.load):
        refused(load, spoilt, "the trees are damaged")


def test_trees_of_an_older_bundle_are_not_packed(trees, spoilt):
    packed = spoilt / "trees.ubj.gz"
    packed.with_suffix("").write_bytes(hostile.unpacked(packed))
    packed.unlink()
    hostile.reseal(spoilt)
    rows = [{name: value for name, value in row.items() if name != "click"} for row in log(20)]
    expected = Predictor.load(trees).predict(rows)
    for load in (Predictor.load, Engine.load):
        np.testing.assert_allclose(load(spoilt).predict(rows), expected, atol=1e-6)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}x",
        b'{"learner": 1}',
        b"{L" + bytes(7) + b"\x01a" + b"[" * DEEP,
        b"{L" + bytes(7) + b"\x01a" + b"{L" + bytes(7) + b"\x01a" * DEEP,
        b"{L\xff" + bytes(7),
        b"{L" + bytes(7) + b"\x01a[$d#L\x7f" + bytes(7) + b"}",
        b"{L" + bytes(7) + b"\x01a[#L\x7f" + bytes(7) + b"}",
        b"{L" + bytes(7) + b"\x01aTL" + bytes(7) + b"\x01aT}",
        b"{L" + bytes(7) + b"\x01aH}",
    ],
)
def test_what_is_no_ubjson_is_refused(data):
    with pytest.raises(ValueError, match=r"cut off|begin|follow|marker|without|levels|length|twice|array"):
        ubjson.loads(data)


def nan(tensor):
    tensor.view(-1)[0] = torch.nan
    return tensor


def infinite(tensor):
    tensor.view(-1)[-1] = -torch.inf
    return tensor


@pytest.mark.parametrize(
    "change", [nan, infinite, torch.Tensor.double, torch.Tensor.half, torch.Tensor.int, lambda t: t[1:]]
)
def test_weights_of_another_kind_are_refused(everything, tmp_path, change):
    folder = hostile.copied(everything.bundle("fm", out="fm-of-a-stranger"), tmp_path / "spoilt")
    weights = load_file(folder / "weights.safetensors")
    name = max(weights, key=lambda one: weights[one].numel())
    save_file(weights | {name: change(weights[name]).contiguous()}, folder / "weights.safetensors")
    hostile.reseal(folder)
    refused(Predictor.load, folder, "weights", name)


def test_weights_that_are_missing_or_too_many_are_refused(everything, tmp_path):
    folder = hostile.copied(everything.bundle("fm", out="fm-of-a-stranger"), tmp_path / "spoilt")
    weights = load_file(folder / "weights.safetensors")
    first = next(iter(weights))
    for changed in (weights | {"more": torch.zeros(1)}, {k: v for k, v in weights.items() if k != first}):
        save_file(changed, folder / "weights.safetensors")
        hostile.reseal(folder)
        refused(Predictor.load, folder, "only one of the two has")


@pytest.fixture(scope="session")
def exported(everything, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "fm"
    export(everything.bundle("fm", out="fm-to-export"), out)
    return out


def seal_network(folder):
    """Makes the digests of an exported network fit."""
    facts = json.loads((folder / "online.json").read_text())
    facts["files"] = {name: bundle.digest_of(folder / name) for name in facts["files"]}
    (folder / "online.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda a: np.where(np.arange(a.size).reshape(a.shape) == 0, np.nan, a).astype(a.dtype), "finite"),
        (lambda a: np.where(np.arange(a.size).reshape(a.shape) == 0, np.inf, a).astype(a.dtype), "finite"),
        (lambda a: a.astype(np.float64), "found F64"),
        (lambda a: a[:-3], "rows"),
        (lambda a: a.astype(np.int64), "no int64"),
        (lambda a: a.astype(np.int8), "no int8"),
    ],
)
def test_an_exported_network_of_another_kind_is_refused(exported, tmp_path, change, word):
    folder = hostile.copied(exported, tmp_path / "spoilt")
    file = folder / "online" / "parts.safetensors"
    arrays = load_arrays(file)
    name = max(arrays, key=lambda one: arrays[one].size)
    save_arrays(arrays | {name: np.ascontiguousarray(change(arrays[name]))}, file)
    seal_network(folder / "online")
    refused(Engine.load, folder, word)


def test_an_exported_network_of_other_fields_is_refused(exported, tmp_path):
    folder = hostile.copied(exported, tmp_path / "spoilt")
    for change in (
        lambda parts: parts["settings"]["sizes"].reverse(),
        lambda parts: parts["settings"].update(widths="wide"),
        lambda parts: parts["parts"][0]["parts"][0]["settings"].update(fields=[0, 0]),
        lambda parts: parts.update(parts=7),
        lambda parts: parts["parts"][1]["settings"].update(bias=float("nan")),
    ):
        shutil.copyfile(exported / "online" / "parts.json", folder / "online" / "parts.json")
        hostile.edited_json(folder / "online" / "parts.json", change)
        seal_network(folder / "online")
        refused(Engine.load, folder, "network")


@pytest.mark.parametrize(
    "change",
    [
        {"slope": float("nan")},
        {"slope": float("inf")},
        {"slope": -1.0},
        {"slope": "1"},
        {"slope": True},
        {"shift": float("-inf")},
        {"shift": None},
        {"shift": 10**400},
        {"offset": float("nan")},
        {"kind": "magic"},
        {"kind": ["platt"]},
        {"more": 1},
        {"curve_x": [0.1, 0.5], "curve_y": [0.1, float("nan")]},
        {"curve_x": [0.5, 0.1], "curve_y": [0.1, 0.5]},
        {"curve_x": [0.1, 0.5], "curve_y": [0.1]},
        {"curve_x": [0.1], "curve_y": [7.0]},
        {"curve_x": "0.1"},
    ],
)
def test_a_calibration_that_is_none_is_refused(spoilt, change):
    hostile.edited_json(spoilt / "calibration.json", lambda values: values.update(change))
    hostile.reseal(spoilt)
    for load in (Predictor.load, Engine.load):
        refused(load, spoilt, "calibration")


FILES = {"a": "0"}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        '"bundle"',
        "{",
        "[" * DEEP,
        '{"format": ' + "[" * DEEP,
        '{"format": [1], "files": {}}',
        '{"format": 1, "files": []}',
        '{"format": 1, "files": ["config.toml"]}',
        '{"format": 1, "files": {"config.toml": 7}}',
        '{"format": 1, "files": {"config.toml": [["x"]]}}',
        '{"format": 1, "files": {"../../config.toml": "0"}}',
        '{"format": 1, "files": {"/etc/passwd": "0"}}',
        '{"format": 1, "files": {"": "0"}}',
        '{"format": 1, "files": {}}',
        '{"format": 1}',
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
)
def test_a_bundle_json_that_is_none_is_refused(spoilt, text):
    (spoilt / "bundle.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    for load in (Predictor.load, Engine.load, services.fingerprint):
        refused(load, spoilt, "bundle")


DEEP_JSON, DEEP_TOML = '{"a": ' + "[" * DEEP, "a = " + "[" * DEEP


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", DEEP_TOML),
        ("config.toml", "model = 7"),
        ("config.toml", "[model]\nname = 7"),
        ("config.toml", "[train]\nlr = [1]"),
        ("config.toml", '[model]\nname = "gbdt"\ndepth = "deep"'),
        ("config.toml", "device = 7"),
        ("schema.toml", DEEP_TOML),
        ("schema.toml", "field = 7"),
        ("schema.toml", 'label = "click"\n[[field]]\nname = 7'),
        ("schema.toml", 'label = "click"\nrecipe = "nobody"\n[[field]]\nname = "user"'),
        ("schema.toml", 'label = "click"\n[history]\nkeys = [1, 2]\n[[field]]\nname = "user"'),
        ("calibration.json", DEEP_JSON),
        ("metrics.json", DEEP_JSON),
        ("metrics.json", "[]"),
        ("encoder/encoder.json", DEEP_JSON),
        ("encoder/encoder.json", '{"fields": 7}'),
        ("encoder/encoder.json", '{"fields": [7, 7, 7, 7, 7, 7]}'),
        ("encoder/history.json", DEEP_JSON),
        ("encoder/history.json", '{"end": NaN, "added": 0}'),
        ("encoder/history.json", '{"end": 1.0, "added": 1000000000}'),
        ("encoder/history.npz", "PK nothing"),
        ("encoder/vocabulary.parquet", "PAR1 nothing"),
    ],
)
def test_texts_of_another_form_are_refused(spoilt, name, text):
    (spoilt / name).write_text(text)
    hostile.reseal(spoilt)
    for load in (Predictor.load, Engine.load):
        refused(load, spoilt)


def test_metrics_that_cannot_be_told_are_refused_before_they_are_served(spoilt):
    for text in ('{"auc": ' + "1" * 30 + "}", '{"auc": ' + "[" * 500 + "]" * 500 + "}"):
        (spoilt / "metrics.json").write_text(text)
        hostile.reseal(spoilt)
        refused(lambda folder: services._load("a", folder), spoilt)


@pytest.mark.parametrize(
    "change",
    [
        {"width": -1},
        {"width": 10**9},
        {"width": "1"},
        {"width": True},
        {"thresholds": [3.0, 1.0]},
        {"thresholds": [[1.0]]},
        {"thresholds": ["a"]},
        {"thresholds": float("nan")},
        {"anchors": [float("nan")]},
        {"first_size": 10**9},
        {"first_size": "2"},
    ],
)
def test_an_encoder_that_gives_wild_ids_is_refused(spoilt, change):
    for field in range(len(FIELDS)):
        state = json.loads((spoilt / "encoder" / "encoder.json").read_text())
        before = dict(state["fields"][field])
        state["fields"][field].update(change)
        if field == 3 and "anchors" not in change:
            state["fields"][field]["anchors"] = []
        (spoilt / "encoder" / "encoder.json").write_text(json.dumps(state))
        hostile.reseal(spoilt)
        refused(Engine.load, spoilt, "the encoder is damaged")
        state["fields"][field] = before
        (spoilt / "encoder" / "encoder.json").write_text(json.dumps(state))


def test_a_vocabulary_that_gives_wild_ids_is_refused(spoilt):
    file = spoilt / "encoder" / "vocabulary.parquet"
    table = parquet.read_table(file)
    fields, texts = table["field"].to_pylist(), table["text"].to_pylist()
    # The same text twice has the later id, and the field as many ids as texts: the id would lie behind them.
    for wild in (
        {"field": fields, "text": [texts[0]] + [texts[0]] + texts[2:]},
        {"field": fields[::-1], "text": texts},
        {"field": [-1] * len(fields), "text": texts},
        {"field": fields, "text": list(range(len(texts)))},
        {"field": fields, "text": [None, *texts[1:]]},
        {"field": [str(field) for field in fields], "text": texts},
    ):
        parquet.write_table(pa.table(wild), file)
        hostile.reseal(spoilt)
        refused(Engine.load, spoilt, "the encoder is damaged")


def test_a_history_that_is_read_beyond_its_ends_is_refused(spoilt):
    file = spoilt / "encoder" / "history.npz"
    with np.load(file) as held:
        arrays = {name: held[name] for name in held.files}
    for wild in (
        {"values": arrays["values"][:3]},
        {"values": arrays["values"][:, :1]},
        {"last": arrays["last"][:1]},
        {"keys": arrays["keys"].astype(np.float64)},
        {"keys": arrays["keys"][::-1]},
        {"keys": np.zeros_like(arrays["keys"])},
        {"values": np.full_like(arrays["values"], np.nan)},
        {"values": -arrays["values"]},
        {"error": np.float64(np.inf)},
        {"waiting_keys": arrays["waiting_keys"][:, :1]},
        {"waiting_labels": arrays["waiting_labels"][:0]},
        {"waiting_times": arrays["waiting_times"][::-1]},
        {"waiting_times": np.full_like(arrays["waiting_times"], np.nan)},
    ):
        np.savez(file, **(arrays | wild))
        hostile.reseal(spoilt)
        refused(Engine.load, spoilt, "the history is damaged")


@pytest.fixture
def blend(trees, tmp_path):
    """A blend of two models of trees, put together by hand."""
    folder = tmp_path / "blend"
    for number in (0, 1):
        shutil.copytree(trees, folder / "members" / str(number))
    for name in ("calibration.json", "metrics.json"):
        shutil.copyfile(trees / name, folder / name)
    (folder / "config.toml").write_text('[model]\nname = "blend"\nmembers = ["a", "b"]\nplain = false\n')
    (folder / "blend.json").write_text('{"weights": [0.5, 0.5], "shift": 0.0}')
    hostile.reseal(folder)
    return folder


def test_members_of_a_blend_are_looked_at_too(blend):
    assert Predictor.load(blend).predict([ROW]) == pytest.approx(Engine.load(blend).predict([ROW]), abs=1e-6)
    hostile.edited_trees(blend / "members" / "1" / "trees.ubj.gz", hostile.TREES["a child far away"][0])
    hostile.reseal(blend)
    for load in (Predictor.load, Engine.load):
        with pytest.raises(BundleError, match=r"the trees are damaged: children .*members/1"):
            load(blend)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        DEEP_JSON,
        '{"weights": [NaN, 1], "shift": 0}',
        '{"weights": [1e999, 1], "shift": 0}',
        '{"weights": [-1, 1], "shift": 0}',
        '{"weights": [], "shift": 0}',
        '{"weights": [[1], [1]], "shift": 0}',
        '{"weights": {"0": 1}, "shift": 0}',
        '{"weights": [0.5, 0.5], "shift": Infinity}',
        '{"weights": [0.5, 0.5], "shift": "0"}',
        '{"weights": [0.5, 0.5]}',
    ],
)
def test_weights_of_a_blend_that_are_none_are_refused(blend, text):
    (blend / "blend.json").write_text(text)
    hostile.reseal(blend)
    for load in (Predictor.load, Engine.load):
        refused(load, blend, "the weights of the blend are damaged")


def test_a_blend_in_a_blend_is_refused_even_where_it_is_itself(blend):
    shutil.rmtree(blend / "members" / "1")
    (blend / "members" / "1").symlink_to("..")
    bundle._seal(blend)
    for load in (Predictor.load, Engine.load):
        with pytest.raises(BundleError, match="a member of a blend is a model, found a blend"):
            load(blend)


def test_an_export_writes_nothing_outside_its_folder(spoilt, tmp_path):
    (tmp_path / "outside").write_text("mine")
    hostile.edited_json(
        spoilt / "bundle.json",
        lambda facts: facts["files"].update({"../outside": bundle.digest_of(tmp_path / "outside")}),
    )
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match="a bundle's files lie in its folder"):
        export(spoilt, tmp_path / "out" / "exported")
    assert list((tmp_path / "out").iterdir()) == []


def in_this_process(path):
    """A trial without the time that another process takes to start."""
    engine = Engine.load(path)
    trial.use(engine)
    return engine.version


@pytest.fixture(scope="module")
def reloading(trees, tmp_path_factory):
    """A server over real trees, what it says of a row, and the folder that it loads anew."""
    folder = hostile.copied(trees, tmp_path_factory.mktemp("reloading") / "current")
    service = Service([folder], Router(("a",), (1.0,), "", ""), trial=in_this_process)
    application = Application(service, "", Limits(), Hooks())
    with TestClient(application.api, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client, folder


@pytest.mark.parametrize("attack", [*hostile.TREES, "nested", "list", "calibration", "schema"])
def test_reload_refuses_each_of_them_and_the_old_bundle_serves(reloading, trees, attack):
    client, folder = reloading
    before = client.post("/predict", json={"rows": [ROW]}).json()["probabilities"]
    try:
        if attack in hostile.TREES:
            hostile.edited_trees(folder / "trees.ubj.gz", hostile.TREES[attack][0])
        elif attack == "calibration":
            hostile.edited_json(folder / "calibration.json", lambda values: values.update(slope=float("nan")))
        elif attack == "schema":
            (folder / "schema.toml").write_text('label = "click"\nrecipe = "nobody"\n[[field]]\nname = "user"')
        hostile.reseal(folder)
        if attack in ("nested", "list"):
            (folder / "bundle.json").write_text("[" * (DEEP if attack == "nested" else 1) + "]")
        found = client.post("/reload")
        assert found.status_code == 409
        assert "\n" not in found.json()["detail"]
        assert client.post("/predict", json={"rows": [ROW]}).json()["probabilities"] == before
    finally:
        shutil.rmtree(folder)
        shutil.copytree(trees, folder)
    assert client.post("/reload").json()["changed"] == {"a": False}


def test_a_bundle_that_ends_the_process_that_tries_it_leaves_the_server_as_it_was(trees, everything, tmp_path):
    """A real server, and a child that really dies: Python itself aborts where a bundle holds a file KILL."""
    folder = hostile.copied(trees, tmp_path / "current")
    (tmp_path / "python").mkdir()
    tries = "'fieldwise.serving.trial' in sys.orig_argv and os.path.exists(sys.orig_argv[-1] + '/KILL')"
    (tmp_path / "python" / "sitecustomize.py").write_text(f"import os, sys\nif {tries}:\n    os.abort()\n")
    with (
        running(folder, "--log", "none", python_path=tmp_path / "python") as (process, port),
        Client(port, timeout=200) as client,
    ):
        before = client.post("/predict", rows=[ROW])
        (folder / "KILL").touch()
        hostile.edited_json(folder / "metrics.json", lambda values: values.update(newer=1))
        hostile.reseal(folder)
        status, found = client.post("/reload")
        assert (status, "SIGABRT" in found["detail"]) == (409, True)
        (folder / "KILL").unlink()
        hostile.edited_trees(folder / "trees.ubj.gz", hostile.TREES["a node below itself"][0])
        hostile.reseal(folder)
        status, found = client.post("/reload")
        assert (status, "children must be nodes after" in found["detail"]) == (409, True)
        again = client.post("/predict", rows=[ROW])
        assert again[1]["probabilities"] == before[1]["probabilities"]
        assert process.poll() is None
        # A good one is taken.
        shutil.rmtree(folder)
        everything.bundle("gbdt", out="newer-trees", seed=1, rounds=2).rename(folder)
        status, found = client.post("/reload")
        assert (status, found["changed"]) == (200, {"current": True})
        assert client.post("/predict", rows=[ROW])[1]["probabilities"] != before[1]["probabilities"]


def test_a_trial_that_hangs_is_given_up(spoilt, monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 0.01)
    began = time.monotonic()
    refused(trial.tried, spoilt, "within 0.01 seconds")
    assert time.monotonic() - began < 60
