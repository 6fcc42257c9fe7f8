"""The metrics of a run: what each batch adds to the totals, and the entry that totals become.

A new entry of the summary is a `Metric` in `METRICS`. Totals add up exactly over chunks, files and
machines, so that the summary depends on none of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

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
from rlpost.kernels.moments import token_moments
from rlpost.kernels.segments import (
    count_true,
    lengths,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)
from rlpost.pipeline.data import LEFT_OUT
from rlpost.pipeline.recorded import compared
from rlpost.pipeline.signal import (
    report_critic,
    report_signal,
    signal_of_responses,
    signal_of_tokens,
)
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
from rlpost.pipeline.totals import SPREADS, Counted, ExactTotals
from rlpost.recipe.base import Written
from rlpost.recipe.roles import LOG_PROB_ROUNDING, LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import Totals
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
COUNTED = frozenset({"token_reward_clipped", "accepted", CHOSEN})
"""Token columns that metrics read besides those that are written, and that `observed` does not."""
MOST_NATS = 300.0  # float64 can add up exp(2·300)


@dataclass(frozen=True)
class Numbers:
    """Numbers of each response of a batch, which are added to `ExactTotals`."""

    sums: dict[str, Array] = field(default_factory=dict)
    spans: dict[str, tuple[Array, Array]] = field(default_factory=dict)
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
                name: (
                    concat([x.spans[name][0] for x in parts]),
                    concat([x.spans[name][1] for x in parts]),
                )
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
        within = xp.where(counted, values, 0.0)
        self.add_spread(name, xp.astype(counted, xp.float64), within, within**2, values, values)

    def add_pair(self, name: str, x: Array, y: Array, counted: Array) -> None:
        """Add the sums of two numbers of each response that counts, of `PairSums`."""
        x, y = (namespace(one).where(counted, one, 0.0) for one in (x, y))
        values = (counted, x, y, x**2, y**2, x * y)
        for part, value in zip(PairSums._fields, values, strict=True):
            self.sums[f"{name}.{part}"] = value

    def add_spread(
        self, name: str, count: Array, total: Array, squares: Array, low: Array, high: Array
    ) -> None:
        """Add sums of several numbers for each response, with their lowest and highest."""
        self.sums.update(
            zip((f"{name}.{part}" for part in SPREADS), (count, total, squares), strict=True)
        )
        where = namespace(count).where
        self.spans[name] = (where(count > 0, low, np.inf), where(count > 0, high, -np.inf))

    def add_tokens(self, name: str, values: Array, mask: Array | None, offsets: Array) -> None:
        """Add the tokens of each response if the mask is true; without a mask all tokens."""
        moments = token_moments(values, mask, offsets)
        squares = moments.squares + moments.total**2 / moments.number.clip(1)
        where = namespace(values).where
        lows = values if mask is None else where(mask, values, np.inf)
        highs = values if mask is None else where(mask, values, -np.inf)
        low, high = segment_min(lows, offsets), segment_max(highs, offsets)
        self.add_spread(name, moments.number, moments.total, squares, low, high)


Add = Callable[[Numbers, "Batch", "ResolvedRecipe"], None]
Report = Callable[["Totals", "ResolvedRecipe"], Any]


class Metric(NamedTuple):
    """An entry of the summary: of the whole input, of a step or of a domain."""

    name: str
    report: Report
    """Returns the entry from the totals."""
    add: Add | None = None
    """Adds the numbers of a batch to which all stages were applied."""
    applies: Callable[[ResolvedRecipe], bool] = lambda _: True
    """Whether the summary of a recipe has the entry."""


def count_advantages(batch: Batch, *, resolved: ResolvedRecipe) -> Counted:
    """Count what a batch adds to the totals by step and domain; all stages were applied to it."""
    batch = batch.with_responses(observed(batch, resolved))
    numbers = Numbers()
    for metric in METRICS:
        if metric.add is not None and metric.applies(resolved):
            metric.add(numbers, batch, resolved)
    _add_checks(numbers, batch)
    return numbers.counted(batch.table["cell"])


def observed(batch: Batch, resolved: ResolvedRecipe) -> dict[str, Array]:
    """Return the numbers of responses that metrics need of columns that no later stage changes.

    A pass that has the columns of the file adds them to the table, so that the last pass need not
    read these columns again.
    """
    numbers = {"kl_mean": mean_kl(batch)} if "kl" in batch else {}
    numbers |= lost_rewards(batch, recipe=resolved.recipe, estimator=resolved.estimator)
    if "old_log_probs" in batch:
        numbers |= _edges(batch)
    if _has_critic(resolved) and {"values", "returns"} <= {*batch.tokens}:
        numbers |= _critic(batch)
    for role in LOG_PROBS:
        if role in batch:
            numbers |= _positive(batch, role)
    return numbers


def report_metrics(each: Sequence[Totals], resolved: ResolvedRecipe) -> list[Json]:
    """Return the entries of the summary of some sets of responses from the totals of each."""
    reports = [(metric.name, metric.report) for metric in METRICS if metric.applies(resolved)]
    return [{name: report(totals, resolved) for name, report in reports} for totals in each]


def _statistic(totals: Totals, _: ResolvedRecipe, *, name: str) -> Json:
    return totals.statistic(name)


def _add_column(
    numbers: Numbers, batch: Batch, _: ResolvedRecipe, *, column: str, name: str
) -> None:
    """Add a column of responses; those with a non-finite number do not count."""
    numbers.add_numbers(name, batch.table[column], batch.table["valid"])


def _voting(batch: Batch, resolved: ResolvedRecipe) -> Array:
    """Return the rows that count in statistics of rewards: one of each rollout if these count."""
    rows = batch.table
    return rows["valid"] & rows["last"] if resolved.unit == "rollout" else rows["valid"]


def _add_reward(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    numbers.add_numbers("reward", batch.table["reward"], _voting(batch, resolved))


def _add_rollouts(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    sums = {"rollouts": batch.table["last"], "voting": _voting(batch, resolved)}
    numbers.sums.update(sums)


def _report_rollouts(totals: Totals, _: ResolvedRecipe) -> Json:
    """Return how many rollouts there are, and how many count in statistics of rewards."""
    return {"count": totals.count("rollouts"), "counted": totals.count("voting")}


def _of_column(name: str, column: str, **more: Any) -> Metric:
    """Return the metric with the statistics of a column of responses."""
    add = partial(_add_column, column=column, name=name)
    return Metric(name, partial(_statistic, name=name), add, **more)


def _add_responses(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    rows = batch.table
    numbers.sums["rows"] = np.ones_like(rows["reward"])
    numbers.sums.update({name: rows[name] for name in ("valid", "kept")})


def _add_sizes(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    numbers.sums.update({name: batch.table[name] for name in ("tokens", "length")})
    numbers.spans["length"] = batch.table["length"], batch.table["length"]


def _report_sizes(totals: Totals, resolved: ResolvedRecipe) -> Json | None:
    """Return the numbers of tokens; None if the lengths of responses are unknown."""
    if resolved.lengths == "unknown":
        return None
    return {"all": totals.count("length"), "policy": totals.count("tokens")}


def _add_masks(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    rows = batch.table
    masks = {name: flag for name, flag in rows.items() if name.startswith("mask:")}
    left = rows["valid"]
    for name, flag in masks.items():
        numbers.sums.update({name: flag & rows["valid"], f"new {name}": left & ~flag})
        left = left & flag
    reasons = {
        "sample_mask": resolved.input_mask is not None,
        "superseded": resolved.attempts and resolved.recipe.attempts == "newest",
        "failure": resolved.failures and resolved.recipe.failures in ("drop", "mask"),
    }
    for code, name in enumerate(LEFT_OUT, 1):
        if reasons[name] and f"mask:{name}" not in rows:
            numbers.sums[f"out:{name}"] = rows["left_out"] == code


def _report_masks(totals: Totals, _: ResolvedRecipe) -> Json:
    """Return how many responses each mask drops, in the order of masks, and all together.

    `responses` are those that a mask drops if it is the only one. `new` are those that no earlier
    mask drops; they add up to all.
    """
    rows = totals.count("rows")
    own = {name: f"out:{name}" for name in LEFT_OUT}
    dropped = {name: totals.count(count) for name, count in own.items() if count in totals}
    dropped["nonfinite"] = rows - totals.count("valid") - sum(dropped.values())
    new = {**dropped}
    for mask in (name for name in totals.sums if name.startswith("mask:")):
        name = mask.removeprefix("mask:")
        dropped[name] = totals.count("valid") - totals.count(mask)
        new[name] = totals.count(f"new {mask}")
    dropped["all"] = new["all"] = rows - totals.count("kept")
    return {
        name: {"responses": count, "rate": count / rows if rows else 0.0, "new": new[name]}
        for name, count in dropped.items()
    }


KEPT_RESPONSES, KEPT_TOKENS = "kept responses", "policy tokens of kept responses"


def _report_clip(
    totals: Totals, resolved: ResolvedRecipe, *, clipped: str, of: str, bound: str
) -> Json | None:
    """Return how many kept numbers were clipped to a bound of the recipe; None without a bound.

    Dropped responses, rejected tokens and observation tokens do not count.
    """
    value = getattr(resolved.recipe, bound)
    if value is None:
        return None
    return {
        "bound": value.plain if isinstance(value, Written) else value,
        "count": totals.count(clipped),
        "fraction": totals.share(clipped, of),
        "of": KEPT_RESPONSES if of == "kept" or resolved.lengths == "unknown" else KEPT_TOKENS,
    }


def _add_process(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    numbers.add_numbers("process_reward", batch.table["process"], batch.table["valid"])


def _report_process(totals: Totals, resolved: ResolvedRecipe) -> Json:
    """Return the statistics of the sums of process rewards, and how these are added."""
    return {**totals.statistic("process_reward"), "added_per": resolved.process}


def _add_reward_clip(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    rows = batch.table
    if "reward_clipped" in rows:
        numbers.sums["reward_clipped"] = rows["reward_clipped"] & rows["kept"]


def _add_token_reward_clip(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    if "token_reward_clipped" in batch:
        clipped, mask = batch["token_reward_clipped"], partial_mask(batch)
        clipped = clipped if mask is None else clipped & mask
        numbers.sums["token_reward_clipped"] = count_true(clipped, batch.offsets)


def _add_credit(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add advantages and returns, of the policy tokens that are kept."""
    if resolved.constant:
        rows, count = _rows_of_credit(batch), _kept_tokens(batch)
        for name, column in (("advantage", "credit"), ("return", "credit_returns")):
            value = rows[column]
            numbers.add_spread(name, count, count * value, count * value**2, value, value)
        return
    mask = partial_mask(batch)
    numbers.add_tokens("advantage", batch["advantages"], mask, batch.offsets)
    if batch["returns"] is batch["advantages"]:
        same = {f"return.{part}": numbers.sums[f"advantage.{part}"] for part in SPREADS}
        numbers.sums.update(same)
        numbers.spans["return"] = numbers.spans["advantage"]
    else:
        numbers.add_tokens("return", batch["returns"], mask, batch.offsets)


