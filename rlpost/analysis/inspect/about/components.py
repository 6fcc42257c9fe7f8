"""The topic `components`: the columns whose weighted sum is the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.display.tables import TextTable
from rlpost.display.text import number, percent

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page

    Row = tuple[str, ...]


COMPONENT_HEADINGS = ("component", "weight", "mean", "std", "no signal", "corr.", "share")


@topic
def components(facts: Facts) -> Page:
    """Reward components: mean, groups without signal, correlations, share of the advantage."""
    table = None
    if facts.components:
        rows, notes = component_rows(facts), component_notes(facts)
        table = TextTable(COMPONENT_HEADINGS, rows, "Reward components", notes=notes)
    otherwise = "The reward is one column; --reward-components A,B names those whose sum it is."
    return page_of(facts, "components", [table], otherwise)


def component_rows(facts: Facts) -> list[Row]:
    """Return the row of each reward component, of `COMPONENT_HEADINGS`."""
    return [
        (
            name, number(one.weight), number(one.spread.mean), number(one.spread.std),
            "–" if one.no_signal is None else f"{one.no_signal:,}",
            _signed(one.reward_correlation), percent(one.advantage_share),
        )
        for name, one in facts.components.items()
    ]  # fmt: skip


def component_notes(facts: Facts) -> list[str]:
    """Return what the columns mean, and the correlations between components."""
    found = [*facts.components.items()]
    pairs = [
        f"{name} and {other} {_signed(one.correlations[other])}"
        for i, (name, one) in enumerate(found)
        for other, _ in found[i + 1 :]
    ]
    of = next((one.share_of for _, one in found), "")
    return [
        f"no signal: groups with one value; corr.: with the reward; share: of {of}",
        *([f"correlation between components: {', '.join(pairs)}"] if pairs else []),
    ]


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"
