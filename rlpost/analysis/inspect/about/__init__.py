"""Topics of `rlpost inspect --about NAME`: each is a function from facts to a page.

A new topic is a function with the decorator `topic`. `NAME` is a topic or a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Importing a module adds its topic to TOPICS, in this order.
from rlpost.analysis.inspect.about import (  # noqa: F401 # isort: skip
    responses,
    tokens,
    checks,
)
from rlpost.analysis.inspect.about.base import TOPICS
from rlpost.analysis.inspect.about.checks import check_page
from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS
from rlpost.errors import DataError, UsageError, no_such

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page

NEEDED = {
    "mismatch": LOG_PROB_PAIRS[0],
    "critic": ("values", "reward"),
    "entropy": ("entropy or old_log_probs or log_probs or infer_log_probs",),
}
"""By topic, the roles without which it is an error to ask for it."""
__all__ = ["TOPICS", "about", "check_name", "has_json", "topics_of"]


def check_name(name: str) -> None:
    """Raise UsageError unless a topic or a check has the name."""
    if name not in TOPICS and name not in FINDINGS:
        if "," in name:
            tip = "name one; --verbose has every topic"
            raise UsageError(f"--about {name}: several topics or checks", tip=tip)
        topics = f"`rlpost list checks` lists the checks; topics: {', '.join(TOPICS)}"
        text = f"--about {name}: no topic or check {name!r}"
        raise UsageError(no_such(text, name, [*TOPICS, *FINDINGS], topics))


def has_json(name: str) -> bool:
    """Return whether a page has JSON of its own: checks have."""
    return name == "checks" or name in FINDINGS


def about(name: str, facts: Facts) -> Page:
    """Return the page of a topic or a check: of `TOPICS` or `FINDINGS`.

    Raises:
        DataError: the input lacks a column without which the topic has nothing.
    """
    if name in FINDINGS:
        return check_page(name, facts)
    if missing := _missing(name, facts):
        text = f"{facts.inputs[0]}: no column for {' and '.join(missing)}, which {name} needs"
        flags = " ".join(f"--map {role.split(' or ')[0]}=COLUMN" for role in missing)
        raise DataError(text, tip=f"name the columns: {flags}")
    return TOPICS[name].run(facts)


def topics_of(facts: Facts) -> list[str]:
    """Return the topics on which the input has something, whether it was computed or not."""
    later = ("critic", "entropy") if facts.token_columns else ()
    return [
        name
        for name, topic in TOPICS.items()
        if topic.run(facts).parts or (name in later and not _missing(name, facts))
    ]


def _missing(name: str, facts: Facts) -> list[str]:
    """Return the roles that a topic needs and that have no column."""
    roles = {*facts.roles} | ({"reward"} if "reward" in facts.facts else set())
    return [role for role in NEEDED.get(name, ()) if roles.isdisjoint(role.split(" or "))]
