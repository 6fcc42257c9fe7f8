"""The measures of a run: each number of a summary, declared once, with its population.

A new number is a `Measure` in `MEASURES`; those of losses are in `pipeline.loss_measures`. Each
batch adds sums of its responses to the totals of their cells, exactly, so that a summary does not
depend on chunks, files and machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, is_tensor, namespace
from rlpost.kernels.contributions import PairSums, advantage_shares, correlation
from rlpost.kernels.corrections import reduce_responses
from rlpost.kernels.divergence import (
    chi_square,
    confident_disagreement,
    effective_sample_size,
    kl_terms,
)
from rlpost.kernels.histogram import tally
from rlpost.kernels.moments import exact_product, reaches, square_sums, token_moments
from rlpost.kernels.segments import count_true, segment_max, segment_min, segment_sum, spread
from rlpost.pipeline.data import LEFT_OUT, TRUNCATED
from rlpost.pipeline.recorded import compared
from rlpost.pipeline.stages.off_policy import corrected, passed, rejected
from rlpost.pipeline.stages.tokens import (
    LOST,
    inside,
    kept_mask,
    lost_rewards,
    mean_kl,
    partial_mask,
)
from rlpost.pipeline.stages.top_entropy import CHOSEN
from rlpost.pipeline.totals import SPREADS, Counted, ExactTotals, sliced
from rlpost.recipe.roles import LOG_PROB_ROUNDING, LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import Sets, Totals
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
COUNTED = frozenset({"token_reward_clipped", "accepted", CHOSEN})
"""Token columns that measures read besides those that are written, and that `observed` does not."""
MOST_NATS = 300.0  # float64 can add up exp(2·300)


@dataclass(frozen=True)
class Numbers:
    """Numbers of each response of a batch, which are added to `ExactTotals`."""

    sums: dict[str, Array] = field(default_factory=dict)
    spans: dict[str, tuple[Array, ...]] = field(default_factory=dict)
    """The lowest and the highest of each."""
    tallies: list[Array] = field(default_factory=list)
    """Of all responses together, from `kernels.histogram.tally`."""
    counts: dict[str, Array] = field(default_factory=dict)
    """Of all responses of a key together, [k, ...] each; see `ExactTotals.of`."""

    @classmethod
    def joined(cls, parts: Sequence[Numbers]) -> Numbers:
        """Return the numbers of consecutive parts of a batch, which have the same keys."""
        if len(parts) == 1:  # one array under several names is copied to the host once
            return parts[0]
        first, concat, stack = parts[0], np.concatenate, np.stack
        return cls(
            {name: concat([part.sums[name] for part in parts]) for name in first.sums},
            {
                name: tuple(concat([part.spans[name][end] for part in parts]) for end in (0, 1))
                for name in first.spans
            },
            [stack(tallies).sum(0) for tallies in zip(*(x.tallies for x in parts), strict=True)],
            {name: stack([part.counts[name] for part in parts]).sum(0) for name in first.counts},
        )

    def counted(self, keys: Array) -> Counted:
        """Return what becomes the totals by key, [n] on the CPU."""
        arrays = {f"sum {name}": value for name, value in self.sums.items()}
        for name, (low, high) in self.spans.items():
            arrays |= {f"low {name}": low, f"high {name}": high}
        arrays |= {f"tally {i}": numbers for i, numbers in enumerate(self.tallies)}
        arrays |= {f"count {name}": numbers for name, numbers in self.counts.items()}

        def totals(fetched: Mapping[str, Array]) -> ExactTotals:
            sums = {name: fetched[f"sum {name}"] for name in self.sums}
            spans = {n: (fetched[f"low {n}"], fetched[f"high {n}"]) for n in self.spans}
            counts = {name: fetched[f"count {name}"] for name in self.counts}
            tallies = tuple(fetched[f"tally {i}"] for i in range(len(self.tallies)))
            return replace(ExactTotals.of(keys, sums, spans, counts), tallies=tallies)

        return Counted(arrays, totals)

    def add_numbers(self, name: str, values: Array, counted: Array) -> None:
        """Add one number for each response that counts."""
        xp = namespace(values)
        inside = xp.where(counted, values, 0.0)
        squares = exact_product(inside, inside)
        self.add_spread(name, xp.astype(counted, xp.int64), inside, squares, (values, values))

    def add_pair(self, name: str, x: Array, y: Array, counted: Array) -> None:
        """Add the sums of two numbers of each response that counts, which `pair_sums` returns."""
        x, y = (namespace(part).where(counted, part, 0.0) for part in (x, y))
        sums = {"number": counted, "x": x, "y": y}
        for part, factors in {"xx": (x, x), "yy": (y, y), "xy": (x, y)}.items():
            sums[part], sums[f"{part}.rest"] = exact_product(*factors)
        self.sums.update({f"{name}.{part}": values for part, values in sums.items()})

    def add_spread(
        self, name: str, count: Array, total: Array, squares: tuple[Array, Array],
        span: tuple[Array, Array],
    ) -> None:  # fmt: skip
        """Add sums of several numbers for each response, with their lowest and highest.

        Args:
            name: of the measure.
            count: [n] how many numbers each response has.
            total: [n] their sums.
            squares: [n] the sums of their squares, each as a large and a small part.
            span: [n] the lowest and the highest.
        """
        sums = (count, total, *squares)
        self.sums.update({f"{name}.{part}": x for part, x in zip(SPREADS, sums, strict=True)})
        where = namespace(count).where
        low, high = span
        self.spans[name] = (where(count > 0, low, np.inf), where(count > 0, high, -np.inf))

    def add_tokens(self, name: str, values: Array, mask: Array | None, offsets: Array) -> None:
        """Add the tokens of each response if the mask is true; without a mask all tokens."""
        count, total, deviations = token_moments(values, mask, offsets)
        xp = namespace(values)
        lows = values if mask is None else xp.where(mask, values, np.inf)
        highs = values if mask is None else xp.where(mask, values, -np.inf)
        span = segment_min(lows, offsets), segment_max(highs, offsets)
        squares = square_sums(count, total, deviations)
        self.add_spread(name, xp.astype(count, xp.int64), total, squares, span)

    def add_constant(self, name: str, count: Array, value: Array) -> None:
        """Add tokens that have one value in each response, [n] each."""
        total = count * value
        self.add_spread(name, count, total, square_sums(count, total, 0.0), (value, value))


Kind = Literal["numbers", "span", "share", "mean", "value"]
COMPONENT, CORRELATION, WITH_REWARD = "component:", "correlation:", "reward_correlation:"
SHARE, EQUAL = "advantage_share:", "equal_component:"
LEFT, DROPPED, NEWLY, REJECTED = "left_out:", "dropped:", "newly_dropped:", "rejected:"
"""What names of measures begin with of which there is one for each component, mask or filter."""
SIGNS = {"positive": "above 0", "negative": "below 0", "zero": "0, or rounding"}


class Population(NamedTuple):
    """What a measure counts."""

    words: str
    """A rollout counts once where `{unit}` is one."""
    size: str
    """The sum that counts it."""


POPULATIONS = {
    "all": Population("responses", "rows"),
    "counted": Population("responses that count", "valid"),
    "units": Population("{unit}s that count", "voting"),
    "kept": Population("kept responses", "kept"),
    "ends": Population("kept {unit}s with a policy token", "ends"),
    "tokens": Population("{tokens}", "advantage.count"),
    "recorded": Population("recorded advantages of kept tokens", "recorded_compared"),
    "recorded rows": Population("responses of these", "recorded_difference.count"),
    "trained": Population("kept responses with a policy token", "trained"),
    **{
        f"{x} responses": Population(f"responses whose mean advantage is {text}", f"{x}_responses")
        for x, text in SIGNS.items()
    },
    "drift": Population("policy tokens of responses that count", "drift.tokens"),
    "compared": Population("policy tokens of responses that masks keep", "is.tokens"),
    "compared rows": Population("responses that masks keep, with a policy token", "is.responses"),
    "groups": Population("prompt groups", "groups"),
    "several": Population("prompt groups of several {unit}s", "several"),
    "loss": Population("policy tokens in the loss", "tokens"),
    "loss_positive": Population("policy tokens in the loss, A > 0", "tokens_positive"),
    "loss_negative": Population("policy tokens in the loss, A < 0", "tokens_negative"),
    "loss rows": Population("responses with a token in the loss", "valid"),
}


class Measure(NamedTuple):
    """A number of each response or token, or of a set of them, over a population."""

    name: str
    """If it ends with a colon, there is one for each component, mask or filter."""
    of: str
    """A key of POPULATIONS, or of those of an analysis."""
    about: str
    """One sentence."""
    kind: Kind = "numbers"
    """Several numbers have a spread, or a span alone; a share is how many of the population are so;
    a mean has no spread; a value is of the whole set."""
    add: Callable[..., None] | None = None
    """Adds the numbers of a batch to which all stages were applied, if the recipe has it, and those
    of the measures that follow without one: see `count_advantages`, and `TokenBlock` of losses."""
    value: Callable[[Totals, str], float | None] | None = None
    """Returns a value from the totals and the rest of its name."""
    needs: str = ""
    """Of a value, a sum of what it is made of; of several names, what the sums have after them."""

    def names(self, sums: Collection[str]) -> list[str]:
        """Return its names in totals with some sums; none if no batch added it."""
        suffix = {"numbers": ".count", "span": ".total"}.get(self.kind, self.needs)
        if not self.name.endswith(":"):
            needed = suffix if self.kind == "value" else f"{self.name}{suffix}"
            return [self.name] if needed in sums else []
        names = (x for x in sums if x.startswith(self.name) and x.endswith(suffix))
        return [name.removesuffix(suffix) for name in names]

    def entry(self, name: str, size: str, totals: Totals) -> Json | None:
        """Return the numbers of a set of responses; None of a set without any.

        Args:
            name: that of one component, mask or filter.
            size: the sum that counts the population.
            totals: of the set.
        """
        if not totals.sums:
            return None
        count = totals.count(size)
        if self.value is not None:
            return {"count": count, "value": self.value(totals, name.partition(":")[2])}
        if self.kind == "numbers":
            return totals.numbers(name, totals.count(f"{name}.count"))
        if self.kind == "span":
            return totals.span(name, count)
        return totals.yes(name, count) if self.kind == "share" else totals.average(name, count)


def whole(facts: Mapping[str, Json], name: str) -> Json:
    """Return the numbers of a measure of the whole input; none if the recipe has it not."""
    empty = dict.fromkeys(("mean", "std", "min", "max", "value"))
    entry: Json = facts.get(name, {"all": {"count": 0, "total": 0, **empty}})["all"]
    return entry


def facts_of(
    measures: Sequence[Measure],
    slices: Mapping[str, Sets],
    populations: Mapping[str, Population] = POPULATIONS,
    **words: str,
) -> dict[str, Json]:
    """Return the entry of each measure: its population, and its numbers by each key.

    Args:
        measures: in order.
        slices: by the name of the key; `all` is the whole input.
        populations: those of the measures.
        words: what populations say in place of names in braces.
    """
    facts: dict[str, Json] = {}
    for measure, name in _named((*measures,), (*slices["all"].totals[0].sums,)):
        words_of, size = populations[measure.of]
        entry = partial(measure.entry, name, size)
        facts[name] = sliced(words_of.format(**words), slices, entry)
    return facts


@lru_cache(8)
def _named(measures: tuple[Measure, ...], sums: tuple[str, ...]) -> list[tuple[Measure, str]]:
    """Return the measures in totals with some sums, each by its name: the same in all files."""
    return [(measure, name) for measure in measures for name in measure.names(sums)]


def advantage_facts(slices: Mapping[str, Sets], resolved: ResolvedRecipe) -> dict[str, Json]:
    """Return the facts of a run that computes advantages, as `facts_of`."""
    unit = "rollout" if resolved.unit == "rollout" else "response"
    if resolved.lengths != "unknown":
        return facts_of(MEASURES, slices, unit=unit, tokens="policy tokens of kept responses")
    known = [x for x in MEASURES if not x.name.startswith(("length_", "policy_tokens"))]
    return facts_of(known, slices, unit=unit, tokens="kept responses")


def count_advantages(batch: Batch, *, resolved: ResolvedRecipe) -> Counted:
    """Count what a batch adds to the totals by `key`; all stages were applied to it."""
    batch = batch.with_responses(observed(batch, resolved))
    numbers = Numbers()
    for measure in MEASURES:
        if measure.add is not None:
            measure.add(numbers, batch, resolved)
    _add_checks(numbers, batch, resolved)
    return numbers.counted(batch.table["key"])


def observed(batch: Batch, resolved: ResolvedRecipe) -> dict[str, Array]:
    """Return the numbers of responses that measures need of columns that no later stage changes.

    A pass that has the columns of the file adds them to the table, so that the last pass need not
    read these columns again.
    """
    numbers = {"kl_mean": mean_kl(batch)} if "kl" in batch else {}
    numbers |= lost_rewards(batch, recipe=resolved.recipe, estimator=resolved.estimator)
    if "old_log_probs" in batch:
        numbers |= _edges(batch)
        numbers |= _drift(batch) if "ref_log_probs" in batch else {}
    critic = "values" in resolved.estimator.columns
    if critic and {"values", "returns"} <= {*batch.tokens}:
        numbers |= _critic(batch)
    for role in LOG_PROBS:
        if role in batch:
            numbers |= _positive(batch, role)
    return numbers


def _voting(batch: Batch, resolved: ResolvedRecipe) -> Array:
    """Return the rows that count in statistics of rewards: one of each rollout if these count."""
    rows = batch.table
    return rows["valid"] & rows["last"] if resolved.unit == "rollout" else rows["valid"]


def _add_responses(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add the populations of responses, and numbers of tokens."""
    rows = batch.table
    numbers.sums["rows"] = np.ones_like(rows["reward"])
    numbers.sums.update({name: rows[name] for name in ("valid", "kept", "tokens", "length")})
    numbers.sums["voting"] = _voting(batch, resolved)
    numbers.spans["length"] = rows["length"], rows["length"]
    if resolved.unit == "rollout":
        numbers.sums["rollouts"] = rows["last"]
    numbers.add_numbers("policy_tokens", rows["tokens"], rows["valid"])


