"""The measures of policy losses: what each batch adds to the totals, and what totals become.

A new number of `rlpost loss` is a `Measure` in OF_INPUT or OF_LOSS. What all losses of a sweep have
in common (log ratios, masks, positions) is computed once. Sums run over stretches of a response,
and the sums of stretches add up exactly, so that results do not depend on chunks and workers.
"""

from __future__ import annotations

import math
from dataclasses import replace
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
from rlpost.pipeline.measures import MOST_NATS, Measure, Numbers, facts_of
from rlpost.pipeline.stages.loss import blocks, tokens_of
from rlpost.pipeline.stages.loss_weights import SIGNED, rounded, signs_of, step_gradient
from rlpost.pipeline.totals import Counted, Sets, TotalsBy
from rlpost.recipe.loss import behaviour_role
from rlpost.recipe.roles import LOG_PROB_ROUNDING, POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.losses.base import Surrogate
    from rlpost.losses.config import LossConfig
    from rlpost.losses.tokens import Tokens
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.totals import Label, Totals


Json = dict[str, Any]
SIGNS, FLAT, CLIPS = 4, 2, 5
"""A kind of token is the sign of its advantage (0, positive, negative, or masked out), whether its
gradient is 0, and its clip state."""
KINDS = SIGNS * FLAT * CLIPS
ZERO, POSITIVE, NEGATIVE, OUTSIDE = range(SIGNS)
ALL, OF_SIGN, CLIPPED = slice(None), slice(POSITIVE, OUTSIDE), slice(1, None)
BY_CELL, BY_POSITION, BY_BATCH = "cell", "position", "batch"
"""What numbers are added by. A sweep has only one cell, which is the whole input, and no positions.
"""
SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
FIRST = "gradient of the first setting"


class LossSetting(NamedTuple):
    """A loss, and its index among those whose advantages the same recipe computes."""

    at: int
    config: LossConfig


def policy_tokens(totals: Totals) -> int:
    """Return the number of policy tokens, which is the same for all losses."""
    return int(totals.counts["kinds"][0, :OUTSIDE].sum())


def loss_facts(
    measures: Sequence[Measure], slices: Mapping[str, Sets], setting: LossSetting
) -> dict[str, Json]:
    """Return the facts of a loss, as `facts_of`."""
    slices = {
        by: Sets(labels, [_of_setting(x, setting) for x in totals])
        for by, (labels, totals) in slices.items()
    }
    return facts_of(measures, slices)


def _of_setting(totals: Totals, setting: LossSetting) -> Totals:
    """Return the totals of a set of tokens under the names of measures.

    Sums of ratios lack 1 of each token; kinds of tokens become counts; what is without a token or a
    gradient is what the others leave.
    """
    at, config = setting
    begin, count = f"{at}.", policy_tokens(totals)
    kinds: NDArray[Any] = totals.counts["kinds"][at, :OUTSIDE]

    def named(numbers: Mapping[str, Any]) -> dict[str, Any]:
        of_loss = {name: x for name, x in numbers.items() if name.startswith(begin)}
        return {**numbers, **{name.removeprefix(begin): x for name, x in of_loss.items()}}

    sums, lows, highs = (named(x) for x in (totals.sums, totals.lows, totals.highs))
    counts = {"tokens": count, "advantage.count": count}
    for end, _, sign in OF_SIGNS:
        counts[f"tokens{end}"] = int(kinds[sign].sum())
        counts |= {f"{x}{end}": int(kinds[sign, :, y].sum()) for x, (y, _) in STATES.items()}
    counts |= {f"no_gradient{end}": int(kinds[sign, 1, y].sum()) for end, _, sign, y in STILL}
    sums |= {name: number << totals.scale for name, number in counts.items()}
    for name in ("ratio.total", "ratio.squares", "loss_ratio.total"):
        sums |= {name: sums[name] + sums["tokens"]} if name in sums else {}
    for name, key in (("ratio_clamped", f"{config.clamp}"), ("kl_clamped", config.kl_name)):
        sums |= {name: sums[key]} if key in sums else {}
    pairs = ("without_tokens", "rows", "valid"), ("no_gradient_responses", "valid", "live")
    sums |= {x: sums[whole] - sums[part] for x, whole, part in pairs if part in sums}
    for ends in (lows, highs):
        ends["ratio"] = math.exp(_finite(ends["log_ratio"]))
    return replace(totals, sums=sums, lows=lows, highs=highs)


