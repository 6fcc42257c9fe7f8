"""What a layout of micro-batches and ranks does to the weight of each token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

import numpy as np

from rlpost.errors import ErrorPart, UsageError, no_such
from rlpost.kernels.aggregate import BY_SIGN
from rlpost.kernels.layouts import Level, Split, StepLayout
from rlpost.kernels.moments import round_digits
from rlpost.pipeline.stages.loss_weights import (
    EFFECTIVE,
    INTENDED,
    LOSS_TOKENS,
    MICRO_BATCH,
    POSITIVE_TOKENS,
    SIGNED,
    UPDATE,
    weight_name,
)
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.loss_totals import LossTotals

Json = dict[str, Any]
LENGTH_RANGES = 5
OPTIONS = ("micro_batch", "micro_batch_tokens", "accumulate", "ranks", "updates", "agg_level")


def layout_of(options: Mapping[str, Any]) -> StepLayout | None:
    """Return the layout that options describe; None if all are None.

    Args:
        options: by a name of `OPTIONS`; None if unset.

    Raises:
        UsageError: a number is below 1, or options contradict each other or have no effect.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if not chosen:
        return None
    level = chosen.pop("agg_level", "micro")
    if level not in get_args(Level):
        raise UsageError(no_such(f"no --agg-level {level!r}", level, get_args(Level)))
    for name, value in chosen.items():
        if value < 1:
            raise UsageError(f"{flag_of(name)} {value}: an integer of at least 1 is needed")
    for one, other in (("micro_batch", "micro_batch_tokens"), ("accumulate", "updates")):
        if {one, other} <= {*chosen}:
            text = f"{flag_of(one)} and {flag_of(other)} exclude each other"
            raise UsageError(ErrorPart(text, tip="leave one out"))
    micro = {"micro_batch", "micro_batch_tokens"} & {*chosen}
    if "accumulate" in chosen and not micro:
        raise UsageError("--accumulate counts micro-batches: --micro-batch sets their size")
    if not micro and not {"ranks", "updates"} & {*chosen}:
        raise UsageError("--agg-level has no effect without --micro-batch, --ranks or --updates")
    return StepLayout(
        Split(
            chosen.get("ranks", 1),
            chosen.get("updates", 1),
            chosen.get("micro_batch"),
            micro_tokens=chosen.get("micro_batch_tokens"),
            accumulate=chosen.get("accumulate"),
        ),
        level,
    )


class _TokenWeights(NamedTuple):
    """Sums of weights of the tokens of responses, [n] each; twice as many for means by sign."""

    row: NDArray[np.int64]
    tokens: NDArray[np.int64]
    effective: NDArray[np.float64]
    intended: NDArray[np.float64]

    @classmethod
    def of(cls, responses: Responses, config: LossConfig) -> Self:
        """Return the weights under a loss; those with tokens."""
        tokens, positive = responses[LOSS_TOKENS], responses[POSITIVE_TOKENS]
        counts = {"": tokens}
        if config.aggregation == BY_SIGN:
            counts = dict(zip(SIGNED, (positive, tokens - positive), strict=True))
        parts = []
        for sign, count in counts.items():
            rows = np.flatnonzero(count > 0)
            effective, intended = (
                responses[f"{weight_name(config, kind)}{sign}"][rows] * count[rows]
                for kind in (EFFECTIVE, INTENDED)
            )
            parts.append((rows, count[rows], effective, intended))
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def over(self, inside: NDArray[Any]) -> Json:
        """Return the ratio of effective to intended weight of tokens, and its extremes.

        Args:
            inside: flags or indices of elements.
        """
        own = type(self)(*(x[inside] for x in self))
        whole = math.fsum(own.intended)
        if not whole:
            return {"tokens": int(own.tokens.sum()), "ratio": None, "low": None, "high": None}
        ratios = own.effective / own.intended
        return {
            "tokens": int(own.tokens.sum()),
            "ratio": math.fsum(own.effective) / whole,
            "low": float(ratios.min()),
            "high": float(ratios.max()),
        }


def summarise_layout(
    layout: StepLayout, index: int, config: LossConfig, responses: Responses, totals: LossTotals
) -> Json:
    """Return the effective weights of tokens under a layout, as parts of the intended ones.

    `ratio` is the sum of effective weights of some tokens, divided by that of the intended ones;
    `low` and `high` are its extremes over their responses. `factor` is the highest ratio divided by
    the lowest. `moved` is the share of the whole weight that other tokens have than intended.

    Args:
        layout: how responses are dealt.
        index: of the loss.
        config: the loss.
        responses: with weights.
        totals: with the losses under the layout.
    """
    weights = _TokenWeights.of(responses, config)
    whole = weights.over(np.ones(len(weights.row), np.bool_))
    moved = 0.0
    if whole["ratio"]:
        shares = (x / math.fsum(x) for x in (weights.effective, weights.intended))
        effective, intended = shares
        moved = math.fsum(abs(effective - intended)) / 2
    labels = responses.labels["batch"]
    losses = round_digits(totals.batches.digits(f"{index}.layout", len(labels))).tolist()
    present, updates = _updates_of_batches(responses, len(labels))
    means = [losses[batch] / updates[batch] for batch in present]
    return {
        **layout.split.fields,
        "agg_level": layout.level,
        "update_count": len(np.unique(responses[UPDATE])),
        "micro_batch_count": len(np.unique(responses[MICRO_BATCH])),
        **whole,
        "factor": whole["high"] / whole["low"] if whole["ratio"] else None,
        "moved": moved,
        "loss": math.fsum(means) / len(means) if means else None,
        "by_length": _by_length(weights, responses),
        "by_reward": _by_reward(weights, responses),
        "by_step": _by_step(weights, responses),
    }


def _updates_of_batches(responses: Responses, batches: int) -> tuple[list[int], list[int]]:
    """Return the batches that have responses, and the number of updates of each batch."""
    pairs = np.unique(np.stack([responses["batch"], responses[UPDATE]]), axis=1)
    counts = np.bincount(pairs[0], minlength=batches)
    return np.flatnonzero(counts).tolist(), counts.tolist()


def _by_length(weights: _TokenWeights, responses: Responses) -> list[Json]:
    """Return the ratio by ranges of policy tokens, each with about as many responses."""
    tokens = responses[LOSS_TOKENS]
    if not len(weights.row):
        return []
    shares = np.arange(1, LENGTH_RANGES) / LENGTH_RANGES
    ends = np.unique(np.quantile(tokens[tokens > 0], shares, method="lower"))
    lengths = tokens[weights.row]
    place = np.searchsorted(ends, lengths)
    parts = []
    for part in np.unique(place):
        inside = place == part
        ends_of = {"from": int(lengths[inside].min()), "to": int(lengths[inside].max())}
        parts.append({**ends_of, **weights.over(inside)})
    return parts


def _by_reward(weights: _TokenWeights, responses: Responses) -> list[Json]:
    """Return the ratio by the sign of the response's reward; [] if all have one."""
    signs = np.sign(responses["reward"][weights.row])
    names = {1: "above 0", 0: "0", -1: "below 0"}
    parts = [(name, signs == sign) for sign, name in names.items() if (signs == sign).any()]
    return [{"reward": name, **weights.over(inside)} for name, inside in parts]


def _by_step(weights: _TokenWeights, responses: Responses) -> list[Json]:
    """Return the ratio by step."""
    batch, labels = responses["batch"][weights.row], responses.labels["batch"]
    order = np.argsort(batch, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(batch[order])) + 1)
    return [{"step": labels[batch[own[0]]], **weights.over(own)} for own in parts if len(own)]
