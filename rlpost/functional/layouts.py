"""The weight of each token in the loss of an optimiser update, as a trainer deals a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np

from rlpost.errors import UsageError
from rlpost.functional.arguments import codes_of, floats, numbers, of_any_library, one_of, ragged
from rlpost.kernels.aggregate import BY_SIGN, OF_UNITS
from rlpost.kernels.arrays import like, namespace, on_host
from rlpost.kernels.layouts import LEVELS, Dealt, Split, StepLayout, weights_in
from rlpost.kernels.segments import count_true, lengths, spread
from rlpost.recipe.loss import Aggregation

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.kernels.layouts import Level


class LayoutWeights(NamedTuple):
    """The weight of each token: the loss of an update is Σ weight · loss over its tokens."""

    effective: Array
    """[T] under the layout."""
    intended: Array
    """[T] if denominators count over all responses of the update."""


@of_any_library
def layout_weights(
    advantages: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    how: str = "token-mean",
    micro_batch: int | None = None,
    micro_batch_tokens: int | None = None,
    accumulate: int | None = None,
    ranks: int = 1,
    updates: int = 1,
    level: Level = "micro",
    units: Array | Sequence[Hashable] | None = None,
    count_rows: str = "valid",
    norm: str = "length",
    length: int | None = None,
) -> LayoutWeights:
    """Return the weight that a layout gives each token, and the one that is intended.

    Responses are one step. A trainer deals them in their order: to ranks, each rank's to updates,
    each update's to micro-batches. The gradient of an update is the mean over its units, over each
    of which the denominators of the aggregation count.

    Args:
        advantages: [T]; only token-mean-by-sign reads them.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        how: the aggregation, as of `aggregate`.
        micro_batch: responses of a micro-batch; None: a rank's part of an update.
        micro_batch_tokens: the most tokens of a micro-batch, in place of responses.
        accumulate: micro-batches of a rank in an update, in place of `updates`.
        ranks: data-parallel ranks.
        updates: optimiser updates of the step.
        level: the unit: micro, rank, update or step.
        units: [N] the prompt or rollout of each response, for the mean over these.
        count_rows: as of `aggregate`.
        norm: likewise.
        length: likewise.

    Returns:
        LayoutWeights of [T] each, of the type of `advantages`; 0 on observation tokens.

    Raises:
        UsageError: a shape, a dtype, a name or a number is wrong, or units are missing.

    >>> offsets = torch.tensor([0, 1, 4])
    >>> layout_weights(torch.ones(4), offsets, micro_batch=1).effective
    tensor([0.5000, 0.1667, 0.1667, 0.1667])
    """
    one_of("how", how, get_args(Aggregation))
    one_of("level", level, LEVELS)
    numbers(length=length)
    split = _split(micro_batch, micro_batch_tokens, accumulate, ranks, updates)
    (advantages,) = floats(advantages=advantages)
    responses, xp = ragged(offsets, mask, advantages), namespace(advantages)
    kept, starts = responses.mask, responses.offsets
    if how in OF_UNITS and units is None:
        raise UsageError(f"how={how!r} needs units=, [N] the {how.partition('-')[0]} of each")
    signs = [kept & (advantages > 0), kept & ~(advantages > 0)] if how == BY_SIGN else [kept]
    tokens, sizes = on_host(count_true(kept, starts)), on_host(lengths(starts))
    group = None if units is None else codes_of(units, starts[1:])[0]
    dealt = Dealt.of(StepLayout(split, level), np.zeros_like(sizes), sizes)
    rules = {"how": how, "responses": tokens, "lengths": sizes, "group": group}
    rules |= {"count_rows": count_rows, "norm": norm, "length": length}
    totals = [xp.zeros_like(xp.constant(advantages)) for _ in range(2)]
    for inside in signs:
        counts = on_host(count_true(inside, starts))
        own = (
            weights_in(dealt.unit, counts, **rules) * dealt.scale,
            weights_in(dealt.update, counts, **rules),
        )
        totals = [
            xp.where(inside, xp.astype(spread(like(rows, starts), starts), one.dtype), one)
            for rows, one in zip(own, totals, strict=True)
        ]
    return LayoutWeights(*totals)


def _split(
    micro: int | None, micro_tokens: int | None, accumulate: int | None, ranks: int, updates: int
) -> Split:
    """Return the split; raise UsageError for numbers below 1, and for options that exclude."""
    numbers(
        micro_batch=micro,
        micro_batch_tokens=micro_tokens,
        accumulate=accumulate,
        ranks=ranks,
        updates=updates,
    )
    named = {"micro_batch": micro, "micro_batch_tokens": micro_tokens, "accumulate": accumulate}
    for name, value in (named | {"ranks": ranks, "updates": updates}).items():
        if value is not None and value < 1:
            raise UsageError(f"{name}={value}: an integer of at least 1 is needed")
    if micro is not None and micro_tokens is not None:
        raise UsageError("`micro_batch` and `micro_batch_tokens` exclude each other")
    if accumulate is not None and (updates > 1 or (micro is None and micro_tokens is None)):
        raise UsageError("accumulate needs the size of a micro-batch, and excludes updates")
    return Split(ranks, updates, micro, micro_tokens=micro_tokens, accumulate=accumulate)
