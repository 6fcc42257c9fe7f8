"""Functions that mask tokens: off-policy filters, and the tokens with the highest entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import UsageError
from rlpost.functional.arguments import (
    finite_tokens,
    floats,
    mask_of,
    numbers,
    of_any_library,
    ragged,
    shares,
)
from rlpost.kernels.arrays import namespace
from rlpost.kernels.corrections import divergence, values_at
from rlpost.kernels.segments import spread
from rlpost.kernels.trimming import MeanBelow, TopShare, kept_of
from rlpost.recipe.recipe import Filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.functional.arguments import Ragged
    from rlpost.kernels.arrays import Array


@of_any_library
def accepted_tokens(
    old_log_probs: Array,
    infer_log_probs: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    filters: Sequence[str] = (),
    age: Array | None = None,
    clamp: float = 40.0,
) -> Array:
    """Return the policy tokens that all off-policy filters accept.

    Filters are those of `--is-filter`, LEVEL:MEASURE:LOW:HIGH. At level batch these tokens are
    one batch, so that `batch:k2::0.02` is the mask of M2PO.

    Args:
        old_log_probs: [T] log-probs of the trainer; of the current policy for OPSM.
        infer_log_probs: [T] log-probs of the rollout engine.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        filters: such as `geometric:k3::0.01`; none accepts all policy tokens.
        age: [T] versions from the policy that sampled to the current one, for the measure age.
        clamp: bound on the absolute log ratio of a token, in nats.

    Returns:
        [T] bool, false on observation tokens.

    Raises:
        UsageError: a shape, a dtype, a number or a filter is wrong.
        DataError: a log-prob is NaN or infinite where the mask is not 0.

    >>> old, infer = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0])
    >>> accepted_tokens(old, infer, torch.tensor([0, 2]), filters=["token:ratio:0.5:2"])
    tensor([ True, False])
    """
    numbers(clamp=clamp)
    parsed = [filter_of(text, "filters") for text in filters]
    old, infer = floats(old_log_probs=old_log_probs, infer_log_probs=infer_log_probs)
    responses = ragged(offsets, mask, old)
    kept, xp = responses.mask, namespace(old)
    columns = {"old_log_probs": old, "infer_log_probs": infer}
    if age is not None:
        columns["age"] = floats(old_log_probs=old_log_probs, age=age)[1]
    finite_tokens(kept, responses.offsets, **columns)
    every = {
        name: xp.astype(xp.where(kept, xp.constant(x), 0.0), xp.float64)
        for name, x in columns.items()
    }
    old, infer, ages = every["old_log_probs"], every["infer_log_probs"], every.get("age")
    accepted = kept
    for one in parsed:
        accepted = accepted & inside_bounds(one, old, infer, responses, clamp, ages)
    return accepted


@of_any_library
def top_entropy(entropy: Array, mask: Array | None = None, *, quantile: float) -> Array:
    """Return the policy tokens with the highest entropy, whose loss counts.

        Hₜ at or above the quantile 1 - q of the n policy tokens, which is between two of them if
        (1 - q)·(n - 1) is no whole number

    Equal entropies stay together. Multiply the loss of a token by it; the frameworks leave the
    other tokens in the denominator.

    Args:
        entropy: entropy of the distribution of each token, in nats; any shape, ragged or padded.
            It is compared as float32, and as 0 if it is below.
        mask: the same shape; None for all tokens.
        quantile: q, the share of the policy tokens, over 0 and at most 1.

    Returns:
        The same shape, bool; false where the mask is 0.

    Raises:
        UsageError: a shape, a dtype or the quantile is wrong.
        DataError: an entropy is NaN or infinite where the mask is not 0.

    Source: TRL 1.16, trl/trainer/grpo_trainer.py:1380, get_high_entropy_mask; ms-swift 4.6,
    swift/rlhf_trainers/grpo_trainer.py:960; Wang et al., arXiv 2506.01939.

    >>> top_entropy(torch.tensor([0.1, 0.9, 0.4, 0.2, 0.3]), quantile=0.5)
    tensor([False,  True,  True, False,  True])
    """
    shares(quantile=quantile)
    if quantile == 0:
        raise UsageError("quantile=0.0: over 0 and at most 1 is needed")
    (entropy,) = floats(entropy=entropy)
    kept, xp = mask_of(entropy, mask), namespace(entropy)
    finite_tokens(kept, entropy=entropy)
    values = xp.where(kept, xp.constant(entropy), 0.0).reshape(-1)
    return kept & kept_of(values, kept.reshape(-1), TopShare(quantile)).reshape(kept.shape)


def filter_of(text: str, name: str) -> Filter:
    """Return a filter; raise UsageError with the name of the argument."""
    try:
        return Filter.of(text)
    except ValueError as error:
        raise UsageError(str(error).replace("--is-filter", name, 1)) from None


def inside_bounds(
    one: Filter,
    old: Array,
    infer: Array,
    responses: Ragged,
    clamp: float,
    age: Array | None = None,
) -> Array:
    """Return which tokens are inside the bounds of a filter, [T] bool; all are one batch."""
    mask, offsets = responses.mask, responses.offsets
    if one.measure == "age":
        if age is None:
            raise UsageError(f"{one}: the measure age needs age=, [T] versions")
        values = values_at(age, mask, offsets, level=one.level)
    else:
        how = {"measure": one.measure, "level": one.level}
        values = divergence(old, infer, mask, offsets, clamp=clamp, **how)
    if one.of_batch:
        return kept_of(values, mask, MeanBelow(one.high))
    inside = (values >= one.low) & (values <= one.high)
    return spread(inside, offsets) if one.by_response else inside