def count_losses(batch: Batch, *, configs: Sequence[LossConfig], rewarded: bool) -> Counted:
    """Count what a batch that has advantages and log-probs adds to the totals.

    Gradients of several losses are compared with that of the first: responses have weights then.

    Args:
        batch: of whole responses.
        configs: the losses. The totals have details by cell and position only if there is one.
        rewarded: the input has rewards.
    """
    gradients: dict[int, Array] = {}
    detailed, whole = len(configs) == 1, any(config.loss.grouped for config in configs)
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
    counts = {
        key: Numbers.joined([part[key] for part in parts]).counted(keys[key]) for key in parts[0]
    }

    def totals(fetched: Mapping[str, NDArray[Any]]) -> TotalsBy:
        _check_finite(fetched, configs)
        return TotalsBy(
            {
                key: part.totals({name: fetched[f"{key} {name}"] for name in part.numbers})
                for key, part in counts.items()
            }
        )

    numbers = {f"{key} {n}": x for key, part in counts.items() for n, x in part.numbers.items()}
    return Counted(numbers, totals)


def _check_finite(numbers: Mapping[str, NDArray[Any]], configs: Sequence[LossConfig]) -> None:
    """Raise DataError for the first response whose loss is not finite."""
    for index, config in enumerate(configs):
        wrong = ~np.isfinite(numbers[f"{BY_CELL} sum {index}.token_loss"])
        if bool(wrong.any()):
            row, ends = int(np.flatnonzero(wrong)[0]), ("low", "high")
            most = max(abs(float(numbers[f"{BY_CELL} {end} log_ratio"][row])) for end in ends)
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
        self.token_weights: dict[str, Array] = {}
        keys = (BY_CELL, BY_BATCH, *((BY_POSITION,) if first_of is None else ()))
        self.numbers = {key: Numbers() for key in keys}

    def counted(self) -> dict[str, Numbers]:
        """Return the numbers of all measures, by each key."""
        _add_units(self)
        _add_log_probs(self)
        for measure in OF_INPUT:
            if measure.add is not None:
                measure.add(self)
        for setting in self.settings:
            surrogate = setting.config.loss(self.tokens, setting.config.options)
            for measure in OF_LOSS:
                if measure.add is not None:
                    measure.add(self, setting, surrogate)
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


# ---- of the input, and of the ratio and the divergence between policies ----


def _add_sizes(block: TokenBlock) -> None:
    size = lengths(on_host(block.tokens.offsets)).astype(np.float64)
    sizes = {"rows": np.ones_like(size), "valid": block.count > 0, "tokens": block.count}
    for name, sums in sizes.items():
        block.add_rows(name, sums, BY_CELL, BY_BATCH)
    block.add_rows("length", size, BY_CELL)
    block.numbers[BY_BATCH].spans["length"] = size, size


def _add_units(block: TokenBlock) -> None:
    """Add the number of prompts or rollouts, whose columns the stages of losses make."""
    units = [setting.config.units for setting in block.settings]
    for how, role in {how: role for x in units for how, role in x.items()}.items():
        tokens, first = (block.rows[f"{role}:{name}"] for name in ("tokens", "first"))
        block.unit_tokens[how] = tokens
        block.add_rows(f"{OF_UNITS[how]}:rows", first, BY_BATCH)
        block.add_rows(f"{OF_UNITS[how]}:valid", first & (tokens > 0), BY_BATCH)


def _add_advantage(block: TokenBlock) -> None:
    advantages = block.tokens.masked_advantages
    block.add("advantage.total", advantages)
    block.add("advantage.squares", advantages**2)
    block.add_span("advantage", advantages)


