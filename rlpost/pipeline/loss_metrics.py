"""The metrics of policy losses: what each batch adds to the totals, and what totals become.

A new number of `rlpost loss` is a `LossMetric`. What all losses of a sweep have in common (log
ratios, masks, positions) is computed once. Sums run over stretches of a response, and the sums of
stretches add up exactly, so that results do not depend on chunks and workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable  # noqa: TC003 - of the fields of a NamedTuple
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.errors import DataError
from rlpost.kernels.aggregate import BY_SIGN, OF_UNITS, denominator
from rlpost.kernels.arrays import Array, is_tensor, like, namespace, on_host
from rlpost.kernels.divergence import chi_square, effective_sample_size, kl_terms
from rlpost.kernels.histogram import tally
from rlpost.kernels.quantiles import BITS, quantiles
from rlpost.kernels.segments import (
    POSITION_RANGES,
    PositionSegments,
    count_true,
    lengths,
    segment_any,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)
from rlpost.losses.base import DUAL, HIGH, LOW, SELECTED
from rlpost.losses.config import behaviour_of
from rlpost.losses.kl import KlLoss
from rlpost.pipeline.metrics import MOST_NATS, Numbers
from rlpost.pipeline.stages.loss import blocks, rounded, tokens_of
from rlpost.pipeline.stages.loss_weights import (
    SIGNED,
    WEIGHT,
    signs_of,
    step_gradient,
    token_weights,
    weight_name,
)
from rlpost.pipeline.totals import Counted, Totals, TotalsBy
from rlpost.pipeline.variants import variants_of
from rlpost.recipe.loss import behaviour_role
from rlpost.recipe.roles import LOG_PROB_ROUNDING, POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Integers
    from rlpost.losses.base import Surrogate
    from rlpost.losses.config import LossConfig
    from rlpost.losses.tokens import Tokens
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.totals import Label
    from rlpost.pipeline.variants import Variant


Json = dict[str, Any]
SIGNS, FLAT, CLIPS = 4, 2, 5
"""A kind of token is the sign of its advantage (0, positive, negative, or masked out), whether its
gradient is 0, and its clip state."""
KINDS = SIGNS * FLAT * CLIPS
ZERO, POSITIVE, NEGATIVE, OUTSIDE = range(SIGNS)
BY_CELL, BY_POSITION, BY_BATCH = "cell", "position", "batch"
"""What numbers are added by. A sweep has only one cell, which is the whole input, and no positions.
"""
SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
BRANCHES = {"low": LOW, "high": HIGH, "dual": DUAL, "selected": SELECTED}


class LossSetting(NamedTuple):
    """A loss, and its index among those whose advantages the same recipe computes."""

    at: int
    config: LossConfig


class LossMetric(NamedTuple):
    """An entry of the summary."""

    name: str
    report: Callable[[Totals, LossSetting], Any]
    """Returns the entry from the totals."""
    add: Callable[[TokenBlock], None] | None = None
    """Adds the numbers of a block of responses."""
    add_loss: Callable[[TokenBlock, LossSetting, Surrogate], None] | None = None
    """Adds the numbers of a block under a loss."""


def report_losses(metrics: Sequence[LossMetric], totals: Totals, setting: LossSetting) -> Json:
    """Return the entries of metrics."""
    return {metric.name: metric.report(totals, setting) for metric in metrics}


def policy_tokens(totals: Totals) -> int:
    """Return the number of policy tokens, which is the same for all losses."""
    return int(totals.counts["kinds"][0, :OUTSIDE].sum()) if totals.counts else 0


def count_losses(batch: Batch, *, configs: Sequence[LossConfig], rewarded: bool) -> Counted:
    """Count what a batch that has advantages and log-probs adds to the totals.

    Gradients of several losses are compared with that of the first: responses have weights then.

    Args:
        batch: of whole responses.
        configs: the losses. The totals have details by cell and position only if there is one.
        rewarded: the input has rewards.
    """
    variants, gradients = variants_of(configs), dict[int, Array]()
    parts = {
        f"{variant.prefix}{key}": part
        for variant in variants
        for key, part in _of_variant(variant, batch, configs, gradients, rewarded).items()
    }

    def totals(fetched: Mapping[str, NDArray[Any]]) -> TotalsBy:
        for variant in variants:
            _check_finite(fetched, variant, configs)
        return TotalsBy(
            {
                key: part.totals({name: fetched[f"{key} {name}"] for name in part.numbers})
                for key, part in parts.items()
            }
        )

    numbers = {f"{key} {n}": x for key, part in parts.items() for n, x in part.numbers.items()}
    return Counted(numbers, totals)


def _of_variant(
    variant: Variant,
    batch: Batch,
    configs: Sequence[LossConfig],
    gradients: dict[int, Array],
    rewarded: bool,  # noqa: FBT001 - as of `count_losses`
) -> dict[str, Counted]:
    """Return what the settings of a variant add, by each key; arguments of `count_losses`.

    `gradients` are those of the first setting, [T], by the first response of a block: the first
    variant adds them, the others read them.
    """
    detailed, whole = len(configs) == 1, any(config.loss.grouped for config in configs)
    batch, configs = variant.batch(batch), [configs[index] for index in variant.indices]
    cell = batch.table["cell"] if detailed else np.zeros_like(batch.table["cell"])
    present, local = np.unique(cell, return_inverse=True)
    tokens = tokens_of(batch, rewarded=rewarded)
    local = like(local, tokens.mask)
    both = {"old_log_probs", "infer_log_probs"} <= {*batch.tokens}
    parts, places = [], []
    for rows, part in blocks(tokens, whole=whole):
        columns = {name: x[rows] for name, x in batch.responses.items()}
        first_of = None if detailed else partial(gradients.setdefault, rows.start)
        block = TokenBlock(part, columns, local[rows], len(present), configs, first_of, both=both)
        parts.append(block.counted())
        places.append(on_host(block.stretches.places))
    keys = {BY_CELL: cell, BY_BATCH: batch.table["batch"], BY_POSITION: np.concatenate(places)}
    return {
        key: Numbers.joined([part[key] for part in parts]).counted(keys[key]) for key in parts[0]
    }


def _check_finite(
    numbers: Mapping[str, NDArray[Any]], variant: Variant, configs: Sequence[LossConfig]
) -> None:
    """Raise DataError for the first response whose loss is not finite."""
    configs = [configs[index] for index in variant.indices]
    for index, config in enumerate(configs):
        by = f"{variant.prefix}{BY_CELL} "
        wrong = ~np.isfinite(numbers[f"{by}sum {index}.value"])
        if bool(wrong.any()):
            row = int(np.flatnonzero(wrong)[0])
            most = max(abs(float(numbers[f"{by}{end} log_ratio"][row])) for end in ("low", "high"))
            raise DataError(
                f"loss {config.loss.name}: a token's loss is not finite; its log ratio is up to "
                f"{most:.4g} nats: are log_probs and {behaviour_role(behaviour_of(configs))} of "
                "the same tokens? --ratio-clamp 20 bounds the ratio"
            )


class TokenBlock:
    """A block of whole responses, and its numbers by stretch and by response.

    Args:
        tokens: of n responses.
        rows: [n] each, the columns of the responses.
        local: [n] int64 in [0, cells): the cell of each response.
        cells: how many cells the batch has.
        configs: the losses.
        first_of: returns the gradient of the first setting, given that of this one, which is kept
            if it is the first; None if gradients are not compared: there are positions then.
        both: the input has log-probs of the old policy and of the rollout engine.
    """

    def __init__(
        self,
        tokens: Tokens,
        rows: Mapping[str, Array],
        local: Array,
        cells: int,
        configs: Sequence[LossConfig],
        first_of: Callable[[Array], Array] | None,
        *,
        both: bool,
    ) -> None:
        self.tokens, self.rows, self.local, self.cells = tokens, rows, local, cells
        self.settings = [LossSetting(index, config) for index, config in enumerate(configs)]
        self.first_of, self.both, self.behaviour = first_of, both, behaviour_of(configs)
        self.base = tokens.divided_by(self.behaviour)
        self.stretches = PositionSegments.of(tokens.offsets)
        self.count = count_true(tokens.mask, tokens.offsets)
        self.xp = namespace(tokens.mask)
        self.weights = rows.get("sample_weight")
        if self.weights is not None:  # as a file stores them, so that both give the same loss
            self.weights = rounded(self.weights)
        self.unit_tokens: dict[str, Array] = {"seq-mean-token-mean": self.count}
        """By aggregation: the tokens of the response, prompt or rollout, [n]."""
        self.kinds: list[Array] = []
        """By setting: the tokens of each kind, [cells, positions, KINDS]."""
        self._kl_losses: dict[str, KlLoss] = {}
        self._token_weights: dict[str, Array] = {}
        keys = (BY_CELL, BY_BATCH, *((BY_POSITION,) if first_of is None else ()))
        self.numbers = {key: Numbers() for key in keys}

    def counted(self) -> dict[str, Numbers]:
        """Return the numbers of all metrics, by each key."""
        metrics = (*OF_INPUT, *OF_TOKENS, *OF_LOSS, *OF_WHOLE)
        for metric in metrics:
            if metric.add is not None:
                metric.add(self)
        for setting in self.settings:
            surrogate = setting.config.loss(self.tokens, setting.config.options)
            for metric in metrics:
                if metric.add_loss is not None:
                    metric.add_loss(self, setting, surrogate)
        shape = (len(self.settings), self.cells, -1, SIGNS, FLAT, CLIPS)
        kinds = self.xp.stack(self.kinds).reshape(shape)
        for key, axis in ((BY_CELL, 2), (BY_POSITION, 1)):
            if key in self.numbers:
                self.numbers[key].counts["kinds"] = kinds.sum(axis).swapaxes(0, 1)
        return self.numbers

    def kl_loss(self, config: LossConfig) -> KlLoss:
        """Return the KL losses of a config, computed once for all that have the same."""
        return self._kl_losses.setdefault(config.kl_name, KlLoss(self.tokens, config.options))

    def add_rows(self, name: str, numbers: Array, *by: str) -> None:
        """Add numbers of responses, [n]."""
        for key in by:
            self.numbers[key].sums[name] = numbers

    def add(self, name: str, values: Array) -> Array:
        """Add the sums of values that are 0 for masked-out tokens; return those of responses."""
        sums = self.stretches.sum(values)
        rows = segment_sum(sums, self.stretches.rows)
        self.add_rows(name, rows, BY_CELL)
        if BY_POSITION in self.numbers:
            self.add_rows(name, sums, BY_POSITION)
        return rows

    def add_span(self, name: str, values: Array) -> None:
        """Add the lowest and the highest value of policy tokens."""
        low = segment_min(self.tokens.inside(values, np.inf), self.stretches.offsets)
        high = segment_max(self.tokens.inside(values, -np.inf), self.stretches.offsets)
        rows = self.stretches.rows
        self.numbers[BY_CELL].spans[name] = segment_min(low, rows), segment_max(high, rows)
        if BY_POSITION in self.numbers:
            self.numbers[BY_POSITION].spans[name] = low, high

    def count_above(self, bound: float, values: Array, most: Array | float) -> Array:
        """Return the number of values above a bound of each response, [n].

        Args:
            bound: inf for none.
            values: [T].
            most: the highest of them, which only numpy reads, to skip the count if it is 0.
        """
        if math.isinf(bound) or (not is_tensor(most) and float(most) <= bound):
            return self.xp.zeros_like(self.count)
        return count_true(values > bound, self.tokens.offsets)

    def of_responses(self, values: Array) -> Array:
        """Return the sums of responses of values that are 0 for masked-out tokens."""
        return segment_sum(self.stretches.sum(values), self.stretches.rows)

    def add_numerator(self, name: str, values: Array, total: Array, how: str) -> None:
        """Add what each response adds to the numerators; see `kernels.aggregate`.

        Args:
            name: of the sum.
            values: [T] losses, 0 if masked out.
            total: [n] their sums.
            how: the aggregation.
        """
        totals = {"": total}
        if how in self.unit_tokens:
            totals = {"": total / self.unit_tokens[how].clip(1)}
        elif how == BY_SIGN:
            positive = self.tokens.advantage_positive
            chosen = (positive, self.tokens.mask & ~positive)
            for sign, tokens in zip(SIGNED, chosen, strict=True):
                totals[sign] = self.of_responses(self.xp.where(tokens, values, 0.0))
                self.add_rows(f"tokens{sign}", count_true(tokens, self.tokens.offsets), BY_BATCH)
        for sign, part in totals.items():
            weighted = part if self.weights is None else part * self.weights
            self.add_rows(f"{name}{sign}", weighted, BY_BATCH)

    def gradient(self, config: LossConfig, surrogate: Surrogate) -> Array:
        """Return the gradient of the loss of a step by the log-prob of each token, [T]."""
        of_tokens = []
        for kl in (False, True):
            name = weight_name(config, kl=kl)
            if name not in self._token_weights:
                columns = {name: x for name, x in self.rows.items() if name.startswith(WEIGHT)}
                weights = token_weights(columns, self.tokens, config, kl=kl)
                if self.weights is not None:
                    weights = weights * spread(self.weights, self.tokens.offsets)
                self._token_weights[name] = weights
            of_tokens.append(self._token_weights[name])
        policy, of_kl = of_tokens
        kl_loss = self.kl_loss(config)
        return step_gradient(config, self.tokens, surrogate, (policy, of_kl), kl_loss)

    @cached_property
    def log_ratio(self) -> Array:
        """[T] log ratio, 0 for masked-out tokens, so that these add 0 to each sum of it."""
        log_ratio, (_, most) = self.base.log_ratio, self.distance
        if not is_tensor(most) and float(most) <= MOST_NATS:
            return log_ratio
        return log_ratio.clip(-MOST_NATS, MOST_NATS)

    @cached_property
    def distance(self) -> tuple[Array, Array | float]:
        """[T] |log ratio|, and the highest of them."""
        distance = abs(self.base.log_ratio)
        return distance, distance.max() if len(distance) else 0.0

    @cached_property
    def excess(self) -> Array:
        """[T] r - 1."""
        return self.xp.expm1(self.log_ratio)

    @cached_property
    def first_kinds(self) -> Array | int:
        """The number of the first kind of each token's cell and position, [T]."""
        if BY_POSITION not in self.numbers:
            return 0
        cell = spread(self.local, self.stretches.rows)
        first = (cell * POSITION_RANGES + self.stretches.places) * KINDS
        return self.stretches.spread(self.xp.astype(first, self.xp.int32))

    @cached_property
    def signs(self) -> Array:
        """The number of the first kind of each token with its sign, [T]."""
        return self.signed(self.tokens.advantage_positive, self.tokens.advantage_negative)

    def signed(self, up: Array, down: Array) -> Array:
        """Return `signs` of other advantages, which are positive or negative at these tokens."""
        kinds = [(up, POSITIVE), (down, NEGATIVE)]
        kinds += [] if self.tokens.all_policy else [(~self.tokens.mask, OUTSIDE)]
        size = KINDS // SIGNS
        return self.first_kinds + sum(
            self.xp.astype(flag, self.xp.uint8) * (sign * size) for flag, sign in kinds
        )


