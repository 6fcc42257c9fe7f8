"""The measures of an input: each number that `inspect` prints, declared once, with its population.

A new number is one `Measured`; of responses or groups, its column is in `populations_of`, too. Sums
of its population by step and domain are exact, so they do not depend on chunks, files or the order
of rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.segments import segment_counts, segment_sums
from rlpost.kernels.divergence import effective_sample_size
from rlpost.kernels.values import huber, value_loss
from rlpost.pipeline.measures import Kind, Numbers
from rlpost.pipeline.totals import ExactTotals, Json, Label, Sets, sliced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.totals import Totals


POPULATIONS = {
    "all": "{row}s",
    "counted": "{row}s that nothing leaves out, with a finite reward or without",
    "units": "{unit}s that nothing leaves out, with a finite reward or without",
    "scored": "{unit}s that count",
    "tried": "{unit}s that nothing leaves out, or a failure alone",
    "groups": "prompt groups",
    "several": "prompt groups of several {unit}s",
    "column": "policy tokens of all {row}s",
    "compared": "policy tokens with both log-probs, of {row}s that nothing leaves out",
    "policy": "policy tokens with finite entropies, of {row}s that nothing leaves out",
    "critic": "policy tokens with finite values and rewards, of {row}s that nothing leaves out",
    "trained": "policy tokens of kept {row}s",
    "trained rows": "kept {row}s",
}
"""What a measure counts, in words; those of `pipeline.measures` for the same population alone."""
TOKENS_OF_COLUMN = "column "
"""What the population of a column of tokens begins with."""


@dataclass(frozen=True)
class PolicyTokens:
    """Policy tokens of some responses of a chunk, with finite numbers."""

    rows: Integers
    """[n] places of the responses in the chunk, ascending."""
    offsets: Integers
    """[n + 1]"""
    columns: Mapping[str, NDArray[Any]]
    """[T] each."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def chosen(self, keep: Mask) -> PolicyTokens:
        """Return the tokens of some responses, [n] bool."""
        if keep.all():
            return self
        lengths = np.diff(self.offsets)
        inside, offsets = np.repeat(keep, lengths), np.append(0, lengths[keep].cumsum())
        columns = {name: values[inside] for name, values in self.columns.items()}
        return PolicyTokens(self.rows[keep], offsets, columns)


class Measured(NamedTuple):
    """A number of each response, group or token of a population."""

    name: str
    """If it ends with a colon, there is one for each component or reason."""
    of: str
    """A key of POPULATIONS; of tokens of a column, `column ROLE`."""
    about: str
    """One sentence."""
    compute: Any = None
    """Returns numbers of `PolicyTokens`, [T], or a value of `Totals`; None: a column of rows."""
    kind: Kind = "numbers"
    """Numbers have a spread; a share is how many of the population are so; a mean has no spread."""
    needs: tuple[str, ...] = ()
    """Columns of the population without which there is no such number."""
    placed: bool = False
    """Whether it has means by position in the response, too."""


class LossDefault(NamedTuple):
    """A value loss of released frameworks, with their default."""

    frameworks: str
    clip: float
    delta: float = math.inf


LOSSES = (
    LossDefault("verl 0.9.1, areal 1.0.4", 0.5),
    LossDefault("areal 1.0.4, huber", 0.5, 10.0),
    LossDefault("xtuner", 0.2),
)


def _plain(loss: LossDefault) -> Callable[[PolicyTokens], Floats]:
    return lambda t: huber(t["new"] - t["return"] if "new" in t else t["error"], loss.delta)


def _clipped(loss: LossDefault, part: str) -> Callable[[PolicyTokens], Any]:
    return lambda t: getattr(
        value_loss(t["new"], t["value"], t["return"], clip=loss.clip, delta=loss.delta), part
    )


def _ess(totals: Totals) -> float | None:
    """Return (Σw)² / (nΣw²) of w = exp(d): Σ(w - 1) is Σk3 - Σk1, and Σ(w² - 1) is Σchi2."""
    number = totals.count("count")
    k1, k3, chi2 = (totals.total(f"engine_{x}.total") for x in ("k1", "k3", "chi2"))
    return effective_sample_size(number, number + k3 - k1, number + chi2)