def _add_log_probs(block: TokenBlock) -> None:
    """Add the signs of wrong log-probs: positive ones.

    The lowest and highest log-prob are those of the block, for each of its responses, since only
    the extremes of a file or an input are read.
    """
    for name, role in POLICIES.items():
        values = getattr(block.tokens, name)
        none = np.zeros(len(block.count), np.int64)
        positive, low, high = none, none + np.inf, none - np.inf
        if values is not None and len(values):
            inside = block.tokens.inside(values, -np.inf)
            least, most = block.tokens.inside(values, np.inf).min(), inside.max()
            positive = block.count_above(LOG_PROB_ROUNDING, inside, most)
            each = block.xp.zeros(len(block.count), values)
            low, high = each + least, each + most
        block.add_rows(f"positive:{role}", positive, BY_CELL)
        block.numbers[BY_CELL].spans[role] = low, high


def _add_ratio(block: TokenBlock) -> None:
    """Add r - 1 and r² - 1, whose sums keep their digits if policies nearly agree."""
    block.add("ratio.total", block.excess)
    block.add("ratio.squares", chi_square(block.excess))
    block.add_span("log_ratio", block.base.log_ratio)
    block.numbers[BY_CELL].tallies.append(tally(block.log_ratio, bits=BITS))


def _finite(log_ratio: float) -> float:
    return min(max(log_ratio, -MOST_NATS), MOST_NATS)


def ratio_quantiles(totals: Totals) -> Json | None:
    """Return quantiles of the ratio of the input; None without tokens.

    The log ratio of a quantile is within 1/64 of itself, and within the extremes.
    """
    count = policy_tokens(totals)
    if totals.tallies is None or not count:
        return None
    low, high = (_finite(ends["log_ratio"]) for ends in (totals.lows, totals.highs))
    pairs = zip(SHARES, quantiles(totals.tallies[0], count, SHARES), strict=True)
    return {f"{x:g}": math.exp(min(max(y, low), high)) for x, y in pairs}


def _add_kl(block: TokenBlock) -> None:
    terms = kl_terms(block.log_ratio, block.excess)
    block.add("log_ratio.total", -terms["k1"])
    block.add("policy_k3", terms["k3"])


def _add_engine_kl(block: TokenBlock) -> None:
    if not block.both:
        return
    distance = block.tokens.inside(block.tokens.old - block.tokens.infer)
    distance = distance.clip(-MOST_NATS, MOST_NATS)
    for name, term in kl_terms(distance, block.xp.expm1(distance)).items():
        block.add(f"engine_{name}", term)


def _ess(totals: Totals, _: str, name: str = "gradient") -> float | None:
    """Return the effective sample size of weights."""
    sums = (totals.total(f"{name}.{part}") for part in ("total", "squares"))
    return effective_sample_size(totals.count("tokens"), *sums)


OF_INPUT = (
    Measure("without_tokens", "all", "Without a token in the loss: masked, dropped or empty.",
            "share", _add_sizes),
    Measure("advantage", "loss", "Advantage.", add=_add_advantage),
    Measure("ratio", "loss", "Ratio r, of the policy in training to that of `behaviour`. Of the "
            "whole input there are `quantiles`, whose logarithms are exact to 1/64 of themselves.",
            "span", _add_ratio),
    Measure("log_ratio", "loss", "log r; the mean is of numbers within ±300.", "span", _add_kl),
    Measure("policy_k3", "loss", "Estimate k3 of KL(behaviour ‖ current), nats; k1 is -log r.",
            "mean"),
    Measure("engine_k1", "loss", "Estimate k1 of KL(rollout engine ‖ old), nats.", "mean",
            _add_engine_kl),
    Measure("engine_k3", "loss", "Estimate k3 of KL(rollout engine ‖ old), nats.", "mean"),
    Measure("ratio_ess", "loss", "Effective sample size, (Σr)²/(nΣr²).", "value",
            value=partial(_ess, name="ratio"), needs="ratio.squares"),
)  # fmt: skip


