"""What tuning may change: any point of any model's space is a config that builds."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch

from fieldwise import models
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import TrainSettings, load_config
from fieldwise.data.schema import Layout
from fieldwise.experiments.search_space import OPTIONS, Between, OneOf, apply, search_space
from fieldwise.experiments.tune import point_of
from fieldwise.nn.tree_models import TREES
from fieldwise.train.loop import resolve

LAYOUT = Layout((50, 7, 900, 12), (1, 1, 3, 1), (1,))
ROWS = 40_000
FILES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))
RECIPES = [path for path in FILES if path.name != "schema.toml"]


def space(base, held=(), layout=LAYOUT):
    return search_space(base, layout, ROWS, held)


def base_of(**settings):
    return resolve(load_config(base={key.replace("__", "."): value for key, value in settings.items()}))


def names(axes):
    return {axis.name for axis in axes}


def start_of(axes):
    return {axis.name: axis.start for axis in axes if axis.start is not None}


def drawn(axes, count=20):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [point_of(study.ask(), axes) for _ in range(count)]


@pytest.fixture(autouse=True, scope="module")
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.mark.parametrize("name", models.registry())
def test_every_point_of_every_model_builds(name):
    base = base_of(model__name=name)
    axes = space(base)
    assert len(axes) >= 5
    points = drawn(axes)
    for point in points:
        config = resolve(apply(base, point))
        with torch.device("meta"):
            models.build(name, LAYOUT, config.options)
        assert load_config(base=as_settings(config)) == config
    for axis in axes:
        assert len({str(point[axis.name]) for point in points if axis.name in point}) > 1, f"{axis.name} never moves"


def as_settings(config):
    train = {f"train.{key}": getattr(config.train, key) for key in TrainSettings.__dataclass_fields__}
    options = {f"model.{key}": value for key, value in config.options.items()}
    return {"model.name": config.model, **options, **train}


@pytest.mark.parametrize("name", models.registry())
def test_the_defaults_are_a_point(name):
    base = base_of(model__name=name)
    axes = space(base)
    assert {axis.name for axis in axes if axis.start is None} <= {"train.l2_full"}
    assert all(axis.values.holds(axis.start) for axis in axes if axis.start is not None)
    there = apply(base, start_of(axes))
    assert there.options == base.options
    # Of the training settings only the batch size is written out.
    size = {} if name in TREES else {"train__batch_size": 200}
    assert there.train == base_of(**size).train


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_is_a_point_of_its_space(path):
    base = resolve(load_config(path))
    axes = space(base, layout=Layout.of([5] * 12))
    there = apply(base, start_of(axes))
    # A batch size that is left open is written out.
    size = base.train.batch_size or there.train.batch_size
    assert (there.options, there.train) == (base.options, replace(base.train, batch_size=size))


def with_every_range():
    """A few models that have every option with a range between them: ranges belong to options, not to models."""
    found, seen = [], set()
    for name in models.registry():
        own = OPTIONS.keys() & models.options(name).keys()
        if not own <= seen:
            found.append(name)
            seen |= own
    return found


@pytest.mark.parametrize("name", with_every_range())
def test_what_is_held_is_not_moved(name):
    base = base_of(model__name=name)
    settings = [f"model.{key}" for key in base.options] + [f"train.{key}" for key in ("lr", "eps", "batch_size", "l2")]
    for setting in settings:
        section, key = setting.split(".")
        for point in drawn(space(base, [setting]), 5):
            there, here = (c.options if section == "model" else vars(c.train) for c in (apply(base, point), base))
            assert there[key] == here[key]


def test_l2_is_on_rows_or_on_tables():
    base = base_of(model__name="fm", train__l2_full=1e-4)
    kinds = set()
    for point in drawn(space(base)):
        settings = apply(base, point).train
        assert (settings.l2 > 0) != (settings.l2_full > 0)
        assert settings.sparse_mode == ("dense" if settings.l2_full else "paper")
        kinds.add(point["l2 on"])
    assert kinds == {"rows", "tables"}
    assert names(space(base, ["train.l2"])).isdisjoint({"l2 on", "train.l2", "train.l2_full"})


@pytest.mark.parametrize(
    ("settings", "held", "layout"),
    [
        ({}, (), Layout.of([400_000])),
        ({}, ("train.sparse_mode",), Layout.of([40])),
        ({"train__optimizer": "adagrad"}, (), Layout.of([40])),
    ],
    ids=["large tables", "held mode", "another optimizer"],
)
def test_where_whole_tables_cannot_be_moved(settings, held, layout):
    axes = {axis.name: axis for axis in search_space(base_of(model__name="lr", **settings), layout, ROWS, held)}
    assert axes["l2 on"].values == OneOf(("rows",))
    assert all("train.l2_full" not in point for point in drawn(list(axes.values())))


def test_options_follow_their_defaults():
    ffm, pin, nifm = ({a.name: a.values for a in space(base_of(model__name=n))} for n in ("ffm", "pin", "nifm"))
    assert ffm["model.dim"] == OneOf((2, 4, 8, 16))
    assert pin["model.dim"] == OneOf((16, 32, 64, 128))
    assert pin["model.subnet"] == OneOf(((20, 2), (40, 5), (80, 10)))
    assert nifm["model.subnet"] == OneOf(((16, 1), (32, 1), (64, 1)))
    assert nifm["model.norm"] == pin["model.subnet_norm"] == OneOf(("fused", "layer", "none"))
    assert pin["model.norm"] == OneOf(("layer", "batch", "none"))
    assert pin["train.batch_size"] == OneOf((100, 200, 400, 800))


def test_a_base_beyond_the_ranges_widens_them():
    base = base_of(model__name="fnn", model__dim=10, model__hidden=(8,), train__lr=0.5, train__init_scale=0.0)
    axes = {axis.name: axis for axis in space(base)}
    assert axes["model.dim"].values == OneOf((16, 32, 64, 128, 10))
    assert axes["hidden width"].values == Between(8, 1200, log=True, whole=True)
    assert axes["train.lr"].values.high == 0.5
    assert axes["train.init_scale"].start is None


def test_a_base_of_uneven_layers_is_no_point_but_a_base():
    base = base_of(model__name="fnn", model__hidden=(300, 100))
    axes = space(base)
    assert {axis.name for axis in axes if axis.start is None} == {"hidden width", "hidden depth", "train.l2_full"}
    assert apply(base, start_of(axes)).options == base.options


def test_values_that_the_base_forbids_are_left_out():
    axes = {axis.name: axis for axis in space(base_of(model__name="kfm", model__kernel_init="uniform"))}
    assert axes["model.kernel"].values == OneOf(("mat",))


def test_settings_without_a_meaning_are_left_alone():
    assert "train.eps" not in names(space(base_of(model__name="fm", train__optimizer="ftrl")))
    assert "train.init_scale" not in names(space(base_of(model__name="fm", train__init="xavier")))
    assert "l2 on" not in names(space(base_of(model__name="fm", train__l2_reduction="sum")))
    assert all(name.startswith("model.") for name in names(space(base_of(model__name="gbdt"))))


def test_a_base_that_does_not_build_is_refused():
    with pytest.raises(ConfigError, match="norm"):
        space(base_of(model__name="fnn", model__norm="bach"))
