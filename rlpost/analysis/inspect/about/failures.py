"""The topic `failures`: responses that failed, and what they do to the baselines of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, number, percent, plural, share, value_list

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Baselines, Facts
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
    """Failures: how many by reason and step, and the baselines with and without them."""
    found = facts.failures
    if found is None:
        return page_of(facts, "failures", [], without_column("failure"))
    if not facts.whole("failed")["total"]:
        return page_of(facts, "failures", [], f"No {found.of} failed (`{found.column}`).")
    reasons = [(reason, f"{count:,}") for reason, count in found.reasons.items()]
    shares = zip(facts.labels("step"), facts.by("step", "failed"), strict=True)
    worst = sorted(((label, part) for label, part in shares if part), key=lambda x: -x[1])
    steps = [(str(label), percent(part)) for label, part in worst[:MOST_STEPS]]
    step = facts.roles["batch"].column if "batch" in facts.roles else "step"
    tables = [
        TextTable(
            (f"`{found.column}`", plural(found.of)), reasons, "Failures", failure_lines(facts)
        ),
        TextTable((step, "failed"), steps) if len(facts.labels("step")) > 1 else None,
        _table(found.baselines),
    ]
    return page_of(facts, "failures", tables, "")


def failure_lines(facts: Facts) -> list[str]:
    """Return the line on failed responses, if there are any."""
    found = facts.failures
    failed = facts.whole("failed")
    if found is None or not failed["total"]:
        return []
    text = (
        f"{percent(failed['mean'])} of {counted(failed['count'], found.of)} failed: "
        f"{value_list(found.reasons)} ({TREATMENTS[found.treatment]})"
    )
    means = found.baselines
    if means is None or not means.moved:
        return [text]
    moved = f"{share(means.moved, means.groups)} of the baselines"
    by = f"by {number(means.distance)} on average"
    if found.treatment == "drop":
        return [text, f"counted, they would move {moved}, {by}"]
    return [text, f"without them {moved} move, {by}"]


def _table(found: Baselines | None) -> TextTable | None:
    """Return the mean reward with and without failures, and how far baselines move."""
    if found is None:
        return None
    means = aligned([found.mean_with, found.mean_without])
    moves = aligned([found.distance, found.farthest])
    rows = [
        ("mean reward with failures", means[0]),
        ("without", means[1]),
        ("groups whose baseline moves", f"{found.moved:,} of {counted(found.groups, 'group')}"),
        ("by, on average", moves[0]),
        ("at most", moves[1]),
        *([("groups of failures alone", f"{found.emptied:,}")] if found.emptied else []),
    ]
    return TextTable((), rows, "Baselines")