def _add_signal(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add policy tokens and responses by the sign of their advantage, after `_add_credit`."""
    tokens, total = (numbers.sums[f"advantage.{part}"] for part in ("count", "total"))
    if resolved.constant:
        signal = signal_of_responses(_rows_of_credit(batch)["credit"], tokens)
    else:
        kept = inside(batch["advantages"], partial_mask(batch))
        signal = signal_of_tokens(kept, batch.offsets, total, tokens)
    numbers.sums.update(signal.sums)
    numbers.tallies.append(signal.tally)


def _add_recorded(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    counts = compared(batch, resolved)
    difference = counts.pop("difference")
    numbers.add_numbers("recorded_difference", difference, counts["compared"] > 0)
    numbers.sums.update({f"recorded_{name}": count for name, count in counts.items()})


def _report_recorded(totals: Totals, _: ResolvedRecipe) -> Json:
    """Return how many numbers were compared and differ, and the largest difference of responses."""
    names = ("compared", "differs", "sign_differs")
    counts = {name: totals.count(f"recorded_{name}") for name in names}
    return {**counts, "difference": totals.statistic("recorded_difference")}


def _has_critic(resolved: ResolvedRecipe) -> bool:
    return "values" in resolved.estimator.columns


CRITIC = tuple(f"critic.{part}" for part in SPREADS)
"""Sums over kept policy tokens of what the values of the critic lack of the returns."""


def _critic(batch: Batch) -> dict[str, Array]:
    mask, offsets = partial_mask(batch), batch.offsets
    errors = inside(batch["returns"] - batch["values"], mask)
    count = lengths(offsets) if mask is None else count_true(mask, offsets)
    sums = (count, segment_sum(errors, offsets), segment_sum(errors**2, offsets))
    return dict(zip(CRITIC, sums, strict=True))


def _add_critic(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    numbers.sums.update({name: batch.responses[name] for name in CRITIC})


def _add_passes(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    rows = batch.table
    passed = rows["reward"] >= resolved.recipe.pass_threshold
    numbers.sums["passed"] = passed & _voting(batch, resolved)


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
    return xp.astype(xp.where(rows["kept"], tokens, 0), xp.float64)


def _add_advantage_clip(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    rows = _rows_of_credit(batch)
    if resolved.constant and "credit_clipped" in rows:
        numbers.sums["advantage_clipped"] = _kept_tokens(batch) * rows["credit_clipped"]
    elif not resolved.constant and "advantage_clipped" in batch:
        numbers.sums["advantage_clipped"] = count_true(batch["advantage_clipped"], batch.offsets)


def _add_top_entropy(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    lower = kept_mask(batch) & ~batch[CHOSEN]
    numbers.sums["lower_entropy"] = count_true(lower, batch.offsets)


def _report_top_entropy(totals: Totals, resolved: ResolvedRecipe) -> Json | None:
    """Return how many kept policy tokens have the advantage 0, for their entropy is lower."""
    return {
        "quantile": resolved.recipe.top_entropy_quantile,
        "masked": totals.count("lower_entropy"),
        "fraction": totals.share("lower_entropy", "advantage.count"),
    }


def _add_kl(numbers: Numbers, batch: Batch, _: ResolvedRecipe) -> None:
    rows = batch.responses
    if "kl_mean" in rows:
        numbers.add_numbers("kl", rows["kl_mean"], rows["valid"])


def _report_kl(totals: Totals, resolved: ResolvedRecipe) -> Json:
    unread = {"measured": False} if resolved.kl_unread else {}
    return {**totals.statistic("kl"), "estimator": resolved.recipe.kl_estimator, **unread}


def _add_checks(numbers: Numbers, batch: Batch) -> None:
    """Add what only warnings report: signs of wrong log-probs, and rewards that are lost."""
    rows = batch.responses
    for name in LOST:
        if name in rows:
            numbers.sums[name] = rows[name] & rows["kept"]
    numbers.sums.update({name: rows[name] for name in EDGES if name in rows})
    for role in LOG_PROBS:
        if f"positive:{role}" in rows:
            numbers.sums[f"positive:{role}"] = rows[f"positive:{role}"]
            numbers.spans[role] = rows[f"highest:{role}"], rows[f"highest:{role}"]


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
        uncertain = [[one[at] < -LOG_PROB_ROUNDING for one in witnesses] for at in (last, first)]
        shifted = [
            zero & batch.xp.stack(others).any(0)
            for zero, others in zip(shifted, uncertain, strict=True)
        ]
    return {"padded": at_last & ~batch.mask[last], "shifted": shifted[0] | shifted[1]}


def _add_correction(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add the off-policy correction of policy tokens of responses that sample masks keep."""
    recipe, rows, where = resolved.recipe, batch.responses, batch.xp.where
    name = "reached" if "reached" in rows else "kept"
    reached, mask = rows[name], batch.mask
    if not batch.all_are(name):
        mask = mask & spread(reached, batch.offsets)
    tokens = where(reached, rows["tokens"], 0)
    sums = {"is.tokens": tokens, "is.responses": tokens > 0}
    counts = {name: count_true(hit & mask, batch.offsets) for name, hit in _hits(batch).items()}
    for number, one in enumerate(recipe.is_filter):
        if one.drops_responses:
            counts[rejected(number)] = where(rows[passed(number)], 0, tokens)
    if "accepted" in batch:
        counts["is:rejected"] = tokens - count_true(mask & kept_mask(batch), batch.offsets)
    else:
        counts["is:rejected"] = where(rows["kept"], 0, tokens)
    for name, count in counts.items():
        sums |= {f"{name}.tokens": count, f"{name}.responses": count > 0}
    divergences = _divergences(batch, mask, recipe) if recipe.compares_engine else {}
    numbers.sums.update(sums | divergences)
    if "is_weight" in batch:
        numbers.add_tokens("is_weight", batch["is_weight"], kept_mask(batch), batch.offsets)


def _hits(batch: Batch) -> dict[str, Array]:
    return {name: values for name, values in batch.tokens.items() if name.startswith("is:")}


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
        **{f"is.{name}": segment_sum(value, batch.offsets) for name, value in values.items()},
        "is.chi2_sequence": chi_square(xp.expm1(whole)),
        "is.confident_disagreement": count_true(disagree & mask, batch.offsets),
        "is.identical": count_true((old == infer) & mask, batch.offsets),
    }


