"""Recipes: raw public files, as their owners publish them, to fields, without code. One short object each."""

from __future__ import annotations

from fieldwise.data.recipes import avazu, criteo, ipinyou, movielens, tables
from fieldwise.data.recipes.recipe import Recipe
from fieldwise.errors import ConfigError, unknown

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        criteo.CRITEO,
        criteo.TERABYTE,
        criteo.CHALLENGE,
        avazu.AVAZU,
        ipinyou.IPINYOU,
        tables.FRAPPE,
        movielens.MOVIELENS,
        tables.AMAZON,
        tables.LIBSVM,
        tables.LIBFFM,
        tables.APPSTORE,
    )
}


def find(name: str) -> Recipe:
    """The recipe of a name."""
    if name not in RECIPES:
        raise ConfigError(unknown("recipe", name, RECIPES))
    return RECIPES[name]
