"""Totals of policy losses: exact sums, counts and histograms of their effect on tokens.

What all losses of a sweep have in common (log ratios, masks, positions) is computed once. Each
loss then adds a sum and a count. Sums run over stretches of a response, and the sums of stretches
add up exactly, so that results do not depend on chunks and workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import DataError
from rlpost.kernels.aggregate import BY_SIGN, OF_UNITS, AggregateTotals
from rlpost.kernels.arrays import Array, is_tensor, like, namespace, on_host
from rlpost.kernels.divergence import chi_square, kl_terms
from rlpost.kernels.moments import round_digits
from rlpost.kernels.quantiles import BINS, bins_of, count_codes
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
from rlpost.losses.config import behaviour_of
from rlpost.losses.kl import KlLoss
from rlpost.pipeline.metrics import MOST_NATS
from rlpost.pipeline.stages.loss import blocks, rounded, tokens_of
from rlpost.pipeline.stages.loss_weights import (
    SIGNED,
    WEIGHT,
    signs_of,
    step_gradient,
    token_weights,
    weight_name,
)
from rlpost.pipeline.totals import Counted, ExactTotals, Totals
from rlpost.pipeline.variants import variants_of
from rlpost.recipe.loss import behaviour_role
from rlpost.recipe.roles import LOG_PROB_ROUNDING, POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Integers
    from rlpost.losses.base import Surrogate
    from rlpost.losses.config import LossConfig
    from rlpost.losses.tokens import Tokens
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.variants import Variant

    Numbers = NDArray[Any]

SIGNS, FLAT, CLIPS = 4, 2, 5
"""A kind of token is the sign of its advantage (0, positive, negative, or masked out), whether its
gradient is 0, and its clip state."""
KINDS = SIGNS * FLAT * CLIPS
ZERO, POSITIVE, NEGATIVE, OUTSIDE = range(SIGNS)
BY_CELL, BY_POSITION, BY_BATCH = "cell", "position", "batch"
"""What numbers are added by."""


@dataclass(frozen=True)
class TokenSetTotals:
    """The totals of a set of tokens."""

    sums: Totals
    kinds: Integers
    """[configs, SIGNS, FLAT, CLIPS] int64: tokens of each kind."""
    bins: Integers | None
    """[BINS] int64: the histogram of log ratios; None for a range of positions."""

    @property
    def policy_tokens(self) -> int:
        """The number of policy tokens, which is the same for all configs."""
        return int(self.kinds[0, :OUTSIDE].sum())


@dataclass(frozen=True)
class LossTotals:
    """The totals of losses by cell (step and domain), by range of positions and by batch.

    Totals of the same configs add with `+`, in any order, to the same bits. A sweep has only one
    cell, which is the whole input, and no positions.
    """

    configs: int
    cells: ExactTotals = ExactTotals()  # noqa: RUF009 - it is immutable
    """Its counts are kinds, [configs, KINDS], and the histogram of log ratios, [BINS]."""
    positions: ExactTotals = ExactTotals()  # noqa: RUF009
    """Its counts are kinds, [configs, KINDS]."""
    batches: ExactTotals = ExactTotals()  # noqa: RUF009
    """The sums that the loss of a batch is computed from."""
    others: tuple[LossTotals, ...] = ()
    """Those of the other variants, if these are of the first one."""

    def __add__(self, other: LossTotals) -> LossTotals:
        return LossTotals(
            self.configs,
            self.cells + other.cells,
            self.positions + other.positions,
            self.batches + other.batches,
            tuple(one + more for one, more in zip(self.others, other.others, strict=True)),
        )

    def compact(self) -> LossTotals:
        """Return the same totals, faster to read."""
        parts = (self.cells.compact(), self.positions.compact(), self.batches.compact())
        others = tuple(one.compact() for one in self.others)
        return LossTotals(self.configs, *parts, others)

    def total(self) -> TokenSetTotals:
        """Return the totals over all cells."""
        return self.over_each([self.cells.keys])[0]

    def over_each(self, sets: Sequence[Sequence[int]]) -> list[TokenSetTotals]:
        """Return the totals over each of some sets of cells."""
        if not self.cells:
            none = _by_kind(np.zeros(self.configs * KINDS, np.int64))
            return [TokenSetTotals(Totals(), none, None) for _ in sets]
        counts = map(self.cells.counted, sets)
        return [
            TokenSetTotals(sums, _by_kind(kinds), bins)
            for sums, (kinds, bins) in zip(self.cells.over_each(sets), counts, strict=True)
        ]

    def at_each_position(self) -> list[tuple[int, TokenSetTotals]]:
        """Return each range of positions that occurs, with its totals."""
        keys = [[key] for key in self.positions.keys]
        kinds = (_by_kind(self.positions.counted(key)[0]) for key in keys)
        return [
            (key, TokenSetTotals(sums, own, None))
            for (key,), sums, own in zip(keys, self.positions.over_each(keys), kinds, strict=True)
        ]

    def parts(self, name: str, batches: int, how: str) -> list[AggregateTotals]:
        """Return the sums of each batch whose means add up, each with what may divide it.

        Args:
            name: of the sum.
            batches: how many batches the whole input has.
            how: the aggregation.
        """
        role = f"{OF_UNITS[how]}:" if how in OF_UNITS else ""
        valid, rows = (self.counts(f"{role}{one}", batches) for one in ("valid", "rows"))
        longest = self.batches.highest("length", batches).clip(0).astype(np.int64)
        return [
            AggregateTotals(
                self.batches.digits(f"{name}{sign}", batches),
                self.counts(f"tokens{sign}", batches),
                valid,
                rows,
                longest,
            )
            for sign in signs_of(how)
        ]

    def counts(self, name: str, batches: int) -> Integers:
        """Return a sum of whole numbers of each batch, [batches] int64."""
        return round_digits(self.batches.digits(name, batches)).astype(np.int64)


def _by_kind(counts: Integers) -> Integers:
    return counts.reshape(-1, SIGNS, FLAT, CLIPS)


def no_losses(variants: Sequence[Variant]) -> LossTotals:
    """Return the totals of no responses."""
    first, *others = (LossTotals(len(one.indices)) for one in variants)
    return replace(first, others=tuple(others))


def count_losses(batch: Batch, *, configs: Sequence[LossConfig], rewarded: bool) -> Counted:
    """Compute the totals of a batch that has advantages and log-probs.

    Gradients of several losses are compared with that of the first: responses have weights then.

    Args:
        batch: of whole responses.
        configs: the losses. The totals have details by cell and position only if there is one.
        rewarded: the input has rewards.
    """
    variants, gradients = variants_of(configs), dict[int, Array]()
    counted = {
        variant.prefix: _count_variant(variant, batch, configs, gradients, rewarded=rewarded)
        for variant in variants
    }
    if not variants[1:]:
        return counted[""]
    numbers = {
        f"{prefix}{name}": x for prefix, own in counted.items() for name, x in own.numbers.items()
    }

    def totals(fetched: Mapping[str, Numbers]) -> LossTotals:
        parts: list[LossTotals] = []
        for variant in variants:
            own = counted[variant.prefix]
            named = {name: fetched[f"{variant.prefix}{name}"] for name in own.numbers}
            parts.append(own.totals(named))
        return replace(parts[0], others=tuple(parts[1:]))

    return Counted(numbers, totals)


def _count_variant(
    variant: Variant,
    batch: Batch,
    configs: Sequence[LossConfig],
    gradients: dict[int, Array],
    *,
    rewarded: bool,
) -> Counted:
    """Compute the totals of the settings of a variant; arguments of `count_losses`.

    `gradients` are those of the first setting, [T], by the first response of a block: the first
    variant adds them, the others read them.
    """
    detailed, whole = len(configs) == 1, any(one.loss.grouped for one in configs)
    batch, configs = variant.batch(batch), [configs[index] for index in variant.indices]
    keys = {name: batch.table[name] for name in (BY_CELL, BY_BATCH)}
    if not detailed:
        keys[BY_CELL] = np.zeros_like(keys[BY_CELL])
    present, local = np.unique(keys[BY_CELL], return_inverse=True)
    weights = batch.responses.get("sample_weight")
    if weights is not None:  # rounded as a file stores them, so that both give the same loss
        weights = rounded(weights)
    tokens = tokens_of(batch, rewarded=rewarded)
    units = {how: role for config in configs for how, role in config.units.items()}
    local = like(local, tokens.mask)
    both = {"old_log_probs", "infer_log_probs"} <= {*batch.tokens}
    of_weights = [name for name in batch.responses if name.startswith(WEIGHT)]
    counted = []
    for rows, part in blocks(tokens, whole=whole):
        own = None if weights is None else weights[rows]
        block = _TokenBlock(part, own, local[rows], len(present), configs, detailed=detailed)
        for how, role in units.items():
            block.add_units(how, *(batch.responses[f"{role}:{x}"][rows] for x in _OF_UNIT))
        block.add_ratios(both=both)
        of_rows = {name: batch.responses[name][rows] for name in of_weights}
        block.add_losses(of_rows, None if detailed else partial(gradients.setdefault, rows.start))
        block.add_kl_losses()
        block.add_log_probs()
        counted.append(block)
    keys[BY_POSITION] = np.concatenate([on_host(block.stretches.places) for block in counted])
    totals = partial(_totals_of, keys=keys, configs=configs, detailed=detailed)
    return Counted(_joined(counted), totals)


def _joined(counted: Sequence[_TokenBlock]) -> dict[str, Array]:
    """Return the numbers of consecutive blocks."""
    first, *others = (block.numbers for block in counted)
    numbers, xp = first, counted[0].xp
    if others:  # else one array under several names is copied to the host once
        numbers = {
            name: xp.concat([x, *(one[name] for one in others)]) for name, x in first.items()
        }
    numbers["kinds"] = xp.stack([block.kinds for block in counted]).sum(0)
    numbers["bins"] = xp.stack([block.bins for block in counted]).sum(0)
    return numbers


def _totals_of(
    numbers: Mapping[str, Numbers],
    *,
    keys: Mapping[str, Integers],
    configs: Sequence[LossConfig],
    detailed: bool,
) -> LossTotals:
    """Return the totals of numbers.

    Raises:
        DataError: a loss is not finite.
    """
    for index, config in enumerate(configs):
        _check_finite(numbers, index, config, behaviour_of(configs))
    kinds, positions = numbers["kinds"], ExactTotals()
    if detailed:
        of_places = kinds.sum(1).swapaxes(0, 1)[np.unique(keys[BY_POSITION])]
        positions = _exact(numbers, BY_POSITION, keys, of_places)
    return LossTotals(
        len(configs),
        _exact(numbers, BY_CELL, keys, kinds.sum(2).swapaxes(0, 1), numbers["bins"]),
        positions,
        _exact(numbers, BY_BATCH, keys),
    )


def _exact(
    numbers: Mapping[str, Numbers], by: str, keys: Mapping[str, Integers], *counts: Integers
) -> ExactTotals:
    """Return the totals by one of the keys."""
    sums, lows, highs = (
        {name.removeprefix(first): x for name, x in numbers.items() if name.startswith(first)}
        for first in (f"{by}.sum:", f"{by}.low:", f"{by}.high:")
    )
    return ExactTotals.of(
        keys[by], sums, {name: (low, highs[name]) for name, low in lows.items()}, counts
    )


def _check_finite(
    numbers: Mapping[str, Numbers], index: int, config: LossConfig, behaviour: str
) -> None:
    """Raise DataError for the first response whose loss is not finite."""
    wrong = ~np.isfinite(numbers[f"{BY_CELL}.sum:{index}.value"])
    if bool(wrong.any()):
        row = int(np.flatnonzero(wrong)[0])
        ends = (numbers[f"{BY_CELL}.{end}:log_ratio"][row] for end in ("low", "high"))
        raise DataError(
            f"loss {config.loss.name}: a token's loss is not finite; its log ratio is up to "
            f"{max(abs(float(end)) for end in ends):.4g} nats: are log_probs and "
            f"{behaviour_role(behaviour)} of the same tokens? --ratio-clamp 20 bounds the ratio"
        )


_OF_UNIT = ("tokens", "first")
"""The columns of responses about their prompts or rollouts, from the stages of losses."""


class _TokenBlock:
    """The numbers of a block of whole responses, by stretch and by response.

    Args:
        tokens: of n responses.
        weights: [n] sample weights, which multiply losses; None for 1.
        local: [n] int64 in [0, cells): the cell of each response.
        cells: how many cells the batch has.
        configs: the losses.
        detailed: with sums by cell and position.
    """

    def __init__(
        self,
        tokens: Tokens,
        weights: Array | None,
        local: Array,
        cells: int,
        configs: Sequence[LossConfig],
        *,
        detailed: bool,
    ) -> None:
        self.tokens, self.weights, self.local, self.cells = tokens, weights, local, cells
        self.configs, self.behaviour = configs, behaviour_of(configs)
        self.base = tokens.divided_by(self.behaviour)
        self.detailed = detailed
        self.positions = POSITION_RANGES if self.detailed else 1
        self.stretches = PositionSegments.of(tokens.offsets)
        self.count = count_true(tokens.mask, tokens.offsets)
        self.xp = namespace(tokens.mask)
        self.unit_tokens: dict[str, Array] = {"seq-mean-token-mean": self.count}
        """By aggregation: the tokens of the response, prompt or rollout, [n]."""
        self._kl_losses: dict[str, KlLoss] = {}
        self._token_weights: dict[str, Array] = {}
        self.numbers: dict[str, Array] = {}
        """By key, part and name: `cell.sum:k3` are the sums of `k3`, which are added by cell."""

    def add_units(self, how: str, tokens: Array, first: Array) -> None:
        """Add the number of prompts or rollouts.

        Args:
            how: the aggregation.
            tokens: [n] of the unit of each response.
            first: [n] whether it is the first response of its unit.
        """
        self.unit_tokens[how] = tokens
        self._add_rows(f"{OF_UNITS[how]}:rows", first, BY_BATCH)
        self._add_rows(f"{OF_UNITS[how]}:valid", first & (tokens > 0), BY_BATCH)

    def add_ratios(self, *, both: bool) -> None:
        """Add what no config changes: sizes, log ratios and advantages.

        Args:
            both: the input has log-probs of the old policy and of the rollout engine.
        """
        tokens = self.tokens
        size = lengths(on_host(tokens.offsets)).astype(np.float64)
        sizes = {"rows": np.ones_like(size), "valid": self.count > 0, "tokens": self.count}
        for name, numbers in sizes.items():
            self._add_rows(name, numbers, BY_CELL, BY_BATCH)
        self._add_rows("length", size, BY_CELL)
        self._add_ends("length", size, size, BY_BATCH)
        # Masked-out tokens have a log ratio of 0, so that they add 0 to each of these sums.
        log_ratio = self.base.log_ratio.clip(-MOST_NATS, MOST_NATS)
        excess = self.xp.expm1(log_ratio)
        for name, term in kl_terms(log_ratio, excess).items():
            self._add(name, term)
        self._add("excess", excess)  # Σr is this plus the number of tokens
        self._add("excess2", chi_square(excess))  # Σr² is this plus the number of tokens
        self._add_span("log_ratio", self.base.log_ratio)
        self.bins = self._histogram(log_ratio)
        if both:
            assert tokens.infer is not None, "tokens without log-probs of the rollout engine"
            distance = self.xp.where(tokens.mask, tokens.old - tokens.infer, 0.0)
            distance = distance.clip(-MOST_NATS, MOST_NATS)
            for name, term in kl_terms(distance, self.xp.expm1(distance)).items():
                self._add(f"engine.{name}", term)
        self._add("advantage.total", tokens.masked_advantages)
        self._add("advantage.squares", tokens.masked_advantages**2)
        self._add_rows("advantage.count", self.count, BY_CELL)
        self._add_span("advantage", tokens.masked_advantages)

    def add_losses(
        self, weights: Mapping[str, Array], first_of: Callable[[Array], Array] | None
    ) -> None:
        """Add the loss of each config, the tokens that it clips, and those with zero gradient.

        Args:
            weights: of tokens, by column of responses.
            first_of: returns the gradient of the first setting, given that of this one, which is
                kept if it is the first; None if gradients are not compared.
        """
        tokens, first_kinds = self.tokens, self._first_kinds()
        shared = first_kinds + self._signs(tokens.advantage_positive, tokens.advantage_negative)
        shape = (len(self.configs), self.cells, self.positions, KINDS)
        kinds, size = [], self.cells * self.positions * KINDS
        for index, config in enumerate(self.configs):
            surrogate = config.loss(tokens, config.options)
            total = self._add(f"{index}.value", surrogate.values)
            self._add_numerator(f"{index}.policy", surrogate.values, total, config.aggregation)
            moves = surrogate.gradient != 0
            self._add_rows(f"{index}.live", segment_any(moves, tokens.offsets), BY_CELL)
            if config.own_ratio(self.behaviour):
                excess = self.xp.where(tokens.mask, surrogate.ratio - 1, 0.0)
                self._add(f"{index}.excess", excess)
                self._add_span(f"{index}.ratio", surrogate.ratio)
            signs = shared
            if config.loss.advantages is not None:
                own = config.loss.advantages(tokens)
                signs = first_kinds + self._signs(own > 0, own < 0)
            kinds.append(count_codes(signs + self._state(surrogate.clip, moves), size))
            if first_of is not None:
                gradient = self._gradient(config, surrogate, weights)
                self._add_gradient(index, gradient, first_of(gradient))
        self.kinds = self.xp.stack(kinds).reshape(shape)

    def _add_gradient(self, index: int, gradient: Array, first: Array) -> None:
        """Add the size of the gradient of a step, its square, and its product with the first."""
        sums = {"size": abs(gradient), "squares": gradient * gradient}
        if gradient is not first:
            sums["product"] = gradient * first
        for name, values in sums.items():
            self._add_rows(f"{index}.{name}", segment_sum(values, self.tokens.offsets), BY_CELL)

    def _gradient(
        self, config: LossConfig, surrogate: Surrogate, weights: Mapping[str, Array]
    ) -> Array:
        """Return the gradient of the loss of a step by the log-prob of each token, [T]."""
        of_tokens = []
        for kl in (False, True):
            name = weight_name(config, kl=kl)
            if name not in self._token_weights:
                own = token_weights(weights, self.tokens, config, kl=kl)
                if self.weights is not None:
                    own = own * spread(self.weights, self.tokens.offsets)
                self._token_weights[name] = own
            of_tokens.append(self._token_weights[name])
        policy, of_kl = of_tokens
        kl_loss = self._kl_loss(config)
        return step_gradient(config, self.tokens, surrogate, (policy, of_kl), kl_loss)

    def _kl_loss(self, config: LossConfig) -> KlLoss:
        """Return the KL losses of a config, computed once for all that have the same."""
        return self._kl_losses.setdefault(config.kl_name, KlLoss(self.tokens, config.options))

    def add_kl_losses(self) -> None:
        """Add the KL losses from the reference policy, and the tokens whose KL is clamped."""
        if self.tokens.ref is None:
            return
        for config in {config.kl_name: config for config in reversed(self.configs)}.values():
            name, kl = config.kl_name, self._kl_loss(config)
            total = self._of_responses(kl.values)
            self._add_numerator(name, kl.values, total, config.kl_aggregation)
            self._add_rows(f"{name}.clamped", count_true(kl.clamped, self.tokens.offsets), BY_CELL)

    def add_log_probs(self) -> None:
        """Add the signs of wrong log-probs: positive ones, and log ratios beyond a clamp.

        The lowest and highest log-prob are those of the block, for each of its responses, since
        only the extremes of a file or an input are read.
        """
        for name, role in POLICIES.items():
            values = getattr(self.tokens, name)
            if values is None or not len(values):
                none = np.zeros(len(self.count))
                self._add_rows(f"positive:{role}", none, BY_CELL)
                self._add_ends(role, none + np.inf, none - np.inf, BY_CELL)
                continue
            inside = self._inside(values, -np.inf)
            low, high = self._inside(values, np.inf).min(), inside.max()
            self._add_rows(
                f"positive:{role}", self._count_above(LOG_PROB_ROUNDING, inside, high), BY_CELL
            )
            each = self.xp.zeros(len(self.count), values)
            self._add_ends(role, each + low, each + high, BY_CELL)
        distance = abs(self.base.log_ratio)
        most = distance.max() if len(distance) else 0.0
        for clamp in {config.clamp for config in self.configs}:
            beyond = self._count_above(clamp, distance, most)
            self._add_rows(f"beyond {clamp}", beyond, BY_CELL)

    def _count_above(self, bound: float, values: Array, most: Array) -> Array:
        """Return the number of values above a bound of each response, [n].

        Args:
            bound: inf for none.
            values: [T].
            most: the highest of them, which only numpy reads, to skip the count if it is 0.
        """
        if math.isinf(bound) or (not is_tensor(most) and float(most) <= bound):
            return self.xp.zeros_like(self.count)
        return count_true(values > bound, self.tokens.offsets)

    def _inside(self, values: Array, outside: float) -> Array:
        """Return values with another one for masked-out tokens, [T]."""
        return (
            values if self.tokens.all_policy else self.xp.where(self.tokens.mask, values, outside)
        )

    def _add_rows(self, name: str, numbers: Array, *by: str) -> None:
        """Add numbers of responses, [n]."""
        self.numbers |= {f"{key}.sum:{name}": numbers for key in by}

    def _add_ends(self, name: str, low: Array, high: Array, by: str) -> None:
        """Add the lowest and the highest value of each response or stretch."""
        self.numbers |= {f"{by}.low:{name}": low, f"{by}.high:{name}": high}

    def _add(self, name: str, values: Array) -> Array:
        """Add the sums of values that are 0 for masked-out tokens; return those of responses."""
        sums = self.stretches.sum(values)
        rows = segment_sum(sums, self.stretches.rows)
        self._add_rows(name, rows, BY_CELL)
        if self.detailed:
            self._add_rows(name, sums, BY_POSITION)
        return rows

    def _add_span(self, name: str, values: Array) -> None:
        """Add the lowest and the highest value of policy tokens."""
        low = segment_min(self._inside(values, np.inf), self.stretches.offsets)
        high = segment_max(self._inside(values, -np.inf), self.stretches.offsets)
        rows = self.stretches.rows
        self._add_ends(name, segment_min(low, rows), segment_max(high, rows), BY_CELL)
        if self.detailed:
            self._add_ends(name, low, high, BY_POSITION)

    def _of_responses(self, values: Array) -> Array:
        """Return the sums of responses of values that are 0 for masked-out tokens."""
        return segment_sum(self.stretches.sum(values), self.stretches.rows)

    def _add_numerator(self, name: str, values: Array, total: Array, how: str) -> None:
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
                totals[sign] = self._of_responses(self.xp.where(tokens, values, 0.0))
                self._add_rows(f"tokens{sign}", count_true(tokens, self.tokens.offsets), BY_BATCH)
        for sign, part in totals.items():
            weighted = part if self.weights is None else part * self.weights
            self._add_rows(f"{name}{sign}", weighted, BY_BATCH)

    def _histogram(self, log_ratio: Array) -> Array:
        """Count the log ratios of policy tokens in each bin, [cells, BINS]."""
        bins, offsets = bins_of(log_ratio), self.tokens.offsets
        if self.cells > 1:
            bins = bins + spread(self.local * BINS, offsets)
        count = self.cells * BINS
        if not self.tokens.all_policy:
            bins = self.xp.where(self.tokens.mask, bins, count)
        return count_codes(bins, count + 1)[:count].reshape(self.cells, BINS)

    def _first_kinds(self) -> Array | int:
        """Return the number of the first kind of each token's cell and position, [T]."""
        if not self.detailed:
            return 0
        cell = spread(self.local, self.stretches.rows)
        first = (cell * self.positions + self.stretches.places) * KINDS
        return self.stretches.spread(self.xp.astype(first, self.xp.int32))

    def _signs(self, up: Array, down: Array) -> Array:
        """Return what the sign of its advantage adds to the kind of each token, [T] uint8."""
        flags = zip((up, down, ~self.tokens.mask), (POSITIVE, NEGATIVE, OUTSIDE), strict=True)
        sign = sum(self.xp.astype(flag, self.xp.uint8) * number for flag, number in flags)
        return sign * (KINDS // SIGNS)

    def _state(self, clip: Array, moves: Array) -> Array:
        """Return the clip state and whether the gradient is 0, as one number, [T] uint8."""
        return clip + self.xp.astype(~moves, self.xp.uint8) * CLIPS
