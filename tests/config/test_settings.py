"""Settings: from TOML and KEY=VALUE, complete when written back, and refused with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, TrainSettings, coerce, load_config, parse_value


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults() -> None:
    assert load_config() == Config()


def test_the_command_line_is_stronger_than_the_recipe(tmp_path: Path) -> None:
    path = recipe(tmp_path, 'seed = 3\n[model]\nname = "fm"\ndim = 5\n[train]\nlr = 0.1\nepochs = 7\n')
    found = load_config(path, ["train.lr=3e-4", "model.dim = 20"], {"model.name": "pin"})
    assert (found.model, found.options, found.seed) == ("pin", {"dim": 20}, 3)
    assert (found.train.lr, found.train.epochs) == (3e-4, 7)


def test_written_and_read_again(tmp_path: Path) -> None:
    config = load_config(
        overrides=["model.name=fnn", "model.hidden=40,20", "model.norm=none", "train.betas=[0.8, 0.99]", "seed=9"]
    )
    assert config.options == {"hidden": (40, 20), "norm": "none"}
    assert load_config(recipe(tmp_path, config.to_toml())) == config
    assert f"patience = {TrainSettings().patience}" in config.to_toml()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("5", 5),
        ("true", True),
        ("pin", "pin"),
        ("a b", "a b"),
        ('"5"', "5"),
        ("1,2", [1, 2]),
        ("[1, 2]", [1, 2]),
        ("a,b", "a,b"),
        ("", ""),
    ],
)
def test_values_of_the_command_line(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_whole_numbers_and_floats() -> None:
    found = load_config(overrides=["train.lr=1", "train.epochs=3.0"]).train
    assert isinstance(found.lr, float)
    assert isinstance(found.epochs, int)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lrr=1", "unknown train setting 'lrr'; did you mean 'lr'"),
        ("trian.lr=1", "unknown setting 'trian'; did you mean 'train'"),
        ("sed=1", "unknown setting 'sed'; did you mean 'seed'"),
        ("train.lr", "--set takes KEY=VALUE, such as train.lr=3e-4, found 'train.lr'"),
        ("train=1", "are tables"),
        ("model=fm", "are tables"),
        ("train.lr.x=1", "train.lr must be a number"),
        ("train.lr=fast", "train.lr must be a number, found 'fast'"),
        ("train.lr=true", "train.lr must be a number, found True"),
        ("train.lr=0", "train.lr must be positive, found 0"),
        ("train.lr=nan", "train.lr must be positive, found nan"),
        ("train.epochs=1.5", "train.epochs must be a whole number, found 1.5"),
        ("train.epochs=0", "train.epochs must be at least 1, found 0"),
        ("train.batch_scale=0.5", "train.batch_scale must be a number of at least 1, found 0.5"),
        ("train.batch_scale=inf", "train.batch_scale must be a number of at least 1, found inf"),
        ("train.batch_scale=nan", "train.batch_scale must be a number of at least 1, found nan"),
        ("train.row_clip=-2", "train.row_clip must be a number of 0 or more, or -1, found -2"),
        ("train.row_clip=nan", "train.row_clip must be a number of 0 or more, or -1, found nan"),
        ("train.row_clip_least=-1e-5", "train.row_clip_least must be 0 or more, found -1e-05"),
        ("train.dense_lr=-1", "train.dense_lr must be 0 or more, found -1"),
        ("train.dense_lr=inf", "train.dense_lr must be 0 or more, found inf"),
        ("train.clip=-1", "train.clip must be 0 or more, found -1"),
        ("train.l2_kernels=-1", "train.l2_kernels must be 0 or more, found -1"),
        ("train.l2_attention=-1", "train.l2_attention must be 0 or more, found -1"),
        ("train.calibration=plat", "unknown train.calibration 'plat'; did you mean 'platt'"),
        ("train.l2_reduction=max", "unknown train.l2_reduction 'max'"),
        ("train.betas=0.9", "train.betas must be a list, found 0.9"),
        ("train.betas=[0.9]", "train.betas must hold 2 values"),
        ("train.betas=[0.9, 'x']", "train.betas must hold numbers, found 'x'"),
        ("seed=-1", "seed must be a whole number of 0 or more, found -1"),
        ("seed=1.5", "seed must be a whole number"),
        ("seed=true", "seed must be a whole number"),
        ("seed=99999999999999999999", "seed must be a whole number"),
    ],
)
def test_what_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        load_config(overrides=[override])
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nlearning_rate = 1\n", "unknown train setting 'learning_rate'"),
        ("lr = 1\n", "unknown setting 'lr'"),
        ("[train\n", "not a TOML file"),
        ("[train]\nepochs = 0\n", "train.epochs must be at least 1, found 0"),
        ("[train]\nepochs = 'x'\n", "train.epochs must be a whole number, found 'x'"),
    ],
)
def test_a_recipe_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message + r".*recipe\.toml\)"):
        load_config(recipe(tmp_path, text))


def test_a_recipe_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.toml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the config"):
            load_config(path)
    (tmp_path / "latin.toml").write_bytes(b"seed = '\xe9'")
    with pytest.raises(ConfigError, match="cannot read the config"):
        load_config(tmp_path / "latin.toml")


def test_options_of_models() -> None:
    assert coerce([40, 20], tuple, "model.hidden", "here") == (40, 20)
    with pytest.raises(ConfigError, match=r"model.hidden must hold numbers, found 'a' \(here\)"):
        coerce(["a"], tuple, "model.hidden", "here")
