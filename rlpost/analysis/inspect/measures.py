"""The measures of an input: each number that `inspect` prints, declared once, with its population.

They are `Measure` of `pipeline.measures`, of what `inspect` counts. A new number of tokens is one
here; of responses or groups, its column is in `populations_of`, too. Sums of a population by step
and domain are exact, so they do not depend on chunks, files or the order of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.inspect.tokens import Block
from rlpost.kernels.divergence import effective_sample_size
from rlpost.kernels.segments import count_true, segment_sum
from rlpost.pipeline.measures import (
    LEFT,
    Measure,
    Numbers,
    Population,
    explained_variance,
    facts_of,
)
from rlpost.pipeline.totals import ExactTotals, Label, Sets, sliced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Integers, Mask
    from rlpost.pipeline.measures import Kind
    from rlpost.pipeline.totals import Json, Totals


WORDS = {
    "all": "{row}s",
    "counted": "{row}s that nothing leaves out, with a finite reward or without",
    "units": "{unit}s that nothing leaves out, with a finite reward or without",
    "scored": "{unit}s that count",
    "tried": "{unit}s that nothing leaves out, or a failure alone",
    "groups": "prompt groups",
    "several": "prompt groups of several {unit}s",
    "column": "policy tokens of all {row}s",
    "compared": "policy tokens with both log-probs, of {row}s that nothing leaves out",
    "drift": "policy tokens with finite old and reference log-probs, of {row}s that nothing leaves "
    "out",
    "policy": "policy tokens with finite entropies, of {row}s that nothing leaves out",
    "critic": "policy tokens with finite values and rewards, of {row}s that nothing leaves out",
    "trained": "policy tokens of kept {row}s",
    "trained rows": "kept {row}s",
}
"""What a measure counts, in words; those of `pipeline.measures` for the same population alone."""
POPULATIONS = {name: Population(words, f"{name}.count") for name, words in WORDS.items()}


def by_position(tokens: Block) -> tuple[Block, Block]:
    """Return the tokens by bucket of positions in place of responses, and the last ones.

    Buckets are the positions 0, 1 to 3, 4 to 15, 16 to 63, ..., up to the longest response.
    """
    edges, last = [0, 1], tokens.offsets[1:] - 1
    while edges[-1] < np.diff(tokens.offsets).max():
        edges.append(edges[-1] * 4)
    starts = np.minimum(tokens.offsets[:-1, None] + np.array(edges[:-1]), tokens.offsets[1:, None])
    buckets = np.tile(np.arange(len(edges) - 1), len(last))
    ends = {name: values[last] for name, values in tokens.values.items()}
    starts = np.append(starts.reshape(-1), tokens.offsets[-1])
    return (
        Block(starts, tokens.values, rows=buckets),
        Block(np.arange(len(last) + 1), ends, rows=np.full(len(last), LAST)),
    )


LAST = 63
"""The bucket of the last token of a response; no response has 4⁶² tokens."""


def bucket_text(bucket: int) -> str:
    """Return `4 to 15` for the positions 4 <= position < 16."""
    first, end = 4**bucket // 4, 4**bucket
    if bucket == LAST:
        return "last"
    return f"{first:,}" if end == first + 1 else f"{first:,} to {end - 1:,}"


def of_tokens(
    name: str, of: str, about: str, compute: Callable[[Block], Any], kind: Kind = "numbers"
) -> Measure:
    """Return the measure of a number, or of a flag, that is computed of each token."""
    return Measure(name, of, about, kind, partial(_add_tokens, name, compute, kind=kind))


def _add_tokens(
    name: str, compute: Callable[[Block], Any], numbers: Numbers, tokens: Block,
    *, kind: Kind,
) -> None:  # fmt: skip
    values, offsets = compute(tokens), tokens.offsets
    if kind == "numbers":
        numbers.add_tokens(name, values, None, offsets)
    else:
        sums = count_true if kind == "share" else segment_sum
        numbers.sums[name] = sums(values, offsets)


def _ess(totals: Totals, _: str) -> float | None:
    """Return (Σw)² / (nΣw²) of w = exp(d): Σ(w - 1) is Σk3 - Σk1, and Σ(w² - 1) is Σchi2."""
    number = totals.count("compared.count")
    k1, k3, chi2 = (totals.total(f"engine_{x}") for x in ("k1", "k3", "chi2"))
    return effective_sample_size(number, number + k3 - k1, number + chi2)


def _explained(totals: Totals, _: str) -> float | None:
    """Return 1 - Var(R - V) / Var(R)."""
    names, count = ("value_error", "reward_to_go"), totals.count("critic.count")
    errors, returns = (totals.deviations(name, count) for name in names)
    return explained_variance(errors, returns)


TOKEN_MEASURES = (
    of_tokens("engine_gap", "compared", "|old - infer|, nats.", lambda t: t["size"]),
    of_tokens("engine_k1", "compared", "KL(engine ‖ trainer), k1 = -d: d = old - infer, clamped.",
            lambda t: -t["d"], "mean"),
    of_tokens("engine_k3", "compared", "KL(engine ‖ trainer), k3 = exp(d) - 1 - d.",
            lambda t: t["excess"] - t["d"], "mean"),
    of_tokens("engine_chi2", "compared", "χ²(trainer ‖ engine), exp(2d) - 1.",
            lambda t: t["excess"] * (t["excess"] + 2.0), "mean"),
    Measure("engine_ess", "compared", "Effective sample size of the weights exp(d), a share.",
            "value", value=_ess, needs="engine_chi2"),
    of_tokens("confident_disagreement", "compared",
            "Tokens of at least 0.5 for the engine, over 7 times (2 nats) less for the trainer.",
            lambda t: t["sure"], "share"),
    of_tokens("identical_log_probs", "compared", "Tokens whose two log-probs are equal.",
            lambda t: t["size"] == 0, "share"),
    of_tokens("engine_clamped", "compared", "Tokens whose |d| is beyond 40, which is clamped.",
            lambda t: t["clamped"], "share"),
    of_tokens("ref_gap", "drift", "Log-prob of a token, old minus reference.", lambda t: t["gap"],
            "mean"),
    of_tokens("ref_gap_size", "drift", "Its size.", lambda t: t["size"], "mean"),
    of_tokens("entropy", "policy", "Entropy of a token, nats; or -log p of the sampled one.",
            lambda t: t["entropy"]),
    of_tokens("value", "critic", "Value of the critic.", lambda t: t["value"]),
    of_tokens("reward_to_go", "critic", "Sum of the rewards from a token to the end of its row.",
            lambda t: t["return"]),
    of_tokens("value_error", "critic", "Reward to go minus the value.", lambda t: t["error"]),
    of_tokens("squared_value_error", "critic", "Its square.", lambda t: t["error"] ** 2, "mean"),
    Measure("critic_explained", "critic", "1 - Var(reward to go - value) / Var(reward to go).",
            "value", value=_explained, needs="value_error.count"),
    of_tokens("advantage", "trained", "Advantage that the file has.", lambda t: t["advantage"]),
    of_tokens("advantage_positive", "trained", "Advantages above 0.", lambda t: t["advantage"] > 0,
            "share"),
    of_tokens("advantage_negative", "trained", "Advantages below 0.", lambda t: t["advantage"] < 0,
            "share"),
    of_tokens("advantage_zero", "trained", "Advantages of exactly 0, which train nothing.",
            lambda t: t["advantage"] == 0, "share"),
)  # fmt: skip
PLACED = (
    "engine_gap", "engine_k3", "entropy", "value", "reward_to_go", "squared_value_error",
)  # fmt: skip
"""Measures that have means by position in the response, too."""


def measures_of(population: str) -> list[Measure]:
    """Return the measures of a population of tokens, which may be `column ROLE`."""
    kind, _, role = population.partition(" ")
    if kind == "column":
        return [of_tokens(role, kind, "", lambda t: t["values"])]
    return [x._replace(of=population) for x in TOKEN_MEASURES if x.of == kind]


Labels = Mapping[str, Sequence[Label]]
"""Of `step` and of `domain`, in order; without those that the input lacks."""
Pair = tuple[Label | None, Label | None]


def slices_of(totals: ExactTotals, pairs: Iterable[Pair], labels: Labels) -> dict[str, Sets]:
    """Return the totals of the whole input, and by step and domain.

    Args:
        totals: by the number of a pair.
        pairs: step and domain by number; files may have the same label as a number and a text.
        labels: of the slices.
    """
    sets: dict[str, dict[str, list[int]]] = {x: {str(y): [] for y in labels[x]} for x in labels}
    for number, pair in enumerate(pairs):
        for by, label in zip(("step", "domain"), pair, strict=True):
            if by in sets and label is not None:
                sets[by][str(label)].append(number)
    slices = {"all": Sets(None, totals.over_each([totals.keys]))}
    return slices | {x: Sets(labels[x], totals.over_each([*sets[x].values()])) for x in sets}


class TokenSums:
    """Sums of the populations of tokens over the chunks of a pass, by cell and by position."""

    def __init__(self) -> None:
        self._pairs: dict[Pair, int] = {}
        self._by_cell: dict[str, ExactTotals] = defaultdict(ExactTotals)
        self._by_position: dict[str, ExactTotals] = defaultdict(ExactTotals)

    @property
    def pairs(self) -> int:
        """The pairs of a step and a domain so far."""
        return len(self._pairs)

    def keys(self, steps: Any | None, domains: Any | None, count: int) -> Integers:
        """Return the number of each row's step and domain, [n].

        Args:
            steps: [n] keys; None without the column.
            domains: likewise.
            count: n.
        """
        labels = [[None] * count if x is None else x.to_pylist() for x in (steps, domains)]
        numbers = self._pairs
        keys = [numbers.setdefault(pair, len(numbers)) for pair in zip(*labels, strict=True)]
        return np.array(keys, np.int64)

    def add(self, population: str, tokens: Block, keys: Integers, *, placed: bool = False) -> None:
        """Add tokens of a chunk.

        Args:
            population: of `measures_of`.
            tokens: of some responses.
            keys: [N] the cell of each row of the chunk.
            placed: whether to add measures by position, too.
        """
        tokens = tokens.of_rows(np.diff(tokens.offsets) > 0)
        if not len(tokens):
            return
        measures = measures_of(population)
        self._by_cell[population] += _token_totals(measures, tokens, keys[tokens.places])
        if placed:
            of_place = [x._replace(kind="mean") for x in measures if x.name in PLACED]
            for part in by_position(tokens):
                self._by_position[population] += _token_totals(of_place, part, part.places)

    def facts(self, labels: Labels, **words: str) -> dict[str, Json]:
        """Return the measures of all populations that have tokens; `words` as of `facts_of`."""
        table: dict[str, Json] = {}
        for population, totals in self._by_cell.items():
            measures = measures_of(population)
            slices = slices_of(totals, self._pairs, labels)
            table |= facts_of(measures, slices, POPULATIONS, **words)
            if places := self._by_position[population]:
                sets = Sets(
                    [bucket_text(x) for x in places.keys],
                    places.over_each([[x] for x in places.keys]),
                )
                for measure in (x._replace(kind="mean") for x in measures if x.name in PLACED):
                    of, size = table[measure.name]["of"], POPULATIONS[measure.of].size
                    means = partial(measure.entry, measure.name, size)
                    table[measure.name] |= sliced(of, {"position": sets}, means)
        return table


def _token_totals(measures: Sequence[Measure], tokens: Block, keys: Integers) -> ExactTotals:
    """Return the sums of measures of one population by key, [n]."""
    numbers = Numbers({POPULATIONS[measures[0].of].size: np.diff(tokens.offsets)})
    for measure in measures:
        if measure.add is not None:
            measure.add(numbers, tokens, kind=measure.kind)
    return ExactTotals.of(keys, numbers.sums, numbers.spans)


# ---- of the table of responses, and of groups ----


class CountedRows(NamedTuple):
    """The rows, responses, rollouts or groups, of which a population counts some."""

    cell: Integers
    """[n]"""
    counted: Mask
    """[n]"""
    columns: Mapping[str, NDArray[Any]]
    """[n] numbers or flags by measure; without those that the input lacks."""

    def totals(self, size: str) -> ExactTotals:
        """Return the sums of all columns by cell, and of what counts under the name `size`."""
        totals = ExactTotals()
        for begin in range(0, len(self.cell), BLOCK):
            part = slice(begin, begin + BLOCK)
            counted = self.counted[part]
            numbers = Numbers({size: counted})
            for name, column in self.columns.items():
                values = column[part]
                if values.dtype == np.bool_:
                    numbers.sums[name] = values & counted
                else:
                    known = counted & np.isfinite(values)
                    numbers.add_numbers(name, values.astype(np.float64), known)
            totals += ExactTotals.of(self.cell[part], numbers.sums, numbers.spans)
        return totals


BLOCK = 1 << 14
"""Rows whose sums fit the cache."""
TABLE_MEASURES = (
    Measure(LEFT, "all", "Rows that no statistic counts, by reason.", "share"),
    Measure("counted", "all", "Rows that no mask, failure or later attempt leaves out.", "share"),
    Measure("policy_tokens", "counted", "Policy tokens."),
    Measure("tokens", "counted", "All tokens."),
    Measure("kl", "counted", "Mean of old - ref over policy tokens (k1), clamped to ±40."),
    Measure("reward", "scored", "Raw reward."),
    Measure("passed", "scored", "Raw rewards of at least --pass-threshold.", "share"),
    Measure("truncated", "units", "Responses that a limit cut off.", "share"),
    Measure("failed", "tried", "Responses that are no answers.", "share"),
    Measure("group_size", "groups", "Responses, or rollouts, of a prompt group."),
    Measure("single", "groups", "Groups of one.", "share"),
    Measure("equal_rewards", "several", "Groups whose rewards are equal: no signal.", "share"),
    Measure("all_pass", "several", "Groups of equal rewards that pass.", "share"),
)


def table_facts(
    populations: Mapping[str, CountedRows], pairs: Sequence[Pair], labels: Labels, **words: str
) -> dict[str, Json]:
    """Return the measures of responses and of groups.

    Args:
        populations: by name; without those that the input lacks.
        pairs: step and domain of each cell.
        labels: of the slices.
        words: as of `facts_of`.
    """
    table: dict[str, Json] = {}
    for name, rows in populations.items():
        measures = [x for x in TABLE_MEASURES if x.of == name]
        slices = slices_of(rows.totals(POPULATIONS[name].size), pairs, labels)
        table |= facts_of(measures, slices, POPULATIONS, **words)
    return table