def _report_correction(totals: Totals, resolved: ResolvedRecipe) -> Json:
    """Return the entry of the off-policy correction.

    Rates are of policy tokens, and of responses with one, that sample masks keep; a response
    counts if one of its tokens does. `ess` is (Σw)²/(nΣw²) over the n policy tokens
    that are left. KL(engine ‖ trainer), in nats per token, and χ²(trainer ‖ engine) are
    estimated on what the engine sampled.
    """
    recipe = resolved.recipe
    entry: Json = {
        "tokens": totals.count("is.tokens"),
        "responses": totals.count("is.responses"),
        "truncated": _rates(totals, "is:truncated") if recipe.is_cap is not None else None,
        "masked": _rates(totals, "is:masked") if recipe.is_mask is not None else None,
        "filters": [
            {"filter": str(one), **_rates(totals, rejected(number))}
            for number, one in enumerate(recipe.is_filter)
        ],
        "rejected": _rates(totals, "is:rejected") if recipe.is_filter else None,
        "ess": None,
        "kl": None,
        "chi_square": None,
        "confident_disagreement": 0,
        "identical": 0,
    }
    if recipe.compares_engine:
        entry |= {
            "kl": {name: totals.share(f"is.{name}", "is.tokens") for name in ("k1", "k3")},
            "chi_square": {
                "token": totals.share("is.chi2", "is.tokens"),
                "sequence": totals.share("is.chi2_sequence", "is.responses"),
            },
            "confident_disagreement": totals.count("is.confident_disagreement"),
            "identical": totals.count("is.identical"),
        }
    if "is_weight" in totals:
        number, total, squares = (totals.total(f"is_weight.{part}") for part in SPREADS)
        entry["weight"] = totals.statistic("is_weight")
        entry["ess"] = effective_sample_size(number, total, squares)
    return entry


