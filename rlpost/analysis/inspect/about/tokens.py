"""Topics on tokens: mismatch, entropy, critic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.causes import LEAST_TOKENS, UNKNOWN, likeliest, unexplained
from rlpost.analysis.inspect.tokens import LOG_RATIO_CLAMP
from rlpost.display.charts import bar
from rlpost.display.page import Notice
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, counted, number, percent
from rlpost.pipeline.data import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.analysis.inspect.model import Cause, Facts, Mismatch
    from rlpost.display.page import Page


BAR = 16  # characters
MOST_ROWS = 6  # of a table; the page is one screen


def by_table(
    facts: Facts, key: str, measure: str, columns: Mapping[str, Sequence[float | None]],
    title: str = "", lines: Sequence[str] = (),
) -> TextTable | None:  # fmt: skip
    """Return the tokens and means of positions, steps or domains, with bars of the first mean.

    Args:
        facts: of the input.
        key: position, step or domain.
        measure: whose tokens are counted.
        columns: of the means, by heading.
        title: of the table.
        lines: above the table; without any, there is no table of a single row.
    """
    labels, counts = (facts.by(key, measure, part) for part in ("label", "count"))
    several = len(labels) > (2 if key == "position" else 1)  # one is first and last
    if not several:
        return TextTable(title=title, lines=lines) if lines else None
    first = next(iter(columns.values()))
    largest = max((value or 0.0 for value in first), default=0.0)
    bars = [bar(value or 0.0, largest, BAR) for value in first]
    cells = [map(str, labels), (f"{count:,}" for count in counts), *map(aligned, columns.values())]
    rows = elided([*zip(*cells, bars, strict=True)], MOST_ROWS)
    headings = (key, "tokens", *columns, "")
    return TextTable(headings, rows, title, lines, text=(0, len(headings) - 1))


# ---- mismatch ----

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


def _mismatch_table(facts: Facts) -> TextTable | None:
    names = ("engine_gap", "engine_k1", "engine_k3", "confident_disagreement", "engine_clamped")
    gap, k1, k3, sure, clamped = map(facts.whole, names)
    ess = percent(facts.whole("engine_ess")["value"])
    lines = [f"mean |Δ log-prob| {number(gap['mean'])} nats, at most {number(gap['max'])}"]
    if clamped["total"]:
        tokens, size = counted(clamped["total"], "token"), f"{LOG_RATIO_CLAMP:g} nats"
        lines.append(f"KL and effective sample size: |Δ| is clamped to {size} in {tokens}")
    divergences = f"KL k1 {number(k1['mean'])}, k3 {number(k3['mean'])}"
    lines.append(f"{divergences}; effective sample size {ess}")
    if sure["total"]:
        lines.append(
            f"{counted(sure['total'], 'token')} that the engine found likely (≥ 0.5) "
            "are over 7 × less likely for the trainer"
        )
    columns = {"mean |Δ|": "engine_gap", "k3": "engine_k3"}
    means = {heading: facts.by("position", measure) for heading, measure in columns.items()}
    return by_table(facts, "position", "engine_gap", means, "Engine ‖ trainer", lines)


# ---- entropy ----


@topic
def entropy(facts: Facts) -> Page:
    """Entropy of the policy by position, step and domain."""
    profile = facts.entropy
    if profile is None:
        return page_of(facts, "entropy", [], without_column("entropy", "old_log_probs"))
    name = f"Entropy (`{profile['column']}`)"
    if profile["sampled"]:
        name = f"Entropy, estimated by -log p of the sampled tokens (`{profile['column']}`)"
    whole = facts.whole("entropy")
    line = f"mean {number(whole['mean'])} nats over {whole['count']:,} policy tokens"
    slices = [
        by_table(facts, key, "entropy", {"mean": facts.by(key, "entropy")})
        for key in ("position", "step", "domain")
    ]
    return page_of(facts, "entropy", [TextTable(title=name, lines=[line]), *slices], "")


# ---- critic ----

LEAST_EXPLAINED = 0.05
TURNS = "rows_are_turns"


@topic
def critic(facts: Facts) -> Page:
    """Values of the critic: explained variance, and means by position."""
    otherwise = without_column("values", "reward").replace(" or ", " and ")
    if "value" not in facts.facts:
        return page_of(facts, "critic", [], otherwise)
    names = {"mean value": "value", "mean return": "reward_to_go", "error": "squared_value_error"}
    columns = {heading: facts.by("position", measure) for heading, measure in names.items()}
    columns["error"] = [*map(math.sqrt, columns["error"])]
    table = by_table(facts, "position", "value", columns, "By position", [*_critic_lines(facts)])
    return replace(page_of(facts, "critic", [table], otherwise), verdict=_explained(facts))


def _critic_lines(facts: Facts) -> Iterator[str]:
    """Yield the numbers of all tokens, and what the returns leave out."""
    value, returns, square = map(facts.whole, ("value", "reward_to_go", "squared_value_error"))
    means = f"mean value {number(value['mean'])}, mean return {number(returns['mean'])}"
    error = f"error {number(math.sqrt(square['mean']))} (root mean square)"
    yield f"{value['count']:,} policy tokens: {means}, {error}"
    if facts.turns or any(finding.check == TURNS for finding in facts.findings):
        yield "rows are turns: a return has the rewards of its row, not of later turns"


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


# ---- lines of the overview ----


def left_out_lines(facts: Facts) -> list[str]:
    """Return what masks and later attempts of the run leave out; none if that is nothing."""
    lines = []
    if facts.left_out:
        column, rows = facts.roles["sample_mask"].column, counted(facts.left_out, facts.row_noun)
        where = "left out here, as of `rlpost advantages`"
        if "left_out:sample_mask" not in facts.facts:
            where = f"count here, but not in training (--map sample_mask={column}: not here either)"
        lines.append(f"{rows} with `{column}` 0 {where}")
    if replaced := facts.whole("left_out:superseded")["total"]:
        columns = " and ".join(facts.roles[role].column for role in ATTEMPTS if role in facts.roles)
        lines.append(f"{counted(replaced, 'row')} of older attempts (`{columns}`) left out")
    return lines
