"""Every recipe loads, names a model that exists, and has options that this model knows."""

from pathlib import Path

import pytest

from fieldwise.config import load_config
from fieldwise.data.schema import Layout
from fieldwise.models import build

RECIPES = sorted((Path(__file__).parent.parent / "recipes").rglob("*.toml"))


def test_there_are_recipes():
    assert len(RECIPES) >= 12


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe(path):
    config = load_config(path)
    assert config.model == path.stem.partition("-")[0]
    assert build(config.model, Layout.of([5] * 12), config.options) is not None