def _rates(totals: Totals, name: str) -> Json:
    return {
        "tokens": totals.count(f"{name}.tokens"),
        "token_rate": totals.share(f"{name}.tokens", "is.tokens"),
        "responses": totals.count(f"{name}.responses"),
        "response_rate": totals.share(f"{name}.responses", "is.responses"),
    }


def _add_components(numbers: Numbers, batch: Batch, resolved: ResolvedRecipe) -> None:
    """Add the reward components: their statistics, products of pairs, and with the advantage."""
    rows, weights = batch.table, resolved.recipe.component_weight
    values = {name: rows[f"component:{name}"] for name in weights}
    voting = _voting(batch, resolved)
    scored = {name: voting & np.isfinite(value) for name, value in values.items()}
    for name, value in values.items():
        numbers.add_numbers(f"component:{name}", value, scored[name])
        numbers.add_pair(_pair(name), value, rows["reward"], scored[name])
    for one, other in combinations(values, 2):
        both = scored[one] & scored[other]
        numbers.add_pair(_pair(one, other), values[one], values[other], both)
    count, total = (numbers.sums[f"advantage.{part}"] for part in ("count", "total"))
    there, advantage = numbers.sums["trained"], total / count.clip(1)
    numbers.sums["trained.advantage"] = advantage
    xp = namespace(count)
    rows = _rows_of_credit(batch) if resolved.constant else batch.responses
    for name, weight in weights.items():
        part = f"part:{name}"
        value = rows[part] if part in rows else weight * rows[f"component:{name}"]
        value = xp.where(there & xp.isfinite(value), value, 0.0)
        numbers.sums.update({f"{part}.product": value * advantage, f"{part}.total": value})


