"""The topic `lengths`: policy tokens of responses, and truncated responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.analysis.inspect.about.rewards import distribution
from rlpost.display.text import counted, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page


@topic
def lengths(facts: Facts) -> Page:
    """Policy tokens of each response: mean, quantiles, truncated responses."""
    numbers = facts.lengths
    if numbers is None:
        return page_of(facts, "lengths", [], "\n".join(without_tokens_lines(facts)))
    lines = []
    if "truncated" in facts.facts:
        cut, column = facts.whole("truncated"), facts.roles["truncated"].column
        text = f"{counted(cut['total'], facts.unit)} truncated ({percent(cut['mean'] or 0.0)})"
        lines = [f"{text}, according to `{column}`"]
    table = distribution(
        f"Policy tokens of {facts.row_noun}s", facts.whole("policy_tokens"), numbers.quantiles,
        numbers.histogram, lines,
    )  # fmt: skip
    return page_of(facts, "lengths", [table], "")


def without_tokens_lines(facts: Facts) -> list[str]:
    """Return the line on an input without a list of tokens: why nothing is about tokens."""
    if facts.tokens is None:
        advice = "set their column with --map response_length=COLUMN"
        return [f"no column has tokens, so lengths are unknown ({advice})"]
    if facts.tokens["all"] is None and facts.lengths:
        count = counted(facts.tokens["policy"], "policy token")
        return [f"no column has tokens; {count} according to `{facts.lengths.column}`"]
    return []
