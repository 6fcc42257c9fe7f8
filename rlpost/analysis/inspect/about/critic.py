"""The topic `critic`: values against returns, over all tokens and by position."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.page import Notice
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, number, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page


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
    page = page_of(facts, "critic", [_by_position(facts)], otherwise)
    return replace(page, lines=summary_lines(facts), verdict=verdict(facts))


def summary_lines(facts: Facts) -> list[str]:
    """Return the numbers of all tokens, and what the returns leave out."""
    value, returns, square = map(facts.whole, MEANS)
    means = f"mean value {number(value['mean'])}, mean return {number(returns['mean'])}"
    error = f"error {number(math.sqrt(square['mean']))} (root mean square)"
    lines = [f"{value['count']:,} policy tokens: {means}, {error}"]
    if facts.turns or any(finding.check == TURNS for finding in facts.findings):
        lines.append("rows are turns: a return has the rewards of its row, not of later turns")
    return lines


def verdict(facts: Facts) -> Notice:
    """Return how much of the variance of returns the values explain."""
    explained = facts.whole("critic_explained")["value"]
    if explained is None:
        return Notice("warning", "all returns are equal: there is nothing to explain")
    returns = "the returns (sums of later rewards, γ = 1)"
    text = f"the values explain {percent(explained)} of the variance of {returns}"
    if explained < 0:
        text += ": worse than a constant"
    return Notice("ok" if explained >= LEAST_EXPLAINED else "warning", text)


def _by_position(facts: Facts) -> TextTable:
    """Return the means at positions in the response, which are the columns."""
    means = {measure: facts.by("position", measure) for measure in MEANS}
    means["squared_value_error"] = [*map(math.sqrt, means["squared_value_error"])]
    labels = facts.by("position", "value", "label")
    headings = ("by position", "first token", *labels[1:-1], "last token")
    return TextTable(headings, [(MEANS[x], *aligned(row)) for x, row in means.items()])
