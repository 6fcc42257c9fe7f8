"""The topic `advantages`: the advantages that the file already has, by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, mean_beside, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page


@topic
def advantages(facts: Facts) -> Page:
    """Advantages that the file has: mean, standard deviation and share of zeros, by step."""
    table = None if facts.advantages is None else _table(facts)
    return page_of(facts, "advantages", [table], "The file has no advantages (rlpost advantages).")


def _table(facts: Facts) -> TextTable:
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
