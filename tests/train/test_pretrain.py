"""Starting from a trained FM: v for FNN, v, w and b for AFM; anything that does not fit is refused."""

import pytest
import torch
from safetensors.torch import load_file

from fieldwise import cli
from fieldwise.bundle import bundle
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import load_config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.schema import Schema
from fieldwise.data.world import World
from fieldwise.models import build
from fieldwise.train.loop import train
from fieldwise.train.pretrain import start_from


@pytest.fixture(scope="module")
def fm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain")
    log = World("demo").log(1500).table
    prepare({"train": lambda: iter([log])}, folder / "data", "click")
    config = load_config(base={"model.name": "fm", "model.dim": 4, "train.epochs": 2})
    train(config, folder / "data", folder / "fm")
    return folder


def encoder_of(data):
    return Encoder.load(data / "encoder", Schema.load(data / "schema.toml"))


@pytest.mark.parametrize(("name", "copied"), [("fnn", ["v"]), ("afm", ["v", "w", "b"]), ("deepfm", ["v", "w"])])
def test_what_is_copied(fm, name, copied):
    encoder, source = encoder_of(fm / "data"), bundle.load(fm / "fm")
    model = build(name, encoder.layout, {"dim": 4})
    assert start_from(model, encoder, source) == copied
    assert torch.equal(model.embedding.tables[0].weight, source.model.embedding.tables[0].weight)
    if "w" in copied:
        assert torch.equal(model.linear.weights.weight, source.model.linear.weights.weight)
    if "b" in copied:
        assert torch.equal(model.linear.bias, source.model.linear.bias)


def test_fields_are_matched_by_name(fm):
    """The same fields in another order: each finds its own rows."""
    source = bundle.load(fm / "fm")
    codes = list(reversed(source.encoder.codes))
    encoder = Encoder(source.encoder.schema, codes)
    model = build("fnn", encoder.layout, {"dim": 4})
    start_from(model, encoder, source)
    last = source.encoder.layout.sizes[-1]
    ours, theirs = model.embedding.tables[0].weight, source.model.embedding.tables[0].weight
    assert torch.equal(ours[:last], theirs[-last:])


def test_the_command_line_starts_from_a_run(fm, capsys):
    settings = ["model.dim=4", "train.epochs=1", "train.lr=1e-12", "train.l2=0"]
    changes = [word for setting in settings for word in ("--set", setting)]
    folders = ["--init-from", str(fm / "fm"), "--out", str(fm / "fnn")]
    with pytest.raises(SystemExit) as end:
        cli.main(["train", str(fm / "data"), "--model", "fnn", *changes, *folders])
    assert end.value.code == 0
    key = "embedding.tables.0.weight"
    found = load_file(fm / "fnn" / "bundle" / "weights.safetensors")[key]
    torch.testing.assert_close(found, load_file(fm / "fm" / "bundle" / "weights.safetensors")[key], atol=1e-6, rtol=0)


def test_mismatches_are_refused(fm, tmp_path):
    encoder, source = encoder_of(fm / "data"), bundle.load(fm / "fm")
    with pytest.raises(ConfigError, match="same size"):
        start_from(build("fnn", encoder.layout, {"dim": 8}), encoder, source)
    with pytest.raises(ConfigError, match="with embeddings"):
        start_from(build("lr", encoder.layout), encoder, source)
    with pytest.raises(ConfigError, match="one size"):
        start_from(build("fnn", encoder.layout, {"dim": 8, "adaptive": 1.0}), encoder, source)
    other = World("demo", seed=5).log(900, seed=9).table
    prepare({"train": lambda: iter([other])}, tmp_path / "data", "click")
    foreign = encoder_of(tmp_path / "data")
    with pytest.raises(ConfigError, match="another vocabulary"):
        start_from(build("fnn", foreign.layout, {"dim": 4}), foreign, source)
    renamed = other.rename_columns([f"{name}_" if name != "click" else name for name in other.column_names])
    prepare({"train": lambda: iter([renamed])}, tmp_path / "app", "click")
    strange = encoder_of(tmp_path / "app")
    with pytest.raises(ConfigError, match="is not in the source"):
        start_from(build("fnn", strange.layout, {"dim": 4}), strange, source)
