"""The topics `steps` and `domains`: trends, and a row of numbers for each step or domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, number, percent
from rlpost.display.trends import Trend, trend_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page


MOST_ROWS = 60
MOST_NAMED = 3
LARGE = 1e-3  # nats of k3; below, engine and trainer agree
NUMBERS = {
    "reward": ("reward", ""),
    "passed": ("pass", ""),
    "equal_rewards": ("no signal", ""),
    "policy_tokens": ("policy tokens", "tokens"),
    "truncated": ("truncated", ""),
    "kl": ("KL per token", "KL"),
    "engine_k3": ("engine ‖ trainer", "engine KL"),
}
"""By measure, its name beside a trend, and as the heading of a table if that is another one."""
SHARES = ("passed", "equal_rewards", "truncated")
OVERVIEW = ("reward", "equal_rewards", "policy_tokens", "truncated", "kl")


@topic
def steps(facts: Facts) -> Page:
    """Trends over the steps: rewards, groups without signal, lengths, KL."""
    order = range(len(facts.labels("step")))
    return _page(facts, "step", "batch", order, trends(facts, tuple(NUMBERS)))


@topic
def domains(facts: Facts) -> Page:
    """Rewards, groups without signal, lengths and KL by domain; the least signal first."""
    return _page(facts, "domain", "domain", by_signal(facts))


def _page(
    facts: Facts, key: str, role: str, order: Sequence[int], *above: TextTable | None
) -> Page:
    """Return the page of several steps or domains."""
    labels = facts.labels(key)
    otherwise = f"There is one {key}, {labels[0]}." if labels else without_column(role)
    tables = [*above, _table(facts, key, role, order)] if labels[1:] else []
    return page_of(facts, f"{key}s", tables, otherwise)


def trends_of(facts: Facts, key: str, measures: Sequence[str] = tuple(NUMBERS)) -> list[Trend]:
    """Return these numbers by step or domain, without those that are 0 or unknown in all."""
    return [
        Trend(_names(facts, name)[0], values, share=name in SHARES)
        for name in measures
        if any(values := facts.by(key, name))
    ]


def _names(facts: Facts, measure: str) -> tuple[str, str]:
    """Return the names of NUMBERS; tokens are those of rows, not of rollouts."""
    of_row = measure == "policy_tokens" and facts.rollouts is not None
    return ("tokens/row", "tokens") if of_row else NUMBERS[measure]


def trends(facts: Facts, measures: tuple[str, ...] = OVERVIEW) -> TextTable | None:
    """Return a line of blocks for each number; None of fewer than two steps."""
    labels = facts.labels("step")
    if len(labels) < 2:  # noqa: PLR2004
        return None
    if measures == OVERVIEW and any((x or 0.0) > LARGE for x in facts.by("step", "engine_k3")):
        measures = (*measures, "engine_k3")
    lines = trends_of(facts, "step", measures)
    return trend_table(facts.roles["batch"].column, labels, lines) if lines else None


def _table(facts: Facts, key: str, role: str, order: Sequence[int]) -> TextTable:
    """Return a row for each step or domain, with those columns in which any has a number."""
    headings, columns = [facts.roles[role].column, f"{facts.row_noun}s"], []
    for name in NUMBERS:
        (trend, short), values = _names(facts, name), facts.by(key, name)
        if any(values):
            headings.append(short or trend)
            small = name in ("kl", "engine_k3")  # with two digits, so that tables fit
            numbers = [number(x, digits=2) for x in values] if small else aligned(values)
            columns.append([*map(percent, values)] if name in SHARES else numbers)
    labels, counts = facts.labels(key), facts.by(key, "counted", "total")
    rows = [
        (str(labels[at]), f"{counts[at]:,}", *(column[at] for column in columns)) for at in order
    ]
    of_row = ", tokens of a row" if facts.rollouts is not None and "tokens" in headings else ""
    return TextTable(headings, elided(rows, MOST_ROWS), f"By {headings[0]}{of_row}")


def by_signal(facts: Facts) -> list[int]:
    """Return the places of domains, those with the most groups without signal first."""
    shares = [share or 0.0 for share in facts.by("domain", "equal_rewards")]
    shares = shares or [0.0] * len(facts.labels("domain"))
    return sorted(range(len(shares)), key=lambda place: -shares[place])


def domain_lines(facts: Facts) -> list[str]:
    """Return the domains with the most groups without signal; none if all domains are alike."""
    labels, shares = facts.labels("domain"), facts.by("domain", "equal_rewards")
    worst = [place for place in by_signal(facts) if shares and shares[place]]
    if not worst or len({*shares}) < 2:  # noqa: PLR2004
        return []
    named = ", ".join(f"{labels[at]} {percent(shares[at])}" for at in worst[:MOST_NAMED])
    rest = len(labels) - min(len(worst), MOST_NAMED)
    more = f"; {rest:,} more" if rest else ""
    return [f"no signal by {facts.roles['domain'].column}: {named}{more}"]
