"""What the summary says of the off-policy correction: rates, and how far the policies are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlpost.correction_stages import drops_responses, passed, rejected
from rlpost.kernels.corrections import chi_square, over_responses, sure_but_wrong
from rlpost.kernels.segments import count_true, segment_sum, spread
from rlpost.token_stages import kept_mask

if TYPE_CHECKING:
    from torch import Tensor

    from rlpost.batch import Batch
    from rlpost.recipe import Recipe
    from rlpost.tally import Totals

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
    whole = over_responses(distance, mask, batch.offsets, level="sequence").clamp(-most, most)
    excess = torch.expm1(clamped)
    values = {"k1": -clamped, "k3": excess - clamped, "chi2": chi_square(excess)}
    return {
        **{f"is.{name}": segment_sum(value, batch.offsets) for name, value in values.items()},
        "is.chi2_sequence": chi_square(torch.expm1(whole)),
        "is.sure_but_wrong": count_true(sure_but_wrong(old, infer) & mask, batch.offsets),
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
