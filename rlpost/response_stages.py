"""What stages settle on the table of all responses; every function is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.errors import DataError
from rlpost.groups import group_statistics, per_group
from rlpost.kernels import masks, rewards
from rlpost.kernels.exact import exact_sums
from rlpost.kernels.kl import adaptive_coefficients
from rlpost.kernels.moments import Moments, TokenMoments, keyed_moments, pooled
from rlpost.kernels.weights import difficulty_weights, keyed_extremes, length_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.batch import Responses
    from rlpost.estimators import Estimator
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.recipe import Recipe, Scope


def leave_out_nonfinite(responses: Responses) -> Responses:
    """Marks responses with a number that is not finite; their reward counts as 0 from here on."""
    valid = responses["valid"] & responses["finite"]
    return responses.with_(
        valid=valid, reward=torch.where(valid, responses["reward"], 0.0), kept=valid
    )


def counted(responses: Responses, recipe: Recipe) -> Tensor:
    """Which responses take part in reward statistics, [N] bool."""
    return responses["kept"] if recipe.mask_before_norm else responses["valid"]


def sample_masks(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds a flag column per mask that is on (true: keep), and all of them together as `kept`.

    Raises:
        DataError: nothing is left.
    """
    flags = _sample_flags(responses, recipe)
    kept = responses["valid"]
    for flag in flags.values():
        kept = kept & flag
    if not bool(kept.any()):
        rates = ", ".join(f"{name} keeps {int(flag.sum())}" for name, flag in flags.items())
        raise DataError(
            f"no response is left of {len(responses)}: {rates or 'none has finite numbers'}; "
            "loosen a mask, or look at the file with `rlpost inspect`"
        )
    return responses.with_(
        **{f"mask:{name}": flag for name, flag in flags.items()}, kept=kept, sample_mask=kept
    )


def _sample_flags(responses: Responses, recipe: Recipe) -> dict[str, Tensor]:
    reward, tokens = responses["reward"], responses["tokens"]
    flags = {}
    if recipe.max_len_mask:
        limit = recipe.max_response_length
        assert limit is not None
        flags["max_len"] = masks.under_max_length(tokens, max_response_length=limit)
    if recipe.difficulty_mask or recipe.drop_zero_variance:
        group, constant = group_statistics(responses, reward, rows=responses["valid"])
    if recipe.difficulty_mask:
        low, high = recipe.difficulty_low, recipe.difficulty_high
        flags["difficulty"] = masks.within_difficulty(group.mean, group.number, low=low, high=high)
    if recipe.error_max_len_clip is not None:
        flags["error_max_len"] = masks.error_max_len_clip(
            reward, tokens, threshold=recipe.error_max_len_clip
        )
    if recipe.drop_zero_variance:
        flags["zero_variance"] = ~constant
    if recipe.drop_truncated:
        flags["truncated"] = ~responses["truncated"]
    return flags