# ---- of the input ----


def _add_sizes(block: TokenBlock) -> None:
    size = lengths(on_host(block.tokens.offsets)).astype(np.float64)
    sizes = {"rows": np.ones_like(size), "valid": block.count > 0, "tokens": block.count}
    for name, numbers in sizes.items():
        block.add_rows(name, numbers, BY_CELL, BY_BATCH)
    block.add_rows("length", size, BY_CELL)
    block.numbers[BY_BATCH].spans["length"] = size, size


def _add_units(block: TokenBlock) -> None:
    """Add the number of prompts or rollouts, whose columns the stages of losses make."""
    for how, role in {x: y for one in block.settings for x, y in one.config.units.items()}.items():
        tokens, first = (block.rows[f"{role}:{name}"] for name in ("tokens", "first"))
        block.unit_tokens[how] = tokens
        block.add_rows(f"{OF_UNITS[how]}:rows", first, BY_BATCH)
        block.add_rows(f"{OF_UNITS[how]}:valid", first & (tokens > 0), BY_BATCH)


def _add_advantage(block: TokenBlock) -> None:
    advantages = block.tokens.masked_advantages
    block.add("advantage.total", advantages)
    block.add("advantage.squares", advantages**2)
    block.add_rows("advantage.count", block.count, BY_CELL)
    block.add_span("advantage", advantages)


