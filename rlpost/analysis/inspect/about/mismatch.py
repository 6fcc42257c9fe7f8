"""The topic `mismatch`: why rollout engine and trainer differ, where, and what corrections do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.about.log_probs import clamped_lines
from rlpost.analysis.inspect.causes import NAMED, UNKNOWN, likeliest, percentages
from rlpost.analysis.inspect.positions import span_text
from rlpost.display.charts import bar
from rlpost.display.page import Notice
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, number, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Cause, Facts, Mismatch
    from rlpost.display.page import Page


BAR = 16  # characters
MENDED = ("temperature", "truncated-sampling", "failed-sync", "shift", "template")
"""Causes to remove: a correction only hides them."""
LEAST_ESS = 0.5
LEAST_LEFT = 5e-4  # less is rounding
_SIDES = {
    "engine": "engine",
    "trainer": "trainer",
    "either": "either side",
    "both": "both sides",
}


@topic
def mismatch(facts: Facts) -> Page:
    """Why rollout engine and trainer give the same tokens different log-probs."""
    gap = facts.mismatch
    otherwise = without_column("old_log_probs", "infer_log_probs").replace(" or ", " and ")
    if gap is None:
        return page_of(facts, "mismatch", [], otherwise)
    page = page_of(facts, "mismatch", [_table(gap), _largest(gap), _corrections(gap)], otherwise)
    causes = causes_table(gap)
    page = replace(page, parts=[*page.parts, *([causes] if causes.rows else [])])
    verdict = Notice("warning" if gap.causes else "ok", likeliest(gap.causes) or _agreement(gap))
    return replace(page, verdict=verdict, next_steps=next_steps(facts, gap))


def _agreement(gap: Mismatch) -> str:
    if not gap.sampled:
        return "no token has both log-probs"
    return "engine and trainer agree up to numerical noise"


def next_steps(facts: Facts, gap: Mismatch) -> list[str]:
    """Return the command of the correction that leaves most of the sample, if one helps."""
    if not gap.causes or gap.causes[0].name in MENDED:
        return []
    rated = [one for one in gap.corrections if one.ess is not None and one.ess >= LEAST_ESS]
    of_tokens = [one for one in rated if one.tokens is not None]
    best = max(of_tokens, key=lambda one: one.ess or 0.0, default=None)
    return [f"rlpost advantages {facts.inputs[0]} OUT {best.options}"] if best else []


def causes_table(gap: Mismatch) -> TextTable:
    """Return the causes, small ones in one row, and what they leave: shares add up to 100 %."""
    known = [one for one in gap.causes if one.name != UNKNOWN]
    small = [one for one in known if one.share < NAMED and gap.unexplained is not None]
    large = [one for one in known if one not in small]
    others, left = sum(one.share for one in small), gap.unexplained or 0.0
    shares = percentages([*(one.share for one in large), others, left])
    rows: list[tuple[str, ...]] = [
        (one.name, share, one.sure, _SIDES[one.change])
        for one, share in zip(large, shares, strict=False)
    ]
    notes = dict(enumerate(map(_note, large)))
    if small:
        notes[len(rows)] = f"{', '.join(one.name for one in small)}: each below {100 * NAMED:g} %"
        rows.append(("others", shares[-2], "", ""))
    if left >= LEAST_LEFT:
        notes |= {len(rows): _note(one) for one in gap.causes if one.name == UNKNOWN}
        rows.append(("unexplained", shares[-1], "", ""))
    lines = []
    if gap.sampled < gap.tokens:
        lines = [f"estimated from {gap.sampled:,} of {gap.tokens:,} policy tokens"]
    headings = ("cause", "of the gap", "sure", "change")
    either = any(one.change == "either" for one in large)
    below = ["either side: the data do not show which one to change; both are possible"] * either
    return TextTable(headings, rows, "Causes", lines, below, text=(0, 2, 3), row_notes=notes)


def _note(cause: Cause) -> str:
    """Return each piece of evidence, what to do, and the options that do it, a line each."""
    lines = [*cause.evidence.split("; "), f"to do: {cause.advice}"]
    lines += [f"options: {'; '.join(cause.options)}"] if cause.options else []
    return "\n".join(lines)


def _largest(gap: Mismatch) -> TextTable | None:
    if not gap.largest or not gap.causes:
        return None
    infer, old = (aligned([getattr(one, n) for one in gap.largest]) for n in ("infer", "old"))
    rows = [
        (f"{one.file}:{one.row}", f"{one.position:,}", infer[i], old[i])
        for i, one in enumerate(gap.largest)
    ]
    return TextTable(("file:row", "position", "engine", "trainer"), rows, "Tokens that differ most")


def _corrections(gap: Mismatch) -> TextTable | None:
    if not gap.corrections or not gap.causes:
        return None
    rows = [
        (one.options, *(percent(x) for x in (one.tokens, one.responses, one.ess)))
        for one in gap.corrections
    ]
    lines = []
    if gap.causes[0].name in MENDED:
        lines = [f"remove the first cause, {gap.causes[0].name}: a correction would only hide it"]
    headings = ("correction", "tokens", "responses", "ESS after")
    notes = ["shares that it truncates, masks or rejects; ESS: effective sample size of weights"]
    return TextTable(headings, rows, "What corrections would do", lines, notes)


def _table(gap: Mismatch) -> TextTable:
    lines = [
        f"mean |Δ log-prob| {number(gap.mean_abs)} nats, maximum {number(gap.max_abs)}",
        *clamped_lines("KL and effective sample size", gap.clamped),
        f"KL k1 {number(gap.k1)}, k3 {number(gap.k3)}; effective sample size {percent(gap.ess)}",
    ]
    if gap.confident_disagreement:
        lines.append(
            f"{counted(gap.confident_disagreement, 'token')} that the engine found likely (≥ 0.5) "
            "are over 7 × less likely for the trainer"
        )
    buckets = gap.by_position if len(gap.by_position) > 1 else []  # one repeats the lines above
    largest = max((one.mean_abs for one in buckets), default=0.0)
    sizes, k3 = (aligned([getattr(one, n) for one in buckets]) for n in ("mean_abs", "k3"))
    rows = [
        (
            span_text(one.first, one.end or None),
            f"{one.tokens:,}",
            sizes[i],
            k3[i],
            bar(one.mean_abs, largest, BAR),
        )
        for i, one in enumerate(buckets)
    ]
    headings = ("position", "tokens", "mean |Δ|", "k3", "")
    return TextTable(headings, rows, "Engine ‖ trainer", lines, text=(0, 4))