def _explained(totals: Totals) -> float | None:
    """Return 1 - Var(R - V) / Var(R); None if returns do not vary."""
    names, count = ("value_error", "reward_to_go"), totals.count("count")
    errors, returns = (totals.deviations(name, count) for name in names)
    return 1 - errors / returns if returns > 0 else None


TOKEN_MEASURES = (
    Measured("engine_gap", "compared", "|old - infer|, nats.", lambda t: t["size"], placed=True),
    Measured("engine_k1", "compared", "KL(engine ‖ trainer), k1 = -d: d = old - infer, clamped.",
            lambda t: -t["d"], "mean"),
    Measured("engine_k3", "compared", "KL(engine ‖ trainer), k3 = exp(d) - 1 - d.",
            lambda t: t["excess"] - t["d"], "mean", placed=True),
    Measured("engine_chi2", "compared", "χ²(trainer ‖ engine), exp(2d) - 1.",
            lambda t: t["excess"] * (t["excess"] + 2.0), "mean"),
    Measured("engine_ess", "compared", "Effective sample size of the weights exp(d), a share.",
            _ess, "value"),
    Measured("confident_disagreement", "compared",
            "Tokens over 0.5 for the engine, and 7 times less likely for the trainer.",
            lambda t: t["sure"], "share"),
    Measured("identical_log_probs", "compared", "Tokens with one log-prob.",
            lambda t: t["size"] == 0, "share"),
    Measured("engine_clamped", "compared", "Tokens whose |d| is beyond 40, which is clamped.",
            lambda t: t["clamped"], "share"),
    Measured("entropy", "policy", "Entropy of a token, nats; or -log p of the sampled one.",
            lambda t: t["entropy"], placed=True),
    Measured("value", "critic", "Value of the critic.", lambda t: t["value"], placed=True),
    Measured("reward_to_go", "critic", "Sum of the rewards from a token to the end of its row.",
            lambda t: t["return"], placed=True),
    Measured("value_error", "critic", "Reward to go minus the value.",
            lambda t: t["error"]),
    Measured("squared_value_error", "critic", "Its square.", lambda t: t["error"] ** 2, "mean",
            placed=True),
    Measured("critic_explained", "critic", "1 - Var(reward to go - value) / Var(reward to go).",
            _explained, "value"),
    *(Measured(f"value_loss:{x.frameworks}", "critic", "Value loss without a clip.", _plain(x),
              "mean") for x in LOSSES),
    *(Measured(f"clipped_value_loss:{x.frameworks}", "critic", "Value loss.", _clipped(x, "loss"),
              "mean", ("new",)) for x in LOSSES),
    *(Measured(f"value_clipped:{x.frameworks}", "critic", "Tokens whose value is clipped.",
              _clipped(x, "clipped"), "share", ("new",)) for x in LOSSES),
    Measured("advantage", "trained", "Advantage that the file has.", lambda t: t["advantage"]),
    Measured("advantage_positive", "trained", "Advantages above 0.", lambda t: t["advantage"] > 0,
            "share"),
    Measured("advantage_negative", "trained", "Advantages below 0.", lambda t: t["advantage"] < 0,
            "share"),
    Measured("advantage_zero", "trained", "Advantages of exactly 0, which train nothing.",
            lambda t: t["advantage"] == 0, "share"),
)  # fmt: skip


def words_of(population: str) -> str:
    """Return a population in words."""
    return POPULATIONS.get(population, POPULATIONS["column"])


def of_column(role: str) -> Measured:
    """Return the measure of a column of tokens."""
    return Measured(role, f"{TOKENS_OF_COLUMN}{role}", "", lambda t: t["values"])


