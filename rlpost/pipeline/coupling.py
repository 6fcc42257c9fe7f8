"""Which responses a recipe couples: those of a prompt group, of a batch, or of the whole input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from rlpost.recipe.recipe import GROUP_COLUMNS

if TYPE_CHECKING:
    from rlpost.pipeline.resolved import ResolvedRecipe


Scope = Literal["response", "group", "batch", "run"]


class Coupling(NamedTuple):
    """The responses that a recipe couples."""

    scope: Scope
    """Those of a prompt group, of a batch, of the whole run, or none."""
    why: str = ""
    """The part of the recipe, as the start of a sentence."""
    carried: str = ""
    """The part of the recipe that a batch passes to the next one, and a state file to the next
    run."""


def coupling_of(resolved: ResolvedRecipe) -> Coupling:
    """Return what a resolved recipe couples; when in doubt, more."""
    recipe, estimator = resolved.recipe, resolved.estimator
    name = f"estimator {estimator.name}"
    by_group = recipe.options.get("states") == "group" and not estimator.of_user
    of_batch = "batch" in estimator.needs and not by_group
    batch = {
        "--norm-mean batch": resolved.norm[0] == "batch",
        "--norm-std batch": resolved.norm[1] == "batch",
        "--whiten-rewards": recipe.whiten_rewards,
        "whitening of advantages": resolved.whiten,
        name: bool(estimator.over_batch) or of_batch,
        "--length-weight": recipe.length_weight,
        "--difficulty-weight": recipe.difficulty_weight,
        f"--is-weight {recipe.is_weight}": recipe.is_weight is not None
        and recipe.is_weight.normalised,
        "--is-filter batch": bool(recipe.batch_filters),
        "--top-entropy-quantile": recipe.top_entropy_quantile is not None,
        "--age-decay": recipe.age_decay is not None,
        "--attempts newest": resolved.attempts and recipe.attempts == "newest",
    }
    single = recipe.numerics.single
    group = {
        "--emit of a group column": bool({*GROUP_COLUMNS} & {*resolved.written}),
        "--unit rollout": resolved.unit == "rollout",
        "--scan rollout": resolved.joins,
        f"--numerics single={single}": single in ("zero_always", "raw"),
        name: bool(estimator.token_weights or estimator.rewards),
    }
    carried = {
        "running reward statistics": "running" in resolved.norm,
        "--kl-target": recipe.kl_target is not None and resolved.kl,
    }
    passed = next((why for why, holds in carried.items() if holds), "")
    found = [
        *(Coupling("run", why, passed) for why in [name] if estimator.beyond_steps),
        *(Coupling("run", why, why) for why in [passed] if passed),
        *(Coupling("batch", why) for why, holds in batch.items() if holds),
        *(Coupling("group", why) for why in group_reasons(resolved)),
        *(Coupling("group", why) for why, holds in group.items() if holds),
    ]
    return next(iter(found), Coupling("response"))


def group_reasons(resolved: ResolvedRecipe) -> list[str]:
    """Return the parts of a recipe that need groups: options that are set, or the estimator."""
    recipe, estimator = resolved.recipe, resolved.estimator
    mean_of, std_of = resolved.norm
    name = f"estimator {estimator.name}"
    on_groups = estimator.level == "response" and "offsets" in estimator.parameters
    grouped = [
        (f"--norm-mean {mean_of}" if recipe.norm_mean else name, mean_of in ("group", "others")),
        (f"--norm-std {std_of}" if recipe.norm_std else name, std_of in ("group", "others")),
        (name, on_groups),
        (name, not {"group", "position_baseline"}.isdisjoint(estimator.needs)),
        ("--drop-difficulty", recipe.drop_difficulty is not None),
        ("--drop-equal-rewards", recipe.drop_equal_rewards),
        ("--drop-single", recipe.drop_single),
        ("--group-length-penalty", recipe.group_length_penalty is not None),
        ("--emit of a group column", bool({*GROUP_COLUMNS} & {*(recipe.emit or ())})),
    ]
    return list(dict.fromkeys(why for why, needs in grouped if needs))
