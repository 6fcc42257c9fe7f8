"""The recipes that run on the shadow, by name: estimators, corrections, presets."""

from __future__ import annotations

import torch

from rlpost import Recipe
from rlpost.estimators import ESTIMATORS
from rlpost.kernels.corrections import divergence
from rlpost.recipe.presets import PRESETS, preset, variants
from rlpost.recipe.recipe import FILTER_LEVELS, MEASURES
from tests.device.inputs import rollouts

BY_TRAJECTORY = {"columns": {"rollout": "trajectory"}}
NEEDED = {
    "gigpo": BY_TRAJECTORY,
    "step_reinforce": BY_TRAJECTORY,
    "mt_grpo": {**BY_TRAJECTORY, "rollout_reward": "last"},
    "turn_credit": {**BY_TRAJECTORY, "rollout_reward": "last"},
    "gdpo": {"reward_components": ("reward_correct", "reward_format")},
    "opd": {"teachers": {"teacher_log_probs": 1.0}},
    "hierarchical_grpo": {"options": {"episode_domains": ["add"]}},
}
"""Options without which an estimator does not run."""
VARIANTS = {
    "plain": {},
    "kl": {"kl_coef": 0.05, "kl_estimator": "k3"},
    "whiten": {"whiten_advantages": True, "is_weight": "token", "is_cap": 2.0},
}
WEIGHTS = ("token", "segment", "geometric", "sequence")


def estimators() -> dict[str, Recipe]:
    """Return every estimator in every variant."""
    return {
        f"{name} {variant}": Recipe(estimator=name, **NEEDED.get(name, {}), **options)
        for name in ESTIMATORS
        for variant, options in VARIANTS.items()
    }


def corrections() -> dict[str, Recipe]:
    """Return every importance weight, every filter, and where filters reject."""
    weights = {f"weight {level}": {"is_weight": level, "is_cap": 1.05} for level in WEIGHTS}
    weights |= {
        f"weight {level}, masked, normalised": {
            "is_weight": f"{level}:normalised", "is_mask": (0.9, 1.1)
        }
        for level in WEIGHTS
    }  # fmt: skip
    filters = {
        f"filter {level} {measure}": {"is_filter": (f"{level}:{measure}:{_bound(level, measure)}",)}
        for level in FILTER_LEVELS
        for measure in MEASURES
        if level != "batch" and measure != "age"  # see `order` and `ages`
    }
    where = {
        f"filter {level}, {place}": {
            "is_filter": (f"{level}:ratio:0.95:1.05:{place}",)
        }
        for level in ("token", "sequence")
        for place in ("negative", "diverging")
    }  # fmt: skip
    first = {
        f"{name}, correction first": {**options, "numerics": {"correction": "first"}}
        for name, options in {
            "weight token": weights["weight token"],
            "filter token": filters["filter token ratio"],
            "filter sequence": filters["filter sequence k1"],
        }.items()
    }
    order = {
        "order entropy": {"top_entropy_quantile": 0.2},
    }
    ages = {
        "filter token age": {"is_filter": ("token:age::6",)},
        "filter max age": {"is_filter": ("max:age::6",)},
        "weight linear": {"is_weight": "token", "is_policy": "linear"},
    }
    both = {**weights, **filters, **where, **first, **order, **ages}
    return {name: Recipe(estimator="reinforce", **options) for name, options in both.items()}


def _bound(level: str, measure: str) -> str:
    """Return bounds that reject about half of the units."""
    table = rollouts(observations=False)
    lists = [table[name].combine_chunks() for name in ("old_log_probs", "infer_log_probs")]
    old, infer = (torch.tensor(one.flatten().to_pylist()).double() for one in lists)
    offsets = torch.tensor(lists[0].offsets.to_pylist())
    mask = torch.ones(len(old), dtype=torch.bool)
    return f":{divergence(old, infer, mask, offsets, measure=measure, level=level).median():.6f}"


def presets() -> dict[str, Recipe]:
    """Return the presets of releases, for their defaults and for each estimator that they set.

    Equal ones are there once. Those of commits have the same fields with other values.
    """
    cases: dict[str, Recipe] = {}
    for name in PRESETS:
        for variant in (None, *variants(name)):
            asked = {"estimator": variant} if variant else {}
            recipe = preset(name, **asked, **_needed(name, variant))
            recipe = recipe.model_copy(update={"estimator_name": None})
            if recipe not in cases.values():
                cases[" ".join(filter(None, (name, variant)))] = recipe
    return cases


def _needed(name: str, variant: str | None) -> dict[str, object]:
    own = preset(name, **({"estimator": variant} if variant else {})).estimator
    return NEEDED.get(own, {})


def options() -> dict[str, Recipe]:
    """Return the other options that change what is computed for each token."""
    numerics = {
        "observations": ("states", "zero_states", "policy", "restart", "cut"),
        "kl_credit": ("token", "response", "none"),
        "terminal_reward": ("last_token",),
        "outcome": ("response",),
        "clip_stages": ("response",),
    }
    cases: dict[str, dict] = {
        f"{field} {value}": {"kl_coef": 0.05, "reward_clip": 1.0, "numerics": {field: value}}
        for field, values in numerics.items()
        for value in values
    }
    cases["cut policy segments"] = {
        "estimator": "agentic_reinforce",
        "options": {"segment_reward": "last"},
        "numerics": {"observations": "cut"},
    }
    lambdas = {"lambda_value": 1.0, "length_adaptive_alpha": 0.1}
    cases["lambdas"] = {"estimator": "gae", "options": lambdas}
    cases["bootstrap"] = {"estimator": "gae", "bootstrap": "last"}
    cases["adaptive kl"] = {"kl_coef": 0.05, "kl_target": (0.1, 100)}
    cases["whiten rewards"] = {"whiten_rewards": True, "advantage_clip": 1.0}
    cases["masks"] = {
        "drop_truncated": True,
        "drop_difficulty": (0.1, 0.95),
        "mask_before_norm": True,
    }
    cases["weights"] = {"difficulty_weight": True, "length_weight": True}
    extra = ("advantages", "token_level_rewards", "kl", "final_response_mask", "group_mean")
    cases["columns"] = {"emit": extra, "kl_coef": 0.05}
    return {name: Recipe(**{"estimator": "reinforce", **case}) for name, case in cases.items()}


def all_recipes() -> dict[str, Recipe]:
    return {**estimators(), **corrections(), **presets(), **options()}
