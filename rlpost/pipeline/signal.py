"""The learning signal: how many policy tokens, responses and prompt groups train anything.

An advantage smaller than float32's least normal number counts as 0.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.histogram import SMALLEST, tally
from rlpost.kernels.segments import count_true, offsets_of, segment_min
from rlpost.pipeline.stages.rewards import group_statistics
from rlpost.pipeline.totals import SPREADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import SummaryCells, Totals
    from rlpost.recipe.recipe import Recipe


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


class PromptGroups(NamedTuple):
    """The prompt groups of a table, of the responses that count; [G] each but `members`."""

    members: Integers
    """Rows, group by group."""
    offsets: Integers
    """[G+1] of the groups in `members`."""
    mean: Floats
    """Of the rewards."""
    equal: Mask
    """Several responses with equal rewards."""
    passing: Mask
    """Those of equal rewards pass."""
    cell: Integers
    """The cell of a group whose rows are of several is the first: in step order, then by the name
    of the domain."""

    @property
    def first(self) -> Integers:
        """The first row of each group."""
        return self.members[self.offsets[:-1]]

    @property
    def size(self) -> Integers:
        """The responses of each group."""
        return np.diff(self.offsets)


def prompt_groups(
    responses: Responses, rewards: Floats, rows: Mask, pass_threshold: float
) -> PromptGroups:
    """Return the prompt groups of a table with a row for each response or rollout.

    Args:
        responses: the table.
        rewards: [N] raw rewards.
        rows: [N] the rows that count.
        pass_threshold: a response passes with at least this reward.
    """
    moments, constant = group_statistics(responses, rewards, rows=rows)
    members, offsets = members_of(responses["group"], rows)
    first, cell = members[offsets[:-1]], np.zeros(len(offsets) - 1, np.int64)
    if len(responses.cells.pairs) > 1:
        order = _in_order(responses.cells)
        rank = np.argsort(order)[responses["cell"][members]].astype(np.float64)
        cell = order[segment_min(rank, offsets).astype(np.int64)]
    equal, passing = constant[first] & (np.diff(offsets) > 1), rewards[first] >= pass_threshold
    return PromptGroups(members, offsets, moments.mean[first], equal, passing, cell)


def members_of(codes: Integers, rows: Mask) -> tuple[Integers, Integers]:
    """Return the chosen rows, those of a code together, and the offsets of the codes."""
    chosen = np.flatnonzero(rows)
    members = chosen[np.argsort(codes[chosen], kind="stable")]
    counts = np.unique(codes[members], return_counts=True)[1]
    return members, offsets_of(counts)


def group_signal(responses: Responses, groups: PromptGroups) -> dict[Cell, GroupSignal]:
    """Count the groups of a table by step and domain."""
    equal, signal = groups.equal, np.zeros_like(groups.equal)
    if "credit" in responses:
        credited = abs(responses["credit"].astype(np.float32)) >= SMALLEST
        credited &= responses["kept"] & (responses["tokens"] > 0)
        signal = count_true(credited[groups.members], groups.offsets) > 0
    cells = responses.cells
    flags = np.stack([np.ones_like(equal), signal, equal, equal & groups.passing], axis=1)
    counts = np.zeros((len(cells.pairs), flags.shape[1]), np.int64)
    np.add.at(counts, groups.cell, flags)
    present = np.flatnonzero(counts[:, 0]).tolist()
    names = cells.names(present)
    numbers = counts[present].tolist()
    return {(s, d): GroupSignal(*n) for (s, d), n in zip(names, numbers, strict=True)}


def equal_components(responses: Responses, recipe: Recipe, rows: Mask) -> Counter[str]:
    """Count the groups of several scored responses in which a reward component has one value.

    Args:
        responses: with a row for each response or rollout.
        recipe: names the components.
        rows: [N] the rows that count.
    """
    counts = Counter[str]()
    for name in recipe.reward_components or ():
        values = responses[f"component:{name}"]
        scored = rows & np.isfinite(values)
        counts[name] = int(prompt_groups(responses, values, scored, 0.0).equal.sum())
    return counts


def _in_order(cells: SummaryCells) -> NDArray[np.int64]:
    """Return the cells in step order, and by the name of the domain."""
    by_name = sorted(range(len(cells.domains)), key=lambda place: str(cells.domains[place]))
    rank = {place: number for number, place in enumerate(by_name)}
    pairs = [(step, rank[domain], cell) for cell, (step, domain) in enumerate(cells.pairs)]
    return np.array([cell for _, _, cell in sorted(pairs)], np.int64)
