"""The summary of `rlpost loss` as plain data, with its warnings: what `--format json` prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from rlpost.display.text import counted
from rlpost.kernels.segments import position_range
from rlpost.losses.config import behaviour_of
from rlpost.pipeline.loss_metrics import (
    BY_BATCH,
    BY_CELL,
    BY_POSITION,
    OF_INPUT,
    OF_LOSS,
    OF_TOKENS,
    OF_WHOLE,
    LossSetting,
    policy_tokens,
    report_batch,
    report_losses,
)
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

    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import Totals, TotalsBy


SCHEMA_VERSION = 1
DUMPED = "dumped_advantages"  # the name that `rlpost convert` gives to advantages of a framework
LEAST_ESS = 0.1
_OF_EVERY_RUN = {"columns", "nonfinite", "numerics", "emit_only", "replace"}
Json = dict[str, Any]


def summarise_losses(
    plan: Plan,
    responses: Responses,
    totals: TotalsBy,
    configs: Sequence[LossConfig],
) -> Json:
    """Return the summary of an input or of one of its files.

    A single config has details by step, domain and position; a sweep has only the losses by batch.

    Args:
        plan: of the run.
        responses: the responses that the totals are of.
        totals: by cell, position and batch, of each variant.
        configs: the losses.
    """
    variants = variants_of(configs)
    setting = LossSetting(0, configs[0])
    whole = totals[f"{variants[0].prefix}{BY_CELL}"].total()
    read = "advantages" in plan.columns
    return {
        "schema_version": SCHEMA_VERSION,
        "roles": roles_of(plan),
        **report_losses(OF_INPUT, whole, setting),
        "nonfinite": nonfinite(variants[0].responses(responses)),
        "behaviour": behaviour_of([configs[x] for x in variants[0].indices]),
        **report_losses(OF_TOKENS, whole, setting),
        "settings": _settings(responses, totals, configs),
        "advantages_from": plan.columns.column("advantages") if read else "recipe",
        "estimator": None if read else plan.resolved.estimator.name,
        "unit": None if read else plan.resolved.unit_facts,
        "unused_advantages": None if read else _unused_advantages(plan),
    }


def _settings(responses: Responses, totals: TotalsBy, configs: Sequence[LossConfig]) -> list[Json]:
    """Return the entries of settings, with those of their batches and of parts of the tokens."""
    entries, norm_of_first = [Json() for _ in configs], 0.0
    for variant in variants_of(configs):
        whole = totals[f"{variant.prefix}{BY_CELL}"].total()
        of_batches = totals[f"{variant.prefix}{BY_BATCH}"]
        each = of_batches.over_each([[key] for key in of_batches.keys])
        labels = [variant.responses(responses).labels["batch"][key] for key in of_batches.keys]
        for at, number in enumerate(variant.indices):
            setting, config = LossSetting(at, configs[number]), configs[number]
            batches = [report_batch(*batch, setting) for batch in zip(labels, each, strict=True)]
            losses = {x: _mean([batch[x] for batch in batches]) for x in ("policy", "kl", "total")}
            entries[number] = {
                "swept": dict(config.swept),
                "options": config.resolved(),
                "formula": config.loss.formula,
                "bounds": dict(zip(("low", "high"), config.ratio_bounds, strict=True)),
                "aggregation": config.aggregation,
                "loss": losses,
                "batches": batches,
                "tokens": policy_tokens(whole),
                **report_losses((*OF_LOSS, *OF_WHOLE), whole, setting),
            }
            gradient = entries[number]["gradient"]
            if gradient is not None:
                norm_of_first = gradient["norm"] if number == 0 else norm_of_first
                gradient["cosine"] = _cosine(
                    whole, at, gradient["norm"], norm_of_first, first=number == 0
                )
    if len(configs) == 1:
        entries[0] |= _parts(responses, totals, LossSetting(0, configs[0]))
    return entries


def _cosine(
    totals: Totals, at: int, norm: float, norm_of_first: float, *, first: bool
) -> float | None:
    """Return the cosine between the gradient of a setting and that of the first one."""
    if first or not norm:
        return 1.0 if norm else None
    product = float(totals.total(f"{at}.product")) / norm
    return max(-1.0, min(1.0, product / norm_of_first)) if norm_of_first else None


def _unused_advantages(plan: Plan) -> str | None:
    """Return the column of the input that has advantages, if the recipe computes others."""
    names = ("advantages", DUMPED)
    return next((name for name in names if name in plan.source.columns), None)


def _parts(responses: Responses, totals: TotalsBy, setting: LossSetting) -> Json:
    """Return the entries of the tokens by position, step and domain, if they have any."""
    positions, cells = totals[BY_POSITION], totals[BY_CELL]
    ranges = [position_range(key) for key in positions.keys]
    labels: dict[str, list[Json]] = {
        "positions": [{"from": first, "to": last} for first, last in ranges]
    }
    each = {"positions": positions.over_each([[key] for key in positions.keys])}
    columns: tuple[Literal["step", "domain"], ...] = ("step", "domain")
    for column in columns:
        by_label = responses.cells.by_label(column, cells.keys)
        labels[f"{column}s"] = [{column: label} for label, _ in by_label]
        each[f"{column}s"] = cells.over_each([keys for _, keys in by_label])
    return {
        kind: [
            {
                **label,
                "tokens": policy_tokens(part),
                **report_losses((*OF_TOKENS, *OF_LOSS), part, setting),
            }
            for label, part in zip(labels[kind], each[kind], strict=True)
            if kind != "positions" or policy_tokens(part)
        ]
        for kind in labels
    }


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def loss_warnings(
    plan: Plan, summary: Json, totals: TotalsBy, configs: Sequence[LossConfig]
) -> list[str]:
    """Return what makes the numbers of a run less reliable than they seem."""
    columns, ratio, ess = plan.columns, summary["ratio"], summary["ess"]
    old = columns.column(behaviour_role(summary["behaviour"]))
    new = columns.column("log_probs")
    empty = summary["left_out"] - summary["nonfinite"]
    sums = totals[f"{variants_of(configs)[0].prefix}{BY_CELL}"].total()
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
