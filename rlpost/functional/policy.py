"""Policy losses, differentiable in the log-probs of the policy being trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch

from rlpost.errors import UsageError
from rlpost.functional.arguments import floats, per_response, ragged
from rlpost.kernels.aggregate import denominator
from rlpost.kernels.segments import count_true, lengths
from rlpost.losses import Tokens, kl_loss, loss_named
from rlpost.recipe.loss import Aggregation, LossOptions

if TYPE_CHECKING:
    from torch import Tensor


AGGREGATIONS = get_args(Aggregation)
OF_REFERENCE = ("ref_kl",)


class PolicyLoss(NamedTuple):
    """What a policy loss comes to."""

    loss: Tensor
    """Scalar: the aggregated loss, and the KL loss where one is asked for."""
    tokens: Tensor
    """[T] loss of each token before any mean; 0 where the mask is 0."""
    clip: Tensor
    """[T] uint8: 0, or 1, 2, 3 where the lower, the upper or the dual clip is active."""


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    offsets: Tensor,
    mask: Tensor | None = None,
    *,
    loss: str | LossOptions = "ppo",
    infer_log_probs: Tensor | None = None,
    ref_log_probs: Tensor | None = None,
    rewards: Tensor | None = None,
    is_weight: Tensor | None = None,
    sample_weight: Tensor | None = None,
    **options: Any,
) -> PolicyLoss:
    """The loss that `rlpost loss` tells of, for a backward pass.

    Args:
        log_probs: [T] of the policy being trained.
        old_log_probs: [T] of the policy before its update.
        advantages: [T].
        offsets: [N+1] where responses begin.
        mask: [T], 0 on tokens that are not the policy's; None for none.
        loss: a name that `rlpost loss` knows, or options, as `recipe.presets.loss_preset` has
            those of a framework.
        infer_log_probs: [T] of the rollout engine, for `behaviour="infer"`.
        ref_log_probs: [T] of the reference policy, for a KL loss.
        rewards: [N] for losses that tell good responses from bad ones.
        is_weight: [T] weights that multiply the loss.
        sample_weight: [N] weights of responses.
        options: fields of LossOptions, as `pg_clip=0.1` or `kl_loss_coef=0.01`; with those in
            `loss` they take their place.

    Returns:
        PolicyLoss; differentiable in `log_probs` alone.

    Raises:
        UsageError: shapes, types, names or values do not fit.

    >>> new = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> found = policy_loss(new, new.detach(), torch.tensor([1.0, -1.0]), torch.tensor([0, 2]))
    >>> found.loss.backward()
    >>> found.loss.item(), new.grad
    (0.0, tensor([-0.5000,  0.5000]))
    """
    given = loss.model_dump() if isinstance(loss, LossOptions) else {"loss": loss}
    chosen = LossOptions.of({**given, **options}, "policy_loss")
    named = {"old_log_probs": old_log_probs, "advantages": advantages}
    optional = {"infer_log_probs": infer_log_probs, "ref_log_probs": ref_log_probs}
    optional["is_weight"] = is_weight
    asked = {name: x for name, x in optional.items() if x is not None}
    _needed(chosen, asked)
    new, *others = floats(log_probs=log_probs, **named, **asked)
    columns = dict(zip([*named, *asked], (x.detach() for x in others), strict=True))
    where = ragged(offsets, mask, new)
    count = where.offsets.numel() - 1
    tokens = Tokens(
        new=new,
        old=columns["old_log_probs"],
        advantages=columns["advantages"],
        mask=where.mask,
        offsets=where.offsets,
        infer=columns.get("infer_log_probs"),
        ref=columns.get("ref_log_probs"),
        rewards=None if rewards is None else per_response("rewards", rewards, count).detach(),
        weights=columns.get("is_weight"),
    )
    return _aggregated(tokens, chosen, sample_weight)


def _needed(options: LossOptions, there: dict[str, Tensor]) -> None:
    """Raise UsageError where an option asks for log-probs that were not given."""
    reasons = (
        (options.behaviour == "infer", "behaviour='infer'", "infer_log_probs"),
        (options.kl_loss_coef > 0, "kl_loss_coef", "ref_log_probs"),
        (options.loss in OF_REFERENCE, f"loss={options.loss!r}", "ref_log_probs"),
    )
    for wanted, why, name in reasons:
        if wanted and name not in there:
            raise UsageError(f"policy_loss: {why} needs {name}=, [T] log-probs")


def _aggregated(tokens: Tokens, options: LossOptions, weights: Tensor | None) -> PolicyLoss:
    one = loss_named(options.loss)
    found = one(tokens, options)
    how: dict[str, Any] = {
        "how": options.aggregation or one.aggregation,
        "weights": weights,
        "count_rows": options.agg_rows,
        "norm": options.agg_norm,
        "length": options.agg_length,
    }
    total = aggregate(found.values, tokens.offsets, tokens.mask, **how)
    if options.kl_loss_coef > 0:
        penalty = aggregate(kl_loss(tokens, options), tokens.offsets, tokens.mask, **how)
        total = total + options.kl_loss_coef * penalty
    return PolicyLoss(total, found.values, found.clip)


def aggregate(
    values: Tensor,
    offsets: Tensor,
    mask: Tensor | None = None,
    *,
    how: str = "token-mean",
    weights: Tensor | None = None,
    count_rows: str = "valid",
    norm: str = "length",
    length: int | None = None,
) -> Tensor:
    """From the losses of tokens to one number, differentiable.

        token-mean               Σ tokens / tokens
        seq-mean-token-sum       Σ rows Σ tokens / rows
        seq-mean-token-mean      Σ rows (Σ tokens / tokens of the row) / rows
        seq-mean-token-sum-norm  Σ rows Σ tokens / length [/ rows]

    Args:
        values: [T].
        offsets: [N+1] where responses begin.
        mask: [T], 0 on tokens that are not the policy's; None for none.
        how: one of the four.
        weights: [N] weights of responses; denominators take no notice of them.
        count_rows: a mean over rows counts those with a policy token (`valid`) or `all`.
        norm: seq-mean-token-sum-norm divides by `length`, or by `rows` times it.
        length: that divisor; None for the longest response's tokens, observations with them.

    Returns:
        Scalar; 0 where nothing counts.

    Raises:
        UsageError: shapes, types or a name do not fit.

    >>> values, offsets = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 2, 3])
    >>> aggregate(values, offsets, how="seq-mean-token-mean")
    tensor(3.7500)
    """
    if how not in AGGREGATIONS:
        raise UsageError(f"how {how!r} is none of {', '.join(AGGREGATIONS)}")
    (values,) = floats(values=values)
    where = ragged(offsets, mask, values)
    count = where.offsets.numel() - 1
    tokens = count_true(where.mask, where.offsets)
    owners = torch.repeat_interleave(lengths(where.offsets), output_size=values.numel())
    inside = torch.where(where.mask, values, 0.0).to(torch.float64)
    sums = inside.new_zeros(count).index_add(0, owners, inside)
    if how == "seq-mean-token-mean":
        sums = sums / tokens.clamp(min=1)
    if weights is not None:
        sums = sums * per_response("weights", weights, count).detach()
    sizes = lengths(where.offsets)
    below = denominator(
        how=how,
        tokens=tokens.sum(),
        valid=(tokens > 0).sum(),
        rows=torch.tensor(count, device=values.device),
        longest=sizes.amax() if count else sizes.new_zeros(()),
        count_rows=count_rows,
        norm=norm,
        length=length,
    )
    return (sums.sum() / below.clamp(min=1)).to(values.dtype)
