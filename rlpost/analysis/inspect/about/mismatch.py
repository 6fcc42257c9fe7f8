"""The topic `mismatch`: rollout engine against trainer, by position in the response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.about.log_probs import clamped_lines
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, number, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts, Mismatch
    from rlpost.display.page import Page


BAR = 16  # characters


@topic
def mismatch(facts: Facts) -> Page:
    """Rollout engine against trainer: differences of their log-probs, by position."""
    gap = facts.token_facts.mismatch if facts.token_facts else None
    otherwise = without_column("old_log_probs", "infer_log_probs").replace(" or ", " and ")
    return page_of(facts, "mismatch", [None if gap is None else _table(gap)], otherwise)


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
            f"{one.first:,} to {one.end - 1:,}" if one.end else f"{one.first:,} on",
            f"{one.tokens:,}",
            sizes[i],
            k3[i],
            bar(one.mean_abs, largest, BAR),
        )
        for i, one in enumerate(buckets)
    ]
    headings = ("position", "tokens", "mean |Δ|", "k3", "")
    return TextTable(headings, rows, "Engine ‖ trainer", lines, text=(0, 4))