def _add_log_probs(block: TokenBlock) -> None:
    """Add the signs of wrong log-probs: positive ones.

    The lowest and highest log-prob are those of the block, for each of its responses, since only
    the extremes of a file or an input are read.
    """
    for name, role in POLICIES.items():
        values = getattr(block.tokens, name)
        none = np.zeros(len(block.count))
        positive, low, high = none, none + np.inf, none - np.inf
        if values is not None and len(values):
            inside = block.tokens.inside(values, -np.inf)
            least, most = block.tokens.inside(values, np.inf).min(), inside.max()
            positive = block.count_above(LOG_PROB_ROUNDING, inside, most)
            each = block.xp.zeros(len(block.count), values)
            low, high = each + least, each + most
        block.add_rows(f"positive:{role}", positive, BY_CELL)
        block.numbers[BY_CELL].spans[role] = low, high


def _report_sizes(totals: Totals, _: LossSetting) -> Json:
    return {"all": totals.count("length"), "policy": totals.count("tokens")}


OF_INPUT = (
    LossMetric("responses", lambda totals, _: totals.count("rows"), _add_sizes),
    LossMetric(
        "left_out", lambda totals, _: totals.count("rows") - totals.count("valid"), _add_units
    ),
    LossMetric("tokens", _report_sizes, _add_log_probs),
    LossMetric("advantage", lambda totals, _: totals.statistic("advantage"), _add_advantage),
)


