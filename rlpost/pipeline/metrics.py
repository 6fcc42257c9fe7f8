"""What a run did, in numbers that add up exactly over chunks, files and machines.

What the summary says of the off-policy correction: rates, and how far the policies are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlpost.kernels.corrections import chi_square, confident_disagreement, reduce_responses
from rlpost.kernels.moments import token_moments
from rlpost.kernels.segments import count_true, segment_max, segment_min, segment_sum, spread
from rlpost.pipeline.stages.off_policy import drops_responses, passed, rejected
from rlpost.pipeline.stages.tokens import kept_mask, mean_kl, partial_mask
from rlpost.pipeline.totals import SPREADS, ExactTotals
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import Totals
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
MOST_NATS = 300.0  # exp(2·300) can still be added up in float64


def tally(batch: Batch, recipe: Recipe) -> dict[str, Tensor]:
    """Counts and sums of each response of a batch to which all stages were applied, [n] each.

    They are over the policy tokens of the responses that the sample masks let stay.
    """
    rows = batch.responses
    reached = rows["reached"] if "reached" in rows else rows["kept"]
    mask = batch.mask
    if not bool(reached.all()):
        mask = mask & spread(reached, batch.offsets)
    tokens = torch.where(reached, rows["tokens"], 0)
    sums = {"is.tokens": tokens, "is.responses": tokens > 0}
    counts = {name: count_true(hit & mask, batch.offsets) for name, hit in _hits(batch).items()}
    for place, one in enumerate(recipe.filters):
        if drops_responses(recipe, one):
            counts[rejected(place)] = torch.where(rows[passed(place)], 0, tokens)
    if "accepted" in batch:
        counts["is:rejected"] = tokens - count_true(mask & kept_mask(batch), batch.offsets)
    else:
        counts["is:rejected"] = torch.where(rows["kept"], 0, tokens)
    for name, count in counts.items():
        sums |= {f"{name}.tokens": count, f"{name}.responses": count > 0}
    return sums | _apart(batch, mask, recipe)


def _hits(batch: Batch) -> dict[str, Tensor]:
    return {name: values for name, values in batch.tokens.items() if name.startswith("is:")}


def _apart(batch: Batch, mask: Tensor, recipe: Recipe) -> dict[str, Tensor]:
    """Sums of what estimates divergences of the two policies."""
    old, infer = batch["old_log_probs"], batch["infer_log_probs"]
    most = min(recipe.numerics.log_ratio_clamp, MOST_NATS)
    distance = torch.where(mask, old - infer, 0.0)
    clamped = distance.clamp(-most, most)
    whole = reduce_responses(distance, mask, batch.offsets, level="sequence").clamp(-most, most)
    excess = torch.expm1(clamped)
    values = {"k1": -clamped, "k3": excess - clamped, "chi2": chi_square(excess)}
    return {
        **{f"is.{name}": segment_sum(value, batch.offsets) for name, value in values.items()},
        "is.chi2_sequence": chi_square(torch.expm1(whole)),
        "is.sure_but_wrong": count_true(confident_disagreement(old, infer) & mask, batch.offsets),
        "is.identical": count_true((old == infer) & mask, batch.offsets),
    }


def facts(totals: Totals, recipe: Recipe) -> Json:
    """What is said of the correction on any set of rows.

    Rates are of policy tokens, and of responses with one, that the sample masks let stay; a
    response counts where one of its tokens does. `ess` is (Σw)²/(nΣw²) over the n policy tokens
    that are left. KL(engine ‖ trainer), in nats per token, and χ²(trainer ‖ engine) are
    estimated on what the engine sampled.
    """
    bounded = recipe.is_cap is not None or recipe.is_floor is not None
    found: Json = {
        "tokens": totals.count("is.tokens"),
        "responses": totals.count("is.responses"),
        "truncated": _rates(totals, "is:truncated") if bounded else None,
        "masked": _rates(totals, "is:masked") if recipe.is_mask is not None else None,
        "filters": [
            {"filter": str(one), **_rates(totals, rejected(place))}
            for place, one in enumerate(recipe.filters)
        ],
        "rejected": _rates(totals, "is:rejected") if recipe.is_filter else None,
        "ess": None,
        "kl": {name: totals.share(f"is.{name}", "is.tokens") for name in ("k1", "k3")},
        "chi_square": {
            "token": totals.share("is.chi2", "is.tokens"),
            "sequence": totals.share("is.chi2_sequence", "is.responses"),
        },
        "sure_but_wrong": totals.count("is.sure_but_wrong"),
        "identical": totals.count("is.identical"),
    }
    if "is_weight" in totals:
        number, total, squares = (
            totals.sums[f"is_weight.{part}"] for part in ("count", "total", "squares")
        )
        found["weight"] = totals.statistic("is_weight")
        found["ess"] = float(total * total / (number * squares)) if squares else None
    return found


def _rates(totals: Totals, name: str) -> Json:
    return {
        "tokens": totals.count(f"{name}.tokens"),
        "token_rate": totals.share(f"{name}.tokens", "is.tokens"),
        "responses": totals.count(f"{name}.responses"),
        "response_rate": totals.share(f"{name}.responses", "is.responses"),
    }


def warnings(summary: Json) -> list[str]:
    """What is wrong with the correction of all rows, where there is one."""
    found = summary.get("correction")
    if not found or not found["tokens"]:
        return []
    tokens = found["tokens"]
    texts = []
    if found["identical"] == tokens:
        texts.append(
            "old and infer log-probs are identical in every policy token: one is a copy of the "
            "other, so there is nothing to correct"
        )
    if found["rejected"] and found["rejected"]["tokens"] == tokens:
        texts.append("is_filter rejects every policy token: nothing would be learnt from this file")
    return texts


ROUNDING = 1e-4
"""Nats above 0 that a log-softmax in few bits may give."""


@dataclass(frozen=True)
class Measured:
    """Numbers of each response of a batch, on their way into a Tally."""

    sums: dict[str, Tensor]
    spans: dict[str, tuple[Tensor, Tensor]]

    def add_numbers(self, name: str, values: Tensor, counted: Tensor) -> None:
        """One number per response, of those that count."""
        weight = counted.to(torch.float64)
        inside = torch.where(counted, values, 0.0)
        self.add_spread(name, weight, inside, inside.square(), values, values)

    def add_spread(
        self, name: str, count: Tensor, total: Tensor, squares: Tensor, low: Tensor, high: Tensor
    ) -> None:
        """Sums of many numbers per response, with their lowest and highest."""
        self.sums.update(
            zip((f"{name}.{part}" for part in SPREADS), (count, total, squares), strict=True)
        )
        self.spans[name] = (
            torch.where(count > 0, low, torch.inf),
            torch.where(count > 0, high, -torch.inf),
        )

    def add_tokens(self, name: str, values: Tensor, mask: Tensor | None, offsets: Tensor) -> None:
        """The masked-in tokens of each response; without a mask all of them."""
        moments = token_moments(values, mask, offsets)
        squares = moments.squares + moments.total.square() / moments.number.clamp(min=1)
        lows = values if mask is None else torch.where(mask, values, torch.inf)
        highs = values if mask is None else torch.where(mask, values, -torch.inf)
        low, high = segment_min(lows, offsets), segment_max(highs, offsets)
        self.add_spread(name, moments.number, moments.total, squares, low, high)


def count_advantages(batch: Batch, *, resolved: ResolvedRecipe) -> ExactTotals:
    """Compute the totals of a batch to which all stages were applied, by step and domain."""
    measured = measure(batch, resolved)
    return ExactTotals.of(batch.responses["cell"], measured.sums, measured.spans)


def measure(batch: Batch, resolved: ResolvedRecipe) -> Measured:
    """Everything the summary says of a batch to which all stages were applied."""
    rows = batch.responses
    measured = Measured({}, {})
    sums, valid = measured.sums, rows["valid"]
    one = torch.ones_like(rows["reward"])
    sums |= {"rows": one, "valid": valid, "kept": rows["kept"]}
    sums |= {"tokens": rows["tokens"], "length": batch.lengths}
    sums["valid_tokens"] = torch.where(valid, rows["tokens"], 0)
    sums |= {f"{name}": flag & valid for name, flag in rows.items() if name.startswith("mask:")}
    measured.add_numbers("reward", rows["reward"], valid)
    measured.add_numbers("response_level_reward", rows["rewards"], valid)
    if "reward_clipped" in rows:
        sums["reward_clipped"] = rows["reward_clipped"] & valid
    if "kl" in batch:
        measured.add_numbers("kl", mean_kl(batch), valid)
    if "token_reward_clipped" in batch:
        clipped = count_true(batch["token_reward_clipped"], batch.offsets)
        sums["token_reward_clipped"] = torch.where(valid, clipped, 0)
    if "old_log_probs" in batch:
        sums.update(_edges(batch))
    for role in LOG_PROBS:
        if role in batch:
            _measure_positive(measured, batch, role)
    if "sample_weight" in rows:
        measured.add_numbers("sample_weight", rows["sample_weight"], valid)
    if resolved.recipe.corrects:
        sums |= tally(batch, resolved.recipe)
    if "is_weight" in batch:
        measured.add_tokens("is_weight", batch["is_weight"], kept_mask(batch), batch.offsets)
    (_measure_constant if resolved.constant else _measure_tokens)(measured, batch)
    return measured


def _measure_positive(measured: Measured, batch: Batch, role: str) -> None:
    """How many log-probs of each response are above 0, which none can be, and the greatest."""
    values, none = batch.only(batch[role]), torch.zeros_like(batch.lengths)
    positive, high = none, none.to(torch.float64)
    if values.numel() and float(values.amax()) > ROUNDING:
        positive = count_true(values > ROUNDING, batch.offsets)
        high = segment_max(values, batch.offsets)
    measured.sums[f"positive:{role}"] = positive
    measured.spans[role] = high, high


def _edges(batch: Batch) -> dict[str, Tensor]:
    """Signs of padding and shifting: log-probs that are exactly 0 at a response's ends."""
    if not batch.mask.numel():
        return dict.fromkeys(("padded", "shifted"), torch.zeros_like(batch.lengths))
    last = (batch.offsets[1:] - 1).clamp(min=0)
    first = batch.offsets[:-1].clamp(max=batch.mask.numel() - 1)
    there = batch.lengths > 0
    old = batch["old_log_probs"]
    at_last, at_first = (old[last] == 0) & there, (old[first] == 0) & there
    return {
        "padded": at_last & ~batch.mask[last],
        "shifted": (at_last & batch.mask[last]) | (at_first & batch.mask[first]),
    }


def _measure_constant(measured: Measured, batch: Batch) -> None:
    rows = batch.responses
    tokens = rows["tokens"]
    if "accepted" in batch:
        tokens = count_true(batch.mask & batch["accepted"], batch.offsets)
    count = torch.where(rows["kept"], tokens, 0).to(torch.float64)
    for name, column in (("advantage", "credit"), ("return", "credit_returns")):
        value = rows[column]
        measured.add_spread(name, count, count * value, count * value.square(), value, value)
    if "credit_clipped" in rows:
        measured.sums["advantage_clipped"] = count * rows["credit_clipped"]


def _measure_tokens(measured: Measured, batch: Batch) -> None:
    mask = partial_mask(batch)
    measured.add_tokens("advantage", batch["advantages"], mask, batch.offsets)
    if batch["returns"] is batch["advantages"]:
        same = {f"return.{part}": measured.sums[f"advantage.{part}"] for part in SPREADS}
        measured.sums.update(same)
        measured.spans["return"] = measured.spans["advantage"]
    else:
        measured.add_tokens("return", batch["returns"], mask, batch.offsets)
    if "advantage_clipped" in batch:
        measured.sums["advantage_clipped"] = count_true(batch["advantage_clipped"], batch.offsets)
