"""The topic `rewards`: quantiles, values, and their correlation with length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.charts import bar, spark
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts, Histogram, Json
    from rlpost.display.page import Page


BAR = 32  # characters
QUANTILES = ("p5", "p50", "p95")
CORRELATED = 0.3  # a weaker correlation is not worth a sentence


@topic
def rewards(facts: Facts) -> Page:
    """Raw rewards: mean, quantiles, values, and whether longer responses score higher."""
    numbers = facts.rewards
    if numbers is None:
        return page_of(facts, "rewards", [], without_column("reward"))
    lines = correlation(facts)
    if numbers.nonfinite:
        lines.append(f"{numbers.nonfinite:,} more are null, NaN or infinite")
    whole = distribution(
        f"Raw rewards of {facts.unit}s", facts.whole("reward"), numbers.quantiles,
        numbers.histogram, lines,
    )  # fmt: skip
    return page_of(facts, "rewards", [whole, _values(facts)], "")


def distribution(
    name: str,
    spread: Json,
    quantiles: dict[str, float],
    histogram: Histogram | None,
    lines: Sequence[str] = (),
) -> TextTable:
    """Return the table of a number per response: its histogram, mean, std and quantiles."""
    middle = [quantiles.get(part) for part in QUANTILES]
    cells = aligned([spread["mean"], spread["std"], spread["min"], *middle, spread["max"]])
    headings = ("mean", "std", "min", "5 %", "median", "95 %", "max")
    return TextTable(headings, [cells], name, [*chart(histogram), *lines], text=())


def chart(histogram: Histogram | None) -> list[str]:
    """Return the histogram between its ends; none if all numbers are equal."""
    if histogram is None:
        return []
    low, high = (number(histogram.edges[i]) for i in (0, -1))
    return [f"{low} {spark(histogram.counts)} {high}"]


def correlation(facts: Facts) -> list[str]:
    """Return whether reward and length correlate, over all responses and within groups."""
    values = facts.lengths.reward_correlation if facts.lengths else None
    if not values or values["pearson"] is None:
        return []
    pearson, within = values["pearson"], values["within_groups"]
    numbers = f"{pearson:+.2f}" + ("" if within is None else f", within groups {within:+.2f}")
    of = "" if facts.rollouts is None else " of a row"
    if max(abs(pearson), abs(within or 0.0)) < CORRELATED:
        return [f"reward and length{of} hardly correlate ({numbers})"]
    if abs(pearson) < CORRELATED:
        return [f"reward and length{of} correlate within groups ({numbers})"]
    longer = "longer" if pearson > 0 else "shorter"
    text = f"{longer} {facts.row_noun}s score higher ({pearson:+.2f})"
    if within is not None and (abs(within) < CORRELATED or within * pearson < 0):
        return [f"{text}, but not within a group ({within:+.2f})"]
    return [text if within is None else f"{text}, also within a group ({within:+.2f})"]


def _values(facts: Facts) -> TextTable | None:
    rewards = facts.rewards
    if rewards is None or not rewards.values:
        return None
    largest, total = max(rewards.values.values()), facts.whole("reward")["count"]
    rows = [
        (value, f"{count:,}", percent(count / total), bar(count, largest, BAR))
        for value, count in rewards.values.items()
    ]
    return TextTable(("raw reward", f"{facts.unit}s", "share", ""), rows, text=(0, 3))
