"""The registry of topics: what `rlpost inspect --about NAME` prints beside the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.model import option_words
from rlpost.display.page import Page
from rlpost.display.text import typed_word
from rlpost.findings import Check, Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.tables import TextTable


Topic = Check[Callable[["Facts"], Page]]
"""A topic is one function, whose first paragraph is what its page is about."""
TOPICS: Registry[Topic] = Registry()
"""Every topic by its name, in the order of `--verbose`."""
MOST_INPUTS = 2  # of a title


def topic(function: Callable[[Facts], Page]) -> Callable[[Facts], Page]:
    """Add a function to TOPICS; its name is that of the topic.

    It returns a page whose parts are the topic's tables. A page without parts has a line of why the
    input has nothing on the topic, and is left out of `--verbose`.
    """
    TOPICS.add(Topic(function))
    return function


def title(inputs: Sequence[str], *more: str) -> str:
    """Return the title of a page: `rlpost inspect · a.parquet · groups`."""
    rest = f" and {len(inputs) - MOST_INPUTS:,} more" if len(inputs) > MOST_INPUTS else ""
    return " · ".join(["rlpost inspect", f"{', '.join(inputs[:MOST_INPUTS])}{rest}", *more])


def command(facts: Facts) -> str:
    """Return the command that inspects the input with the same columns and rows."""
    words = [
        word
        for role, served in facts.roles.items()
        if served.found_by == "map"
        for word in ("--map", f"{role}={served.column}")
    ]
    words += option_words(facts.counting)
    if facts.where:
        words += ["--where", facts.where["condition"].removeprefix("--where ")]
    return " ".join(map(typed_word, ["rlpost", "inspect", *facts.inputs, *words]))


def page_of(
    facts: Facts,
    name: str,
    tables: Sequence[TextTable | None],
    otherwise: str,
    steps: Sequence[str] = (),
) -> Page:
    """Return the page of a topic.

    Args:
        facts: of the input.
        name: of the topic.
        tables: its tables; None where the input has no data.
        otherwise: why there are none, if all of them are None.
        steps: commands to continue with.
    """
    parts = [table for table in tables if table is not None]
    lines = () if parts else (otherwise,)
    return Page(title(facts.inputs, name), lines, parts, next_steps=steps)


def without_column(*roles: str) -> str:
    """Return the line on an input that lacks the column of a topic."""
    flags = " or ".join(f"--map {role}=COLUMN" for role in roles)
    return f"The input has no column for {' or '.join(roles)} ({flags})."
