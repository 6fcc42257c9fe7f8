"""The learning signal: how many policy tokens, responses and prompt groups train anything.

An advantage smaller than float32's least normal number counts as 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from rlpost.kernels.histogram import SMALLEST, tally
from rlpost.kernels.segments import count_true, segment_min, segment_sum
from rlpost.pipeline.totals import SPREADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    from torch import Tensor

    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import SummaryCells, Totals


Json = dict[str, Any]
K = TypeVar("K")
Cell = tuple[str, str]
"""The labels of a step and a domain."""


class SignalSums(NamedTuple):
    """What the responses of a batch add to the totals."""

    sums: dict[str, Tensor]
    """[n] each."""
    tally: Tensor
    """Of the advantages of kept policy tokens, from `kernels.histogram.tally`."""


def signal_of_responses(advantages: Tensor, tokens: Tensor) -> SignalSums:
    """Return the signal of responses whose tokens have one advantage each.

    Args:
        advantages: [n].
        tokens: [n], kept policy tokens.
    """
    tallied = tally(advantages, tokens.to(torch.int64))
    return SignalSums(_by_sign(advantages, tokens), tallied)


def signal_of_tokens(
    advantages: Tensor, offsets: Tensor, total: Tensor, tokens: Tensor
) -> SignalSums:
    """Return the signal of responses whose tokens have different advantages.

    The sign of a response is that of the sum of its advantages.

    Args:
        advantages: [T], 0 where a token is not kept.
        offsets: [n+1] of the responses.
        total: [n], the sum of each response.
        tokens: [n], kept policy tokens.
    """
    numbers = advantages.to(torch.float32)
    signs = {"positive": numbers >= SMALLEST, "negative": numbers <= -SMALLEST}
    counts = {
        f"{sign}.tokens": segment_sum(hit.to(torch.int64), offsets) for sign, hit in signs.items()
    }
    return SignalSums(counts | _by_sign(total, tokens), tally(numbers))


def _by_sign(advantages: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Return how many responses have an advantage of each sign, and their policy tokens."""
    numbers, trained = advantages.to(torch.float32), tokens > 0
    sums = {"trained": trained}
    for sign, hit in (("positive", numbers >= SMALLEST), ("negative", numbers <= -SMALLEST)):
        sums[f"{sign}.responses"] = hit & trained
        sums[f"{sign}.lengths"] = torch.where(hit, tokens, 0)
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
    responses: Responses, members: Tensor, offsets: Tensor, equal: Tensor, passing: Tensor
) -> dict[Cell, GroupSignal]:
    """Count the groups of a table by step and domain.

    Args:
        responses: the table.
        members: rows, group by group.
        offsets: [G+1] of the groups in `members`.
        equal: [G] groups of several responses with equal rewards.
        passing: [G] groups that pass if their rewards are equal.
    """
    signal = torch.zeros_like(equal)
    if "credit" in responses:
        credited = responses["credit"].to(torch.float32).abs() >= SMALLEST
        credited &= responses["kept"] & (responses["tokens"] > 0)
        signal = count_true(credited[members], offsets) > 0
    cells = responses.cells
    order = _in_order(cells)
    rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    first = segment_min(rank[responses["cell"][members]].to(torch.float64), offsets)
    flags = torch.stack([torch.ones_like(equal), signal, equal, equal & passing], dim=1)
    counts = torch.zeros(len(order), flags.shape[1], dtype=torch.int64)
    counts.index_add_(0, order[first.to(torch.int64)], flags.to(torch.int64))
    present = counts[:, 0].nonzero().squeeze(1).tolist()
    names = cells.names(present)
    numbers = counts[present].tolist()
    return {(s, d): GroupSignal(*n) for (s, d), n in zip(names, numbers, strict=True)}


def _in_order(cells: SummaryCells) -> Tensor:
    """Return the cells in step order, and by the name of the domain.

    A group whose rows are of several cells belongs to the first.
    """
    by_name = sorted(range(len(cells.domains)), key=lambda place: str(cells.domains[place]))
    rank = {place: number for number, place in enumerate(by_name)}
    pairs = [(step, rank[domain], cell) for cell, (step, domain) in enumerate(cells.pairs)]
    return torch.tensor([cell for _, _, cell in sorted(pairs)], dtype=torch.int64)
