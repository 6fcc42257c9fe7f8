"""The semantics number, raised when a default changes a number in the output, and its history.

It is stored in the metadata of output files, in the journal of a stopped run, in plans for shards
and in state files. A file without one has semantics 1. Two numbers of different semantics are not
comparable if one of the changes between them concerns the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rlpost.recipe.recipe import Recipe


SEMANTICS = 2
FIRST = 1  # of files without a number


@dataclass(frozen=True)
class Change:
    """A default or a formula that changed, and so changes numbers in the output."""

    text: str
    """What is computed now."""
    concerns: tuple[str, ...] = ()
    """Fields of the recipe that are set, `numerics.NAME=VALUE`, or roles that have a column, if
    numbers change, those joined by `&` only together; without any, the change is in a recipe's
    values, which the metadata have in full."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe (`numerics.NAME` for a detail) that older recipes lack, with the values
    of the older semantics, for recipes that the change concerns; without any, the older numbers
    cannot be computed any more."""

    def applies(self, recipe: Recipe, roles: Collection[str]) -> bool:
        """Return whether the change concerns a recipe, on an input with columns for these roles."""
        return any(
            all(name in roles or _is_set(recipe, name) for name in together.split("&"))
            for together in self.concerns
        )


def _is_set(recipe: Recipe, name: str) -> bool:
    """Return whether a field of the recipe is set, or a detail of its numerics has a value."""
    group, _, detail = name.rpartition(".")
    if group:
        field, _, value = detail.partition("=")
        return str(getattr(recipe.numerics, field)) == value
    return getattr(recipe, name, None) not in (None, False, ())


HISTORY: dict[int, tuple[Change, ...]] = {
    2: (
        Change(
            "process rewards are added to a response's reward before the group's baseline",
            ("token_rewards",),
            {"numerics.process_rewards": "token"},
        ),
        Change(
            "a reward on an observation counts for the policy tokens before it (observations=cut)",
            ("numerics.observations=cut",),
        ),
        Change(
            "--drop-zero-variance keeps groups of one response",
            ("drop_zero_variance",),
            {"drop_single": True},
        ),
        Change(
            "rows of a rollout must have equal rewards (--rollout-reward); they were averaged",
            ("rollout_id",),
        ),
        Change(
            "--max-len-mask drops responses above the limit, too",
            ("max_len_mask",),
        ),
        Change(
            "responses whose sample_mask in the input is 0 are left out; it was not read",
            ("sample_mask",),
        ),
        Change(
            "a KL penalty in the reward (kl_credit=response) changes gigpo and step_reinforce",
            ("kl_coef&numerics.kl_credit=response&step_score",),
        ),
        Change("presets follow current releases of their frameworks"),
        Change("clip fractions in the summary are of kept responses and their policy tokens"),
    ),
}
"""The changes of each number since the one before it."""


def changes_since(number: int) -> list[Change]:
    """Return the changes from some semantics to the present one, oldest first."""
    return [change for later in sorted(HISTORY) if later > number for change in HISTORY[later]]


def applying(number: int, recipe: Recipe, roles: Collection[str]) -> list[Change]:
    """Return the changes since some semantics that concern a recipe; arguments as `applies`."""
    return [change for change in changes_since(number) if change.applies(recipe, roles)]


def with_older_defaults(recipe: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the fields of an older recipe, and the older values of those that it lacks."""
    fields = dict(recipe)
    details = dict(fields.get("numerics") or {})
    for change in changes_since(number):
        if all(name in recipe and not recipe[name] for name in change.concerns):
            continue
        for name, value in change.before.items():
            group, _, detail = name.rpartition(".")
            (details if group else fields).setdefault(detail, value)
    return fields | ({"numerics": details} if details else {})


def describe(number: int, changes: Collection[Change] | None = None) -> str:
    """Return in words which semantics something has, and what changed since.

    Args:
        number: the semantics.
        changes: those to name; None for all since that number.
    """
    if number > SEMANTICS:
        return f"semantics {number} (this version: {SEMANTICS}); upgrade rlpost to compute them"
    named = changes_since(number) if changes is None else changes
    what = "; ".join(change.text for change in named) or "nothing that concerns the recipe"
    return f"semantics {number} (this version: {SEMANTICS}); changed since: {what}"


def parse(value: object) -> int:
    """Return a stored semantics number; that of files without one for None.

    Raises:
        ValueError: it is not a positive integer.
    """
    number = FIRST if value is None else int(str(value))
    if number < FIRST:
        raise ValueError(f"semantics {number} is not a positive integer")
    return number
