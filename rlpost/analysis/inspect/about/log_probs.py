"""The topic `log_probs`: numbers of policy tokens, and the KL between policy and reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.about.rewards import distribution
from rlpost.analysis.inspect.tokens import LOG_RATIO_CLAMP
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts, TokenColumn, TokenFacts
    from rlpost.display.page import Page


@topic
def log_probs(facts: Facts) -> Page:
    """Log-probs, values and token rewards of policy tokens; KL from the reference."""
    tokens = facts.token_facts
    if tokens is None or not tokens.columns:
        return page_of(facts, "log_probs", [], without_column("old_log_probs"))
    rows = [_row(role, column, facts) for role, column in tokens.columns.items()]
    headings = ("role", "mean", "min", "max", "= 0", "> 0", "not finite")
    table = TextTable(headings, rows, f"Policy tokens of all {facts.row_noun}s")
    return page_of(facts, "log_probs", [table, _kl(facts, tokens)], "")


def _row(role: str, column: TokenColumn, facts: Facts) -> tuple[str, ...]:
    nonfinite = column.null + column.nan + column.minus_infinity + column.plus_infinity
    positive = f"{column.positive:,}" if role.endswith("log_probs") else "–"
    return (
        role, number(facts.whole(role)["mean"]), number(column.min), number(column.max),
        f"{column.zero:,}", positive, f"{nonfinite:,}",
    )  # fmt: skip


def _kl(facts: Facts, tokens: TokenFacts) -> TextTable | None:
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