# ---- of a loss ----


def _add_own_ratio(block: TokenBlock, setting: LossSetting, surrogate: Surrogate) -> None:
    if setting.config.own_ratio(block.behaviour):
        excess = block.tokens.inside(surrogate.ratio - 1)
        block.add(f"{setting.at}.loss_ratio.total", excess)
        block.add_span(f"{setting.at}.loss_ratio", surrogate.ratio)


def _add_loss(block: TokenBlock, setting: LossSetting, surrogate: Surrogate) -> None:
    """Add the loss of each token, what it adds to that of its batch, and the kinds of tokens."""
    at, config = setting
    total = block.add(f"{at}.token_loss", surrogate.values)
    block.add_numerator(f"{at}.policy", surrogate.values, total, config.aggregation)
    moves, signs = surrogate.gradient != 0, block.signs
    block.add_rows(f"{at}.live", segment_any(moves, block.tokens.offsets), BY_CELL)
    if config.loss.advantages is not None:
        advantages = config.loss.advantages(block.tokens)
        signs = block.signed(advantages > 0, advantages < 0)
    state = surrogate.clip + block.xp.astype(~moves, block.xp.uint8) * CLIPS
    size = block.cells * (POSITION_RANGES if BY_POSITION in block.numbers else 1) * KINDS
    block.kinds.append(block.xp.count_codes(signs + state, size))


def _add_beyond(block: TokenBlock, setting: LossSetting, _: Surrogate) -> None:
    """Add the log ratios beyond the clamp."""
    clamp = setting.config.clamp
    block.add_rows(f"{clamp}", block.count_above(clamp, *block.distance), BY_CELL)


def _add_kl_loss(block: TokenBlock, setting: LossSetting, _: Surrogate) -> None:
    """Add the KL loss from the reference policy, and the tokens whose KL is clamped."""
    config, name = setting.config, setting.config.kl_name
    if block.tokens.ref is None or name in block.numbers[BY_CELL].sums:
        return
    kl = block.kl_loss(config)
    total = block.of_responses(kl.values)
    block.add_numerator(name, kl.values, total, config.kl_aggregation)
    block.add_rows(name, count_true(kl.clamped, block.tokens.offsets), BY_CELL)


def _add_gradient(block: TokenBlock, setting: LossSetting, surrogate: Surrogate) -> None:
    """Add the size of the gradient of a step, its square, and its product with the first.

    Weights of the aggregation, importance weights, weights of responses and the KL loss are factors
    of it.
    """
    if block.first_of is None:
        return
    config, tokens, kl_loss = setting.config, block.tokens, block.kl_loss(setting.config)
    gradient = step_gradient(config, tokens, surrogate, block.rows, kl_loss, block.token_weights)
    first, key = block.first_of(gradient), f"{setting.at}.gradient"
    sums = {f"{key}.total": abs(gradient), f"{key}.squares": gradient * gradient}
    sums[f"{key}.product"] = gradient * first
    if FIRST not in block.numbers[BY_CELL].sums:
        sums[FIRST] = first * first
    for name, values in sums.items():
        block.add_rows(name, segment_sum(values, tokens.offsets), BY_CELL)


def _norm(totals: Totals, _: str) -> float:
    return math.sqrt(totals.total("gradient.squares"))


def _cosine(totals: Totals, _: str) -> float | None:
    product, *squares = map(totals.total, ("gradient.product", "gradient.squares", FIRST))
    if not all(squares):
        return None
    cosine = float(product) / math.sqrt(squares[0]) / math.sqrt(squares[1])
    return 1.0 if [product] * 2 == squares else max(-1.0, min(1.0, cosine))


