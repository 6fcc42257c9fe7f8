"""The learning signal: how many policy tokens, responses and prompt groups train anything.

An advantage smaller than float32's least normal number counts as 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.histogram import SMALLEST, tally
from rlpost.kernels.segments import count_true, segment_min
from rlpost.pipeline.totals import SPREADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Integers, Mask
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import SummaryCells, Totals


Json = dict[str, Any]
K = TypeVar("K")
Cell = tuple[str, str]
"""The labels of a step and a domain."""


class SignalSums(NamedTuple):
    """What the responses of a batch add to the totals."""

    sums: dict[str, Array]
    """[n] each."""
    tally: Array
    """Of the advantages of kept policy tokens, from `kernels.histogram.tally`."""


def signal_of_responses(advantages: Array, tokens: Array) -> SignalSums:
    """Return the signal of responses whose tokens have one advantage each.

    Args:
        advantages: [n].
        tokens: [n], kept policy tokens.
    """
    xp = namespace(tokens)
    tallied = tally(advantages, xp.astype(tokens, xp.int64))
    return SignalSums(_by_sign(advantages, tokens), tallied)


def signal_of_tokens(advantages: Array, offsets: Array, total: Array, tokens: Array) -> SignalSums:
    """Return the signal of responses whose tokens have different advantages.

    The sign of a response is that of the sum of its advantages.

    Args:
        advantages: [T], 0 where a token is not kept.
        offsets: [n+1] of the responses.
        total: [n], the sum of each response.
        tokens: [n], kept policy tokens.
    """
    xp = namespace(advantages)
    numbers = xp.astype(advantages, xp.float32)
    signs = {"positive": numbers >= SMALLEST, "negative": numbers <= -SMALLEST}
    counts = {f"{sign}.tokens": count_true(hit, offsets) for sign, hit in signs.items()}
    return SignalSums(counts | _by_sign(total, tokens), tally(numbers))


def _by_sign(advantages: Array, tokens: Array) -> dict[str, Array]:
    """Return how many responses have an advantage of each sign, and their policy tokens."""
    xp = namespace(advantages)
    numbers, trained = xp.astype(advantages, xp.float32), tokens > 0
    sums = {"trained": trained}
    for sign, hit in (("positive", numbers >= SMALLEST), ("negative", numbers <= -SMALLEST)):
        sums[f"{sign}.responses"] = hit & trained
        sums[f"{sign}.lengths"] = xp.where(hit, tokens, 0)
    return sums


def report_signal(totals: Totals, resolved: ResolvedRecipe) -> Json:
    """Return the kept policy tokens by the sign of their advantage.

    `responses` and `mean_length` are those of responses by the sign of their mean advantage, which
    is the advantage of their tokens if these have one. Lengths are kept policy tokens.
    """
    constant, known = resolved.constant, resolved.lengths != "unknown"
    whole = {"tokens": "advantage.count", "responses": "trained", "lengths": "advantage.count"}
    count = {name: totals.count(of) for name, of in whole.items()}
    entry: Json = {"count": count["tokens"]}
    rest = {**count}
    for sign in ("positive", "negative", "zero"):
        own = rest
        if sign != "zero":
            tokens = "lengths" if constant else "tokens"
            parts = {"tokens": tokens, "responses": "responses", "lengths": "lengths"}
            own = {name: totals.count(f"{sign}.{part}") for name, part in parts.items()}
            rest = {name: rest[name] - own[name] for name in rest}
        entry[sign] = {
            "tokens": own["tokens"],
            "share": own["tokens"] / count["tokens"] if count["tokens"] else None,
            "responses": own["responses"],
            "mean_length": own["lengths"] / own["responses"]
            if own["responses"] and known
            else None,
        }
    return {"tokens": entry}


def report_critic(totals: Totals, _: ResolvedRecipe) -> Json:
    """Return the share of the variance of returns that the values explain: 1 - Var(R - V) / Var(R).

    None if returns do not vary, or if filters reject tokens after the advantages are computed.
    """
    error, returns = (_spread(totals, name) for name in ("critic", "return"))
    same = totals.count("critic.count") == totals.count("return.count")
    return {"explained_variance": float(1 - error / returns) if same and returns else None}


def _spread(totals: Totals, name: str) -> Fraction:
    """Return the variance of n numbers, times n²."""
    count, total, squares = (totals.total(f"{name}.{part}") for part in SPREADS)
    return squares * count - total * total


class GroupSignal(NamedTuple):
    """Counts of prompt groups; those of different groups add up."""

    groups: int = 0
    with_signal: int = 0
    """Groups in which a kept response has an advantage other than 0; 0 if advantages differ within
    responses."""
    equal: int = 0
    """Groups of several responses with equal rewards."""
    passing: int = 0
    """Groups of equal rewards that reach the threshold of a pass."""

    def plus(self, other: GroupSignal) -> GroupSignal:
        """Return the counts of both sets of groups."""
        return GroupSignal(*(a + b for a, b in zip(self, other, strict=True)))

    def summary(self, resolved: ResolvedRecipe) -> Json:
        """Return the entry of the summary; None for what is unknown."""
        known, rewarded = resolved.constant, resolved.rewarded
        return {
            "count": self.groups,
            "with_signal": self.with_signal if known else None,
            "equal_rewards": self.equal if rewarded else None,
            "all_pass": self.passing if rewarded else None,
            "none_pass": self.equal - self.passing if rewarded else None,
            "pass_threshold": resolved.recipe.pass_threshold if rewarded else None,
        }


def add_signals(parts: Iterable[Mapping[K, GroupSignal]]) -> dict[K, GroupSignal]:
    """Return the counts of several sets of groups, by key."""
    total: dict[K, GroupSignal] = {}
    for part in parts:
        for key, counts in part.items():
            total[key] = counts.plus(total.get(key, GroupSignal()))
    return total


def group_signal(
    responses: Responses, members: Integers, offsets: Integers, equal: Mask, passing: Mask
) -> dict[Cell, GroupSignal]:
    """Count the groups of a table by step and domain.

    Args:
        responses: the table.
        members: rows, group by group.
        offsets: [G+1] of the groups in `members`.
        equal: [G] groups of several responses with equal rewards.
        passing: [G] groups that pass if their rewards are equal.
    """
    signal = np.zeros_like(equal)
    if "credit" in responses:
        credited = abs(responses["credit"].astype(np.float32)) >= SMALLEST
        credited &= responses["kept"] & (responses["tokens"] > 0)
        signal = count_true(credited[members], offsets) > 0
    cells = responses.cells
    order = _in_order(cells)
    rank = np.argsort(order)
    first = segment_min(rank[responses["cell"][members]].astype(np.float64), offsets)
    flags = np.stack([np.ones_like(equal), signal, equal, equal & passing], axis=1)
    counts = np.zeros((len(order), flags.shape[1]), np.int64)
    np.add.at(counts, order[first.astype(np.int64)], flags)
    present = np.flatnonzero(counts[:, 0]).tolist()
    names = cells.names(present)
    numbers = counts[present].tolist()
    return {(s, d): GroupSignal(*n) for (s, d), n in zip(names, numbers, strict=True)}


def _in_order(cells: SummaryCells) -> NDArray[np.int64]:
    """Return the cells in step order, and by the name of the domain.

    A group whose rows are of several cells belongs to the first.
    """
    by_name = sorted(range(len(cells.domains)), key=lambda place: str(cells.domains[place]))
    rank = {place: number for number, place in enumerate(by_name)}
    pairs = [(step, rank[domain], cell) for cell, (step, domain) in enumerate(cells.pairs)]
    return np.array([cell for _, _, cell in sorted(pairs)], np.int64)
