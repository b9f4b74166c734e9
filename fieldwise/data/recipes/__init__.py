"""Recipes: raw public files, as their owners publish them, to fields, without code. One short object each."""

from __future__ import annotations

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.data.recipes import avazu, criteo, ipinyou, movielens, small_sets
from fieldwise.data.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        criteo.CRITEO,
        criteo.TERABYTE,
        criteo.CHALLENGE,
        avazu.AVAZU,
        ipinyou.IPINYOU,
        small_sets.FRAPPE,
        movielens.MOVIELENS,
        movielens.SMALL,
        small_sets.AMAZON,
        small_sets.LIBSVM,
        small_sets.LIBFFM,
        small_sets.APPSTORE,
    )
}


def find(name: str) -> Recipe:
    """The recipe of a name."""
    if name not in RECIPES:
        raise ConfigError(unknown("recipe", name, RECIPES))
    return RECIPES[name]
