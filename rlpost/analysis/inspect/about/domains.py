"""The topic `domains`: a row for each domain, those with the least signal first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.about.slices import slice_table
from rlpost.display.text import percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts, Slice
    from rlpost.display.page import Page


MOST_ROWS = 60
MOST_NAMED = 3


@topic
def domains(facts: Facts) -> Page:
    """Rewards, groups without signal, lengths and KL by domain; the least signal first."""
    if not facts.domains:
        return page_of(facts, "domains", [], without_column("domain"))
    if len(facts.domains) == 1:
        return page_of(facts, "domains", [], f"There is one domain, {facts.domains[0].label}.")
    column = facts.roles["domain"].column
    table = slice_table(by_signal(facts.domains), column, facts.row_noun, f"By {column}", MOST_ROWS)
    return page_of(facts, "domains", [table], "")


def by_signal(slices: list[Slice]) -> list[Slice]:
    """Return domains, those with the most groups without signal first."""
    return sorted(slices, key=lambda one: -(one.no_signal or 0.0))


def domain_lines(facts: Facts) -> list[str]:
    """Return the domains with the most groups without signal; none if all domains are alike."""
    worst = [one for one in by_signal(facts.domains) if one.no_signal]
    if not worst or len({one.no_signal for one in facts.domains}) < 2:  # noqa: PLR2004
        return []
    named = ", ".join(f"{one.label} {percent(one.no_signal)}" for one in worst[:MOST_NAMED])
    rest = len(facts.domains) - min(len(worst), MOST_NAMED)
    more = f"; {rest:,} more" if rest else ""
    return [f"no signal by {facts.roles['domain'].column}: {named}{more}"]