def _report_components(totals: Totals, resolved: ResolvedRecipe) -> dict[str, Json]:
    """Return the statistics of each reward component.

    `reward_correlation` is with the raw reward, `correlations` with the other components.
    `advantage_share`: see `advantage_shares`; A is the mean of a response's advantages, and the
    population are kept responses with a policy token.
    """
    weights = resolved.recipe.component_weight
    parts = {
        name: (totals.total(f"part:{name}.product"), totals.total(f"part:{name}.total"))
        for name in weights
    }
    trained = totals.total("trained"), totals.total("trained.advantage")
    shares = advantage_shares(parts, *trained)
    return {
        name: {
            "weight": weight,
            "normalised": "components" in resolved.estimator.columns,
            **totals.statistic(f"component:{name}"),
            "scored": totals.count(f"component:{name}.count"),
            "reward_correlation": correlation(_pair_sums(totals, _pair(name))),
            "correlations": {
                other: correlation(_pair_sums(totals, _pair(name, other)))
                for other in weights
                if other != name
            },
            "advantage_share": shares[name],
        }
        for name, weight in weights.items()
    }


def _pair(*names: str) -> str:
    """Return the name of the sums of a component and the reward, or of two, in any order."""
    return "pair:" + json.dumps(sorted(names))


def _pair_sums(totals: Totals, name: str) -> PairSums:
    return PairSums(*(totals.total(f"{name}.{part}") for part in PairSums._fields))


