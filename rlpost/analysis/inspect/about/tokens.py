"""Topics on tokens: log-probs, mismatch, entropy, critic, advantages, masks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.about.responses import distribution
from rlpost.analysis.inspect.causes import LEAST_TOKENS, UNKNOWN, likeliest, unexplained
from rlpost.analysis.inspect.tokens import LOG_RATIO_CLAMP
from rlpost.display.charts import bar
from rlpost.display.page import Notice
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, counted, mean_beside, number, percent
from rlpost.pipeline.data import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import (
        Cause,
        Facts,
        Json,
        MaskFacts,
        Mismatch,
        TokenColumn,
        TokenFacts,
    )
    from rlpost.display.page import Page


# ---- log_probs ----


@topic
def log_probs(facts: Facts) -> Page:
    """Log-probs, values and token rewards of policy tokens; KL from the reference."""
    tokens = facts.token_facts
    if tokens is None or not tokens.columns:
        return page_of(facts, "log_probs", [], without_column("old_log_probs"))
    rows = [_column_row(role, column, facts) for role, column in tokens.columns.items()]
    headings = ("role", "mean", "min", "max", "= 0", "> 0", "not finite")
    table = TextTable(headings, rows, f"Policy tokens of all {facts.row_noun}s")
    return page_of(facts, "log_probs", [table, _kl_table(facts, tokens)], "")


def _column_row(role: str, column: TokenColumn, facts: Facts) -> tuple[str, ...]:
    nonfinite = column.null + column.nan + column.minus_infinity + column.plus_infinity
    positive = f"{column.positive:,}" if role.endswith("log_probs") else "–"
    return (
        role, number(facts.whole(role)["mean"]), number(column.min), number(column.max),
        f"{column.zero:,}", positive, f"{nonfinite:,}",
    )  # fmt: skip


def _kl_table(facts: Facts, tokens: TokenFacts) -> TextTable | None:
    spread, lines = facts.whole("kl"), clamped_lines("KL", tokens.kl_clamped)
    if not spread["count"]:
        return None
    title = f"KL per token (old ‖ ref) of {facts.row_noun}s"
    title += " that count" * (spread["count"] < facts.responses)
    return distribution(title, spread, tokens.kl_quantiles, None, lines)


def clamped_lines(names: str, tokens: int) -> list[str]:
    """Return the line on numbers whose differences are clamped; none if no token is."""
    if not tokens:
        return []
    return [f"{names}: |Δ| is clamped to {LOG_RATIO_CLAMP:g} nats in {counted(tokens, 'token')}"]


# ---- mismatch ----

BAR = 16  # characters
LEAST_LEFT = 5e-4  # less is rounding
_SIDES = {"engine": "engine", "trainer": "trainer", "either": "either side", "both": "both sides"}


@topic
def mismatch(facts: Facts) -> Page:
    """Why rollout engine and trainer give the same tokens different log-probs."""
    gap = facts.mismatch
    otherwise = without_column("old_log_probs", "infer_log_probs").replace(" or ", " and ")
    if gap is None:
        return page_of(facts, "mismatch", [], otherwise)
    causes = causes_table(gap, facts.whole("engine_gap")["count"])
    parts = [causes if causes.rows else None, _mismatch_table(facts), _largest_tokens(gap)]
    page = page_of(facts, "mismatch", parts, otherwise)
    advised = any(cause.advice for cause in gap.causes)
    agreement = "engine and trainer agree up to numerical noise"
    if gap.sampled < LEAST_TOKENS:
        agreement = f"{counted(gap.sampled, 'token')} with both log-probs: too few to find a cause"
    text = likeliest(gap.causes) or agreement
    text += "" if advised or not gap.causes else ", too small to have a measurable effect"
    warns = any(finding.check == "engine_mismatch" for finding in facts.findings)
    return replace(page, verdict=Notice("warning" if warns else "ok", text))


def causes_table(gap: Mismatch, tokens: int) -> TextTable:
    """Return the causes, and the share of the gap that none explains."""
    known = [cause for cause in gap.causes if cause.name != UNKNOWN]
    rows: list[tuple[str, ...]] = [
        (cause.name, percent(cause.share or None), cause.sure, _SIDES[cause.change])
        for cause in known
    ]
    before = ["", *(cause.evidence for cause in known)]
    notes = {at: _cause_note(cause, before[at]) for at, cause in enumerate(known)}
    if (left := unexplained(gap.causes)) >= LEAST_LEFT:
        notes |= {len(rows): _cause_note(cause) for cause in gap.causes if cause.name == UNKNOWN}
        rows.append(("unexplained", percent(left), "", ""))
    lines = []
    if gap.sampled < tokens:
        lines = [f"estimated from {gap.sampled:,} of {tokens:,} policy tokens"]
    headings = ("cause", "of the gap", "sure", "change")
    either = any(cause.change == "either" for cause in gap.causes)
    below = ["either side: the data do not show which one to change; both are possible"] * either
    return TextTable(headings, rows, "Causes", lines, below, text=(0, 2, 3), row_notes=notes)


def _cause_note(cause: Cause, before: str = "") -> str:
    """Return each piece of evidence, unless it is that of the cause before, and what to do."""
    evidence = cause.evidence.split("; ") if cause.evidence != before else []
    return "\n".join([*evidence, *([f"to do: {cause.advice}"] if cause.advice else [])])


def _largest_tokens(gap: Mismatch) -> TextTable | None:
    if not gap.largest or not gap.causes:
        return None
    infer, old = (aligned([getattr(x, side) for x in gap.largest]) for side in ("infer", "old"))
    rows = [
        (f"{token.file}:{token.row}", f"{token.position:,}", infer[i], old[i])
        for i, token in enumerate(gap.largest)
    ]
    return TextTable(("file:row", "position", "engine", "trainer"), rows, "Tokens that differ most")


def _mismatch_table(facts: Facts) -> TextTable:
    names = ("engine_gap", "engine_k1", "engine_k3", "confident_disagreement", "engine_clamped")
    gap, k1, k3, sure, clamped = map(facts.whole, names)
    ess = percent(facts.whole("engine_ess")["value"])
    lines = [
        f"mean |Δ log-prob| {number(gap['mean'])} nats, at most {number(gap['max'])}",
        *clamped_lines("KL and effective sample size", clamped["total"]),
        f"KL k1 {number(k1['mean'])}, k3 {number(k3['mean'])}; effective sample size {ess}",
    ]
    if sure["total"]:
        lines.append(
            f"{counted(sure['total'], 'token')} that the engine found likely (≥ 0.5) "
            "are over 7 × less likely for the trainer"
        )
    labels, counts, sizes = (
        facts.by("position", "engine_gap", part) for part in ("label", "count", "mean")
    )
    largest = max(sizes, default=0.0)
    columns = (
        labels, (f"{count:,}" for count in counts), aligned(sizes),
        aligned(facts.by("position", "engine_k3")), (bar(size, largest, BAR) for size in sizes),
    )  # fmt: skip
    several = len(labels) > 2  # noqa: PLR2004 - one repeats the lines above
    rows = [*zip(*columns, strict=True)] if several else []
    headings = ("position", "tokens", "mean |Δ|", "k3", "")
    return TextTable(headings, rows, "Engine ‖ trainer", lines, text=(0, 4))


# ---- entropy ----

MOST_ROWS = 6  # of a table; the page is one screen


@topic
def entropy(facts: Facts) -> Page:
    """Entropy of the policy by position, step and domain; its covariance with advantages."""
    profile = facts.entropy
    if profile is None:
        return page_of(facts, "entropy", [], without_column("entropy", "old_log_probs"))
    tables = [
        TextTable(title=_entropy_name(profile), lines=_entropy_lines(facts, profile)),
        _entropy_by("position", facts),
        _entropy_by("step", facts, facts.by("step", "covariance", "value")),
        _entropy_by("domain", facts),
    ]
    return page_of(facts, "entropy", tables, "")


def _entropy_name(profile: Json) -> str:
    """Return what the numbers are: entropies of a column, or their estimate."""
    if profile["sampled"]:
        return f"Entropy, estimated by -log p of the sampled tokens (`{profile['column']}`)"
    return f"Entropy (`{profile['column']}`)"


def _entropy_lines(facts: Facts, profile: Json) -> list[str]:
    whole, value = facts.whole("entropy"), facts.whole("covariance")["value"]
    lines = [f"mean {number(whole['mean'])} nats over {whole['count']:,} policy tokens"]
    if value is not None:
        advantages = profile["covariance_of"]
        advantages = advantages if " " in advantages else f"`{advantages}`"
        text = f"covariance of `{profile['log_probs']}` and {advantages}"
        within = " within steps" * (len(facts.labels("step")) > 1)
        lines.append(f"{text}{within}: {number(value)}")
    return lines


def _entropy_by(
    key: str, facts: Facts, covariance: Sequence[float | None] = ()
) -> TextTable | None:
    """Return the table of positions, steps or domains, if there are several."""
    labels, counts, means = (facts.by(key, "entropy", part) for part in ("label", "count", "mean"))
    if len(labels) < 2:  # noqa: PLR2004
        return None
    largest = max((mean or 0.0 for mean in means), default=0.0)
    bars = [bar(mean or 0.0, largest, BAR) for mean in means]
    columns = [map(str, labels), (f"{count:,}" for count in counts), aligned(means), bars]
    columns += [map(number, covariance)] if covariance else []
    headings = (key, "tokens", "mean", "", *(("covariance",) if covariance else ()))
    return TextTable(headings, elided([*zip(*columns, strict=True)], MOST_ROWS), text=(0, 3))


# ---- critic ----

LEAST_EXPLAINED = 0.05
MEANS = {"value": "mean value", "reward_to_go": "mean return", "squared_value_error": "error"}
"""By measure, its row in the table by position; of squares the root."""
TURNS = "rows_are_turns"


@topic
def critic(facts: Facts) -> Page:
    """Values of the critic: explained variance, and means by position."""
    otherwise = without_column("values", "reward").replace(" or ", " and ")
    if "value" not in facts.facts:
        return page_of(facts, "critic", [], otherwise)
    page = page_of(facts, "critic", [_critic_by_position(facts)], otherwise)
    return replace(page, lines=_critic_lines(facts), verdict=_explained(facts))


def _critic_lines(facts: Facts) -> list[str]:
    """Return the numbers of all tokens, and what the returns leave out."""
    value, returns, square = map(facts.whole, MEANS)
    means = f"mean value {number(value['mean'])}, mean return {number(returns['mean'])}"
    error = f"error {number(math.sqrt(square['mean']))} (root mean square)"
    lines = [f"{value['count']:,} policy tokens: {means}, {error}"]
    if facts.turns or any(finding.check == TURNS for finding in facts.findings):
        lines.append("rows are turns: a return has the rewards of its row, not of later turns")
    return lines


def _explained(facts: Facts) -> Notice:
    """Return how much of the variance of returns the values explain."""
    explained = facts.whole("critic_explained")["value"]
    if explained is None:
        return Notice("warning", "all returns are equal: there is nothing to explain")
    returns = "the returns (sums of later rewards, γ = 1)"
    text = f"the values explain {percent(explained)} of the variance of {returns}"
    if explained < 0:
        text += ": worse than a constant"
    return Notice("ok" if explained >= LEAST_EXPLAINED else "warning", text)


def _critic_by_position(facts: Facts) -> TextTable:
    """Return the means at positions in the response, which are the columns."""
    means = {measure: facts.by("position", measure) for measure in MEANS}
    means["squared_value_error"] = [*map(math.sqrt, means["squared_value_error"])]
    labels = facts.by("position", "value", "label")
    headings = ("by position", "first token", *labels[1:-1], "last token")
    return TextTable(headings, [(MEANS[x], *aligned(row)) for x, row in means.items()])


# ---- advantages ----


@topic
def advantages(facts: Facts) -> Page:
    """Advantages that the file has: mean, standard deviation and share of zeros, by step."""
    table = None if facts.advantages is None else _advantage_table(facts)
    return page_of(facts, "advantages", [table], "The file has no advantages (rlpost advantages).")


def _advantage_table(facts: Facts) -> TextTable:
    whole, nonfinite = facts.whole("advantage"), (facts.advantages or {})["nonfinite"]
    lines = [f"of {whole['count']:,} {facts.facts['advantage']['of']}"]
    lines += [f"{nonfinite:,} more are NaN or infinite"] * bool(nonfinite)
    lines += compared_lines(facts)
    labels = labels if len(labels := facts.labels("step")) > 1 else []
    columns = {
        part: [whole[part], *(facts.by("step", "advantage", part) if labels else ())]
        for part in ("mean", "std", "min", "max")
    }
    zeros = [facts.whole("advantage_zero")["mean"]]
    zeros += facts.by("step", "advantage_zero") if labels else []
    columns["mean"] = [*map(mean_beside, columns["mean"], columns["std"])]
    first, *rows = zip(
        ["all", *map(str, labels)], *map(aligned, columns.values()), map(percent, zeros),
        strict=True,
    )  # fmt: skip
    headings = (facts.roles["batch"].column if labels else "", *columns, "A = 0")
    return TextTable(headings, [first, *elided(rows)], "Advantages", lines)


def compared_lines(facts: Facts) -> list[str]:
    """Return how recorded advantages differ from computed ones; none without such a comparison."""
    line = (facts.advantages or {}).get("compared")
    return [line] if line else []


# ---- masks ----


@topic
def masks(facts: Facts) -> Page:
    """Masks: observation tokens, and where in the responses they are."""
    if facts.masks is None:
        return page_of(facts, "masks", [], without_column("mask"))
    lines = [*_mask_lines(facts.masks, facts.row_noun), *left_out_lines(facts)]
    return page_of(facts, "masks", [TextTable(title="Masks", lines=lines)], "")


def _mask_lines(masks: MaskFacts, noun: str) -> list[str]:
    share = percent(masks.observation_share)
    if not masks.with_observations:
        return [f"{share} of tokens are observations"]
    places = {"at the end": masks.trailing, "at the start": masks.leading, "inside": masks.gaps}
    counts = ", ".join(f"{count:,} {place}" for place, count in places.items())
    several = sum(places.values()) > masks.with_observations
    lines = [
        f"{share} of tokens are observations, in {counted(masks.with_observations, noun)}",
        f"{noun}s with observations: {counts}{'; some in several places' if several else ''}",
    ]
    if masks.empty:
        lines.append(f"{counted(masks.empty, noun)} without a policy token")
    return lines


def left_out_lines(facts: Facts) -> list[str]:
    """Return what masks and later attempts of the run leave out; none if that is nothing."""
    lines = []
    if facts.left_out:
        column, rows = facts.roles["sample_mask"].column, counted(facts.left_out, facts.row_noun)
        where = "left out here, as of `rlpost advantages`"
        if "left_out:sample_mask" not in facts.facts:
            where = f"count here, but not in training (--map sample_mask={column}: not here either)"
        empty = facts.masks is not None and facts.masks.empty
        both = "; some may have no policy token either" if empty else ""
        lines.append(f"{rows} with `{column}` 0 {where}{both}")
    if replaced := facts.whole("left_out:superseded")["total"]:
        columns = " and ".join(facts.roles[role].column for role in ATTEMPTS if role in facts.roles)
        lines.append(f"{counted(replaced, 'row')} of older attempts (`{columns}`) left out")
    return lines
