"""The topic `failures`: responses that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, percent, plural, value_list

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page


TREATMENTS = {
    "drop": "left out here, as of `rlpost advantages`: --failures drop, the default",
    "mask": "--failures mask: they count here, but are left out of training",
    "keep": "--failures keep: they count as any other",
    "zero": "--failures zero: they count with reward 0",
}
"""What becomes of failed responses."""
MOST_STEPS = 5


@topic
def failures(facts: Facts) -> Page:
    """Failures: how many by reason and step."""
    numbers = facts.failures
    if numbers is None:
        return page_of(facts, "failures", [], without_column("failure"))
    if not facts.whole("failed")["total"]:
        return page_of(facts, "failures", [], f"No {facts.unit} failed (`{numbers.column}`).")
    reasons = [(reason, f"{count:,}") for reason, count in numbers.reasons.items()]
    shares = zip(facts.labels("step"), facts.by("step", "failed"), strict=True)
    worst = sorted(((label, part) for label, part in shares if part), key=lambda x: -x[1])
    steps = [(str(label), percent(part)) for label, part in worst[:MOST_STEPS]]
    step = facts.roles["batch"].column if "batch" in facts.roles else "step"
    tables = [
        TextTable(
            (f"`{numbers.column}`", plural(facts.unit)), reasons, "Failures", failure_lines(facts)
        ),
        TextTable((step, "failed"), steps) if len(facts.labels("step")) > 1 else None,
    ]
    return page_of(facts, "failures", tables, "")


def failure_lines(facts: Facts) -> list[str]:
    """Return the line on failed responses, if there are any."""
    numbers = facts.failures
    failed = facts.whole("failed")
    if numbers is None or not failed["total"]:
        return []
    text = f"{percent(failed['mean'])} of {counted(failed['count'], facts.unit)} failed: "
    return [f"{text}{value_list(numbers.reasons)} ({TREATMENTS[numbers.treatment]})"]