# ---- of the input and of a part of its tokens: the ratio and the divergence between policies ----


def _add_ratio(block: TokenBlock) -> None:
    block.add("excess", block.excess)  # Σr is this plus the number of tokens
    block.add_span("log_ratio", block.base.log_ratio)
    block.numbers[BY_CELL].tallies.append(tally(block.log_ratio, bits=BITS))


def _report_ratio(totals: Totals, _: LossSetting) -> Json:
    """Return the mean and the extremes of the ratio of a token; of the input also quantiles.

    The log ratio of a quantile is within 1/64 of itself, and within the extremes.
    """
    count, whole = policy_tokens(totals), totals.tallies is not None
    if not count:
        return dict.fromkeys(("mean", "min", "max", *(("quantiles",) if whole else ())))
    ends = (totals.lows["log_ratio"], totals.highs["log_ratio"])
    low, high = (min(max(end, -MOST_NATS), MOST_NATS) for end in ends)
    mean = totals.mean("excess", count, more=count)
    entry: Json = {"mean": mean, "min": math.exp(low), "max": math.exp(high)}
    if totals.tallies:
        log_ratios = zip(SHARES, quantiles(totals.tallies[0], count, SHARES), strict=True)
        shares = {f"{share:g}": math.exp(min(max(x, low), high)) for share, x in log_ratios}
        entry["quantiles"] = shares
    return entry


