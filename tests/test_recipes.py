"""Every recipe loads, names a model that exists, and has options that this model knows; every schema loads."""

from pathlib import Path

import pytest

from fieldwise.config.settings import load_config
from fieldwise.data.schema import Layout, Schema
from fieldwise.models import build

FILES = sorted((Path(__file__).parent.parent / "recipes").rglob("*.toml"))
RECIPES = [path for path in FILES if path.name != "schema.toml"]
SCHEMAS = [path for path in FILES if path.name == "schema.toml"]


def test_there_are_recipes():
    assert len(RECIPES) >= 12


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe(path):
    config = load_config(path)
    assert config.model == path.stem.partition("-")[0]
    assert build(config.model, Layout.of([5] * 12), config.options) is not None


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.parent.name)
def test_schema(path):
    schema = Schema.load(path)
    assert Schema.from_toml(schema.to_toml(), "here") == schema
