"""The topic `components`: the columns whose weighted sum is the reward."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.display.tables import TextTable
from rlpost.display.text import number, percent
from rlpost.pipeline.measures import CORRELATION, WITH_REWARD

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.page import Page


COMPONENT_HEADINGS = ("component", "weight", "mean", "std", "no signal", "corr.", "share")


@topic
def components(facts: Facts) -> Page:
    """Reward components: mean, groups without signal, correlations, share of the advantage."""
    table = None
    if facts.components:
        rows, notes = _rows(facts), _notes(facts)
        table = TextTable(COMPONENT_HEADINGS, rows, "Reward components", notes=notes)
    otherwise = "The reward is one column; --reward-components A,B names those whose sum it is."
    return page_of(facts, "components", [table], otherwise)


def _rows(facts: Facts) -> list[tuple[str, ...]]:
    """Return the row of each reward component, of `COMPONENT_HEADINGS`."""
    rows: list[tuple[str, ...]] = []
    for name, profile in facts.components.items():
        spread, equal = facts.whole(f"component:{name}"), profile["no_signal"]
        rows.append(
            (
                name, number(profile["weight"]), number(spread["mean"]), number(spread["std"]),
                "–" if equal is None else f"{equal:,}", _correlation(facts, f"{WITH_REWARD}{name}"),
                percent(facts.whole(f"advantage_share:{name}")["value"]),
            )
        )  # fmt: skip
    return rows


def _notes(facts: Facts) -> list[str]:
    """Return what the columns mean, and the correlations between components."""
    pairs = [
        f"{name} and {other} {_correlation(facts, f'{CORRELATION}{name},{other}')}"
        for name, other in combinations(facts.components, 2)
    ]
    of = next(iter(facts.components.values()))["share_of"]
    return [
        f"no signal: groups with one value; corr.: with the reward; share: of {of}",
        *([f"correlation between components: {', '.join(pairs)}"] if pairs else []),
    ]


def _correlation(facts: Facts, measure: str) -> str:
    value = facts.whole(measure)["value"]
    return "–" if value is None else f"{value:+.2f}"
