"""Single changes of a recipe: other values of its options and numerics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.rollouts import Column
from rlpost.analysis.replay.search.candidates import DETAIL, as_typed, nested, value_of
from rlpost.analysis.replay.search.moves import Facts, changes_of, plain
from rlpost.analysis.replay.stages import late_normalisation
from rlpost.errors import UsageError
from rlpost.recipe.estimators import NAMES, READERS
from rlpost.recipe.presets import merged
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.pipeline.resolved import ResolvedRecipe


@dataclass(frozen=True)
class Change:
    """Other values of fields of a recipe."""

    fields: tuple[tuple[str, Any], ...]
    """Field, or `numerics.FIELD`, and its value."""

    @property
    def finding(self) -> str:
        """The ID of the finding."""
        return f"option:{self.fields[0][0]}"

    @property
    def options(self) -> list[str]:
        """The options as typed, one text each."""
        typed = (as_typed(name, value) for name, value in self.fields)
        return [" ".join(parts) for parts in typed if parts]

    def before(self, recipe: Recipe) -> list[str]:
        """Return the options as typed that set the values of a recipe."""
        typed = (as_typed(name, value_of(recipe, name)) for name, _ in self.fields)
        return [" ".join(parts) for parts in typed if parts]

    def recipe(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe with the change; None if its options exclude each other."""
        values = recipe.model_dump(exclude_unset=True)
        try:
            return Recipe.of(merged(values, nested(dict(self.fields))))
        except UsageError:
            return None


SOLVED: dict[str, tuple[float, float]] = {
    "numerics.norm_floor": (0.0, 100.0),
    "kl_coef": (0.0, 100.0),
    "gamma": (0.0, 1.0),
    "lam": (0.0, 1.0),
    "lambda_policy": (0.0, 1.0),
    "lambda_value": (0.0, 1.0),
    "numerics.norm_eps": (0.0, 10.0),
    "numerics.whiten_eps": (0.0, 10.0),
    "f_norm": (1e-3, 1e3),
    "episode_weight": (-100.0, 100.0),
    "step_weight": (-100.0, 100.0),
    "step_gamma": (0.0, 1.0),
}
"""Options whose value is solved for, with its bounds."""


def solvable(resolved: ResolvedRecipe, stage: str, used: Collection[str] = ()) -> list[str]:
    """Return the options whose value can matter to a stage, computed from some recorded ones."""
    recipe = resolved.recipe
    matters = {
        "kl_coef": resolved.kl or resolved.kl_unread,
        "numerics.norm_eps": resolved.norm[1] != "none",
        "numerics.norm_floor": resolved.norm[1] != "none",
        "numerics.whiten_eps": resolved.whiten or recipe.whiten_rewards,
    }
    readers = {name: READERS.get(name, NAMES) for name in SOLVED}
    return [
        name
        for name in SOLVED
        if matters.get(name, recipe.estimator in readers[name])
        and _matter(name, stage, used, late=late_normalisation(recipe))
    ]


_OF_KL = ("kl_estimator", "kl_clamp", "kl_policy", "log_ratio")
_OF_TOKENS = ("gamma", "lam", "whiten", "advantage_clip", "terminal", "observations", "outcome")
_OF_SCANS = ("gamma", "lam", "length_adaptive", "advantage_clip", "observations", "outcome")
_OF_NORM = ("norm_", "single", "constant", "empty")
_OF_REWARDS = (*_OF_NORM, "kl_", "log_ratio", "terminal", "process")


def _matter(name: str, stage: str, used: Collection[str], *, late: bool) -> bool:
    """Return whether an option can change a stage that is computed from some recorded ones.

    Args:
        name: field, or `numerics.FIELD`.
        stage: what is computed.
        used: the recorded stages that it is computed from.
        late: rewards are normalised after token rewards.
    """
    own = name.removeprefix(DETAIL)
    if stage == "kl":
        return own.startswith(_OF_KL)
    if stage in ("sample_mask", "response_level_rewards"):
        return not own.startswith(_OF_TOKENS)
    if stage == "token_level_rewards" and own.startswith(("whiten_advantages", *_OF_SCANS)):
        return False
    if "token_level_rewards" in used or "raw_advantages" in used:
        again = late and "raw_advantages" not in used and own.startswith(_OF_NORM)
        return again or not own.startswith(_OF_REWARDS)
    return not ("kl" in used and own.startswith(_OF_KL))