def group_columns(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds size, mean, deviation and pass rate of each response's group, by raw reward."""
    rows, reward = responses["valid"], responses["reward"]
    moments, _ = group_statistics(responses, reward, rows=rows)
    passed = (reward >= recipe.pass_threshold).to(torch.float64)
    rate, _ = group_statistics(responses, passed, rows=rows)
    return responses.with_(
        group_size=moments.number,
        group_mean=moments.mean,
        group_std=moments.std,
        group_pass_rate=rate.mean,
    )


def shape_rewards(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds `rewards`: the raw reward and the overlong penalty."""
    shaped = responses["reward"]
    if recipe.overlong_penalty is not None:
        max_len, buffer, factor = recipe.overlong_penalty
        shaped = shaped + rewards.overlong_penalty(
            responses["tokens"], max_len=max_len, buffer=buffer, factor=factor
        )
    return responses.with_(rewards=shaped, shaped=shaped)


def normalise_rewards(
    responses: Responses,
    *,
    recipe: Recipe,
    mean_of: Scope,
    std_of: Scope,
    running: Mapping[str, RunningMoments],
) -> Responses:
    """Replaces `rewards` by (r - mean) / (std + ε); responses that do not count get 0."""
    if mean_of == std_of == "none":
        return responses
    values, rows = responses["rewards"], counted(responses, recipe)
    found: dict[str, Moments] = {}
    if "batch" in (mean_of, std_of):
        found["batch"] = _batch_moments(responses, values, rows, "batch")
    if "running" in (mean_of, std_of):
        responses, found["running"] = _running(responses, values, rows, running)
    single = constant = torch.zeros(len(responses), dtype=torch.bool)
    numerics = recipe.numerics
    if "group" in (mean_of, std_of) or numerics.single == "zero_always":
        found["group"], constant = group_statistics(responses, values, rows=rows)
        single = found["group"].number == 1
    mean = found[mean_of].mean if mean_of != "none" else None
    std = found[std_of].std if std_of != "none" else None
    out = rewards.normalised(values, mean, std, eps=numerics.norm_eps)
    if numerics.constant == "zero":
        out = torch.where(constant & ~single, 0.0, out)
    if numerics.single in ("zero", "zero_always"):
        out = torch.where(single, 0.0, out)
    elif numerics.single == "raw":
        out = torch.where(single, values, out)
    return responses.with_(rewards=torch.where(rows, out, 0.0))


def _batch_moments(responses: Responses, values: Tensor, rows: Tensor, key: str) -> Moments:
    """Moments of each row's own batch, over the rows that count."""
    codes = responses[key]
    return keyed_moments(values[rows], codes[rows], responses.count(key)).at(codes)


def _running(
    responses: Responses, values: Tensor, rows: Tensor, start: Mapping[str, RunningMoments]
) -> tuple[Responses, Moments]:
    """Running moments of each row's domain as they stand once its batch is folded in."""
    domains = responses.count("domain")
    both = responses["batch"] * domains + responses["domain"]
    sets, codes = torch.unique(both, return_inverse=True)
    own = keyed_moments(values[rows], codes[rows], sets.numel())
    labels = [str(label) for label in responses.labels["domain"]]
    begin = {code: start[label] for code, label in enumerate(labels) if label in start}
    mean, std, after = rewards.running_statistics(own, (sets % domains).tolist(), begin)
    responses = responses.noting(running={labels[code]: state for code, state in after.items()})
    return responses, Moments(own.number, mean, std).at(codes)


def clip_rewards(responses: Responses, *, recipe: Recipe) -> Responses:
    """Clamps `rewards`; `reward_clipped` says where."""
    bound = recipe.reward_clip
    if bound is None:
        return responses
    values = responses["rewards"]
    return responses.with_(rewards=values.clamp(-bound, bound), reward_clipped=values.abs() > bound)


def kl_coefficients(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds `beta`, the KL coefficient of each response's batch."""
    count = responses.count("batch")
    if recipe.kl_target is None:
        beta = torch.full((count,), recipe.kl_coef, dtype=torch.float64)
    else:
        rows = responses["valid"]
        kl = keyed_moments(responses["kl_mean"][rows], responses["batch"][rows], count)
        coefficients = adaptive_coefficients(
            kl.mean.tolist(),
            [int(size) for size in kl.number.tolist()],
            start=recipe.kl_coef,
            target=recipe.kl_target,
            horizon=recipe.kl_horizon,
        )
        beta = torch.tensor(coefficients, dtype=torch.float64)
    return responses.with_(beta=beta[responses["batch"]])


def estimate(responses: Responses, *, recipe: Recipe, estimator: Estimator) -> Responses:
    """Adds `credit` and `credit_returns`, the advantage and return of all tokens of a response.

    An estimator of tokens is asked for here only where its return-to-go is one terminal reward.
    """
    values = responses["score"] if "score" in responses else responses["rewards"]
    if estimator.level == "token":
        return responses.with_(credit=values, credit_returns=values)
    columns = {name: values if name == "rewards" else responses[name] for name in estimator.columns}

    def function(sorted_columns: dict[str, Tensor], offsets: Tensor) -> Tensor:
        return torch.stack(estimator(sorted_columns, offsets, recipe), dim=1)

    rows = counted(responses, recipe)
    credit, returns = per_group(responses, columns, function, rows=rows).unbind(1)
    if recipe.numerics.single == "raw" and "offsets" in estimator.parameters:
        single = group_statistics(responses, values, rows=rows)[0].number == 1
        credit, returns = (torch.where(single, values, part) for part in (credit, returns))
    return responses.with_(credit=credit, credit_returns=returns)


def whiten(responses: Responses, *, recipe: Recipe) -> Responses:
    """Whitens `credit` over the kept policy tokens of each batch."""
    credit = responses["credit"]
    count = torch.where(responses["kept"], responses["tokens"], 0).to(torch.float64)
    parts = TokenMoments(count, count * credit, torch.zeros_like(credit))
    mean, scale = _scales(responses, parts, recipe)
    return responses.with_(credit=(credit - mean) * scale, raw_credit=credit)


def token_whitening(responses: Responses, *, recipe: Recipe, column: str) -> Responses:
    """Adds the mean and scale of a token column over each response's batch."""
    parts = TokenMoments(*(responses[f"{column}:{name}"] for name in TokenMoments._fields))
    mean, scale = _scales(responses, parts, recipe)
    return responses.with_(**{f"{column}:mean": mean, f"{column}:scale": scale})


def _scales(responses: Responses, parts: TokenMoments, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Mean and 1/√(var + ε) of each row's batch; 0 and 1 where under two tokens count."""
    codes = responses["batch"]
    moments = pooled(parts, codes, responses.count("batch"))
    enough = moments.number > 1
    mean = torch.where(enough, moments.mean, 0.0)
    scale = torch.where(enough, (moments.std.square() + recipe.numerics.whiten_eps).rsqrt(), 1.0)
    return mean[codes], scale[codes]


def clip_advantages(responses: Responses, *, recipe: Recipe) -> Responses:
    """Clamps `credit`; `credit_clipped` says where."""
    bound = recipe.advantage_clip
    assert bound is not None
    credit = responses["credit"]
    raw = responses.columns.get("raw_credit", credit)
    return responses.with_(
        credit=credit.clamp(-bound, bound), credit_clipped=credit.abs() > bound, raw_credit=raw
    )


def weights(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds `sample_weight`, scaled so that a batch sums to its number of responses."""
    if not (recipe.difficulty_weight or recipe.length_weight):
        return responses
    codes, count = responses["batch"], responses.count("batch")
    weight = torch.ones(len(responses), dtype=torch.float64)
    if recipe.difficulty_weight:
        weight = weight * difficulty_weights(responses["difficulty"])
    if recipe.length_weight:
        tokens = responses["tokens"].to(torch.float64)
        shortest, longest = keyed_extremes(tokens, codes, count)
        weight = weight * length_weights(tokens, shortest[codes], longest[codes])
    weight = torch.where(responses["valid"], weight, 0.0)
    rows = torch.bincount(codes[responses["valid"]], minlength=count)
    scale = rows / exact_sums(weight, codes, count).clamp(min=torch.finfo(torch.float64).tiny)
    return responses.with_(sample_weight=weight * scale[codes])
