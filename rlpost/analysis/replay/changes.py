"""Single changes of a recipe: other values of its options and numerics, and of its columns."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import numpy as np

from rlpost.errors import UsageError
from rlpost.recipe.flags import flag_of
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.pipeline.resolved import ResolvedRecipe

Values = dict[str, Any]


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
        """The options as typed."""
        return [typed(name, value) for name, value in self.fields if value is not None]

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the change.

        Raises:
            UsageError: the options exclude each other.
        """
        values = recipe.model_dump(exclude_unset=True)
        for name, value in self.fields:
            if name.startswith("numerics."):
                own = {**values.get("numerics", {}), name.removeprefix("numerics."): value}
                values["numerics"] = own
            else:
                values[name] = value
        return Recipe.of(values, "replay")


def typed(name: str, value: Any) -> str:
    """Return a field and its value as typed on the command line."""
    if name.startswith("numerics."):
        return f"--numerics {name.removeprefix('numerics.')}={_text(value)}"
    if isinstance(value, bool):
        return flag_of(name) if value else f"--no-{flag_of(name)[2:]}"
    return f"{flag_of(name)} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "never" if value == float("inf") else f"{value:.9g}"
    return " ".join(map(_text, value)) if isinstance(value, tuple) else str(value)


def current(recipe: Recipe, name: str) -> Any:
    """Return the value of a field, or of `numerics.FIELD`."""
    if name.startswith("numerics."):
        return getattr(recipe.numerics, name.removeprefix("numerics."))
    return getattr(recipe, name)


_EPSILONS = (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_FLAGS = (
    "whiten_advantages", "whiten_rewards", "mask_before_norm", "drop_zero_variance",
    "drop_single", "drop_truncated", "difficulty_mask", "difficulty_weight", "length_weight",
    "is_normalise",
)  # fmt: skip
_SCOPES = ("group", "batch", "none", "running", "others")
_BOUNDS = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 100.0)
_CLAMPS = (1.0, 5.0, 10.0, 20.0, 40.0, float("inf"))
_SETS: dict[str, tuple[Any, ...]] = {
    "norm_mean": _SCOPES,
    "norm_std": _SCOPES,
    "kl_estimator": ("k1", "abs", "k2", "k3", "k4"),
    "reward_clip": (None, *_BOUNDS),
    "advantage_clip": (None, *_BOUNDS),
    "is_weight": (None, "token", "sequence", "geometric", "segment"),
    "is_cap": (None, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
    "truncation_penalty": (None, 0.0, 0.5, -1.0),
    "kl_coef": (0.0, 0.001, 0.01, 0.05, 0.1),
    "gamma": (1.0, 0.99, 0.95),
    "lam": (1.0, 0.95, 0.9, 0.97, 0.99, 0.0),
    "numerics.norm_eps": _EPSILONS,
    "numerics.whiten_eps": _EPSILONS,
    "numerics.batch_eps": _EPSILONS,
    "numerics.otb_eps": _EPSILONS,
    "numerics.log_ratio_clamp": _CLAMPS,
    "numerics.kl_clamp": _CLAMPS,
    "numerics.is_clamp": _CLAMPS,
}  # fmt: skip
_NEEDED = {
    "gae": {"lam", "lambda_policy", "lambda_value", "length_adaptive_alpha"},
    "gigpo": {"episode_weight", "step_weight", "step_gamma"},
    "gpg": {"f_norm"},
}
SOLVED: dict[str, tuple[float, float]] = {
    "kl_coef": (0.0, 100.0),
    "gamma": (0.0, 1.0),
    "lam": (0.0, 1.0),
    "lambda_policy": (0.0, 1.0),
    "lambda_value": (0.0, 1.0),
    "numerics.norm_eps": (0.0, 10.0),
    "numerics.whiten_eps": (0.0, 10.0),
    "numerics.norm_floor": (0.0, 100.0),
    "f_norm": (1e-3, 1e3),
    "episode_weight": (-100.0, 100.0),
    "step_weight": (-100.0, 100.0),
    "step_gamma": (0.0, 1.0),
}
"""Options whose value is solved for, with its bounds."""


def solvable(resolved: ResolvedRecipe) -> list[str]:
    """Return the options whose value can matter to a recipe."""
    own = _NEEDED.get(resolved.estimator.name, set()) | _NEEDED.get(
        resolved.recipe.estimator, set()
    )
    others = set().union(*_NEEDED.values()) - own
    names = [name for name in SOLVED if name not in others]
    return [name for name in names if name != "kl_coef" or resolved.kl]


def single_changes(recipe: Recipe, resolved: ResolvedRecipe) -> Iterator[Change]:
    """Yield single changes of a recipe, likely ones first.

    Args:
        recipe: as the user sets it.
        resolved: for the input.
    """
    numerics = [f"numerics.{name}" for name in Numerics.model_fields]
    unread = _unread(recipe, resolved)
    for name in dict.fromkeys((*numerics, *_SETS, *_FLAGS)):
        if name.removeprefix("numerics.").startswith(unread):
            continue
        own = current(recipe, name)
        for value in _values(name):
            if value != own:
                yield Change(((name, value),))


def scope_changes(resolved: ResolvedRecipe) -> Iterator[Change]:
    """Yield other scopes of both the mean and the standard deviation of rewards."""
    for mean in _SCOPES:
        for std in _SCOPES:
            if mean != resolved.norm[0] and std != resolved.norm[1]:
                yield Change((("norm_mean", mean), ("norm_std", std)))


def bounds(name: str, recorded: NDArray[np.float64]) -> Iterator[Change]:
    """Yield clips whose bound is the largest, or the smallest, of the recorded numbers of a stage.

    Two or more elements must be at the bound.
    """
    if not len(recorded):
        return
    size = np.abs(recorded)
    at_most = {
        "advantages": ("advantage_clip", "reward_clip"),
        "response_level_rewards": ("reward_clip",),
        "token_level_rewards": ("reward_clip",),
        "kl": ("numerics.kl_clamp",),
        "is_weight": ("is_cap",),
    }.get(name, ())
    largest, smallest = float(size.max()), float(recorded.min())
    if largest > 0 and np.isclose(size, largest, rtol=1e-6).sum() > 1:
        for field in at_most:
            yield Change(((field, float(f"{largest:.6g}")),))
    if name == "is_weight" and smallest > 0:
        yield Change((("is_floor", float(f"{smallest:.6g}")),))


def _unread(recipe: Recipe, resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Return the beginnings of names of options that a recipe does not read."""
    own = (recipe.estimator, resolved.estimator.name)
    names: tuple[str, ...] = () if resolved.kl else ("kl_", "log_ratio")
    names += () if recipe.corrects else ("is_c", "is_f", "is_o", "correction")
    for estimator, fields in (
        ("gigpo", ("episodes", "states")),
        ("gdpo", ("gdpo", "batch_eps")),
        ("optimal_token_baseline", ("otb",)),
        ("rae", ("rae",)),
        ("gae", ("lam",)),
        ("agentic_reinforce", ("segment_reward",)),
    ):
        names += () if estimator in own else fields
    return names


def _values(name: str) -> tuple[Any, ...]:
    if name in _SETS:
        return _SETS[name]
    if name in _FLAGS:
        return (True, False)
    field = Numerics.model_fields[name.removeprefix("numerics.")]
    return _choices(field.annotation)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, within Annotated or a union."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(value for part in get_args(annotation) for value in _choices(part))
    return ()


def valid(change: Change, recipe: Recipe) -> Recipe | None:
    """Return the recipe with a change; None if its options exclude each other."""
    try:
        return change.recipe(recipe)
    except UsageError:
        return None
