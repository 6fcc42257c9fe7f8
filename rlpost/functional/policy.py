"""Policy losses, differentiable in the log-probs of the current policy."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple

import numpy as np

from rlpost.errors import ErrorPart, UsageError, closest, no_such, warn_caller
from rlpost.kernels.aggregate import BY_SIGN, OF_UNITS, denominator
from rlpost.kernels.arrays import Array, like, namespace, on_host
from rlpost.kernels.segments import add_segment_sums, count_true, lengths
from rlpost.losses import Tokens, kl_loss, loss_named
from rlpost.losses.own import KNOWN
from rlpost.recipe.base import Count
from rlpost.recipe.loss import Aggregation, LossOptions
from rlpost.recipe.recipe import PROXIMAL


class PolicyLoss(NamedTuple):
    """A policy loss, and the loss and clip state of each token."""

    loss: Array
    """Scalar: the aggregated loss, plus kl_loss_coef times the KL loss."""
    tokens: Array
    """[T] loss of each token before aggregation; 0 on observation tokens."""
    clip: Array
    """[T] uint8: 1, 2 or 3 if the lower, upper or dual clip is active, 4 if clip_cov or kl_cov
    selects the token, else 0."""


def policy_loss(
    log_probs: Array,
    old_log_probs: Array,
    advantages: Array,
    offsets: Array,
    mask: Array = None,
    *,
    loss: str | LossOptions = "ppo",
    infer_log_probs: Array | None = None,
    ref_log_probs: Array | None = None,
    rewards: Array | None = None,
    is_weight: Array | None = None,
    sample_weight: Array | None = None,
    units: Array | None = None,
    totals: Mapping[str, Any] | None = None,
    columns: Mapping[str, Array] | None = None,
    **options: Any,
) -> PolicyLoss:
    """Return the policy loss that `rlpost loss` reports, for a backward pass.

    The responses are one batch: its means and, for clip_cov and kl_cov, its highest tokens are
    those of all T tokens. With `totals` they are a part of an optimiser step, and the loss is their
    share: the losses of all parts add up to that of the step in one batch. (Not those of clip_cov
    and kl_cov, which select tokens within each part: a warning.) A step without any policy token
    has the loss 0.

    Args:
        log_probs: [T] log-probs of the current policy.
        old_log_probs: [T] log-probs of the policy before the update.
        advantages: [T].
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        loss: a name that `rlpost list losses` prints, or options such as those of a framework from
            `rlpost.loss_preset`; or path/to/file.py:function.
        infer_log_probs: [T] log-probs of the rollout engine, for `behaviour="infer"`.
        ref_log_probs: [T] log-probs of the reference policy, for a KL loss.
        rewards: [N] reward of each response, for losses that depend on its sign (topr).
        is_weight: [T] importance weights that multiply the loss; with gspo, the gradient of a
            token has its own weight, not the mean of its response's (see `gspo`).
        sample_weight: [N] weights of responses. Neither weight changes a denominator.
        units: [N] the prompt or rollout of each response, as of `aggregate`; also the `group` of
            an own loss. Unique per step: a prompt of two steps has two.
        totals: what the whole step has, over all ranks and micro-batches: `tokens` with mask 1,
            `responses` with such a token, `rows` and the length of the `longest`, as in the
            batches of `rlpost.load`. Each is at least that of the responses here. None: they are
            the whole step.
        columns: what else your own loss reads by name, each [T] or [N].
        options: fields of LossOptions, such as `pg_clip=0.1` or `kl_loss_coef=0.01`, and options of
            the loss, such as `tau=0.1`; they override those of `loss`.

    Returns:
        PolicyLoss; differentiable in `log_probs` only.

    Raises:
        UsageError: a shape, a dtype, a name or a value is wrong, log-probs are missing, or totals
            are not those of a step of which the responses are a part.
        DataError: a log-prob, advantage or weight is NaN or infinite where the mask is not 0.

    >>> new = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> result = policy_loss(new, new.detach(), torch.tensor([1.0, -1.0]), torch.tensor([0, 2]))
    >>> result.loss.backward()
    >>> result.loss.item(), new.grad
    (0.0, tensor([-0.5000,  0.5000]))
    """
    resolved = _options(loss, options)
    others = dict(columns or {})
    given = {"infer_log_probs": infer_log_probs, "ref_log_probs": ref_log_probs}
    given |= {"rewards": rewards, "units": units}
    _check_present(resolved, {*others, *(name for name, x in given.items() if x is not None)})
    constant = namespace(log_probs).constant
    tokens = Tokens(
        new=log_probs,
        old=old_log_probs,
        advantages=advantages,
        mask=mask,
        offsets=offsets,
        infer=infer_log_probs,
        ref=None if ref_log_probs is None else constant(ref_log_probs),
        rewards=None if rewards is None else constant(rewards),
        weights=is_weight,
        group=None if units is None else like(units, log_probs),
        columns={name: constant(x) for name, x in others.items()},
    )
    function = loss_named(resolved.loss)
    surrogate = function(tokens, resolved)
    way: Any = resolved.aggregation or function.aggregation
    how: dict[str, Any] = {"weights": sample_weight, "units": units, "advantages": advantages}
    how |= {"totals": totals, "count_rows": resolved.agg_rows, "norm": resolved.agg_norm}
    how |= {"length": resolved.agg_length}
    if totals is not None and function.selects is not None:
        _warn_of_selection(resolved.loss, totals, mask)
    total = aggregate(surrogate.values, offsets, mask, how=way, **how)
    if resolved.kl_loss_coef > 0:
        penalty = kl_loss(tokens, resolved)
        way = resolved.kl_loss_aggregation or way
        total = total + resolved.kl_loss_coef * aggregate(penalty, offsets, mask, how=way, **how)
    return PolicyLoss(total, surrogate.values, surrogate.clip)


def _options(loss: str | LossOptions, keywords: Mapping[str, Any]) -> LossOptions:
    """Return the options of a loss that keywords override: fields, or options of the loss."""
    base: dict[str, Any]
    base = loss.model_dump() if isinstance(loss, LossOptions) else {"loss": loss}
    fields = {name: x for name, x in keywords.items() if name in LossOptions.model_fields}
    others = {name: x for name, x in keywords.items() if name not in fields}
    if others:
        known = loss_named(base["loss"]).options
        unknown = next((name for name in others if name not in known), None)
        if unknown is not None:
            text = f"policy_loss: no option {unknown!r} of loss={base['loss']!r}"
            raise UsageError(no_such(text, unknown, (*known, *LossOptions.model_fields)))
    options = {**base.get("loss_options", {}), **fields.pop("loss_options", {}), **others}
    return LossOptions.of({**base, **fields, "loss_options": options}, "policy_loss")


def _check_present(options: LossOptions, present: AbstractSet[str]) -> None:
    """Raise UsageError for all arrays that an option or the loss needs and that are missing."""
    if options.behaviour in PROXIMAL:
        raise UsageError(
            f"policy_loss: behaviour={options.behaviour!r}: "
            f"old_log_probs=proximal_log_probs(..., how={options.behaviour!r}) has the same ratio"
        )
    loss, by_loss = loss_named(options.loss), f"loss={options.loss!r}"
    needs: list[tuple[str, str]]
    needs = [(by_loss, x) for x in ("ref_log_probs", "infer_log_probs") if x in loss.needs]
    needs += [(by_loss, "rewards")] if "reward" in loss.needs else []
    needs += [(by_loss, "units")] if loss.grouped else []
    needs += [("behaviour='infer'", "infer_log_probs")] if options.behaviour == "infer" else []
    if options.kl_loss_coef > 0:
        by_engine = options.kl_loss_ratio and options.kl_loss_ratio_policy == "infer"
        needs += [("kl_loss_coef", "ref_log_probs")]
        needs += [("kl_loss_ratio_policy='infer'", "infer_log_probs")] if by_engine else []
    what = {"rewards": "[N] the reward of each response"}
    what["units"] = "[N] the prompt group of each response"
    missing: list[str | ErrorPart] = [
        f"policy_loss: {why} needs {name}=, {what.get(name, '[T] log-probs')}"
        for why, name in needs
        if name not in present
    ]
    for name in loss.columns:
        if name not in present:
            text = f"policy_loss: {by_loss} needs columns={{{name!r}: ...}}, [T] or [N]"
            missing.append(ErrorPart(text, closest(name, KNOWN)))
    if missing:
        raise UsageError(*dict.fromkeys(missing))


def _warn_of_selection(loss: str, totals: Mapping[str, int], mask: Array) -> None:
    """Warn if a loss selects tokens of a part of a step."""
    here = int(mask.sum())
    whole = totals.get("tokens", here) if isinstance(totals, Mapping) else here
    if whole != here:
        warn_caller(
            f"policy_loss: loss={loss!r} selects tokens of each part of a step, here of {here:,} "
            f"of {int(whole):,} tokens: the losses of the parts do not add up to that of the step "
            "in one batch; make the step one batch on one rank, or use another loss"
        )


def aggregate(
    values: Array,
    offsets: Array,
    mask: Array = None,
    *,
    how: Aggregation = "token-mean",
    weights: Array | None = None,
    units: Array | None = None,
    advantages: Array = None,
    count_rows: Literal["valid", "all"] = "valid",
    norm: Literal["length", "rows"] = "length",
    length: Count | None = None,
    totals: Mapping[str, Any] | None = None,
) -> Array:
    """Return the aggregated loss of the policy tokens.

        token-mean               Σᵢ wᵢ Σₜ lossᵢₜ / policy tokens
        token-mean-by-sign       the same over tokens with A > 0, plus that over the others
        token-sum                Σᵢ wᵢ Σₜ lossᵢₜ
        seq-mean-token-sum       Σᵢ wᵢ Σₜ lossᵢₜ / responses
        seq-mean-token-mean      Σᵢ wᵢ (Σₜ lossᵢₜ / policy tokens of i) / responses
        seq-mean-token-sum-norm  Σᵢ wᵢ Σₜ lossᵢₜ / length [/ responses]
        prompt-mean              Σᵢ wᵢ (Σₜ lossᵢₜ / policy tokens of the prompt of i) / prompts
        rollout-mean             Σᵢ wᵢ (Σₜ lossᵢₜ / policy tokens of the rollout of i) / rollouts

    Args:
        values: [T] loss of each token.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        how: one of these.
        weights: [N] weights w of responses; None for 1. They do not change denominators.
        units: [N] the prompt or the rollout of each response, for the mean over these.
        advantages: [T], for token-mean-by-sign.
        count_rows: which responses or units denominators count: those with a policy token
            (`valid`), or `all`.
        norm: seq-mean-token-sum-norm divides by `length` (ROLL), or by length and number of
            responses (`rows`; verl; Dr. GRPO, arXiv 2503.20783).
        length: the length of seq-mean-token-sum-norm, in tokens; None for that of the longest
            response, observation tokens included.
        totals: of a whole step of which these responses are a part, for the denominators:
            `tokens`, `responses`, `rows` and `longest`, whole numbers, each at least that of these
            responses (`rows` if they are counted, `longest` never). None: those of these responses.

    Returns:
        Scalar; 0 if there is no policy token. Differentiable in `values`.

    Raises:
        UsageError: a shape, a dtype or a name is wrong, units or advantages are missing, or totals
            are not those of a step of which the responses are a part, or are not enough for `how`.

    Source of prompt-mean: SkyRL 0.4, skyrl/backends/skyrl_train/utils/ppo_utils.py:1209; of
    rollout-mean: Agent Lightning 1.0.2, agentlightning/verl/per_rollout_loss.py:17, which divides
    by the number of rows in place of that of rollouts; of token-mean-by-sign: XTuner,
    xtuner/v1/rl/loss/oreal_loss.py:81, with all weights 1.

    >>> values, offsets = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 2, 3])
    >>> aggregate(values, offsets, how="seq-mean-token-mean")
    tensor(3.7500)
    """
    xp, sizes, tokens = namespace(values), lengths(offsets), count_true(mask, offsets)
    if how in OF_UNITS or how == BY_SIGN:
        _check_whole(how, {"units": units, "advantages": advantages}, totals)
    if how == BY_SIGN:
        signs = advantages > 0, advantages <= 0
        return sum(aggregate(values, offsets, mask & x, weights=weights) for x in signs)
    inside = xp.astype(xp.where(mask, values, 0.0), xp.float64)
    sums = add_segment_sums(xp.zeros(len(sizes), inside), inside, offsets)
    if how == "seq-mean-token-mean":
        sums = sums / tokens.clip(1)
    valid, rows = tokens > 0, len(sizes)
    if how in OF_UNITS and units is not None:
        of_units = np.bincount(units, on_host(tokens))
        sums = sums / like(of_units[units].clip(1), sums)
        valid, rows = like(of_units > 0, tokens), len(of_units)
    if weights is not None:
        sums = sums * xp.constant(weights)
    counts = {"tokens": tokens.sum(), "responses": valid.sum(), "rows": xp.full((), rows, sizes)}
    counts["longest"] = sizes.max() if len(sizes) else xp.zeros((), sizes)
    if totals is not None:
        counts = _step_totals(totals, counts, ["rows"] if count_rows == "all" else [])
    options: dict[str, Any] = {"count_rows": count_rows, "norm": norm, "length": length}
    below = denominator(how=how, valid=counts.pop("responses"), **counts, **options)
    return xp.astype(sums.sum() / below.clip(1), values.dtype)


def _check_whole(how: str, needed: dict[str, Any], totals: Mapping[str, Any] | None) -> None:
    """Raise UsageError if an aggregation lacks its array, or has a part of a step alone."""
    name = "advantages" if how == BY_SIGN else "units"
    if needed[name] is None:
        what = "[T]" if how == BY_SIGN else f"[N] the {how.partition('-')[0]} of each response"
        raise UsageError(f"how={how!r} needs {name}=, {what}")
    if totals is not None:
        raise UsageError(
            f"how={how!r} with totals=: they have no tokens of each prompt, rollout or sign of the "
            "whole step; make the step one batch, or use how='token-sum' with your own weights="
        )


def _step_totals(
    totals: Mapping[str, Any], part: Mapping[str, Array], checked: list[str]
) -> dict[str, Array]:
    """Return the totals of a step as arrays beside those of a part of it.

    Args:
        totals: of the step.
        part: those of the part: tokens, responses, rows and the longest response.
        checked: totals, beside tokens and responses, that must be at least those of the part.

    Raises:
        UsageError: one is missing or no whole number, they contradict each other, or are less than
            those of the part.
    """
    needed = (
        f"a dict with {', '.join(part)} of the whole step is needed, such as batch['totals'] of "
        "rlpost.load"
    )
    numbers = {}
    for name in part:
        value: Any = totals.get(name)
        try:
            numbers[name] = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            numbers[name] = -1
        if numbers[name] < 0:
            came = f"{name!r} is {totals[name]!r}" if name in totals else f"{name!r} is missing"
            raise UsageError(f"totals: {came}; {needed}, with whole numbers from 0")
    tokens, responses, rows, longest = numbers.values()
    if not (responses <= tokens <= responses * longest and responses <= rows):
        raise UsageError(
            f"totals: {tokens} tokens, {responses} responses, {rows} rows and a longest of "
            f"{longest} contradict each other; {needed}"
        )
    names = ["tokens", "responses", *checked]
    xp = namespace(part["tokens"])
    counts = xp.stack([part[name] for name in names]).tolist()  # one wait for a GPU
    for name, count in zip(names, counts, strict=True):
        if numbers[name] < count:
            raise UsageError(
                f"totals: {name!r} is {numbers[name]}, but the responses here have {count}; "
                f"{needed}, over all of its micro-batches and ranks, with the mask of the batch"
            )
    return {name: xp.full((), numbers[name], count) for name, count in part.items()}
