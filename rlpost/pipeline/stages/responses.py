"""Stages of the table of all responses: masks, KL, estimators, whitening and weights.

Every function is pure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import DataError
from rlpost.estimators.base import option_values
from rlpost.estimators.groups import weighted_scores
from rlpost.kernels import rewards
from rlpost.kernels.codes import keyed_extremes
from rlpost.kernels.kl import adaptive_coefficients
from rlpost.kernels.moments import (
    ROUNDING,
    TokenMoments,
    exact_sums,
    keyed_moments,
    levelled,
    pooled_moments,
    reaches,
)
from rlpost.kernels.rewards import difficulty_weights, length_weights
from rlpost.kernels.rollouts import superseded
from rlpost.pipeline.data import AGENT_ROLE, ATTEMPTS, LEFT_OUT, NO_REWARD, RETRIED
from rlpost.pipeline.failures import failed_units, failure_ends, named_failures
from rlpost.pipeline.rollout_order import order_of
from rlpost.pipeline.stages.ages import MEAN_AGE
from rlpost.pipeline.stages.rewards import (
    batch_moments,
    countable,
    counted,
    group_statistics,
    per_group,
    reward_column,
    total_rewards,
)
from rlpost.pipeline.stages.units import combine, per_unit
from rlpost.recipe.roles import is_component

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.estimators import Estimator
    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.data import Column, Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe


def leave_out_nonfinite(responses: Responses) -> Responses:
    """Set `valid` to false for responses with a non-finite number, and their reward to 0."""
    valid = responses["valid"] & responses["finite"]
    return responses.with_(
        valid=valid, reward=np.where(valid, responses["reward"], 0.0), kept=valid
    )


def treat_attempts(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add `superseded`: a later attempt of the run has rows of their step, or of their rollout.

    They are left out if only the newest attempt counts.
    """
    flags = np.zeros(len(responses), np.bool_)
    for unit, attempt in zip(("step", RETRIED), ATTEMPTS, strict=True):
        if unit in responses and attempt in responses:
            flags |= superseded(responses[unit], responses[attempt])
    responses = responses.with_(superseded=flags)
    return responses.leaving_out(flags, "superseded") if recipe.attempts == "newest" else responses


