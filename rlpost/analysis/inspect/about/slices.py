"""Rows of steps and of domains: what the topics `steps` and `domains` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, number, percent
from rlpost.display.trends import Trend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.analysis.inspect.model import Slice


NUMBERS: dict[str, tuple[Callable[[Slice], float | None], bool]] = {
    "reward": (lambda one: one.reward.mean, False),
    "pass": (lambda one: one.pass_rate, True),
    "no signal": (lambda one: one.no_signal, True),
    "policy tokens": (lambda one: one.length.mean, False),
    "truncated": (lambda one: one.truncated, True),
    "KL per token": (lambda one: one.kl, False),
    "engine ‖ trainer": (lambda one: one.mismatch, False),
}
"""The numbers of a step or of a domain, and whether they are shares."""
SHORT = {"policy tokens": "tokens", "KL per token": "KL", "engine ‖ trainer": "engine KL"}
"""Headings of a table in place of names of trends."""


def trends_of(slices: Sequence[Slice], names: Sequence[str] = tuple(NUMBERS)) -> list[Trend]:
    """Return these numbers by step, without those that are 0 or unknown in all steps."""
    trends = []
    for name in names:
        read, share = NUMBERS[name]
        values = [read(one) for one in slices]
        if any(values):
            trends.append(Trend(name, values, share=share))
    return trends


def _numbers(trend: Trend) -> list[str]:
    """Return the numbers of a trend; small ones with two digits, so that tables fit."""
    if trend.name in ("KL per token", "engine ‖ trainer"):
        return [number(value, digits=2) for value in trend.values]
    return aligned(trend.values)


def slice_table(
    slices: Sequence[Slice], column: str, noun: str, title: str, most: int
) -> TextTable:
    """Return a row for each step or domain, with those columns in which any has a number."""
    numbers = {
        trend.name: [*map(percent, trend.values)] if trend.share else _numbers(trend)
        for trend in trends_of(slices)
    }
    labels = [str(one.label) for one in slices]
    counts = [f"{one.responses:,}" for one in slices]
    rows = [*zip(labels, counts, *numbers.values(), strict=True)]
    headings = (column, f"{noun}s", *(SHORT.get(name, name) for name in numbers))
    return TextTable(headings, elided(rows, most), title)