def _add_kl(block: TokenBlock) -> None:
    for name, term in kl_terms(block.log_ratio, block.excess).items():
        block.add(name, term)


def _add_engine_kl(block: TokenBlock) -> None:
    if not block.both:
        return
    distance = block.tokens.inside(block.tokens.old - block.tokens.infer)
    distance = distance.clip(-MOST_NATS, MOST_NATS)
    for name, term in kl_terms(distance, block.xp.expm1(distance)).items():
        block.add(f"engine.{name}", term)


def _report_kl(totals: Totals, _: LossSetting, *, of: str = "") -> Json | None:
    if of and f"{of}k3" not in totals.sums:
        return None
    count = policy_tokens(totals)
    return {name: totals.mean(f"{of}{name}", count) for name in ("k1", "k3")}


def _add_squares(block: TokenBlock) -> None:
    block.add("excess2", chi_square(block.excess))  # Σr² is this plus the number of tokens


def _report_ess(totals: Totals, _: LossSetting) -> float | None:
    count = policy_tokens(totals)
    weight, squares = (totals.total(name) + count for name in ("excess", "excess2"))
    return effective_sample_size(count, weight, squares)


OF_TOKENS = (
    LossMetric("ratio", _report_ratio, _add_ratio),
    LossMetric("kl", _report_kl, _add_kl),
    LossMetric("engine_kl", partial(_report_kl, of="engine."), _add_engine_kl),
    LossMetric("ess", _report_ess, _add_squares),
)


