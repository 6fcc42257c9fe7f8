"""The topic `steps`: trends over the steps, and a row for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.about.slices import slice_table, trends_of
from rlpost.display.trends import trend_table

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page
    from rlpost.display.tables import TextTable


MOST_ROWS = 60
OVERVIEW = ("reward", "no signal", "policy tokens", "truncated", "KL per token")
LARGE = 1e-3  # nats of k3; below, engine and trainer agree


@topic
def steps(facts: Facts) -> Page:
    """Trends over the steps: rewards, groups without signal, lengths, KL."""
    if not facts.steps:
        return page_of(facts, "steps", [], without_column("batch"))
    if len(facts.steps) == 1:
        return page_of(facts, "steps", [], f"There is one step, {facts.steps[0].label}.")
    column = facts.roles["batch"].column
    rows = slice_table(facts.steps, column, facts.row_noun, f"By {column}", MOST_ROWS)
    return page_of(facts, "steps", [trends(facts, None), rows], "")


def trends(facts: Facts, names: tuple[str, ...] | None = OVERVIEW) -> TextTable | None:
    """Return a line of blocks for each number; None of fewer than two steps."""
    if len(facts.steps) < 2:  # noqa: PLR2004
        return None
    labels = [one.label for one in facts.steps]
    if names is not None and any((one.mismatch or 0.0) > LARGE for one in facts.steps):
        names = (*names, "engine ‖ trainer")
    found = trends_of(facts.steps) if names is None else trends_of(facts.steps, names)
    return trend_table(facts.roles["batch"].column, labels, found) if found else None