STATES: dict[str, tuple[Any, str]] = {
    "clipped_low": (LOW, "Clipped or masked below a bound."),
    "clipped_high": (HIGH, "Clipped or masked above a bound."),
    "clipped_dual": (DUAL, "Above the dual clip, or a cap of the weight."),
    "selected": (SELECTED, "Selected, by a loss that selects tokens."),
    "clipped": (CLIPPED, "Any of these."),
}
OF_SIGNS: tuple[tuple[str, str, Any], ...] = (
    ("", "loss", ALL),
    ("_positive", "loss_positive", POSITIVE),
    ("_negative", "loss_negative", NEGATIVE),
)
STILL: tuple[tuple[str, str, Any, Any], ...] = (
    ("", "Without a gradient.", ALL, ALL),
    ("_zero_advantage", "Without a gradient: the advantage is 0.", ZERO, ALL),
    ("_clipped", "Without a gradient: clipped, masked or selected.", OF_SIGN, CLIPPED),
    ("_other", "Without a gradient for another reason.", OF_SIGN, 0),
)
OF_LOSS = (
    Measure("loss_ratio", "loss", "Ratio of the loss, if it is not r.", "span", _add_own_ratio),
    Measure("token_loss", "loss", "Loss, without weights.", "mean", _add_loss),
    *(Measure(f"{name}{end}", of, about, "share")
      for end, of, _ in OF_SIGNS for name, (_, about) in STATES.items()),
    *(Measure(f"no_gradient{end}", "loss", about, "share") for end, about, _, _ in STILL),
    Measure("no_gradient_responses", "loss rows", "Without a gradient.", "share"),
    Measure("ratio_clamped", "loss", "log r is clamped.", "share", _add_beyond),
    Measure("kl_clamped", "loss", "The KL loss is clamped.", "share", _add_kl_loss),
    Measure("gradient_norm", "loss", "√Σg² of gradients.", "value", _add_gradient, _norm,
            "gradient.squares"),
    Measure("gradient_ess", "loss", "(Σ|g|)²/(nΣg²) of gradients.", "value", value=_ess,
            needs="gradient.squares"),
    Measure("gradient_cosine", "loss", "To that of the first setting.", "value", value=_cosine,
            needs="gradient.squares"),
)  # fmt: skip


# ---- of batches ----

OF_BATCHES = {
    "policy_loss": "Loss of a batch, aggregated and weighted.",
    "kl_loss": "KL loss of a batch from the reference, before its coefficient.",
    "total_loss": "Policy loss of a batch + coefficient · KL loss.",
}


def batch_facts(
    key: str, labels: Sequence[Label], each: Sequence[Totals], setting: LossSetting
) -> Json:
    """Return the entries of the losses of batches; one without a token in the loss has none.

    Args:
        key: of the batches, empty if there is one.
        labels: of the batches.
        each: their totals.
        setting: the loss.
    """
    rows, facts = [batch_losses(totals, setting) for totals in each], {}
    for name in OF_BATCHES:
        losses = [row.get(name) for row in rows]
        known = [loss for loss in losses if loss is not None]
        if known or name != "kl_loss":
            whole = {"count": len(known), "mean": math.fsum(known) / len(known) if known else None}
            facts[name] = Json(of="batches with a token in the loss", all=whole)
        if name in facts and key:
            counts = [int(loss is not None) for loss in losses]
            facts[name][key] = {"label": [*labels], "count": counts, "mean": losses}
    return facts


def batch_losses(totals: Totals, setting: LossSetting) -> dict[str, float]:
    """Return the aggregated losses of a batch; none without policy tokens."""
    if not totals.count("tokens"):
        return {}
    at, config = setting
    losses = {"policy_loss": _aggregated(totals, f"{at}.policy", config.aggregation, config)}
    if config.kl_name in totals.sums:
        losses["kl_loss"] = _aggregated(totals, config.kl_name, config.kl_aggregation, config)
    kl = config.options.kl_loss_coef * losses.get("kl_loss", 0.0)
    return {**losses, "total_loss": losses["policy_loss"] + kl}


def _aggregated(totals: Totals, name: str, how: str, config: LossConfig) -> float:
    """Return the numerator of a batch over its denominator."""
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
        parts.append(totals.mean(f"{name}{sign}", int(below)) or 0.0)  # of one sign: there is none
    return math.fsum(parts)