_CLAMPS = tuple(
    DETAIL + one for one in ("kl_clamp", "kl_clamps", "log_ratio_clamp", "log_ratio_clamps")
)
_LARGE = 2.0
"""Log ratios, in nats, that no usual clamp changes, and whose KL estimates none does."""


def _within_clamps(resolved: ResolvedRecipe, rollouts: Rollouts) -> bool:
    """Return whether all log ratios, and KL estimates, are within the usual clamps."""
    numerics, columns = resolved.recipe.numerics, rollouts.columns
    names = [columns.column(role) for role in LOG_PROBS if role in columns]
    own = [Column.of(rollouts.table.column(name)).values for name in names]
    if min(numerics.kl_clamp, numerics.log_ratio_clamp) < math.exp(_LARGE):
        return False
    return all(
        len(one) == len(own[0]) and np.nanmax(np.abs(one - own[0]), initial=0.0) <= _LARGE / 2
        for one in own
    )


def _kl_bounds(facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield clamps of KL whose bound is the largest recorded one, if several share it."""
    extremes = facts.extremes("kl")
    if extremes and extremes[1] > 0:
        bound = plain(extremes[1])
        yield {f"{DETAIL}log_ratio_clamp": bound}
        yield {f"{DETAIL}kl_clamp": bound}
        yield {f"{DETAIL}kl_clamp": bound, f"{DETAIL}kl_clamps": "all"}


def _shaping(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Yield other numbers of a length penalty, and other weights of reward components."""
    if recipe.overlong_penalty:
        length, buffer, factor = recipe.overlong_penalty
        yield {"overlong_penalty": None}
        for times in (0.25, 0.5, 2, 4):
            yield {"overlong_penalty": (length, int(buffer * times) or 1, factor)}
            yield {"overlong_penalty": (length, buffer, factor * times)}
        for by in (-buffer, buffer):
            yield {"overlong_penalty": (length + by, buffer, factor)}
    for name in ("truncation_penalty", "group_length_penalty", "reward_scale"):
        if getattr(recipe, name) is not None:
            yield {name: None}
    names = recipe.reward_components or ()
    own = recipe.component_weights or (1.0,) * len(names)
    if len(names) > 1:
        yield {"component_weights": (1.0,) * len(names)}
        for n in range(len(names)):
            yield {"component_weights": tuple(0.0 if k == n else w for k, w in enumerate(own))}


def single_changes(
    rollouts: Rollouts, resolved: ResolvedRecipe, stage: str, used: Collection[str] = ()
) -> Iterator[Change]:
    """Yield single changes of a recipe that can matter for a stage of an input.

    Args:
        rollouts: the input.
        resolved: the recipe, resolved for it.
        stage: what the recipe computes.
        used: the recorded stages that it is computed from.
    """
    recipe, seen = resolved.recipe, set()
    late = late_normalisation(recipe)
    own: dict[str, Any] = dict(zip(("norm_mean", "norm_std"), resolved.norm, strict=True))
    own["whiten_advantages"] = resolved.whiten
    more = (
        *({name: one} for name in ("norm_mean", "norm_std") for one in ("group", "batch", "none")),
        {f"{DETAIL}batch": "all"},
        {f"{DETAIL}correction": "first" if recipe.numerics.correction == "last" else "last"},
    )
    facts = Facts(rollouts)
    usual = changes_of(resolved, facts)
    if _within_clamps(resolved, rollouts):
        usual = (one for one in usual if not {*one} <= {*_CLAMPS})
    every = (*usual, *more, *_kl_bounds(facts), *_shaping(recipe))
    for changes in every:
        fields = tuple(
            (name, value)
            for name, value in changes.items()
            if own.get(name, value_of(recipe, name)) != value
        )
        if fields and str(fields) not in seen and _matter(fields[0][0], stage, used, late=late):
            seen.add(str(fields))
            yield Change(fields)