# ---- of a loss, and of a part of its tokens ----


def _add_own_ratio(block: TokenBlock, setting: LossSetting, surrogate: Surrogate) -> None:
    if setting.config.own_ratio(block.behaviour):
        excess = block.tokens.inside(surrogate.ratio - 1)
        block.add(f"{setting.at}.excess", excess)
        block.add_span(f"{setting.at}.ratio", surrogate.ratio)


def _report_own_ratio(totals: Totals, setting: LossSetting) -> Json | None:
    """Return the ratio that the loss uses, if that is not the ratio of a token."""
    name, count = f"{setting.at}.ratio", policy_tokens(totals)
    if name not in totals.lows or not count:
        return None
    mean = totals.mean(f"{setting.at}.excess", count, more=count)
    return {"mean": mean, "min": totals.lows[name], "max": totals.highs[name]}


def _add_value(block: TokenBlock, setting: LossSetting, surrogate: Surrogate) -> None:
    """Add the loss of each token, and what it adds to that of its batch."""
    at, config = setting
    total = block.add(f"{at}.value", surrogate.values)
    block.add_numerator(f"{at}.policy", surrogate.values, total, config.aggregation)


def _add_kinds(block: TokenBlock, setting: LossSetting, surrogate: Surrogate) -> None:
    moves, signs = surrogate.gradient != 0, block.signs
    block.add_rows(f"{setting.at}.live", segment_any(moves, block.tokens.offsets), BY_CELL)
    if setting.config.loss.advantages is not None:
        advantages = setting.config.loss.advantages(block.tokens)
        signs = block.signed(advantages > 0, advantages < 0)
    state = surrogate.clip + block.xp.astype(~moves, block.xp.uint8) * CLIPS
    size = block.cells * (POSITION_RANGES if BY_POSITION in block.numbers else 1) * KINDS
    block.kinds.append(block.xp.count_codes(signs + state, size))


def _kinds(totals: Totals, setting: LossSetting) -> Integers:
    """Return the tokens of each kind, [SIGNS - 1, FLAT, CLIPS], without masked-out ones."""
    counts = totals.counts.get("kinds")
    if counts is None:
        return np.zeros((OUTSIDE, FLAT, CLIPS), np.int64)
    kinds: Integers = counts[setting.at, :OUTSIDE]
    return kinds


def _report_clip(totals: Totals, setting: LossSetting) -> Json:
    """Return the clipped tokens and their share, of all tokens and by sign of the advantage."""
    kinds = _kinds(totals, setting)
    whole = kinds.sum((1, 2)).tolist()

    def clipped(states: Any) -> Json:
        counts = kinds[:, :, states].reshape(OUTSIDE, -1).sum(1).tolist()
        entry = _share(sum(counts), sum(whole))
        for sign, name in ((POSITIVE, "positive"), (NEGATIVE, "negative")):
            entry[name] = _share(counts[sign], whole[sign])
        return entry

    branches = {name: clipped(state) for name, state in BRANCHES.items()}
    return {**branches, "any": clipped(slice(1, None))}


def _share(count: int, whole: int) -> Json:
    return {"tokens": count, "fraction": count / whole if whole else 0.0}


def _report_no_gradient(totals: Totals, setting: LossSetting) -> Json:
    """Return the tokens whose gradient is 0, by reason, and the responses of such tokens alone."""
    kinds = _kinds(totals, setting)
    flat = kinds[:, 1].sum(1).tolist()
    clipped = int(kinds[[POSITIVE, NEGATIVE], 1, 1:].sum())
    entry = _share(sum(flat), int(kinds.sum())) | {
        "zero_advantage": flat[ZERO],
        "clipped": clipped,
        "other": flat[POSITIVE] + flat[NEGATIVE] - clipped,
    }
    if f"{setting.at}.live" in totals.sums:
        valid = totals.count("valid")
        zero = valid - totals.count(f"{setting.at}.live")
        entry |= {"responses": zero, "response_fraction": zero / valid if valid else 0.0}
    return entry


