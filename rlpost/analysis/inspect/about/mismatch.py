"""The topic `mismatch`: why rollout engine and trainer differ, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.about.log_probs import clamped_lines
from rlpost.analysis.inspect.causes import UNKNOWN, likeliest, unexplained
from rlpost.display.charts import bar
from rlpost.display.page import Notice
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, number, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Cause, Facts, Mismatch
    from rlpost.display.page import Page


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
    parts = [causes if causes.rows else None, _table(facts), _largest(gap)]
    page = page_of(facts, "mismatch", parts, otherwise)
    advised = any(cause.advice for cause in gap.causes)
    agreement = "engine and trainer agree up to numerical noise"
    text = likeliest(gap.causes) or (agreement if gap.sampled else "no token has both log-probs")
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
    notes = {at: _note(cause, before[at]) for at, cause in enumerate(known)}
    if (left := unexplained(gap.causes)) >= LEAST_LEFT:
        notes |= {len(rows): _note(cause) for cause in gap.causes if cause.name == UNKNOWN}
        rows.append(("unexplained", percent(left), "", ""))
    lines = []
    if gap.sampled < tokens:
        lines = [f"estimated from {gap.sampled:,} of {tokens:,} policy tokens"]
    headings = ("cause", "of the gap", "sure", "change")
    either = any(cause.change == "either" for cause in gap.causes)
    below = ["either side: the data do not show which one to change; both are possible"] * either
    return TextTable(headings, rows, "Causes", lines, below, text=(0, 2, 3), row_notes=notes)


def _note(cause: Cause, before: str = "") -> str:
    """Return each piece of evidence, unless it is that of the cause before, and what to do."""
    evidence = cause.evidence.split("; ") if cause.evidence != before else []
    return "\n".join([*evidence, *([f"to do: {cause.advice}"] if cause.advice else [])])


def _largest(gap: Mismatch) -> TextTable | None:
    if not gap.largest or not gap.causes:
        return None
    infer, old = (aligned([getattr(x, side) for x in gap.largest]) for side in ("infer", "old"))
    rows = [
        (f"{token.file}:{token.row}", f"{token.position:,}", infer[i], old[i])
        for i, token in enumerate(gap.largest)
    ]
    return TextTable(("file:row", "position", "engine", "trainer"), rows, "Tokens that differ most")


def _table(facts: Facts) -> TextTable:
    names = ("engine_gap", "engine_k1", "engine_k3", "confident_disagreement", "engine_clamped")
    gap, k1, k3, sure, clamped = map(facts.whole, names)
    ess = percent(facts.whole("engine_ess")["value"])
    lines = [
        f"mean |Δ log-prob| {number(gap['mean'])} nats, maximum {number(gap['max'])}",
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
