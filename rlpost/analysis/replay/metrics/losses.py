"""Numbers per response from which the metrics of candidate losses are aggregated.

The token losses of all candidates are computed in one pass, by the functions of `rlpost.losses`.
A clipped loss is a sum of parts that one bound each changes: of tokens with A > 0, of those with
A < 0 and a falling ratio, and of those with A < 0 and a rising one. So the sums of each part by
bound give every combination of a lower, an upper and a dual clip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlpost.kernels.kl import token_kl
from rlpost.kernels.segments import count_true, lengths, segment_max, segment_min, segment_sum
from rlpost.losses import LOSSES, Tokens
from rlpost.losses.config import LossConfig
from rlpost.pipeline.stages.loss import blocks, tokens_of
from rlpost.pipeline.stages.tokens import kept_mask
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import PRESETS, loss_preset, loss_variants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from torch import Tensor

    from rlpost.pipeline.data import Batch


CLIPS: dict[str, tuple[float, ...]] = {
    "ppo": (
        0.2, 0.28, 0.272, 0.3, 0.1, 0.15, 0.22, 0.25, 0.26, 0.05, 0.35, 0.4, 0.5, math.inf,
    ),
    "gspo": (3e-4, 4e-4, 0.2, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3, 4e-3, 0.01, 0.1, 0.28, math.inf),
    "cispo": (0.2, 0.28, 0.272, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, math.inf),
}  # fmt: skip
"""The clip ranges that are tried first, as offsets from 1; the most usual ones first."""
DUALS = (math.inf, 3.0, 10.0, 5.0, 2.0)
"""The dual clips that are tried; inf for none."""
SIDES = ("low", "high", "dual")
_SELECTING = tuple(name for name, loss in LOSSES.items() if loss.rank is not None)
KL_ESTIMATORS = ("k1", "k2", "k3", "abs")


class Family(NamedTuple):
    """A loss with the policy that its ratio divides by, and whether weights multiply it."""

    loss: str
    behaviour: str = "old"
    weighted: bool = False


class Column(NamedTuple):
    """What a column of sums per response is of."""

    kind: str
    """`loss`, `clip` (tokens beyond a bound in the direction of the advantage), `outside` (beyond
    it for any advantage), or `sum`, `max`, `min` of a quantity of tokens, `all` of all tokens."""
    name: str = ""
    """Of a quantity; of the part of a loss: `low`, `high`, `dual` or `whole`."""
    family: Family | None = None
    bound: float | str = 0.0
    """Of a part; the options of a whole loss as text."""


@dataclass(frozen=True)
class Candidates:
    """The losses that a search tries."""

    clipped: Mapping[Family, tuple[float, ...]]
    """Losses with a lower and an upper bound, and the bounds."""
    duals: tuple[float, ...] = DUALS
    whole: tuple[tuple[Family, LossOptions], ...] = ()
    """Other losses with their options."""
    sides: Mapping[str, float] = field(default_factory=dict)
    """By side: the bound that the user sets."""

    def only(self, columns: Collection[Column]) -> Candidates:
        """Return the candidates that some columns are of."""
        clipped: dict[Family, tuple[float, ...]] = {}
        for one in columns:
            if one.family is None or one.family not in self.clipped:
                continue
            if isinstance(one.bound, float):
                own = clipped.get(one.family, ())
                clipped[one.family] = own if one.name == "dual" else (*own, one.bound)
        duals = {one.bound for one in columns if one.name == "dual"}
        whole = {(one.family, one.bound) for one in columns if one.name == "whole"}
        return Candidates(
            {family: tuple(dict.fromkeys(own)) or (math.inf,) for family, own in clipped.items()},
            tuple(one for one in self.duals if one in duals) or (math.inf,),
            tuple(one for one in self.whole if (one[0], key_of(one[1])) in whole),
            self.sides,
        )


def key_of(options: LossOptions) -> str:
    """Return the options of a loss function that differ from its defaults, as text."""
    own = LossConfig(options).loss.defaults
    values = {name: getattr(options, name) for name in own}
    return " ".join(f"{name}={x}" for name, x in values.items() if x is not None)


def candidates_for(
    columns: Collection[str], chosen: LossOptions | None, fixed: Collection[str], *, weights: bool
) -> Candidates:
    """Return the losses to try.

    Args:
        columns: the roles that the input has.
        chosen: the options that the user sets.
        fixed: the fields of `chosen` that are set; the others are searched.
        weights: the input has weights of tokens or responses.
    """
    chosen = chosen or LossOptions()
    names = (chosen.loss,) if "loss" in fixed else tuple(LOSSES)
    behaviours = [one for one in ("old", "infer") if f"{one}_log_probs" in columns]
    if "behaviour" in fixed:
        behaviours = [chosen.behaviour]
    families = [
        Family(name, behaviour, weighted)
        for weighted in ((True, False) if weights else (False,))
        for behaviour in behaviours
        for name in names
    ]
    clipped = {one: _clips(one.loss, chosen, fixed) for one in families if one.loss in CLIPS}
    duals: tuple[float, ...] = DUALS
    if "dual_clip" in fixed and isinstance(chosen.dual_clip, float):
        duals = (chosen.dual_clip,)
    whole = [
        (family, options)
        for family in families
        if family.loss not in CLIPS and {*LOSSES[family.loss].needs} - {"advantages"} <= {
            *columns, "old_log_probs"
        }
        for options in _variants(family, chosen, fixed)
    ]  # fmt: skip
    return Candidates(clipped, duals, tuple(whole), _bounds(chosen, fixed))


def _clips(loss: str, chosen: LossOptions, fixed: Collection[str]) -> tuple[float, ...]:
    """Return the clip ranges to try for a loss: those that the user sets, and the usual ones."""
    known = _bounds(chosen, fixed)
    usual = CLIPS[loss] if len(known) < len(SIDES) - 1 else ()
    return tuple(dict.fromkeys([*known.values(), *usual]))


def _bounds(chosen: LossOptions, fixed: Collection[str]) -> dict[str, float]:
    """Return the bounds that the user sets by side, without the dual clip."""
    bounds: dict[str, float] = {}
    for name, sides in (("", ("low", "high")), ("_low", ("low",)), ("_high", ("high",))):
        value = getattr(chosen, f"pg_clip{name}") if f"pg_clip{name}" in fixed else None
        if value is not None:
            own = math.inf if value == "never" else float(value)
            bounds |= dict.fromkeys(sides, own)
    return bounds


def _variants(family: Family, chosen: LossOptions, fixed: Collection[str]) -> Iterator[LossOptions]:
    """Yield the options with which a loss is tried: its defaults, and those of the presets."""
    function = LOSSES[family.loss]
    reads, seen = function.defaults, set()
    own = {name: getattr(chosen, name) for name in fixed if name in reads}
    base: dict[str, Any] = {"loss": family.loss, "behaviour": family.behaviour}
    no_ratio = "old_log_probs" not in function.needs and family.behaviour != "old"
    if no_ratio or (family.loss in _SELECTING and "loss" not in fixed):
        return
    for options in (LossOptions(**base), *_of_presets()):
        if options.loss != family.loss:
            continue
        values = {name: getattr(options, name) for name in reads}
        one = LossOptions.model_validate(
            {**base, **{k: x for k, x in values.items() if x is not None}, **own}
        )
        if (key := key_of(one)) not in seen:
            seen.add(key)
            yield one


@cache
def _of_presets() -> tuple[LossOptions, ...]:
    """Return the losses of all presets."""
    return tuple(
        loss_preset(preset, loss=variant) for preset in PRESETS for variant in loss_variants(preset)
    )


class CandidateSums:
    """Computes the sums of candidates: the `map` of a stage.

    Args:
        candidates: the losses; None if the input lacks what losses need.
        rewarded: the input has rewards.
        wanted: the columns to compute; None for all of them.
    """

    def __init__(
        self,
        candidates: Candidates | None,
        wanted: Collection[Column] | None,
        *,
        rewarded: bool,
    ) -> None:
        self.candidates, self.rewarded = candidates, rewarded
        self.names = None if wanted is None else {one.name for one in wanted}
        self.columns: list[Column] = []
        """What the columns are of, once a batch was computed."""

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sums of each response: `sums`, [n, columns] float64."""
        sums = dict(_quantities(batch, self.names))
        if self.candidates is not None:
            weights = batch.responses.get("sample_weight")
            parts: list[dict[Column, Tensor]] = []
            for rows, tokens in blocks(tokens_of(batch, rewarded=self.rewarded)):
                own = None if weights is None else weights[rows]
                parts.append(dict(_losses(tokens, own, self.candidates)))
            sums |= {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.columns = sorted(sums, key=repr)
        return {SUMS: torch.stack([sums[one].to(torch.float64) for one in self.columns], dim=1)}


SUMS = "sums"


def _losses(
    tokens: Tokens, weights: Tensor | None, candidates: Candidates
) -> Iterator[tuple[Column, Tensor]]:
    """Yield the sums of every candidate."""
    plain = replace(tokens, weights=None)

    def of_responses(family: Family, values: Tensor) -> Tensor:
        return values * weights if family.weighted and weights is not None else values

    for family, clips in candidates.clipped.items():
        own = tokens if family.weighted else plain
        for column, values in _clipped(own, family, clips, candidates.duals):
            scaled = of_responses(family, values) if column.kind == "loss" else values
            yield column, scaled
    for family, options in candidates.whole:
        surrogate = LOSSES[family.loss](tokens if family.weighted else plain, options)
        total = segment_sum(surrogate.values, tokens.offsets)
        name = key_of(options)
        yield Column("loss", "whole", family, name), of_responses(family, total)
        hits = count_true(surrogate.clip > 0, tokens.offsets)
        yield Column("clip", "whole", family, name), hits


def _clipped(
    tokens: Tokens, family: Family, clips: tuple[float, ...], duals: tuple[float, ...]
) -> Iterator[tuple[Column, Tensor]]:
    """Yield the sums of the parts of a loss by bound.

    Bounds change only tokens whose ratio is beyond the closest of them. The others are computed
    once, if the loss has a ratio for each token.
    """
    base = {"loss": family.loss, "behaviour": family.behaviour}
    base |= {"cispo_bounds": "offset"} if family.loss == "cispo" else {}
    function, offsets = LOSSES[family.loss], tokens.offsets
    open_ended = LossOptions.model_validate(
        {**base, "pg_clip_low": "never", "pg_clip_high": "never"}
    )
    whole = function(tokens, open_ended)
    near, inner = {}, tokens
    if family.loss != "gspo":
        closest = 0.99 * min(*clips, *(one - 1 for one in duals))
        far = (whole.ratio - 1).abs() > closest
        parts = _sides(tokens, whole.ratio, family.loss)
        near = {
            side: segment_sum(whole.values * (inside & ~far), offsets)
            for side, inside in parts.items()
        }
        inner = _subset(tokens, far)

    def sums(options: LossOptions, sides: tuple[str, ...], bound: float) -> Iterator[Any]:
        surrogate = function(inner, options)
        parts = _sides(inner, surrogate.ratio, family.loss)
        for side in sides:
            total = segment_sum(surrogate.values * parts[side], inner.offsets)
            yield Column("loss", side, family, bound), total + near.get(side, 0.0)
        ratio, mask = surrogate.ratio, inner.mask
        beyond = {"low": ratio < 1 - bound, "high": ratio > 1 + bound, "dual": ratio > bound}
        signs = {"high": inner.advantage_positive}
        for side in sides:
            outside = beyond[side] & mask
            hits = outside & signs.get(side, inner.advantage_negative)
            yield Column("clip", side, family, bound), count_true(hits, inner.offsets)
            if side != "dual":
                yield Column("outside", side, family, bound), count_true(outside, inner.offsets)

    for clip in clips:
        options = open_ended.model_copy(update={"pg_clip_low": clip, "pg_clip_high": clip})
        yield from sums(options, ("low", "high"), clip)
    for dual in duals if family.loss != "cispo" else ():
        yield from sums(open_ended.model_copy(update={"dual_clip": dual}), ("dual",), dual)


def _sides(tokens: Tokens, ratio: Tensor, loss: str) -> dict[str, Tensor]:
    """Return the tokens that each bound can change, [T] bool."""
    rising = ratio >= 1
    if loss == "cispo":
        return {"low": tokens.mask & ~rising, "high": tokens.mask & rising}
    negative = tokens.advantage_negative
    return {
        "high": tokens.advantage_positive,
        "low": negative & ~rising,
        "dual": negative & rising,
    }


def _subset(tokens: Tokens, inside: Tensor) -> Tokens:
    """Return some tokens of each response."""
    counts = count_true(inside, tokens.offsets)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    fields = ("new", "old", "advantages", "mask", "infer", "ref", "weights")
    columns = {name: getattr(tokens, name) for name in fields}
    return Tokens(
        **{name: x[inside] for name, x in columns.items() if x is not None},
        offsets=offsets,
        rewards=tokens.rewards,
    )


def _quantities(batch: Batch, wanted: Collection[str] | None) -> Iterator[tuple[Column, Tensor]]:
    """Yield sums and extremes of what no loss changes: divergences, advantages, entropy."""
    mask, offsets = kept_mask(batch), batch.offsets
    yield Column("sum", "one"), count_true(mask, offsets)
    yield Column("all", "one"), lengths(offsets)
    for name, compute in _token_quantities(batch):
        if wanted is not None and name not in wanted:
            continue
        values = compute()
        own = torch.where(mask, values, 0.0)
        yield Column("sum", name), segment_sum(own, offsets)
        yield Column("all", name), segment_sum(values, offsets)
        if name in _EXTREMES:
            low, high = torch.where(mask, values, torch.inf), torch.where(mask, values, -torch.inf)
            yield Column("min", name), segment_min(low, offsets)
            yield Column("max", name), segment_max(high, offsets)


_EXTREMES = (
    "advantages", "returns", "values", "ratio new/old", "ratio new/infer", "abs old/infer",
    "prob old/infer", "abs new/infer",
)  # fmt: skip


def _token_quantities(batch: Batch) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield what a metric may be the mean of, with what computes it, [T]."""
    tokens = batch.tokens
    for name in ("advantages", "returns", "values", "entropy"):
        if name in tokens:
            yield name, partial(tokens.__getitem__, name)
    policies = {name: tokens[role] for name, role in _POLICIES.items() if role in tokens}
    if {"new", "old", "ref"} <= {*policies}:
        yield from _corrected_kl(policies)
    yield from ((f"minus {x}", policies[x].neg) for x in ("new", "old") if x in policies)
    for left, right, name in _PAIRS:
        if left in policies and right in policies:
            both = policies[left], policies[right]
            for estimator in KL_ESTIMATORS:
                yield f"{estimator} {name}", partial(token_kl, *both, estimator=estimator)
            if name in ("old", "infer", "engine"):
                for kind, function in _DISTANCES.items():
                    yield f"{kind} {right}/{left}", partial(function, *reversed(both))


def _corrected_kl(policies: Mapping[str, Tensor]) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield the KL from the reference times the ratio, which corrects its gradient."""
    new, old, ref = (policies[name] for name in ("new", "old", "ref"))

    def product(estimator: str) -> Tensor:
        return (new - old).exp() * token_kl(new, ref, estimator=estimator)

    for estimator in KL_ESTIMATORS:
        yield f"ratio {estimator} new/ref", partial(product, estimator)


_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k3": partial(token_kl, estimator="k3"),
    "abs": lambda left, right: (left - right).abs(),
    "ratio": lambda left, right: (left - right).exp(),
    "prob": lambda left, right: (left.exp() - right.exp()).abs(),
}
_POLICIES = {
    "new": "log_probs",
    "old": "old_log_probs",
    "infer": "infer_log_probs",
    "ref": "ref_log_probs",
}
_PAIRS = (
    ("old", "new", "old"),
    ("infer", "new", "infer"),
    ("infer", "old", "engine"),
    ("new", "ref", "new/ref"),
    ("old", "ref", "old/ref"),
)
"""The policies of a divergence, and the name of the pair."""
