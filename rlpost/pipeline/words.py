"""A recipe in words: what each stage computes, for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlpost.recipe.flags import flag_of
from rlpost.recipe.recipe import MASKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.pipeline.resolved import ResolvedRecipe


_SCOPES = {"batch": "batch", "group": "group", "others": "others'", "running": "running"}
_CREDITED = {
    "return": "off each token's reward",
    "token": "off each token's advantage",
    "response": "off the response's reward before normalisation",
}


def mask_flags(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the option of each mask of the summary that is on, as typed, in their order.

    Args:
        recipe: as plain data.
    """
    flags = {
        name.removeprefix("drop_"): flag_of(name)
        + ("" if recipe[name] is True else f" {recipe[name]}")
        for name in MASKS
        if recipe[name]
    }
    if recipe["nonfinite"] == "mask":
        flags = {"nonfinite": "--nonfinite mask", **flags}
    if recipe["is_filter"]:
        flags["off_policy"] = f"--is-filter {', '.join(map(str, recipe['is_filter']))}"
    return flags


def recipe_words(resolved: ResolvedRecipe) -> dict[str, str]:
    """Return what a recipe computes by stage, in order; a stage that is off has no entry."""
    recipe = resolved.recipe
    masks = mask_flags(recipe.model_dump())
    words = {
        "masks": ", ".join([*masks.values(), *_failures(resolved)]),
        "rewards": _rewards(resolved),
        "KL": _kl(resolved),
        "advantages": _advantages(resolved),
        "distillation": ", ".join(f"{w:g} × KL from `{x}`" for x, w in recipe.teachers.items()),
        "whitening": _whitening(resolved),
        "clip": ""
        if recipe.advantage_clip is None
        else f"advantages to ±{recipe.advantage_clip:g}",
        "sample weights": " × ".join(
            name
            for name, on in (
                ("0.5 + 1.5 difficulty", recipe.difficulty_weight),
                ("1.5 - min-max length", recipe.length_weight),
            )
            if on
        ),
        "importance weights": _importance(resolved),
    }
    return {stage: text for stage, text in words.items() if text}


def _failures(resolved: ResolvedRecipe) -> list[str]:
    """Return what becomes of failed responses and of older attempts, if the input has any."""
    recipe = resolved.recipe
    failures = [f"--failures {recipe.failures}"] if resolved.failures else []
    return failures + ([f"--attempts {recipe.attempts}"] if resolved.attempts else [])


def _rewards(resolved: ResolvedRecipe) -> str:
    recipe = resolved.recipe
    if not resolved.reads_rewards and not recipe.reward_components:
        return ""
    parts = []
    if recipe.reward_components:
        weights = recipe.component_weight.items()
        parts.append(" + ".join(f"{weight:g} `{name}`" for name, weight in weights))
    if recipe.reward_scale is not None:
        low, high, to_low, to_high = recipe.reward_scale
        parts.append(f"[{low:g}, {high:g}] scaled to [{to_low:g}, {to_high:g}]")
    for name in ("truncation_penalty", "group_length_penalty", "overlong_penalty"):
        value = getattr(recipe, name)
        if value is not None:
            numbers = value if isinstance(value, tuple) else (value,)
            parts.append(f"{flag_of(name)} {' '.join(f'{number:g}' for number in numbers)}")
    if resolved.process is not None:
        parts.append(f"process rewards per {resolved.process}")
    parts += [] if resolved.estimator.normalises else _normalisation(resolved)
    if (bounds := recipe.reward_clip) is not None:
        low, high = bounds
        parts.append(f"clipped to {f'±{high:g}' if low == -high else f'{low:g} to {high:g}'}")
    if recipe.whiten_rewards:
        parts.append(f"whitened per {_batch(resolved)}")
    return ", ".join(parts)


def _normalisation(resolved: ResolvedRecipe) -> list[str]:
    (mean_of, std_of), numerics = resolved.norm, resolved.recipe.numerics
    text = "r" if mean_of == "none" else f"r - {_SCOPES[mean_of]} mean"
    if std_of != "none":
        std = f"{_SCOPES[std_of]} std"
        if numerics.norm_floor:
            std = f"max({std}, {numerics.norm_floor:g})"
        divisor = f"({std} + {_plain(numerics.norm_eps)})" if numerics.norm_eps else std
        text = f"{text if text == 'r' else f'({text})'} / {divisor}"
    return [] if text == "r" else [text]


def _kl(resolved: ResolvedRecipe) -> str:
    recipe = resolved.recipe
    if not resolved.kl:
        return ""
    policy, beta = recipe.numerics.kl_policy, f"{recipe.kl_coef:g}"
    credit = _CREDITED.get(recipe.numerics.kl_credit)
    if recipe.kl_coef == 0 or credit is None:
        return f"{recipe.kl_kind}, measured only"
    if recipe.kl_target is not None:
        beta = f"β (from {beta}, adapted to a mean KL of {recipe.kl_target.value:g})"
    return f"{recipe.kl_kind}, {policy} against reference; {beta} × KL {credit}"


def _advantages(resolved: ResolvedRecipe) -> str:
    recipe, estimator = resolved.recipe, resolved.estimator
    formula = estimator.formula
    if estimator.undiscounted_is_constant:
        formula = "" if resolved.constant else "Gₜ = rₜ + γGₜ₊₁"
    elif {estimator.norm_mean, estimator.norm_std} != {"none"} and not estimator.normalises:
        formula = ""  # the rewards have it
    parts = [f"{estimator.name}, {formula}" if formula else estimator.name]
    parts += [f"γ {recipe.gamma:g}"] if "gamma" in estimator.keywords else []
    parts += [f"λ {recipe.lam:g}"] if "lam" in estimator.keywords else []
    parts += ["over rollouts"] if resolved.joins else []
    parts += ["turn rewards added"] if resolved.joins and resolved.turn_rewards else []
    behind = {"column": "`next_value`", "last": "the last value of the row"}
    if recipe.bootstrap is not None:
        parts.append(f"truncated responses end with {behind[recipe.bootstrap]}")
    return ", ".join(parts)


def _whitening(resolved: ResolvedRecipe) -> str:
    return f"per {_batch(resolved)}" if resolved.whiten else ""


def _batch(resolved: ResolvedRecipe) -> str:
    kinds = {"step": "step", "step_domain": "step and domain", "all": "run"}
    return kinds[resolved.recipe.numerics.batch]


def _importance(resolved: ResolvedRecipe) -> str:
    recipe = resolved.recipe
    if recipe.is_weight is None:
        return ""
    floor, cap = recipe.is_cap or (0.0, math.inf)
    limits = [f"at most {cap:g}"] if cap < math.inf else []
    limits += [f"at least {floor:g}"] if floor > 0 else []
    if recipe.is_mask is not None:
        limits.append(f"0 outside {recipe.is_mask.low:g} to {recipe.is_mask.high:g}")
    limits += ["divided by their mean"] if recipe.is_weight.normalised else []
    limits += ["1 without an engine log-prob"] if recipe.numerics.is_missing == "one" else []
    return ", ".join([f"{recipe.is_policy} / engine per {recipe.is_weight.level}", *limits])


def _plain(value: float) -> str:
    """Return a small number without a leading zero in its exponent.

    >>> _plain(1e-06), _plain(0.0001)
    ('1e-6', '1e-4')
    """
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    if exponent:
        return f"{mantissa}e{int(exponent)}"
    digits = f"{value:e}".partition("e")
    return f"{float(digits[0]):g}e{int(digits[2])}" if value < 0.001 else mantissa  # noqa: PLR2004
