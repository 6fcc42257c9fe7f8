"""Tables as a replay reads them, and searches for the recipe of what they record."""

import tomllib

import rlpost
from rlpost.analysis.replay.input_columns import NamedColumns
from rlpost.analysis.replay.rollouts import rollouts_of as first_rollouts
from rlpost.io.parquet.source import TableSource
from rlpost.recipe.recipe import Recipe


def rollouts_of(table, tokens=10**8, **columns):
    """The first part of a table, with the columns of some stages."""
    return first_rollouts(TableSource(table), NamedColumns.of(columns), tokens)


def searched(table, recipe, **fixed):
    """A search for the recipe that enriches a table, and the recipe that it finds."""
    recorded = rlpost.enrich(table, recipe)[0].replace_schema_metadata()
    result = rlpost.replay(recorded, fixed=fixed or None)
    return result, Recipe.of(tomllib.loads(result.recipe["toml"]))