def entry(measure: Measured, totals: Totals) -> Json:
    """Return the numbers of a measure of a set of responses."""
    name, kind, count = measure.name, measure.kind, totals.count("count")
    if kind == "value":
        return {"count": count, "value": measure.compute(totals) if count else None}
    if kind == "numbers":
        return totals.numbers(name, count)
    return totals.yes(name, count) if kind == "share" else totals.average(f"{name}.total", count)


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
        self.steps: dict[Any, int] = {}
        """The code of each step so far."""
        self._pairs: dict[Pair, int] = {}
        self._by_cell: dict[str, ExactTotals] = defaultdict(ExactTotals)
        self._by_position: dict[str, ExactTotals] = defaultdict(ExactTotals)
        self._measures: dict[str, list[Measured]] = {}

    def keys(self, steps: Any | None, domains: Any | None, count: int) -> tuple[Integers, Integers]:
        """Return the number of each row's step and domain, and the code of its step, [n] each.

        Args:
            steps: [n] a series of polars; None without the column.
            domains: likewise.
            count: n.
        """
        labels = [[None] * count if x is None else x.to_list() for x in (steps, domains)]
        numbers, codes = self._pairs, self.steps
        keys = [numbers.setdefault(pair, len(numbers)) for pair in zip(*labels, strict=True)]
        step = [codes.setdefault(label, len(codes)) for label in labels[0]]
        return np.array(keys, np.int64), np.array(step, np.int64)

    def add(self, of: str, tokens: PolicyTokens, keys: Integers, *, placed: bool = False) -> None:
        """Add tokens of a chunk.

        Args:
            of: their population.
            tokens: of some responses.
            keys: [N] the cell of each row of the chunk.
            placed: whether to add measures by position, too.
        """
        tokens = tokens.chosen(np.diff(tokens.offsets) > 0)
        if not len(tokens.rows):
            return
        role = of.removeprefix(TOKENS_OF_COLUMN)
        kind = of.removesuffix(" rows")
        declared = [of_column(role)] if role != of else [x for x in TOKEN_MEASURES if x.of == kind]
        measures = [x for x in declared if all(name in tokens for name in x.needs)]
        self._measures[of] = measures
        offsets = tokens.offsets
        numbers = Numbers({"count": np.diff(offsets)})
        places = places_of(offsets) if placed else None
        positions: Json = {} if places is None else {"count": np.diff(places[1])}
        for measure in measures:
            if measure.kind == "value":
                continue
            values, total = measure.compute(tokens), f"{measure.name}.total"
            if measure.kind == "share":
                numbers.sums[measure.name] = segment_counts(values, offsets)
            elif measure.kind == "mean":
                numbers.sums[total] = segment_sums(values, offsets)
            else:
                numbers.add_tokens(measure.name, values, None, offsets)
            if places is not None and measure.placed:
                ends = np.append(segment_sums(values, places[1]), values[offsets[1:] - 1])
                positions[total] = ends
        self._by_cell[of] += ExactTotals.of(keys[tokens.rows], numbers.sums, numbers.spans)
        if places is not None:
            last = np.ones(len(tokens.rows), np.int64)
            positions["count"] = np.append(positions["count"], last)
            buckets = np.append(places[0], LAST * last)
            self._by_position[of] += ExactTotals.of(buckets, positions, {})

    def facts(self, labels: Labels) -> dict[str, Json]:
        """Return the measures of all populations that have tokens."""
        table: dict[str, Json] = {}
        for of, totals in self._by_cell.items():
            slices = slices_of(totals, self._pairs, labels)
            table |= {x.name: sliced(of, slices, partial(entry, x)) for x in self._measures[of]}
        return table

    def by_position(self, of: str) -> Json | None:
        """Return means by position; the last row is of the last token of each response."""
        totals = self._by_position.get(of)
        if totals is None:
            return None
        places = [key for key in totals.keys if key != LAST]
        each = totals.over_each([*([key] for key in places), [LAST]])
        names = [x.name for x in self._measures[of] if x.placed]
        counts = [x.count("count") for x in each]
        means = {
            name: [x.mean(f"{name}.total", n) for x, n in zip(each, counts, strict=True)]
            for name in names
        }
        label = [*(span_text(4**at // 4, 4**at) for at in places), "last"]
        return {"label": label, "count": counts, **means}


LAST = 63
"""The bucket of the last token of a response; no response has 4⁶² tokens."""


def places_of(offsets: Integers) -> tuple[Integers, Integers]:
    """Return the bucket of each part of responses, [n·k], and the offsets of the parts.

    Buckets are the positions 0, 1 to 3, 4 to 15, 16 to 63, ..., up to the longest response.
    """
    edges = [0, 1]
    while edges[-1] < np.diff(offsets).max():
        edges.append(edges[-1] * 4)
    starts = np.minimum(offsets[:-1, None] + np.array(edges[:-1]), offsets[1:, None])
    buckets = np.tile(np.arange(len(edges) - 1), len(offsets) - 1)
    return buckets, np.append(starts.reshape(-1), offsets[-1])


def span_text(first: int, end: int) -> str:
    """Return `4 to 15` for the positions 4 <= position < 16."""
    return f"{first:,}" if end == first + 1 else f"{first:,} to {end - 1:,}"


# ---- of the table of responses, and of groups ----


class CountedRows(NamedTuple):
    """The rows, responses, rollouts or groups, of which a population counts some."""

    cell: Integers
    """[n]"""
    counted: Mask
    """[n]"""
    columns: Mapping[str, NDArray[Any]]
    """[n] by measure; without those that the input lacks."""


COMPONENT, LEFT = "component:", "left_out:"
"""What names of measures begin with of which there is one for each component or reason."""
TABLE_MEASURES = (
    Measured(LEFT, "all", "Rows that no statistic counts, by reason.", kind="share"),
    Measured("counted", "all", "Rows that no mask, failure or later attempt leaves out.",
            kind="share"),
    Measured("policy_tokens", "counted", "Policy tokens."),
    Measured("tokens", "counted", "All tokens."),
    Measured("kl", "counted", "Mean of old - ref over policy tokens (k1), clamped to ±40."),
    Measured("reward", "scored", "Raw reward."),
    Measured("passed", "scored", "Raw rewards of at least --pass-threshold.", kind="share"),
    Measured("truncated", "units", "Responses that a limit cut off.", kind="share"),
    Measured("failed", "tried", "Responses that are no answers.", kind="share"),
    Measured("group_size", "groups", "Responses, or rollouts, of a prompt group."),
    Measured("single", "groups", "Groups of one.", kind="share"),
    Measured("pass_rate", "groups", "Share of a group that passes."),
    Measured("equal_rewards", "several", "Groups whose rewards are equal: no signal.",
            kind="share"),
    Measured("all_pass", "several", "Groups of equal rewards that pass.", kind="share"),
    Measured(COMPONENT, "scored", "A reward component."),
)  # fmt: skip


def table_facts(
    populations: Mapping[str, CountedRows], pairs: Sequence[Pair], labels: Labels
) -> dict[str, Json]:
    """Return the measures of responses and of groups.

    Args:
        populations: by name; without those that the input lacks.
        pairs: step and domain of each cell.
        labels: of the slices.
    """
    table: dict[str, Json] = {}
    for measure in (x for x in TABLE_MEASURES if x.of in populations):
        rows = populations[measure.of]
        for name in rows.columns:
            if (name[: name.find(":") + 1] or name) == measure.name:
                named = measure._replace(name=name)
                slices = slices_of(_totals(named, rows), pairs, labels)
                table[name] = sliced(measure.of, slices, partial(entry, named))
    return table


def _totals(measure: Measured, rows: CountedRows) -> ExactTotals:
    """Return the sums of a measure by cell."""
    values, totals = rows.columns[measure.name], ExactTotals()
    for begin in range(0, len(values), BLOCK):
        part = slice(begin, begin + BLOCK)
        keep = rows.counted[part] & np.isfinite(values[part])
        kept = values[part][keep]
        numbers = Numbers({"count": np.ones(len(kept))})
        if measure.kind == "share":
            numbers.sums[measure.name] = kept
        else:
            numbers.add_numbers(measure.name, kept.astype(np.float64), np.ones(len(kept), np.bool_))
        totals += ExactTotals.of(rows.cell[part][keep], numbers.sums, numbers.spans)
    return totals


BLOCK = 1 << 14
"""Rows whose sums fit the cache."""
