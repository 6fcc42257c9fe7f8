"""The functions of tokens for padded arrays [B, T], with a mask that is 0 on padding.

The mask is 0 on observation tokens too. Padding may be at the left, at the right or in between, and
may have any value. Names, options and errors are those of rlpost.functional. The functions of
rewards and groups are not here: their numbers are [N] for padded arrays, too. `whiten`, `kl`,
`proximal_log_probs`, `top_entropy` and `value_loss` work on any shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import UsageError
from rlpost.estimators import Credit
from rlpost.functional import masks, policy, rollouts, scans, tokens
from rlpost.functional.arguments import check_arrays, of_any_library
from rlpost.functional.masks import top_entropy
from rlpost.functional.policy import PolicyLoss
from rlpost.functional.tokens import kl, proximal_log_probs, value_loss, whiten
from rlpost.kernels.arrays import namespace
from rlpost.kernels.corrections import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.recipe.loss import LossOptions


__all__ = [
    "accepted_tokens",
    "agentic_reinforce",
    "aggregate",
    "discounted_returns",
    "gae",
    "importance_weights",
    "kl",
    "over_rollouts",
    "place_rewards",
    "policy_loss",
    "proximal_log_probs",
    "response_rewards",
    "to_tokens",
    "top_entropy",
    "turn_gae",
    "value_loss",
    "vtrace",
    "whiten",
]


@of_any_library
def gae(rewards: Array, values: Array, mask: Array, **options: float) -> Credit:
    """Return `rlpost.functional.gae` of [B, T] arrays: advantages and returns, [B, T] each.

    >>> rewards, values = torch.tensor([[0.0, 1.0, 7.0]]), torch.tensor([[0.5, 0.5, 7.0]])
    >>> gae(rewards, values, torch.tensor([[1, 1, 0]]), lam=1.0).returns
    tensor([[1., 1., 0.]])
    """
    offsets = _offsets(mask, rewards=rewards, values=values)
    credit = scans.gae(
        rewards.reshape(-1), values.reshape(-1), offsets, mask.reshape(-1), **options
    )
    return Credit(*(part.reshape(mask.shape) for part in credit))


@of_any_library
def turn_gae(rewards: Array, values: Array, mask: Array, **options: Any) -> Credit:
    """Return `rlpost.functional.turn_gae` of [B, T] arrays: advantages and returns, [B, T] each."""
    offsets = _offsets(mask, rewards=rewards, values=values)
    credit = scans.turn_gae(
        rewards.reshape(-1), values.reshape(-1), offsets, mask.reshape(-1), **options
    )
    return Credit(*(part.reshape(mask.shape) for part in credit))


@of_any_library
def vtrace(
    rewards: Array,
    values: Array,
    old_log_probs: Array,
    infer_log_probs: Array,
    mask: Array,
    **options: float,
) -> Credit:
    """Return `rlpost.functional.vtrace` of [B, T] arrays: advantages and returns, [B, T] each."""
    logs = {"old_log_probs": old_log_probs, "infer_log_probs": infer_log_probs}
    columns = {"rewards": rewards, "values": values, **logs}
    offsets = _offsets(mask, **columns)
    flat = {name: column.reshape(-1) for name, column in columns.items()}
    credit = scans.vtrace(**flat, offsets=offsets, mask=mask.reshape(-1), **options)
    return Credit(*(part.reshape(mask.shape) for part in credit))


@of_any_library
def agentic_reinforce(rewards: Array, mask: Array, **options: Any) -> Array:
    """Return `rlpost.functional.agentic_reinforce` of [B, T] rewards, [B, T]."""
    offsets = _offsets(mask, rewards=rewards)
    returns = scans.agentic_reinforce(rewards.reshape(-1), offsets, mask.reshape(-1), **options)
    return returns.reshape(mask.shape)


def over_rollouts(
    function: Callable[..., Any], *columns: Array, mask: Array, **options: Any
) -> Any:
    """Return `rlpost.functional.over_rollouts` of [B, T] columns, [B, T] each.

    Args:
        function: a function of ragged tokens, such as `rlpost.functional.gae`.
        columns: [B, T] each.
        mask: [B, T], 0 on observation tokens and on padding.
        options: `rollouts`, `turns` and `branches`, [B] each, and options of the function.
    """
    named = {f"column {number}": column for number, column in enumerate(columns)}
    offsets = _offsets(mask, **named)
    flat = (column.reshape(-1) for column in columns)
    made = rollouts.over_rollouts(
        function, *flat, offsets=offsets, mask=mask.reshape(-1), **options
    )
    parts = made if isinstance(made, tuple) else (made,)
    shaped = [part.reshape(mask.shape) for part in parts]
    return type(made)(*shaped) if isinstance(made, tuple) else shaped[0]


@of_any_library
def discounted_returns(rewards: Array, mask: Array, *, gamma: float = 1.0) -> Array:
    """Return `rlpost.functional.discounted_returns` of [B, T] rewards, [B, T]."""
    offsets = _offsets(mask, rewards=rewards)
    returns = scans.discounted_returns(rewards.reshape(-1), offsets, mask.reshape(-1), gamma=gamma)
    return returns.reshape(mask.shape)


@of_any_library
def place_rewards(rewards: Array, mask: Array) -> Array:
    """Return `rlpost.functional.place_rewards` of [B] rewards, [B, T]."""
    return tokens.place_rewards(rewards, _offsets(mask), mask.reshape(-1)).reshape(mask.shape)


@of_any_library
def response_rewards(rewards: Array, token_rewards: Array) -> Array:
    """Return `rlpost.functional.response_rewards` of [B] and [B, T] rewards, [B].

    Process rewards of padding must be 0.
    """
    offsets = _offsets(
        namespace(token_rewards).ones_like(token_rewards), token_rewards=token_rewards
    )
    return tokens.response_rewards(rewards, token_rewards.reshape(-1), offsets)


@of_any_library
def to_tokens(numbers: Array, mask: Array) -> Array:
    """Return `rlpost.functional.to_tokens` of [B] numbers, [B, T].

    >>> to_tokens(torch.tensor([1.0, 2.0]), torch.tensor([[1, 1], [1, 0]]))
    tensor([[1., 1.],
            [2., 0.]])
    """
    return tokens.to_tokens(numbers, _offsets(mask), mask.reshape(-1)).reshape(mask.shape)


@of_any_library
def importance_weights(
    old_log_probs: Array, infer_log_probs: Array, mask: Array, **options: Any
) -> Weights:
    """Return `rlpost.functional.importance_weights` of [B, T] log-probs, [B, T] each."""
    offsets = _offsets(mask, old_log_probs=old_log_probs, infer_log_probs=infer_log_probs)
    old, infer = old_log_probs.reshape(-1), infer_log_probs.reshape(-1)
    weights = tokens.importance_weights(old, infer, offsets, mask.reshape(-1), **options)
    return Weights(*(part.reshape(mask.shape) for part in weights))


@of_any_library
def accepted_tokens(
    old_log_probs: Array, infer_log_probs: Array, mask: Array, **options: Any
) -> Array:
    """Return `rlpost.functional.accepted_tokens` of [B, T] log-probs, [B, T] bool."""
    offsets = _offsets(mask, old_log_probs=old_log_probs, infer_log_probs=infer_log_probs)
    old, infer = old_log_probs.reshape(-1), infer_log_probs.reshape(-1)
    if options.get("age") is not None:
        _offsets(mask, age=options["age"])
        options["age"] = options["age"].reshape(-1)
    accepted = masks.accepted_tokens(old, infer, offsets, mask.reshape(-1), **options)
    return accepted.reshape(mask.shape)


@of_any_library
@of_any_library
def policy_loss(
    log_probs: Array,
    old_log_probs: Array,
    advantages: Array,
    mask: Array,
    *,
    loss: str | LossOptions = "ppo",
    infer_log_probs: Array | None = None,
    ref_log_probs: Array | None = None,
    rewards: Array | None = None,
    is_weight: Array | None = None,
    sample_weight: Array | None = None,
    units: Array | Sequence[Hashable] | None = None,
    totals: Mapping[str, int] | None = None,
    **options: Any,
) -> PolicyLoss:
    """Return `rlpost.functional.policy_loss` of [B, T] arrays; its tokens and clip are [B, T].

    Args:
        log_probs: [B, T] log-probs of the current policy.
        old_log_probs: [B, T] log-probs of the policy before the update.
        advantages: [B, T].
        mask: [B, T], 0 on observation tokens and on padding.
        loss: a name that `rlpost losses` prints, or options from `rlpost.loss_preset`.
        infer_log_probs: [B, T] log-probs of the rollout engine, for `behaviour="infer"`.
        ref_log_probs: [B, T] log-probs of the reference policy, for a KL loss.
        rewards: [B] reward of each response, for losses that depend on its sign (topr).
        is_weight: [B, T] importance weights that multiply the loss of each token.
        sample_weight: [B] weights that multiply the loss of each response.
        units: [B] the prompt or rollout of each response, as of `aggregate`.
        totals: `tokens`, `responses`, `rows` and `longest` of the whole step, such as the `totals`
            of batches of `rlpost.load`. None: these responses are the step.
        options: fields of LossOptions. The default `agg_length` of seq-mean-token-sum-norm is T,
            padding included, without totals; set it if the width differs between batches.

    Raises:
        UsageError, DataError: as `rlpost.functional.policy_loss`.
    """
    optional = {"infer_log_probs": infer_log_probs, "ref_log_probs": ref_log_probs}
    optional["is_weight"] = is_weight
    columns = {"log_probs": log_probs, "old_log_probs": old_log_probs, "advantages": advantages}
    columns |= {name: column for name, column in optional.items() if column is not None}
    offsets = _offsets(mask, **columns)
    flat: dict[str, Any] = {name: column.reshape(-1) for name, column in columns.items()}
    flat |= {"rewards": rewards, "sample_weight": sample_weight, "units": units}
    flat |= {"loss": loss, "totals": totals}
    result = policy.policy_loss(**flat, offsets=offsets, mask=mask.reshape(-1), **options)
    return PolicyLoss(
        result.loss, result.tokens.reshape(mask.shape), result.clip.reshape(mask.shape)
    )


@of_any_library
def aggregate(values: Array, mask: Array, **options: Any) -> Array:
    """Return `rlpost.functional.aggregate` of [B, T] values.

    Args:
        values: [B, T] loss of each token.
        mask: [B, T], 0 on observation tokens and on padding.
        options: `how`, `weights` [B], `units` [B], `advantages` [B, T], `count_rows`, `norm`,
            `length` (T if it is None, and there are no totals) and `totals`.

    >>> values, mask = torch.tensor([[1.0, 2.0], [6.0, 9.0]]), torch.tensor([[1, 1], [1, 0]])
    >>> aggregate(values, mask), aggregate(values, mask, how="seq-mean-token-mean")
    (tensor(3.), tensor(3.7500))
    """
    columns = {"values": values}
    if options.get("advantages") is not None:
        columns["advantages"] = options["advantages"]
    offsets = _offsets(mask, **columns)
    flat = {name: column.reshape(-1) for name, column in columns.items()}
    return policy.aggregate(offsets=offsets, mask=mask.reshape(-1), **{**options, **flat})


def _offsets(mask: Array, **columns: Array) -> Array:
    """Return the offsets [B+1] of rows of T tokens; raises UsageError if a shape is not [B, T]."""
    check_arrays(mask=mask, **columns)
    if mask.ndim != 2:  # noqa: PLR2004
        raise UsageError(f"mask of shape {tuple(mask.shape)}: [B, T] is needed")
    for name, column in columns.items():
        if column.shape != mask.shape:
            raise UsageError(
                f"{name} of shape {tuple(column.shape)} and mask of shape {tuple(mask.shape)}: "
                "they must be the same"
            )
    rows, width = mask.shape
    return namespace(mask).arange(rows + 1, mask) * width
