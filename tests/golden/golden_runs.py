"""What rules for golden cases are made of: runs of rlpost, facts about an input, changes to it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from golden_cases import CASES

from rlpost import Recipe
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import loss_values, recipe_values
from rlpost.recipe.recipe import load_toml

Entry = dict[str, Any]
Prepare = Callable[[pa.Table], pa.Table]
NO_MASKS = {
    "drop_longer": None,
    "drop_difficulty": None,
    "drop_long_errors": None,
    "is_filter": (),
}


@dataclass(frozen=True)
class Run:
    """One call of rlpost: a recipe, and which expected columns its written columns must equal."""

    recipe: Recipe
    columns: dict[str, str]
    prepare: Prepare = field(default=lambda table: table)


Runs = list[Run] | str

# The presets of the commits that gave the golden numbers, by the framework's name.
PINNED = {
    path.name.partition("@")[0]: load_toml(path)
    for path in Path(__file__).with_name("presets").glob("*.toml")
    if any(entry["commit"].startswith(path.stem.partition("@")[2]) for entry in CASES.entries)
}


def pinned_loss(preset, **options) -> LossOptions:
    """The policy loss of a framework at the commit of the golden numbers."""
    return LossOptions.of(loss_values(PINNED[preset], options))


def run(compared, *, preset=None, prepare=None, numerics=None, **options) -> Run:
    """`compared` is {expected: written}; what a file does not hold is passed by.

    Options stand above those of a framework's preset; an option that is None is left to it. Those
    that are no field of a recipe are the estimator's.
    """
    emit = tuple(dict.fromkeys(compared.values()))
    given = {name: value for name, value in options.items() if value is not None}
    of_estimator = {name: given.pop(name) for name in [*given] if name not in Recipe.model_fields}
    given |= {"options": of_estimator} if of_estimator else {}
    if preset is None:
        given = {"unit": "row", **given}  # as these functions count
    given |= {"numerics": numerics or {}, "emit": emit}
    recipe = Recipe.of(given if preset is None else recipe_values(PINNED[preset], given))
    return Run(recipe, compared, prepare or (lambda table: table))


def kl_target(value, horizon):
    """The option of an adaptive KL; None without a target."""
    return None if value is None else (value, horizon)


def same(*names) -> dict[str, str]:
    return {name: name for name in names}


CREDIT = same("advantages", "returns")
SCALAR = {"advantage_scalar": "advantages"}


# --- what an input holds -------------------------------------------------------------------------


def masks(table) -> list[np.ndarray]:
    return [np.asarray(row, dtype=bool) for row in table["response_mask"].to_pylist()]


def has_observations(table) -> bool:
    return any(not row.all() for row in masks(table))


def has_gaps(table) -> bool:
    """Some observation has a policy token behind it."""
    return any((~row[: max(np.flatnonzero(row), default=0)]).any() for row in masks(table))


def width(table) -> int:
    """The frameworks pad responses to the longest one of a case."""
    return pc.max(pc.list_value_length(table["response_mask"])).as_py()


def limit(table) -> int:
    return pc.max(table["max_response_length"]).as_py()


# --- changes to an input -------------------------------------------------------------------------


def replaced(table, **columns) -> pa.Table:
    for name, column in columns.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, column)
    return table


def one_domain(table) -> pa.Table:
    return replaced(table, domain=pa.array(["all"] * table.num_rows))


def nothing_for_empty(table) -> pa.Table:
    """A response without policy tokens has no token for its reward to stand on."""
    rewards = table["reward"].to_numpy() * [row.any() for row in masks(table)]
    return replaced(table, reward=pa.array(rewards.astype("float32")))


def reward_on_last_token(table) -> pa.Table:
    """Rewards given per token, so that no stage for response rewards touches them."""
    tokens = [
        [0.0] * (len(row) - 1) + [reward]
        for row, reward in zip(masks(table), table["reward"].to_pylist(), strict=True)
    ]
    zeros = pa.array(np.zeros(table.num_rows))
    return replaced(table, reward=zeros, token_rewards=pa.array(tokens, pa.list_(pa.float32())))


# --- shared rules --------------------------------------------------------------------------------


def kl_of(option, preset, clamps=None):
    """The rule of a function that gives per-token KL and nothing else."""

    def rule(_entry, config, _table) -> Runs:
        kind = config[option]
        numerics = clamps(kind) if clamps else None
        return [
            run(same("kl"), preset=preset, estimator="raw", kl_estimator=kind, numerics=numerics)
        ]

    return rule
