"""The topic `advantages`: the advantages that the file already has, by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, mean_beside, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import AdvantageFacts, Facts
    from rlpost.display.page import Page


@topic
def advantages(facts: Facts) -> Page:
    """Advantages that the file has: mean, standard deviation and share of zeros, by step."""
    table = None if facts.advantages is None else _table(facts, facts.advantages)
    return page_of(facts, "advantages", [table], "The file has no advantages (rlpost advantages).")


def _table(facts: Facts, found: AdvantageFacts) -> TextTable:
    lines = [f"of {found.whole.count:,} {found.of}"]
    if found.nonfinite:
        lines.append(f"{found.nonfinite:,} more are NaN or infinite")
    slices = [found.whole, *found.steps]
    numbers = [
        aligned([mean_beside(one.mean, one.std) for one in slices]),
        *(aligned([getattr(one, part) for one in slices]) for part in ("std", "min", "max")),
    ]
    zeros = [percent(one.zero_share) for one in slices]
    labels = ["all", *(str(one.label) for one in found.steps)]
    whole, *rows = zip(labels, *numbers, zeros, strict=True)
    by = facts.roles["batch"].column if found.steps else ""
    headings = (by, "mean", "std", "min", "max", "A = 0")
    return TextTable(headings, [whole, *elided(rows)], "Advantages", lines)
