"""The summary of `rlpost loss` as plain data, with its warnings: what `--format json` prints."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

from rlpost.display.text import counted, percent
from rlpost.kernels.segments import position_range
from rlpost.losses.config import behaviour_of
from rlpost.pipeline.findings import (
    COMMON,
    finding,
    findings_of,
    no_advantages,
    positive_warning,
)
from rlpost.pipeline.groups import group_counts
from rlpost.pipeline.loss_measures import (
    BY_BATCH,
    BY_CELL,
    BY_POSITION,
    OF_INPUT,
    OF_LOSS,
    LossSetting,
    batch_facts,
    loss_facts,
    policy_tokens,
    ratio_quantiles,
)
from rlpost.pipeline.stages.units import unit_table
from rlpost.pipeline.summary import nonfinite, roles_of
from rlpost.pipeline.totals import Sets
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import behaviour_role
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.findings import RunFacts
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import TotalsBy


SCHEMA_VERSION = 2
DUMPED = "dumped_advantages"  # the name that `rlpost convert` gives to advantages of a framework
LEAST_ESS = 0.1
_OF_EVERY_RUN = {"columns", "nonfinite", "attempts", "numerics", "emit_only", "replace"}
Json = dict[str, Any]


def summarise_losses(
    plan: Plan, responses: Responses, totals: TotalsBy, configs: Sequence[LossConfig]
) -> Json:
    """Return the summary of an input or of one of its files.

    A single loss has all facts at the top, by step, domain and position, too. A sweep has there
    what its settings share, and in each of `settings` the facts of the loss.

    Args:
        plan: of the run.
        responses: the responses that the totals are of.
        totals: by cell, position and batch.
        configs: the losses.
    """
    read, single = "advantages" in plan.columns, len(configs) == 1
    whole = totals[BY_CELL].total()
    slices = {"all": Sets(None, [whole]), **(_parts(responses, totals) if single else {})}
    facts = loss_facts(OF_INPUT, slices, LossSetting(0, configs[0]))
    facts["ratio"]["all"]["quantiles"] = ratio_quantiles(whole)
    settings = _settings(plan, responses, totals, configs, slices)
    unused = (name for name in ("advantages", DUMPED) if name in plan.source.columns)
    head = {
        "schema_version": SCHEMA_VERSION,
        "responses": whole.count("rows"),
        **_groups(plan, responses),
        "tokens": {"all": whole.count("length"), "policy": policy_tokens(whole)},
        "roles": roles_of(plan),
        "nonfinite": nonfinite(responses),
        "behaviour": behaviour_of(configs),
        "advantages_from": plan.columns.column("advantages") if read else "recipe",
        "estimator": None if read else plan.resolved.estimator.name,
        "unit": None if read else plan.resolved.unit_facts,
        "unused_advantages": None if read else next(unused, None),
    }
    if single:
        return {**head, **settings[0], "facts": facts | settings[0]["facts"]}
    swept = zip(configs, settings, strict=True)
    settings = [{"swept": dict(config.swept), **setting} for config, setting in swept]
    return {**head, "facts": facts, "settings": settings}


def _groups(plan: Plan, responses: Responses) -> Json:
    """Return how many rollouts and prompt groups there are; None of an input with advantages."""
    resolved, none = plan.resolved, dict.fromkeys(("rollouts", "groups", "groups_with_signal"))
    if "advantages" in plan.columns or not resolved.grouped:
        return none
    counts = group_counts(unit_table(responses).table, resolved).counts
    names = {"groups": "groups", "groups_with_signal": "with_signal"}
    numbers = {name: int(counts[x].sum()) for name, x in names.items() if x in counts}
    rollouts = int(responses["last"].sum()) if resolved.unit == "rollout" else None
    return none | numbers | {"rollouts": rollouts}


def settings_of(summary: Json) -> list[Json]:
    """Return the losses of a summary: options, formula, bounds, aggregation and facts of each."""
    settings: list[Json] = summary.get("settings") or [summary]
    return settings


def _settings(
    plan: Plan,
    responses: Responses,
    totals: TotalsBy,
    configs: Sequence[LossConfig],
    slices: Mapping[str, Sets],
) -> list[Json]:
    """Return the losses; slices besides `all` are those of a single one."""
    scope = {"step": "step", "step_domain": "batch"}.get(plan.resolved.recipe.numerics.batch, "")
    whole, by_batch = totals[BY_CELL].total(), totals[BY_BATCH]
    each = by_batch.over_each([[key] for key in by_batch.keys])
    labels = [responses.labels["batch"][key] for key in by_batch.keys]
    settings = []
    for number, config in enumerate(configs):
        setting = LossSetting(number, config)
        facts = loss_facts(OF_LOSS, {**slices, "all": Sets(None, [whole])}, setting)
        facts |= batch_facts(scope if labels != ["all"] else "", labels, each, setting)
        settings.append(
            {
                "options": config.resolved(),
                "formula": config.loss.formula,
                "bounds": dict(zip(("low", "high"), config.ratio_bounds, strict=True)),
                "aggregation": config.aggregation,
                "facts": facts,
            }
        )
    return settings


def _parts(responses: Responses, totals: TotalsBy) -> dict[str, Sets]:
    """Return the slices by step, domain and position that the input has."""
    cells, positions, slices = totals[BY_CELL], totals[BY_POSITION], dict[str, Sets]()
    columns: tuple[Literal["step", "domain"], ...] = ("step", "domain")
    for column in columns:
        of_labels = dict(responses.cells.by_label(column, cells.keys))
        slices[column] = Sets([*of_labels], cells.over_each([*of_labels.values()]))
    ranges = zip(positions.keys, positions.over_each([[x] for x in positions.keys]), strict=True)
    of_ranges = {_range(*position_range(at)): part for at, part in ranges if policy_tokens(part)}
    return slices | {"position": Sets([*of_ranges], [*of_ranges.values()])}


def _range(first: int, last: int | None) -> str:
    return f"from {first}" if last is None else f"{first} to {last}"


def loss_findings(run: RunFacts, configs: Sequence[LossConfig]) -> Iterator[Json]:
    """Yield what makes the numbers of a run less reliable than they seem."""
    columns, summary, sums = run.plan.columns, run.summary, run.totals
    facts = summary["facts"]
    ratio, ess = facts["ratio"]["all"], facts["ratio_ess"]["all"]["value"]
    old = columns.column(behaviour_role(summary["behaviour"]))
    new = columns.column("log_probs")
    empty = facts["without_tokens"]["all"]["total"] - summary["nonfinite"]
    losses = settings_of(summary)[0]["facts"]["policy_loss"]
    lost = sum(losses[key]["count"].count(0) for key in ("step", "batch") if key in losses)
    yield from findings_of(run, *COMMON)
    yield from (finding("no_advantages", text) for text in no_advantages(run))
    if old == new:
        text = f"current and old log-probs are the same column, `{new}`"
        yield finding("same_log_probs", text)
    elif ratio["min"] == ratio["max"] == 1:
        text = f"`{new}` equals `{old}` for every token: every ratio is 1, so nothing is clipped. "
        yield finding("same_log_probs", f"{text}Were both dumped before the update?")
    if ess is not None and ess < LEAST_ESS:
        text = f"effective sample size {100 * ess:.2g} % of the tokens: a few ratios outweigh all "
        text += f"others; do `{new}` and `{old}` belong to the same tokens?"
        yield finding("effective_sample_size", text)
    if empty > 0:
        text = f"{counted(empty, 'response')} without a token in the loss: masked, dropped or empty"
        yield finding("without_tokens", text)
    if lost:
        what = f"{counted(lost, 'batch')} without a token in the loss"
        yield finding("empty_batches", f"{what}: no loss, and not in the mean of batches")
    for role in (role for role in LOG_PROBS if role in columns):
        count = sums.count(f"positive:{role}")
        low, high = (ends.get(role, 0.0) for ends in (sums.lows, sums.highs))
        text = f"`{columns.column(role)}` ({role}) is between {low:.4g} and {high:.4g} for every "
        text += "token: these are probabilities; log-probs, their logarithms, are needed"
        if count:
            likely = low >= 0 and high <= 1
            text = text if likely else positive_warning(run.plan, role, count, high)
            yield finding("not_log_probs", text)
    most = max(-sums.lows["log_ratio"], sums.highs["log_ratio"])
    for clamp in sorted({config.clamp for config in configs if math.isfinite(config.clamp)}):
        if count := sums.count(f"{clamp}"):
            text = f"|{new} - {old}| is above {clamp:g} at {counted(count, 'token')}, up to "
            text += f"{most:.4g} nats: --ratio-clamp bounds it there, and stops the gradient"
            yield finding("clamped", text)


def verdict(summary: Json) -> Json:
    """Return whether tokens have a gradient: an error if none has, in no setting."""
    parts = [setting["facts"]["no_gradient"]["all"] for setting in settings_of(summary)]
    moving = max(1 - part["mean"] if part["count"] else 0.0 for part in parts)
    if not moving:
        return {"level": "error", "text": "Nothing to learn: no token has a gradient"}
    which = "" if len(parts) == 1 else "up to "
    return {"level": "ok", "text": f"{which}{percent(moving)} of policy tokens have a gradient"}


def unused_options(
    summary: Json,
    configs: Sequence[LossConfig],
    of_recipe: Collection[str],
    of_loss: Collection[str],
) -> list[Json]:
    """Return findings of options that had no effect, and of advantages that were not used.

    Args:
        summary: of the run.
        configs: its losses.
        of_recipe: the fields of Recipe that the command line or its file sets.
        of_loss: likewise the fields of LossOptions, except those of a sweep.
    """
    texts, column = [], summary["advantages_from"]
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
    for config in configs:
        typed, name = config.options.loss_options, config.loss.name
        texts += [
            f"{flag_of(option)}: sets that of the advantages, not of --loss {name}; "
            f"{flag_of('loss_options')} {option}=VALUE sets the loss's own"
            for option in config.loss.options
            if option in fields and option not in typed and option not in config.swept
        ]
    reasons: dict[str, dict[str, None]] = defaultdict(dict)
    for config in configs:
        swept = {name for name, value in config.swept.items() if value is not None}
        for name, why in config.ignored({*of_loss, *swept} - {"loss"}).items():
            reasons[name][why] = None
    if not any("kl_loss" in setting["facts"] for setting in settings_of(summary)):
        of_kl = sorted(name for name in of_loss if name.startswith("kl_loss_"))
        reasons |= {name: {"this file, which has no ref_log_probs": None} for name in of_kl}
    texts += [f"{flag_of(x)}: without effect on {', '.join(whys)}" for x, whys in reasons.items()]
    return [finding("without_effect", text) for text in dict.fromkeys(texts)]