METRICS = (
    Metric("responses", lambda totals, _: totals.count("rows"), _add_responses),
    Metric(
        "rollouts",
        _report_rollouts,
        _add_rollouts,
        lambda resolved: resolved.unit == "rollout",
    ),
    Metric("tokens", _report_sizes, _add_sizes),
    _of_column("policy_tokens", "tokens", applies=lambda resolved: resolved.lengths != "unknown"),
    Metric("masked", _report_masks, _add_masks),
    Metric(
        "reward",
        partial(_statistic, name="reward"),
        _add_reward,
        lambda resolved: resolved.rewarded,
    ),
    Metric(
        "process_reward",
        _report_process,
        _add_process,
        lambda resolved: resolved.process is not None,
    ),
    _of_column("response_level_reward", "rewards", applies=lambda resolved: resolved.has_rewards),
    Metric(
        "reward_clip",
        partial(_report_clip, clipped="reward_clipped", of="kept", bound="reward_clip"),
        _add_reward_clip,
    ),
    Metric(
        "token_reward_clip",
        partial(
            _report_clip, clipped="token_reward_clipped", of="advantage.count", bound="reward_clip"
        ),
        _add_token_reward_clip,
    ),
    Metric("advantage", partial(_statistic, name="advantage"), _add_credit),
    Metric("return", partial(_statistic, name="return")),
    Metric(
        "recorded", _report_recorded, _add_recorded, lambda resolved: resolved.compares_recorded
    ),
    Metric("signal", report_signal, _add_signal),
    Metric(
        "pass_rate",
        lambda totals, _: totals.share("passed", "reward.count"),
        _add_passes,
        lambda resolved: resolved.rewarded,
    ),
    Metric("critic", report_critic, _add_critic, _has_critic),
    Metric(
        "components",
        _report_components,
        _add_components,
        lambda resolved: bool(resolved.recipe.reward_components),
    ),
    Metric(
        "advantage_clip",
        partial(
            _report_clip, clipped="advantage_clipped", of="advantage.count", bound="advantage_clip"
        ),
        _add_advantage_clip,
    ),
    Metric(
        "top_entropy",
        _report_top_entropy,
        _add_top_entropy,
        lambda resolved: resolved.recipe.top_entropy_quantile is not None,
    ),
    _of_column("sample_weight", "sample_weight", applies=lambda resolved: resolved.weighted),
    Metric("kl", _report_kl, _add_kl, lambda resolved: resolved.kl or resolved.kl_unread),
    Metric(
        "correction",
        _report_correction,
        _add_correction,
        lambda resolved: resolved.recipe.corrects,
    ),
)