OF_LOSS = (
    LossMetric("loss_ratio", _report_own_ratio, add_loss=_add_own_ratio),
    LossMetric(
        "token_loss",
        lambda totals, setting: totals.mean(f"{setting.at}.value", policy_tokens(totals)),
        add_loss=_add_value,
    ),
    LossMetric("clip", _report_clip, add_loss=_add_kinds),
    LossMetric("no_gradient", _report_no_gradient),
)


# ---- of a loss on the whole input ----


def _add_beyond(block: TokenBlock) -> None:
    """Add the log ratios beyond each clamp."""
    distance, most = block.distance
    for clamp in {setting.config.clamp for setting in block.settings}:
        beyond = block.count_above(clamp, distance, most)
        block.add_rows(f"beyond {clamp}", beyond, BY_CELL)


def _add_kl_losses(block: TokenBlock) -> None:
    """Add the KL losses from the reference policy, and the tokens whose KL is clamped."""
    if block.tokens.ref is None:
        return
    configs = (setting.config for setting in reversed(block.settings))
    for name, config in {config.kl_name: config for config in configs}.items():
        kl = block.kl_loss(config)
        total = block.of_responses(kl.values)
        block.add_numerator(name, kl.values, total, config.kl_aggregation)
        block.add_rows(f"{name}.clamped", count_true(kl.clamped, block.tokens.offsets), BY_CELL)


def _add_gradient(block: TokenBlock, setting: LossSetting, surrogate: Surrogate) -> None:
    """Add the size of the gradient of a step, its square, and its product with the first."""
    if block.first_of is None:
        return
    gradient = block.gradient(setting.config, surrogate)
    first = block.first_of(gradient)
    sums = {"size": abs(gradient), "squares": gradient * gradient}
    if gradient is not first:
        sums["product"] = gradient * first
    for name, values in sums.items():
        sizes = segment_sum(values, block.tokens.offsets)
        block.add_rows(f"{setting.at}.{name}", sizes, BY_CELL)


def _report_gradient(totals: Totals, setting: LossSetting) -> Json | None:
    """Return the size of the gradient of the loss of each step by the log-prob of each token.

    Weights of the aggregation, importance weights, weights of responses and the KL loss are factors
    of it. The summary adds its `cosine` with that of the first setting.
    """
    if f"{setting.at}.squares" not in totals.sums:
        return None
    size, squares = (totals.total(f"{setting.at}.{name}") for name in ("size", "squares"))
    ess = effective_sample_size(policy_tokens(totals), size, squares)
    return {"norm": math.sqrt(squares), "ess": ess}


OF_WHOLE = (
    LossMetric(
        "ratio_clamped",
        lambda totals, setting: totals.count(f"beyond {setting.config.clamp}"),
        _add_beyond,
    ),
    LossMetric(
        "kl_clamped",
        lambda totals, setting: totals.count(f"{setting.config.kl_name}.clamped"),
        _add_kl_losses,
    ),
    LossMetric("gradient", _report_gradient, add_loss=_add_gradient),
)


# ---- of a batch ----


def report_batch(label: Label, totals: Totals, setting: LossSetting) -> Json:
    """Return the aggregated loss of a batch, and its KL loss."""
    at, config = setting
    policy, kl = _aggregated(totals, f"{at}.policy", config.aggregation, config), None
    if config.kl_name in totals.sums:
        kl = _aggregated(totals, config.kl_name, config.kl_aggregation, config)
    total = policy + config.options.kl_loss_coef * (kl or 0.0)
    return {"batch": label, "policy": policy, "kl": kl, "total": total}


def _aggregated(totals: Totals, name: str, how: str, config: LossConfig) -> float:
    """Return the numerator of a batch over its denominator; 0 without policy tokens."""
    unit, options = f"{OF_UNITS[how]}:" if how in OF_UNITS else "", config.options
    valid, rows = (np.array(totals.count(f"{unit}{x}")) for x in ("valid", "rows"))
    parts = []
    for sign in signs_of(how):
        below = denominator(
            how=how,
            tokens=np.array(totals.count(f"tokens{sign}")),
            valid=valid,
            rows=rows,
            longest=np.array(int(totals.highs["length"])),
            count_rows=options.agg_rows,
            norm=options.agg_norm,
            length=options.agg_length,
        )
        parts.append(totals.mean(f"{name}{sign}", int(below)) or 0.0)
    return math.fsum(parts)