def _add_masks(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add what is left out, what each mask drops alone, and what no mask before it drops."""
    rows = batch.table
    reasons = {
        "sample_mask": resolved.input_mask is not None,
        "superseded": resolved.attempts and resolved.recipe.attempts == "newest",
        "failure": resolved.failures and resolved.recipe.failures in ("drop", "mask"),
    }
    for code, name in enumerate(LEFT_OUT, 1):
        if reasons[name] and f"mask:{name}" not in rows:
            numbers.sums[f"{LEFT}{name}"] = rows["left_out"] == code
    numbers.sums[f"{LEFT}nonfinite"] = ~rows["valid"] & (rows["left_out"] == 0)
    left = rows["valid"]
    for column, flag in rows.items():
        if column.startswith("mask:"):
            name = column.removeprefix("mask:")
            numbers.sums[f"{DROPPED}{name}"] = rows["valid"] & ~flag
            numbers.sums[f"{NEWLY}{name}"] = left & ~flag
            left = left & flag


def _add_rewards(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add raw rewards, those of stages after them, and what was clipped."""
    rows, valid = batch.table, batch.table["valid"]
    if resolved.rewarded:
        voting = _voting(batch, resolved)
        numbers.add_numbers("reward", rows["reward"], voting)
        numbers.sums["passed"] = reaches(rows["reward"], resolved.recipe.pass_threshold) & voting
    if resolved.process is not None:
        numbers.add_numbers("process_reward", rows["process"], valid)
    if resolved.has_rewards:
        numbers.add_numbers("response_level_reward", rows["rewards"], valid)
    if resolved.recipe.reward_clip is None:
        return
    none = np.zeros_like(rows["kept"])
    numbers.sums["reward_clipped"] = rows.get("reward_clipped", none) & rows["kept"]
    numbers.sums["token_reward_clipped"] = none
    if "token_reward_clipped" in batch:
        clipped, mask = batch["token_reward_clipped"], partial_mask(batch)
        clipped = clipped if mask is None else clipped & mask
        numbers.sums["token_reward_clipped"] = count_true(clipped, batch.offsets)


def _add_credit(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add advantages and returns of the policy tokens that are kept, and their signs."""
    xp, least = batch.xp, resolved.least_advantage
    if resolved.constant:
        rows, count = _rows_of_credit(batch), _kept_tokens(batch)
        for name, column in (("advantage", "credit"), ("return", "credit_returns")):
            numbers.add_constant(name, count, rows[column])
        sign_of, xp = rows["credit"], namespace(count)
        credit = xp.where(abs(sign_of) >= least, sign_of, 0.0)
        numbers.tallies.append(tally(credit, xp.astype(count, xp.int64)))
    else:
        mask = partial_mask(batch)
        numbers.add_tokens("advantage", batch["advantages"], mask, batch.offsets)
        above = inside(batch["advantages"], mask).clip(0)
        numbers.sums["advantage_above"] = segment_sum(above, batch.offsets)
        if batch["returns"] is batch["advantages"]:
            same = {f"return.{part}": numbers.sums[f"advantage.{part}"] for part in SPREADS}
            numbers.sums.update(same)
            numbers.spans["return"] = numbers.spans["advantage"]
        else:
            numbers.add_tokens("return", batch["returns"], mask, batch.offsets)
        kept = xp.astype(inside(batch["advantages"], mask), xp.float32)
        kept = xp.where(abs(kept) >= least, kept, 0.0) if resolved.whiten else kept
        numbers.tallies.append(tally(kept))
        sign_of = numbers.sums["advantage.total"]
    tokens, signed = numbers.sums["advantage.count"], xp.astype(sign_of, xp.float32)
    numbers.sums["trained"] = trained = tokens > 0
    above, below = signed >= least, signed <= -least
    for sign, hit in zip(SIGNS, (above, below, ~(above | below)), strict=True):
        numbers.sums[f"{sign}_responses"] = hit & trained
        numbers.sums[f"length_{sign}"] = xp.where(hit, tokens, 0)
    counts = [numbers.sums[f"length_{sign}"] for sign in SIGNS]
    if not resolved.constant:
        counts = [count_true(x, batch.offsets) for x in (kept >= least, kept <= -least)]
        counts.append(tokens - sum(counts))
    numbers.sums.update(zip((f"advantage_{sign}" for sign in SIGNS), counts, strict=True))


def _mass(totals: Totals, _: str) -> float | None:
    """Return the share of the sizes of advantages that those above 0 have."""
    above, total = totals.total("advantage_above"), totals.total("advantage.total")
    return float(above / (2 * above - total)) if 2 * above != total else None


def _add_recorded(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    if not resolved.compares_recorded:
        return
    counts = compared(batch, resolved)
    difference = counts.pop("difference")
    numbers.add_numbers("recorded_difference", difference, counts["compared"] > 0)
    numbers.sums.update({f"recorded_{name}": count for name, count in counts.items()})


DRIFT = ("ref_gap", "ref_gap_size")


def _drift(batch: Batch) -> dict[str, Array]:
    """Return sums over policy tokens of old minus reference log-probs, and of their sizes."""
    gap = batch.only(batch["old_log_probs"] - batch["ref_log_probs"])
    return {
        name: segment_sum(x, batch.offsets) for name, x in zip(DRIFT, (gap, abs(gap)), strict=True)
    }


def _add_drift(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    rows = batch.responses
    if "ref_gap" in rows:
        where = batch.xp.where
        numbers.sums.update({name: where(rows["valid"], rows[name], 0.0) for name in DRIFT})
        numbers.sums["drift.tokens"] = where(rows["valid"], rows["tokens"], 0)


CRITIC = tuple(f"value_error.{part}" for part in SPREADS)
"""Sums over kept policy tokens of what the values of the critic lack of the returns."""


def _critic(batch: Batch) -> dict[str, Array]:
    numbers = Numbers()
    errors = batch["returns"] - batch["values"]
    numbers.add_tokens("value_error", errors, partial_mask(batch), batch.offsets)
    return numbers.sums


def _add_critic(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    numbers.sums.update({x: batch.responses[x] for x in CRITIC if x in batch.responses})


def _explained(totals: Totals, _: str) -> float | None:
    """Return 1 - Var(R - V) / Var(R).

    None if returns do not vary, or if filters reject tokens after the advantages are computed.
    """
    counts = [totals.count(f"{name}.count") for name in ("value_error", "return")]
    error, returns = map(totals.deviations, ("value_error", "return"), counts)
    return explained_variance(error, returns) if counts[0] == counts[1] else None


def explained_variance(errors: int, returns: int) -> float | None:
    """Return 1 - errors / returns, of sums of squared deviations.

    None if returns do not vary, or by so little that the quotient is beyond the range of float64.
    """
    return 1 - errors / returns if abs(errors) >> 1000 < returns else None


def _rows_of_credit(batch: Batch) -> Mapping[str, Array]:
    """Return the responses where their tokens are counted: on the device if filters reject some."""
    return batch.responses if "accepted" in batch else batch.table


def _kept_tokens(batch: Batch) -> Array:
    """Return the number of kept policy tokens of each response."""
    rows = _rows_of_credit(batch)
    tokens = rows["tokens"]
    if "accepted" in batch:
        tokens = count_true(batch.mask & batch["accepted"], batch.offsets)
    xp = namespace(tokens)
    return xp.where(rows["kept"], tokens, 0)


def _add_clips(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add advantages that were clipped, or set to 0 for their entropy, and weights of responses."""
    rows, recipe = _rows_of_credit(batch), resolved.recipe
    if recipe.advantage_clip is not None:
        clipped = np.zeros_like(batch.table["kept"])
        if resolved.constant and "credit_clipped" in rows:
            clipped = _kept_tokens(batch) * rows["credit_clipped"]
        elif not resolved.constant and "advantage_clipped" in batch:
            clipped = count_true(batch["advantage_clipped"], batch.offsets)
        numbers.sums["advantage_clipped"] = clipped
    if recipe.top_entropy_quantile is not None:
        lower = kept_mask(batch) & ~batch[CHOSEN]
        numbers.sums["below_top_entropy"] = count_true(lower, batch.offsets)
    if recipe.weighs_responses:
        table = batch.table
        numbers.add_numbers("sample_weight", table["sample_weight"], table["valid"])


def _add_kl(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    rows = batch.responses
    if "kl_mean" in rows:
        numbers.add_numbers("kl", rows["kl_mean"], rows["valid"])


def _add_checks(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add what only findings report: signs of wrong log-probs, rewards that are lost, and more."""
    rows, table, limit = batch.responses, batch.table, resolved.recipe.drop_longer
    for name in LOST:
        if name in rows:
            numbers.sums[name] = rows[name] & rows["kept"]
    numbers.sums.update({name: rows[name] for name in EDGES if name in rows})
    for role in LOG_PROBS:
        if f"positive:{role}" in rows:
            numbers.sums[f"positive:{role}"] = rows[f"positive:{role}"]
            numbers.spans[role] = rows[f"highest:{role}"], rows[f"highest:{role}"]
    numbers.sums["empty"] = (table["tokens"] == 0) & table["kept"]
    numbers.spans["tokens"] = table["tokens"], table["tokens"]
    if limit is not None:
        numbers.sums["over_limit"] = table["tokens"] > limit
    if "unwhitened" in table:
        numbers.sums["unwhitened"] = table["unwhitened"]


def _positive(batch: Batch, role: str) -> dict[str, Array]:
    """Return the number of log-probs above 0, which none can be, and the greatest of them."""
    xp, values, none = batch.xp, batch.only(batch[role]), batch.xp.zeros_like(batch.lengths)
    positive, high = none, xp.astype(none, xp.float64)
    on_host = not is_tensor(values)  # there it pays to look first, since few have any
    if len(values) and not (on_host and float(values.max()) <= LOG_PROB_ROUNDING):
        positive = count_true(values > LOG_PROB_ROUNDING, batch.offsets)
        high = segment_max(values, batch.offsets).clip(0)
    return {f"positive:{role}": positive, f"highest:{role}": high}


EDGES = ("padded", "shifted")


def _edges(batch: Batch) -> dict[str, Array]:
    """Return signs of padding and shifting: old log-probs of exactly 0 at the ends of a response.

    A token that is certain in another column, too, is no sign of a shift: that of the rollout
    engine if it was read, else of any other policy.
    """
    if not len(batch.mask):
        return dict.fromkeys(EDGES, batch.xp.zeros_like(batch.lengths))
    last = (batch.offsets[1:] - 1).clip(0)
    first = batch.offsets[:-1].clip(max=len(batch.mask) - 1)
    there = batch.lengths > 0
    others = ["infer_log_probs"] if "infer_log_probs" in batch else LOG_PROBS
    witnesses = [batch[role] for role in others if role in batch and role != "old_log_probs"]
    at_last, at_first = ((batch["old_log_probs"][at] == 0) & there for at in (last, first))
    shifted = [at_last & batch.mask[last], at_first & batch.mask[first]]
    if witnesses:
        uncertain = [[x[at] < -LOG_PROB_ROUNDING for x in witnesses] for at in (last, first)]
        shifted = [
            zero & batch.xp.stack(others).any(0)
            for zero, others in zip(shifted, uncertain, strict=True)
        ]
    return {"padded": at_last & ~batch.mask[last], "shifted": shifted[0] | shifted[1]}


def _add_correction(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add the off-policy correction of policy tokens of responses that sample masks keep."""
    recipe, rows, where = resolved.recipe, batch.responses, batch.xp.where
    if not recipe.corrects:
        return
    name = "reached" if "reached" in rows else "kept"
    reached, mask = rows[name], batch.mask
    if not batch.all_are(name):
        mask = mask & spread(reached, batch.offsets)
    tokens = where(reached, rows["tokens"], 0)
    numbers.sums.update({"is.tokens": tokens, "is.responses": tokens > 0})
    counts = {
        name.replace(":", "_"): count_true(batch[name] & mask, batch.offsets)
        for name in ("is:truncated", "is:masked")
        if name in batch
    }
    for number, rule in enumerate(recipe.is_filter):
        if rule.drops_responses:
            counts[f"{REJECTED}{rule}"] = where(rows[passed(number)], 0, tokens)
        else:
            hits = batch[rejected(number)] & mask
            counts[f"{REJECTED}{rule}"] = count_true(hits, batch.offsets)
    if recipe.is_filter and "accepted" in batch:
        counts["rejected"] = tokens - count_true(mask & kept_mask(batch), batch.offsets)
    elif recipe.is_filter:
        counts["rejected"] = where(rows["kept"], 0, tokens)
    for name, count in counts.items():
        kind, colon, which = name.partition(":")
        numbers.sums.update({name: count, f"{kind}_responses{colon}{which}": count > 0})
    if recipe.compares_engine:
        numbers.sums.update(_divergences(batch, mask, recipe))
    if "is_weight" in batch:
        numbers.add_tokens("is_weight", batch["is_weight"], kept_mask(batch), batch.offsets)


def _divergences(batch: Batch, mask: Array, recipe: Recipe) -> dict[str, Array]:
    """Return the sums that estimate divergences between the two policies."""
    xp, old, infer = batch.xp, corrected(batch, recipe), batch["infer_log_probs"]
    most = min(recipe.numerics.log_ratio_clamp.bound, MOST_NATS)
    distance = xp.where(mask, old - infer, 0.0)
    clamped = distance.clip(-most, most)
    whole = reduce_responses(distance, mask, batch.offsets, level="sequence").clip(-most, most)
    excess = xp.expm1(clamped)
    values = kl_terms(clamped, excess) | {"chi2": chi_square(excess)}
    disagree = confident_disagreement(infer, abs(old - infer))
    return {
        **{f"engine_{name}": segment_sum(value, batch.offsets) for name, value in values.items()},
        "engine_chi2_responses": chi_square(xp.expm1(whole)),
        "engine_gap_size": segment_sum(xp.where(mask, abs(distance), 0.0), batch.offsets),
        "confident_disagreement": count_true(disagree & mask, batch.offsets),
        "identical_log_probs": count_true((old == infer) & mask, batch.offsets),
    }


def _ess(totals: Totals, _: str) -> float | None:
    """Return (Σw)² / (nΣw²) of the weights of the n policy tokens that are left."""
    number, total, squares = (totals.total(f"is_weight.{x}") for x in ("count", "total", "squares"))
    return effective_sample_size(number, total, squares + totals.total("is_weight.rest"))


def _add_components(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add the reward components: their statistics, products of pairs, and with the advantage."""
    if not resolved.recipe.reward_components:
        return
    rows, weights = batch.table, resolved.recipe.component_weight
    values = {name: rows[f"{COMPONENT}{name}"] for name in weights}
    voting = _voting(batch, resolved)
    scored = {name: voting & np.isfinite(value) for name, value in values.items()}
    for name, value in values.items():
        numbers.add_numbers(f"{COMPONENT}{name}", value, scored[name])
        numbers.add_pair(f"{WITH_REWARD}{name}", value, rows["reward"], scored[name])
    for name, other in combinations(values, 2):
        both = scored[name] & scored[other]
        numbers.add_pair(f"{CORRELATION}{name},{other}", values[name], values[other], both)
    count, total = (numbers.sums[f"advantage.{part}"] for part in ("count", "total"))
    trained, advantage = numbers.sums["trained"], total / count.clip(1)
    xp = namespace(count)
    rows = _rows_of_credit(batch) if resolved.constant else batch.responses
    for name, weight in weights.items():
        part = rows[x] if (x := f"part:{name}") in rows else weight * rows[f"{COMPONENT}{name}"]
        part = xp.where(xp.isfinite(part), part, 0.0)
        numbers.add_pair(f"{SHARE}{name}", part, advantage, trained)


def pair_sums(totals: Totals, name: str) -> PairSums:
    """Return the sums of pairs that were added under a name; 0 if none were."""
    sums = ((totals.total(f"{name}.{x}"), f"{name}.{x}.rest") for x in PairSums._fields)
    return PairSums(*(total + totals.total(rest) for total, rest in sums))


def _correlation_of(prefix: str) -> Callable[[Totals, str], float | None]:
    return lambda totals, name: correlation(pair_sums(totals, f"{prefix}{name}"))


def _advantage_share(totals: Totals, component: str) -> float | None:
    """Return a component's share; see `advantage_shares`.

    A is the mean of a response's advantages.
    """
    names = [x for x in totals.sums if x.startswith(SHARE) and x.endswith(".number")]
    pairs = {x: pair_sums(totals, x) for x in (name.removesuffix(".number") for name in names)}
    parts = {name: (pair.xy, pair.x) for name, pair in pairs.items()}
    whole = pairs[f"{SHARE}{component}"]
    return advantage_shares(parts, whole.number, whole.y)[f"{SHARE}{component}"]


MEASURES = (
    Measure("policy_tokens", "counted", "Policy tokens of a response.", add=_add_responses),
    Measure("kept", "all", "Responses that train: neither left out nor dropped.", "share"),
    Measure(LEFT, "all", "Responses that no statistic counts, by reason.", "share", _add_masks),
    Measure(DROPPED, "all", "Responses that a mask drops, also if others drop them.", "share"),
    Measure(NEWLY, "all", "Responses that a mask drops and none before it.", "share"),
    Measure("reward", "units", "Raw reward.", add=_add_rewards),
    Measure("passed", "units", "Raw rewards of at least --pass-threshold.", "share"),
    Measure(TRUNCATED, "ends", "Responses that a limit cut off.", "share"),
    Measure("process_reward", "counted", "Sum of the process rewards of a response."),
    Measure("response_level_reward", "counted", "Reward after normalisation and clipping."),
    Measure("reward_clipped", "kept", "Rewards clipped to --reward-clip.", "share"),
    Measure("token_reward_clipped", "tokens", "Token rewards clipped to --reward-clip.", "share"),
    Measure("advantage", "tokens", "Advantage of a token.", add=_add_credit),
    *(Measure(f"advantage_{sign}", "tokens", f"Tokens whose advantage is {text}.", "share")
      for sign, text in SIGNS.items()),
    Measure("mass_positive", "tokens", "Share of Σ|A| of the advantages above 0.", "value",
            value=_mass, needs="advantage_above"),
    *(Measure(f"length_{sign}", f"{sign} responses", "Their kept policy tokens.", "mean")
      for sign in SIGNS),
    Measure("return", "tokens", "Return of a token."),
    Measure("recorded_difference", "recorded rows", "Largest |recorded - computed| advantage of a "
            "response, where a trainer recorded any.", add=_add_recorded),
    Measure("recorded_differs", "recorded", "Recorded advantages that differ.", "share"),
    Measure("recorded_sign_differs", "recorded", "Of these, in sign.", "share"),
    Measure("explained_variance", "tokens", "1 - Var(return - value) / Var(return).", "value",
            _add_critic, _explained, "value_error.count"),
    Measure(COMPONENT, "units", "A reward component.", add=_add_components),
    Measure(WITH_REWARD, "units", "Pearson's, of a component and the reward.", "value",
            value=_correlation_of(WITH_REWARD), needs=".number"),
    Measure(CORRELATION, "units", "Pearson's, of two components.", "value",
            value=_correlation_of(CORRELATION), needs=".number"),
    Measure(SHARE, "trained", "cov(R_k, A) / cov(sum_j R_j, A), R_k a component times its weight.",
            "value", value=_advantage_share, needs=".number"),
    Measure("advantage_clipped", "tokens", "Advantages clipped to --advantage-clip.", "share",
            _add_clips),
    Measure("below_top_entropy", "tokens", "Tokens below --top-entropy-quantile.", "share"),
    Measure("sample_weight", "counted", "Weight of a response."),
    Measure("kl", "counted", "Mean KL per policy token of a response, by --kl-estimator.",
            add=_add_kl),
    Measure("ref_gap", "drift", "Log-prob of a token, old minus reference.", "mean", _add_drift),
    Measure("ref_gap_size", "drift", "Its size.", "mean"),
    Measure("is_truncated", "compared", "Importance weights truncated to --is-cap.", "share",
            _add_correction),
    Measure("is_truncated_responses", "compared rows", "Responses with one.", "share"),
    Measure("is_masked", "compared", "Weights outside --is-mask.", "share"),
    Measure("is_masked_responses", "compared rows", "Responses with one.", "share"),
    Measure("is_weight", "tokens", "Importance weight of a token."),
    Measure("weight_ess", "tokens", "Effective sample size of the weights, a share.", "value",
            value=_ess, needs="is_weight.count"),
    Measure("rejected", "compared", "Tokens that --is-filter rejects.", "share"),
    Measure("rejected_responses", "compared rows", "Responses with one.", "share"),
    Measure(REJECTED, "compared", "Tokens that one filter rejects.", "share"),
    Measure("rejected_responses:", "compared rows", "Responses with one.", "share"),
    Measure("engine_k1", "compared", "KL(engine ‖ trainer), k1.", "mean"),
    Measure("engine_k3", "compared", "KL(engine ‖ trainer), k3.", "mean"),
    Measure("engine_gap_size", "compared", "Size of the log-prob, engine minus old.", "mean"),
    Measure("engine_chi2", "compared", "χ²(trainer ‖ engine) of tokens.", "mean"),
    Measure("engine_chi2_responses", "compared rows", "χ²(trainer ‖ engine) of responses.", "mean"),
    Measure("confident_disagreement", "compared",
            "Tokens over 0.5 for the engine, and 7 times less likely for the trainer.", "share"),
    Measure("identical_log_probs", "compared", "Tokens with one log-prob.", "share"),
    Measure("group_size", "groups", "Responses, or rollouts, of a prompt group."),
    Measure("single", "groups", "Groups of one.", "share"),
    Measure("with_signal", "groups", "Groups in which an advantage is not 0.", "share"),
    Measure("equal_rewards", "several", "Groups whose rewards are equal.", "share"),
    Measure("all_pass", "several", "Groups of equal rewards that pass.", "share"),
    Measure(EQUAL, "groups", "Groups in which a component has one value.", "share"),
)  # fmt: skip
"""Every number of a summary, in order."""