def treat_failures(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add `failed`, true for responses that failed; leave them out, or set their rewards to 0.

    A rollout fails as a whole. Failed responses that statistics count are dropped by a mask.
    """
    failed, order = named_failures(responses), None
    if "unit" in responses:
        order = order_of(responses)
        places = (responses.columns.get(name) for name in ("turn", AGENT_ROLE))
        failed = failed_units(failed, order, *places)
    ends = failure_ends(responses, failed, order)
    responses = responses.with_(failed=failed, **{"failure:end": ends})
    if recipe.failures == "zero":
        names = [n for n in responses.columns if n == "reward" or is_component(n)]
        if NO_REWARD in responses:  # of a rollout, whatever its rows hold
            responses = responses.with_(**{NO_REWARD: responses[NO_REWARD] & ~failed})
        return responses.with_(**{n: np.where(failed, 0.0, responses[n]) for n in names})
    if recipe.failures == "drop":
        return responses.leaving_out(failed, "failure")
    return responses


def _drops_groups(recipe: Recipe) -> bool:
    """Return whether a mask drops whole prompt groups."""
    by_reward = recipe.drop_difficulty is not None or recipe.drop_equal_rewards
    return by_reward or recipe.drop_single


_DIVIDED_BY = ("norm_ddof", "norm_eps", "norm_floor")
_TINY = 1e-300


def sample_masks(responses: Responses, *, recipe: Recipe, estimator: Estimator) -> Responses:
    """Add a flag column for each mask (true: keep), and `kept`, which all of them keep.

    Raises:
        DataError: no response is left.
    """
    flags = _sample_flags(responses, recipe, estimator)
    kept = responses["valid"]
    for flag in flags.values():
        kept = kept & flag
    left_out = responses["left_out"]
    own = {name: left_out != code for code, name in enumerate(LEFT_OUT, 1)}
    counts = {**{name: flag for name, flag in own.items() if not flag.all()}, **flags}
    advice = "loosen a mask" if flags else "correct the file"
    if not own["sample_mask"].any():
        advice = "correct the column, or leave it unread with --map sample_mask=none"
    elif not own["failure"].any():
        advice = "every response failed: --failures keep counts them as any others"
    return some_left(responses, kept, counts, advice).with_(
        **{f"mask:{name}": flag for name, flag in flags.items()}, kept=kept, sample_mask=kept
    )


def some_left(
    responses: Responses, kept: Mask, flags: Mapping[str, Mask], advice: str
) -> Responses:
    """Return the same responses if any are kept.

    A part of a run's responses (with `part` in its notes) may have none left.

    Raises:
        DataError: no response is left.
    """
    if bool(kept.any()) or responses.notes.get("part"):
        return responses
    rates = ", ".join(f"{name} keeps {int(flag.sum())}" for name, flag in flags.items())
    why = rates or "none has finite numbers"
    raise DataError(f"no response is left of {len(responses)}: {why}; {advice}")


def _sample_flags(responses: Responses, recipe: Recipe, estimator: Estimator) -> dict[str, Column]:
    reward, tokens = responses["reward"], responses["tokens"]
    flags = {}
    if "failed" in responses and recipe.failures == "mask":
        flags["failure"] = ~responses["failed"]
    if recipe.drop_longer is not None:
        flags["longer"] = tokens < recipe.drop_longer
    if recipe.drop_long_errors is not None:
        flags["long_errors"] = rewards.without_long_errors(
            reward, tokens, limit=recipe.drop_long_errors
        )
    if recipe.drop_truncated:
        flags["truncated"] = ~responses["truncated"]
    return flags | _group_flags(responses, recipe, estimator)


def _group_flags(responses: Responses, recipe: Recipe, estimator: Estimator) -> dict[str, Column]:
    """Return the flags of masks of groups; a response that no group counts is kept."""
    if not _drops_groups(recipe):
        return {}
    rows = countable(responses, recipe)
    group, _ = group_statistics(responses, responses["reward"], rows=rows)
    alone, flags = group.number == 1, {}
    if recipe.drop_difficulty is not None:
        low, high = recipe.drop_difficulty
        flags["difficulty"] = rewards.within_difficulty(
            group.mean, group.number, low=low, high=high
        )
    if recipe.drop_equal_rewards:
        equal = group_statistics(responses, total_rewards(responses), rows=rows)[1]
        if "components" in estimator.columns:
            equal = _equal_components(responses, recipe, rows)
        flags["equal_rewards"] = ~equal | alone
    if recipe.drop_single:
        flags["single"] = ~alone
    return {name: flag | ~rows for name, flag in flags.items()}


def _equal_components(responses: Responses, recipe: Recipe, rows: Mask) -> Mask:
    """Return whether components are equal in the group, or cancel in each of its responses, [N]."""
    differs = (rows & ~_cancel(responses, recipe, rows)).astype(np.float64)
    equal: Mask = group_statistics(responses, differs, rows=rows)[0].mean == 0
    return equal


def group_columns(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add size, mean, deviation and pass rate of each response's group, by raw reward."""
    rows, reward = countable(responses, recipe), responses["reward"]
    moments, _ = group_statistics(responses, reward, rows=rows)
    passed = reaches(reward, recipe.pass_threshold).astype(np.float64)
    rate, _ = group_statistics(responses, passed, rows=rows)
    return responses.with_(
        group_size=moments.number,
        group_mean=moments.mean,
        group_std=moments.std,
        group_pass_rate=rate.mean,
    )


def kl_coefficients(responses: Responses, *, recipe: Recipe, state: RunState) -> Responses:
    """Add `beta`, the KL coefficient of each response's batch.

    An adaptive one depends on the mean over the responses of a batch of each one's mean KL per
    policy token; a response without policy tokens counts as 0, one that is left out is not counted.

    Args:
        responses: all.
        recipe: says whether it adapts; then the coefficient after the last batch is noted.
        state: has the coefficient of the first batch if it adapts; else it is the recipe's.
    """
    count = responses.count("batch")
    if recipe.kl_target is None:
        beta = np.full(count, recipe.kl_coef, np.float64)
    else:
        rows = responses["valid"]
        kl = keyed_moments(responses["kl_mean"][rows], responses["batch"][rows], count)
        *coefficients, after = adaptive_coefficients(
            [*kl.mean.tolist(), 0.0],  # the batch after the last
            [*map(int, kl.number.tolist()), 0],
            start=recipe.kl_coef if state.kl_coef is None else state.kl_coef,
            target=recipe.kl_target.value,
            horizon=recipe.kl_target.horizon,
        )
        beta = np.array(coefficients, np.float64)
        responses = responses.noting(kl_coef=after)
    return responses.with_(beta=beta[responses["batch"]])


def charge_kl(
    responses: Responses, *, recipe: Recipe, estimator: Estimator, state: RunState
) -> Responses:
    """Add `beta`, and subtract β times the KL of a whole response from an estimator's rewards.

    The KL of a rollout follows from that of its rows as its reward does.
    """
    responses = per_unit(partial(kl_coefficients, recipe=recipe, state=state))(responses)
    column = reward_column(estimator)
    charge = responses["beta"] * responses["kl_mean"] * responses["tokens"]
    if "unit" in responses:
        charge = combine(responses, charge, recipe.rollout_reward, responses["valid"])
    charge = np.where(responses["valid"], charge, 0.0)
    return responses.with_(**{column: responses[column] - charge})


def _compares_group(estimator: Estimator) -> bool:
    """Return whether an estimator of responses compares the rewards of a group, 0 if all are equal.

    What a user's own makes of equal rewards is not known.
    """
    return "offsets" in estimator.parameters and not estimator.of_user


def _levels(estimator: Estimator, recipe: Recipe) -> bool:
    """Return whether rewards of a group that are equal to rounding are compared as one reward."""
    return _compares_group(estimator) and recipe.numerics.constant == "zero"


def estimate(responses: Responses, *, recipe: Recipe, estimator: Estimator) -> Responses:
    """Add `credit` and `credit_returns`, the advantage and return of all tokens of a response.

    An estimator of tokens is computed here only if its return-to-go is one terminal reward.
    """
    values = responses["score"] if "score" in responses else responses["rewards"]
    if "components" in estimator.columns:  # neither process rewards nor KL change them
        values = responses["shaped"]
    if estimator.level == "token":
        return responses.with_(credit=values, credit_returns=values)
    if "domain_name" in estimator.columns and not estimator.of_user:
        names = np.array([str(label) for label in responses.labels["domain"]])
        responses = responses.with_(domain_name=names[responses["domain"]])
    rows, level = counted(responses, recipe), _levels(estimator, recipe)
    columns = _columns(responses.with_(rewards=values), estimator, recipe)
    if "components" in estimator.columns:
        responses = responses.with_(**component_parts(responses, rows, recipe, level=level))

    def function(chosen: dict[str, Column], offsets: Integers | None = None) -> Floats:
        if level and offsets is not None:
            chosen = chosen | {x: levelled(chosen[x], offsets) for x in chosen if _is_reward(x)}
        credit = estimator(_stacked(chosen, estimator), offsets, recipe)
        estimator.check_finite(credit)
        return np.stack(credit, axis=1)

    if "offsets" in estimator.parameters:
        both = per_group(responses, columns, function, rows=rows)
    else:
        both = np.zeros((len(responses), 2))
        both[rows] = function({name: x[rows] for name, x in columns.items()})
    if "components" in estimator.columns:
        cancel = _cancel(responses, recipe, rows)
        both = np.where((cancel & level)[:, None], 0.0, both)
        centred = recipe.norm_mean in (None, "group")
        responses = responses.with_(equal=cancel) if centred else responses
    responses = responses.with_(credit=both[:, 0], credit_returns=both[:, 1])
    return _with_equal(responses, values, rows, recipe, estimator)


def _is_reward(column: str) -> bool:
    return column == "rewards" or is_component(column)


def _with_equal(
    responses: Responses, values: Floats, rows: Mask, recipe: Recipe, estimator: Estimator
) -> Responses:
    """Give groups of one their raw reward if numerics say so; add `equal` if noise is divided.

    It is true for responses of a group whose rewards are equal, so that it has no signal.
    """
    raw_single = recipe.numerics.single == "raw" and "single" not in estimator.keywords
    raw_single &= "offsets" in estimator.parameters
    noise = _compares_group(estimator) and "components" not in estimator.columns
    noise &= not _levels(estimator, recipe)
    if not raw_single and not noise:
        return responses
    group, equal = group_statistics(responses, values, rows=rows)
    single = group.number == 1
    changed = {"equal": equal & ~single} if noise else {}
    for name in ("credit", "credit_returns") if raw_single else ():
        changed[name] = np.where(single, values, responses[name])
    return responses.with_(**changed)


def _cancel(responses: Responses, recipe: Recipe, rows: Mask) -> Mask:
    """Return whether the components of a response add up to 0 but for rounding, and ε, [N]."""
    exact = {"norm_eps": _TINY, "norm_floor": 0.0}
    parts = np.stack([*component_parts(responses, rows, recipe, level=True, **exact).values()])
    cancel: Mask = abs(parts.sum(0)) <= ROUNDING * abs(parts).max(0)
    return cancel


def component_parts(
    responses: Responses, rows: Mask, recipe: Recipe, *, level: bool, **divided_by: float
) -> dict[str, Column]:
    """Return `part:NAME`, each component times its weight, normalised within groups, [N] each.

    Args:
        responses: have the components.
        rows: [N] the responses that count.
        recipe: names the components.
        level: components that are equal to rounding in a group are equal.
        divided_by: in place of the recipe's.
    """
    names = recipe.reward_components or ()
    columns = {f"component:{name}": responses[f"component:{name}"] for name in names}
    divided_by = {name: getattr(recipe.numerics, name) for name in _DIVIDED_BY} | divided_by

    def scores(chosen: dict[str, Column], offsets: Integers) -> Floats:
        values = [levelled(x, offsets) if level else x for x in chosen.values()]
        return weighted_scores(
            np.stack(values, axis=1),
            offsets,
            component_weights=recipe.component_weights or (),
            norm_mean=recipe.norm_mean or "group",
            norm_std=recipe.norm_std or "group",
            **divided_by,
        )

    parts = per_group(responses, columns, scores, rows=rows).T
    return {f"part:{name}": part for name, part in zip(names, parts, strict=True)}


def _columns(responses: Responses, estimator: Estimator, recipe: Recipe) -> dict[str, Column]:
    """Return the columns that an estimator reads, `components` one by one."""
    parts = [f"component:{name}" for name in recipe.reward_components or ()]
    columns: dict[str, Column] = {}
    optional = {*estimator.needs} - {*estimator.roles}
    for name in estimator.columns:
        if name == "components":
            columns |= {part: responses[part] for part in parts}
        elif (role := estimator.role_of(name)) in responses or role not in optional:
            columns[name] = responses[role]
    return columns


def _stacked(columns: dict[str, Column], estimator: Estimator) -> dict[str, Column]:
    """Return the columns with all components as one column, [N, K]."""
    if "components" not in estimator.columns:
        return columns
    parts = [x for name, x in columns.items() if is_component(name)]
    others = {name: x for name, x in columns.items() if not is_component(name)}
    return {**others, "components": np.stack(parts, axis=1)}


def normalise_credit(responses: Responses, *, recipe: Recipe, estimator: Estimator) -> Responses:
    """Normalise `credit` over the responses of each batch; equal ones become 0."""
    credit, rows, over_batch = responses["credit"], counted(responses, recipe), estimator.over_batch
    assert over_batch is not None
    moments = batch_moments(responses, credit, rows)
    scores = over_batch(credit, moments, **option_values(over_batch, recipe))
    credit = np.where(rows, scores, 0.0)
    return responses.with_(credit=credit, credit_returns=credit)


def whiten(responses: Responses, *, resolved: ResolvedRecipe) -> Responses:
    """Whiten `credit` over the kept policy tokens of each batch, and `credit_returns` as it."""
    credit = responses["credit"]
    count = np.where(responses["kept"], responses["tokens"], 0).astype(np.float64)
    parts = TokenMoments(count, count * credit, np.zeros_like(credit))
    mean, scale, lone = _scales(responses, parts, resolved.recipe)
    whitened = (credit - mean) * scale
    both = whitened if resolved.whitened_returns else responses["credit_returns"]
    return responses.with_(credit=whitened, credit_returns=both, raw_credit=credit, unwhitened=lone)


def token_whitening(responses: Responses, *, recipe: Recipe, column: str) -> Responses:
    """Add the mean and scale of a token column over each response's batch.

    `unwhitened` is true for the response with the only token of its batch, which stays as it is.
    """
    parts = TokenMoments(*(responses[f"{column}:{name}"] for name in TokenMoments._fields))
    mean, scale, lone = _scales(responses, parts, recipe)
    lone = lone | responses.columns.get("unwhitened", np.zeros_like(lone))
    scaling = {f"{column}:mean": mean, f"{column}:scale": scale}
    return responses.with_(**scaling, unwhitened=lone)


def _scales(
    responses: Responses, parts: TokenMoments, recipe: Recipe
) -> tuple[Floats, Floats, Mask]:
    """Return mean and 1/√(var + ε) of each response's batch; 0 and 1 with under two tokens.

    The third result is true for responses that have the only token of their batch.
    """
    codes, numerics = responses["batch"], recipe.numerics
    moments = pooled_moments(parts, codes, responses.count("batch"))
    variance = moments.std**2
    if numerics.whiten_ddof == 0:
        variance = variance * (moments.number - 1).clip(0) / moments.number.clip(1)
    if numerics.whiten_floor == "add":
        variance = variance + numerics.whiten_eps
    scale = 1 / np.sqrt(variance.clip(numerics.whiten_eps))
    enough = moments.number > 1
    if numerics.whiten_scale == "none":
        scale = np.ones_like(scale)
    mean = np.where(enough, moments.mean, 0.0)
    lone = ~enough[codes] & (parts.number > 0)
    return mean[codes], np.where(enough, scale, 1.0)[codes], lone


def clip_advantages(responses: Responses, *, recipe: Recipe) -> Responses:
    """Clamp `credit`; add `credit_clipped`, true if it changed."""
    bound = recipe.advantage_clip
    assert bound is not None
    credit = responses["credit"]
    raw = responses.columns.get("raw_credit", credit)
    return responses.with_(
        credit=credit.clip(-bound, bound), credit_clipped=abs(credit) > bound, raw_credit=raw
    )


def weights(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add `sample_weight`, scaled so that a batch sums to its number of responses."""
    codes, count = responses["batch"], responses.count("batch")
    weight = np.ones(len(responses))
    if recipe.difficulty_weight:
        weight = weight * difficulty_weights(responses["difficulty"])
    if recipe.length_weight:
        tokens = responses["tokens"].astype(np.float64)
        valid = responses["valid"]
        shortest, longest = keyed_extremes(tokens[valid], codes[valid], count)
        weight = weight * length_weights(tokens, shortest[codes], longest[codes])
    if recipe.age_decay is not None:
        weight = weight * recipe.age_decay ** responses[MEAN_AGE]
    weight = np.where(responses["valid"], weight, 0.0)
    rows = np.bincount(codes[responses["valid"]], minlength=count)
    scale = rows / exact_sums(weight, codes, count).clip(np.finfo(np.float64).tiny)
    return responses.with_(sample_weight=weight * scale[codes])
