"""What losses did, as plain data: what `rlpost loss --format json` prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.analysis.loss.resolved import ratio_bounds, resolved
from rlpost.analysis.loss.totals import NEGATIVE, OUTSIDE, POSITIVE, ZERO
from rlpost.kernels.quantiles import quantiles
from rlpost.kernels.segments import PLACES, bounds
from rlpost.losses.base import DUAL, HIGH, LOW
from rlpost.pipeline.totals import cells_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from torch import Tensor

    from rlpost.analysis.loss.totals import LossTally, LossTotals, Scope
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.stages.loss import LossConfig
    from rlpost.recipe.loss import LossOptions


SCHEMA_VERSION = 1
SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
BRANCHES = {"low": LOW, "high": HIGH, "dual": DUAL}
Json = dict[str, Any]


def summarise_losses(
    job: Plan, responses: Responses, tally: LossTally, settings: Sequence[LossConfig], scope: Scope
) -> Json:
    """The summary of the rows that a tally counted.

    Without details it is the losses by batch, and all else once, not by step, domain and position.

    Args:
        job: the recipe, with the loss behind it, bound to its input.
        responses: the rows that the tally counted.
        tally: by step and domain, and by position.
        settings: the same that the tally was made with.
        scope: likewise.
    """
    whole = tally.total()
    parts = _details(responses, tally) if scope.details else {}
    sums = whole.sums
    return {
        "schema_version": SCHEMA_VERSION,
        "roles": {
            role: {"column": job.columns.column(role), "found_by": job.columns.how[role]}
            for role in job.roles
        },
        "responses": sums.count("rows"),
        "left_out": sums.count("rows") - sums.count("valid"),
        "nonfinite": int((~responses["valid"]).sum()),
        "behaviour": scope.behaviour,
        "tokens": {"all": sums.count("length"), "policy": sums.count("tokens")},
        "advantage": sums.statistic("advantage"),
        **_shared(whole),
        "settings": [
            {
                **_setting(place, setting, responses, tally),
                **_decided(whole, place),
                **{name: [_row(one, place) for one in rows] for name, rows in parts.items()},
            }
            for place, setting in enumerate(settings)
        ],
    }


def _details(responses: Responses, tally: LossTally) -> dict[str, list[_Part]]:
    """The parts of the rows of which everything is told."""
    return {
        "positions": _positions(tally),
        "steps": _cut(responses, tally, "step"),
        "domains": _cut(responses, tally, "domain"),
    }


class _Part(NamedTuple):
    """A part of the rows: what it is called, and its totals."""

    label: Json
    totals: LossTotals


def _positions(tally: LossTally) -> list[_Part]:
    """The ranges of positions that have policy tokens."""
    found = []
    for place in range(PLACES):
        first, last = bounds(place)
        part = _Part({"from": first, "to": last}, tally.at(place))
        if _tokens(part.totals):
            found.append(part)
    return found


def _cut(responses: Responses, tally: LossTally, column: str) -> list[_Part]:
    """Each step or domain, where the input has that column."""
    labels = responses.labels
    if labels[column] == ["all"]:
        return []
    return [
        _Part({column: label}, tally.over(cells))
        for label, cells in cells_of(labels, tally.cells.keys, column)
    ]


def _setting(place: int, setting: LossConfig, responses: Responses, tally: LossTally) -> Json:
    """What a setting is, and the loss that it comes to."""
    batches = _batches(place, setting, responses, tally)
    return {
        "swept": dict(setting.swept),
        "options": resolved(setting),
        "formula": setting.loss.formula,
        "source": setting.loss.source,
        "bounds": dict(zip(("low", "high"), ratio_bounds(setting), strict=True)),
        "aggregation": setting.aggregation,
        "loss": {name: _mean([one[name] for one in batches]) for name in ("policy", "kl", "total")},
        "batches": batches,
        "ratio_clamped": int(tally.odd.clamped[place]),
        "kl_clamped": int(tally.odd.kl_clamped[place]),
    }


def _batches(place: int, setting: LossConfig, responses: Responses, tally: LossTally) -> list[Json]:
    """The loss of each batch: aggregated, weighed, and with the KL loss."""
    options, labels = setting.options, responses.labels["batch"]

    def aggregated(name: str) -> list[float]:
        loss = tally.parts(name).loss(
            how=setting.aggregation,
            count_rows=options.agg_rows,
            norm=options.agg_norm,
            length=options.agg_length,
        )
        return [float(one) for one in loss.tolist()]

    policy = aggregated(f"{place}.policy")
    measured = setting.kl_name in tally.batches.sums
    kl = aggregated(setting.kl_name) if measured else [None] * len(labels)
    there = (tally.parts(f"{place}.policy").rows > 0).tolist()  # a file may lack some of them all
    return [
        {"batch": label, "policy": own, "kl": apart, "total": _total(own, apart, options)}
        for label, own, apart, rows in zip(labels, policy, kl, there, strict=True)
        if rows
    ]


def _total(policy: float, kl: float | None, options: LossOptions) -> float:
    return policy + options.kl_loss_coef * (kl or 0.0)


def _mean(values: list[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None


def _row(part: _Part, place: int) -> Json:
    """What is said of a part of the rows under one setting."""
    totals = part.totals
    return {**part.label, "tokens": _tokens(totals), **_shared(totals), **_decided(totals, place)}


def _tokens(totals: LossTotals) -> int:
    """Policy tokens; every setting has the same."""
    return int(totals.kinds[0, :OUTSIDE].sum())


def _shared(totals: LossTotals) -> Json:
    """What no setting changes: how far the policies are apart."""
    sums, count = totals.sums.sums, _tokens(totals)
    weight, squares = sums["excess"] + count, sums["excess2"] + count
    low, high = (ends["log_ratio"] for ends in (totals.sums.lows, totals.sums.highs))
    engine = "engine.k3" in sums
    return {
        "ratio": {
            "mean": _over(weight, count),
            "min": math.exp(low) if count else None,
            "max": math.exp(high) if count else None,
            "quantiles": _quantiles(totals.bins, low, high) if count else None,
        },
        "kl": {"k1": _over(-sums["log_ratio"], count), "k3": _over(sums["k3"], count)},
        "engine_kl": {
            "k1": _over(-sums["engine.log_ratio"], count),
            "k3": _over(sums["engine.k3"], count),
        }
        if engine
        else None,
        "ess": float(weight * weight / (count * squares)) if count and squares else None,
    }


def _quantiles(bins: Tensor | None, low: float, high: float) -> Json | None:
    """Quantiles of the ratio; the log ratio is within 1/64 of itself, and within its extremes."""
    if bins is None:
        return None
    found = zip(SHARES, quantiles(bins, SHARES), strict=True)
    return {f"{share:g}": math.exp(min(max(x, low), high)) for share, x in found}


def _decided(totals: LossTotals, place: int) -> Json:
    """What a setting decides: where it clips, and where it leaves no gradient."""
    kinds, count = totals.kinds[place], _tokens(totals)
    by_sign = kinds[:OUTSIDE].sum((1, 2)).tolist()
    flat = kinds[:OUTSIDE, 1].sum(1).tolist()
    clipped = int(kinds[[POSITIVE, NEGATIVE], 1, 1:].sum())
    clip = {name: _clip(kinds[:, :, state].sum(1), by_sign) for name, state in BRANCHES.items()}
    found: Json = {
        "own_ratio": _own_ratio(totals, place),
        "token_loss": _over(totals.sums.sums[f"{place}.value"], count),
        "clip": {**clip, "any": _clip(kinds[:, :, 1:].sum((1, 2)), by_sign)},
        "no_gradient": {
            "tokens": sum(flat),
            "fraction": sum(flat) / count if count else 0.0,
            "zero_advantage": flat[ZERO],
            "clipped": clipped,
            "other": flat[POSITIVE] + flat[NEGATIVE] - clipped,
        },
    }
    if f"{place}.live" in totals.sums.sums:
        there = totals.sums.count("valid")
        still = there - totals.sums.count(f"{place}.live")
        found["no_gradient"] |= {
            "responses": still,
            "response_fraction": still / there if there else 0.0,
        }
    return found


def _own_ratio(totals: LossTotals, place: int) -> Json | None:
    """The ratio that the loss used, where that is not the token's."""
    name, count = f"{place}.ratio", _tokens(totals)
    if name not in totals.sums.lows or not count:
        return None
    return {
        "mean": _over(totals.sums.sums[f"{place}.excess"] + count, count),
        "min": totals.sums.lows[name],
        "max": totals.sums.highs[name],
    }


def _clip(clipped: Tensor, by_sign: list[int]) -> Json:
    """Clipped tokens: all, and of each sign of the advantage, as shares of those there are."""
    counts, of = clipped[:OUTSIDE].tolist(), sum(by_sign)
    return {
        "tokens": sum(counts),
        "fraction": sum(counts) / of if of else 0.0,
        **{
            name: {
                "tokens": counts[sign],
                "fraction": counts[sign] / by_sign[sign] if by_sign[sign] else 0.0,
            }
            for name, sign in (("positive", POSITIVE), ("negative", NEGATIVE))
        },
    }


def _over(total: Fraction, count: int) -> float | None:
    """A mean, rounded once; None of nothing."""
    return float(total / count) if count else None
