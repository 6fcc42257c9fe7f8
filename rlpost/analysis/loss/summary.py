"""The summary of `rlpost loss` as plain data, with its warnings: what `--format json` prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlpost.display.text import counted
from rlpost.kernels.divergence import effective_sample_size
from rlpost.kernels.quantiles import quantiles
from rlpost.kernels.segments import position_range
from rlpost.losses.base import DUAL, HIGH, LOW, SELECTED
from rlpost.losses.config import behaviour_of
from rlpost.pipeline.loss_totals import NEGATIVE, OUTSIDE, POSITIVE, ZERO
from rlpost.pipeline.metrics import MOST_NATS
from rlpost.pipeline.summary import (
    common_warnings,
    nonfinite,
    positive_warning,
    roles_of,
    zero_advantages,
)
from rlpost.pipeline.variants import variants_of
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import behaviour_role
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.loss_totals import LossTotals, TokenSetTotals
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import Totals


SCHEMA_VERSION = 1
SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
BRANCHES = {"low": LOW, "high": HIGH, "dual": DUAL, "selected": SELECTED}
DUMPED = "dumped_advantages"  # the name that `rlpost convert` gives to advantages of a framework
LEAST_ESS = 0.1
_OF_EVERY_RUN = {"columns", "nonfinite", "numerics", "emit_only", "replace"}
Json = dict[str, Any]


def summarise_losses(
    plan: Plan,
    responses: Responses,
    totals: LossTotals,
    configs: Sequence[LossConfig],
) -> Json:
    """Return the summary of an input or of one of its files.

    A single config has details by step, domain and position; a sweep has only the losses by batch.

    Args:
        plan: of the run.
        responses: the responses that the totals are of.
        totals: by step and domain, by position and by batch.
        configs: the losses.
    """
    places = _places_of(configs, responses, totals)
    _, responses, _, whole = places[0]
    parts = _parts(responses, totals) if len(configs) == 1 else {}
    sums = whole.sums
    read = "advantages" in plan.columns
    return {
        "schema_version": SCHEMA_VERSION,
        "roles": roles_of(plan),
        "responses": sums.count("rows"),
        "left_out": sums.count("rows") - sums.count("valid"),
        "nonfinite": nonfinite(responses),
        "behaviour": behaviour_of([configs[x] for x in variants_of(configs)[0].indices]),
        "tokens": {"all": sums.count("length"), "policy": sums.count("tokens")},
        "advantage": sums.statistic("advantage"),
        **_divergence(whole),
        "settings": [
            {
                **_setting(place, config),
                "gradient": _gradient(place, places[0]) if len(configs) > 1 else None,
                **{name: [_row(part, 0) for part in of_kind] for name, of_kind in parts.items()},
            }
            for place, config in zip(places, configs, strict=True)
        ],
        "advantages_from": plan.columns.column("advantages") if read else "recipe",
        "estimator": None if read else plan.resolved.estimator.name,
        "unit": None if read else plan.resolved.unit_facts,
        "unused_advantages": None if read else _unused_advantages(plan),
    }


class _SettingPlace(NamedTuple):
    """Where the numbers of a setting are."""

    at: int
    """Its index among those of its variant."""
    responses: Responses
    """As the variant sees them."""
    totals: LossTotals
    """Of the variant."""
    whole: TokenSetTotals
    """Those of all tokens."""

    def sum(self, name: str) -> Fraction:
        """Return a sum of the setting over all tokens."""
        return self.whole.sums.total(f"{self.at}.{name}")


def _places_of(
    configs: Sequence[LossConfig], responses: Responses, totals: LossTotals
) -> list[_SettingPlace]:
    """Return where the numbers of each setting are."""
    places = {}
    for variant, sums in zip(variants_of(configs), (totals, *totals.others), strict=True):
        seen, whole = variant.responses(responses), sums.total()
        for index, number in enumerate(variant.indices):
            places[number] = _SettingPlace(index, seen, sums, whole)
    return [places[number] for number in sorted(places)]


def _gradient(place: _SettingPlace, first: _SettingPlace) -> Json:
    """Return what the gradient of a setting is, beside that of the first one.

    It is the gradient of the loss of each step by the log-prob of each policy token: weights of the
    aggregation, importance weights, weights of responses and the KL loss are factors of it.
    """
    squares = place.sum("squares")
    norm, norm_of_first = math.sqrt(squares), math.sqrt(first.sum("squares"))
    cosine = 1.0 if norm else None
    if place is not first and norm:
        product = float(place.sum("product")) / norm
        cosine = max(-1.0, min(1.0, product / norm_of_first)) if norm_of_first else None
    ess = effective_sample_size(place.whole.policy_tokens, place.sum("size"), squares)
    return {"norm": norm, "ess": ess, "cosine": cosine}


def _setting(place: _SettingPlace, config: LossConfig) -> Json:
    """Return a setting without its parts and its gradient."""
    sums = place.whole.sums
    return {
        **_loss(place.at, config, place.responses, place.totals),
        "tokens": place.whole.policy_tokens,
        "ratio_clamped": sums.count(f"beyond {config.clamp}"),
        "kl_clamped": sums.count(f"{config.kl_name}.clamped"),
        **_outcomes(place.whole, place.at),
    }


def _unused_advantages(plan: Plan) -> str | None:
    """Return the column of the input that has advantages, if the recipe computes others."""
    names = ("advantages", DUMPED)
    return next((name for name in names if name in plan.source.columns), None)


class _TokenPart(NamedTuple):
    """A part of the tokens: its label and its totals."""

    label: Json
    totals: TokenSetTotals


def _parts(responses: Responses, totals: LossTotals) -> dict[str, list[_TokenPart]]:
    """Return the tokens by position, step and domain."""
    return {
        "positions": _by_position(totals),
        "steps": _by_label(responses, totals, "step"),
        "domains": _by_label(responses, totals, "domain"),
    }


def _by_position(totals: LossTotals) -> list[_TokenPart]:
    """Return the ranges of positions that have policy tokens."""
    parts = []
    for position, part in totals.at_each_position():
        first, last = position_range(position)
        if part.policy_tokens:
            parts.append(_TokenPart({"from": first, "to": last}, part))
    return parts


def _by_label(
    responses: Responses, totals: LossTotals, column: Literal["step", "domain"]
) -> list[_TokenPart]:
    """Return each step or domain, if the input has that column."""
    labels = responses.cells.by_label(column, totals.cells.keys)
    sums = totals.over_each([cells for _, cells in labels])
    return [
        _TokenPart({column: label}, part) for (label, _), part in zip(labels, sums, strict=True)
    ]


def _row(part: _TokenPart, index: int) -> Json:
    """Return the numbers of a part of the tokens under one config."""
    totals = part.totals
    return {
        **part.label,
        "tokens": totals.policy_tokens,
        **_divergence(totals),
        **_outcomes(totals, index),
    }


def _loss(index: int, config: LossConfig, responses: Responses, totals: LossTotals) -> Json:
    """Return a config and its loss."""
    batches = _batches(index, config, responses, totals)
    return {
        "swept": dict(config.swept),
        "options": config.resolved(),
        "formula": config.loss.formula,
        "source": config.loss.source,
        "bounds": dict(zip(("low", "high"), config.ratio_bounds, strict=True)),
        "aggregation": config.aggregation,
        "loss": {name: _mean([one[name] for one in batches]) for name in ("policy", "kl", "total")},
        "batches": batches,
    }


def _batches(
    index: int, config: LossConfig, responses: Responses, totals: LossTotals
) -> list[Json]:
    """Return the aggregated loss of each batch, and its KL loss."""
    options, labels = config.options, responses.labels["batch"]
    if not totals.batches:
        return []

    def aggregated(name: str, how: str) -> list[float]:
        means = [
            part.loss(
                how=how,
                count_rows=options.agg_rows,
                norm=options.agg_norm,
                length=options.agg_length,
            ).tolist()
            for part in totals.parts(name, len(labels), how)
        ]
        return [math.fsum(parts) for parts in zip(*means, strict=True)]

    policy_losses = aggregated(f"{index}.policy", config.aggregation)
    has_kl = config.kl_name in totals.batches.sums
    kl_losses = (
        aggregated(config.kl_name, config.kl_aggregation) if has_kl else [None] * len(labels)
    )
    counts = totals.counts("rows", len(labels)).tolist()
    return [
        {
            "batch": label,
            "policy": policy,
            "kl": kl,
            "total": policy + options.kl_loss_coef * (kl or 0.0),
        }
        for label, policy, kl, count in zip(labels, policy_losses, kl_losses, counts, strict=True)
        if count  # a file need not have responses of each batch
    ]


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _divergence(totals: TokenSetTotals) -> Json:
    """Return the ratio and the divergence between policies, which no config changes."""
    sums, count = totals.sums, totals.policy_tokens
    weight, squares = (sums.total(name) + count for name in ("excess", "excess2"))
    return {
        "ratio": _ratio(totals),
        "kl": {name: _over(sums.total(name), count) for name in ("k1", "k3")},
        "engine_kl": {name: _over(sums.total(f"engine.{name}"), count) for name in ("k1", "k3")}
        if "engine.k3" in sums
        else None,
        "ess": effective_sample_size(count, weight, squares),
    }


def _ratio(totals: TokenSetTotals) -> Json:
    """Return the mean, the extremes and quantiles of the ratio of a token.

    The log ratio of a quantile is within 1/64 of itself, and within the extremes.
    """
    count = totals.policy_tokens
    if not count:
        return {"mean": None, "min": None, "max": None, "quantiles": None}
    ends = (totals.sums.lows["log_ratio"], totals.sums.highs["log_ratio"])
    low, high = (min(max(end, -MOST_NATS), MOST_NATS) for end in ends)
    shares = None
    if totals.bins is not None:
        log_ratios = zip(SHARES, quantiles(totals.bins, SHARES), strict=True)
        shares = {f"{share:g}": math.exp(min(max(x, low), high)) for share, x in log_ratios}
    return {
        "mean": _over(totals.sums.total("excess") + count, count),
        "min": math.exp(low),
        "max": math.exp(high),
        "quantiles": shares,
    }


def _outcomes(totals: TokenSetTotals, index: int) -> Json:
    """Return the tokens that a config clips, and those whose gradient is 0."""
    kinds, count, sums = totals.kinds[index], totals.policy_tokens, totals.sums
    by_sign = kinds[:OUTSIDE].sum((1, 2)).tolist()
    flat = kinds[:OUTSIDE, 1].sum(1).tolist()
    clipped = int(kinds[[POSITIVE, NEGATIVE], 1, 1:].sum())
    no_gradient: Json = {
        "tokens": sum(flat),
        "fraction": sum(flat) / count if count else 0.0,
        "zero_advantage": flat[ZERO],
        "clipped": clipped,
        "other": flat[POSITIVE] + flat[NEGATIVE] - clipped,
    }
    if f"{index}.live" in sums:
        valid = sums.count("valid")
        zero = valid - sums.count(f"{index}.live")
        no_gradient |= {
            "responses": zero,
            "response_fraction": zero / valid if valid else 0.0,
        }
    clip = {name: _clip(kinds[:, :, state].sum(1), by_sign) for name, state in BRANCHES.items()}
    return {
        "loss_ratio": _own_ratio(totals, index),
        "token_loss": _over(sums.total(f"{index}.value"), count),
        "clip": {**clip, "any": _clip(kinds[:, :, 1:].sum((1, 2)), by_sign)},
        "no_gradient": no_gradient,
    }


def _own_ratio(totals: TokenSetTotals, index: int) -> Json | None:
    """Return the ratio that the loss uses, if that is not the ratio of a token."""
    name, count = f"{index}.ratio", totals.policy_tokens
    if name not in totals.sums.lows or not count:
        return None
    return {
        "mean": _over(totals.sums.total(f"{index}.excess") + count, count),
        "min": totals.sums.lows[name],
        "max": totals.sums.highs[name],
    }


def _clip(clipped: NDArray[np.int64], by_sign: list[int]) -> Json:
    """Return the clipped tokens and their share, of all tokens and by sign of the advantage."""
    counts = clipped[:OUTSIDE].tolist()

    def share(count: int, whole: int) -> Json:
        return {"tokens": count, "fraction": count / whole if whole else 0.0}

    return {
        **share(sum(counts), sum(by_sign)),
        "positive": share(counts[POSITIVE], by_sign[POSITIVE]),
        "negative": share(counts[NEGATIVE], by_sign[NEGATIVE]),
    }


def _over(total: Fraction, count: int) -> float | None:
    """Return a mean, rounded once; None if the count is 0."""
    return float(total / count) if count else None


def loss_warnings(
    plan: Plan, summary: Json, totals: LossTotals, configs: Sequence[LossConfig]
) -> list[str]:
    """Return what makes the numbers of a run less reliable than they seem."""
    columns, ratio, ess = plan.columns, summary["ratio"], summary["ess"]
    old = columns.column(behaviour_role(summary["behaviour"]))
    new = columns.column("log_probs")
    empty, sums = summary["left_out"] - summary["nonfinite"], totals.cells.total()
    texts = [
        (old == new, f"current and old log-probs are the same column, `{new}`"),
        (
            old != new and ratio["min"] == ratio["max"] == 1,
            (
                f"`{new}` equals `{old}` for every token: every ratio is 1, so nothing is clipped. "
                "Were both dumped before the update?"
            ),
        ),
        (
            ess is not None and ess < LEAST_ESS,
            (
                f"effective sample size {100 * (ess or 0):.2g} % of the tokens: a few ratios "
                f"outweigh all others; do `{new}` and `{old}` belong to the same tokens?"
            ),
        ),
        (
            empty > 0,
            f"{counted(empty, 'response')} without a token in the loss: masked, dropped or empty",
        ),
    ]
    return [
        *common_warnings(plan, summary["nonfinite"]),
        *zero_advantages(summary["advantage"]),
        *(text for true, text in texts if true),
        *_wrong_log_probs(plan, sums),
        *_clamped_ratios(sums, configs, new, old),
    ]


def _wrong_log_probs(plan: Plan, sums: Totals) -> Iterator[str]:
    """Yield a warning for each column with positive numbers, which no log-prob is."""
    for role in LOG_PROBS:
        count = sums.count(f"positive:{role}")
        if role not in plan.columns or not count:
            continue
        low, high = sums.lows[role], sums.highs[role]
        if low >= 0 and high <= 1:
            yield (
                f"`{plan.columns.column(role)}` ({role}) is between {low:.4g} and {high:.4g} for "
                "every token: these are probabilities; log-probs, their logarithms, are needed"
            )
        else:
            yield positive_warning(plan, role, count, high)


def _clamped_ratios(
    sums: Totals, configs: Sequence[LossConfig], new: str, old: str
) -> Iterator[str]:
    """Yield a warning for each clamp that bounds log ratios."""
    for clamp in sorted({config.clamp for config in configs}):
        count = sums.count(f"beyond {clamp}")
        if count and not math.isinf(clamp):
            most = max(-sums.lows["log_ratio"], sums.highs["log_ratio"])
            yield (
                f"|{new} - {old}| is above {clamp:g} at {counted(count, 'token')}, up to "
                f"{most:.4g} nats: --ratio-clamp bounds it there, and stops the gradient"
            )


def unused_options(
    summary: Json,
    configs: Sequence[LossConfig],
    of_recipe: Collection[str],
    of_loss: Collection[str],
) -> list[str]:
    """Return warnings of options that had no effect, and of advantages that were not used.

    Args:
        summary: of the run.
        configs: its losses.
        of_recipe: the fields of Recipe that the command line or its file sets.
        of_loss: likewise the fields of LossOptions, except those of a sweep.
    """
    texts = []
    column = summary["advantages_from"]
    known = {"correction", *Recipe.model_fields}
    fields = sorted(x for x in of_recipe if x in known and x not in _OF_EVERY_RUN)
    if summary["estimator"] is None and fields:
        texts.append(
            f"{', '.join(map(flag_of, fields))}: without effect, since the input has advantages, "
            f"`{column}`; --map advantages=none computes them anew"
        )
    if summary["unused_advantages"] == DUMPED:
        texts.append(
            f"the input has {DUMPED}, which its framework computed: "
            f"--map advantages={DUMPED} uses them"
        )
    reasons: dict[str, dict[str, None]] = {}
    for config in configs:
        typed, name = config.options.loss_options, config.loss.name
        texts += [
            f"{flag_of(option)}: sets that of the advantages, not of --loss {name}; "
            f"{flag_of('loss_options')} {option}=VALUE sets the loss's own"
            for option in config.loss.options
            if option in fields and option not in typed and option not in config.swept
        ]
        swept = {name for name, value in config.swept.items() if value is not None}
        asked = {*of_loss, *swept} - {"loss"}
        for name, why in config.ignored(asked).items():
            reasons.setdefault(name, {})[why] = None
    if all(one["loss"]["kl"] is None for one in summary["settings"]):
        for name in sorted(of_loss):
            if name.startswith("kl_loss_"):
                reasons[name] = {"this file, which has no ref_log_probs": None}
    return [*dict.fromkeys(texts)] + [
        f"{flag_of(name)}: without effect on {', '.join(whys)}" for name, whys in reasons.items()
    ]
