"""The topic `critic`: values against returns, value losses, calibration, λ of the targets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.positions import span_text
from rlpost.display.page import Notice
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.inspect.token_model import CriticFacts
    from rlpost.display.page import Page


LEAST_EXPLAINED = 0.05
TURNS = "rows_are_turns"


@topic
def critic(facts: Facts) -> Page:
    """Values of the critic: losses, explained variance, calibration, bias and variance of λ."""
    found = facts.critic
    otherwise = without_column("values", "reward").replace(" or ", " and ")
    if found is None:
        return page_of(facts, "critic", [], otherwise)
    tables = [_losses(found), _calibration(found), _positions(found), _lambdas(found)]
    page = page_of(facts, "critic", tables, otherwise)
    return replace(page, lines=summary_lines(facts, found), verdict=verdict(found))


def summary_lines(facts: Facts, found: CriticFacts) -> list[str]:
    """Return the numbers of all tokens, and what the returns leave out."""
    means = f"mean value {number(found.value)}, mean return {number(found.returns)}"
    error = f"error {number(found.rmse)} (root mean square)"
    lines = [f"{found.tokens:,} policy tokens: {means}, {error}"]
    if any(one.check == TURNS for one in facts.findings):
        lines.append("rows are turns: a return has the rewards of its row, not of later turns")
    return lines


def verdict(found: CriticFacts) -> Notice:
    """Return how much of the variance of returns the values explain."""
    explained = found.explained_variance
    if explained is None:
        return Notice("warning", "all returns are equal: there is nothing to explain")
    returns = "the returns (sums of later rewards, γ = 1)"
    text = f"the values explain {percent(explained)} of the variance of {returns}"
    if explained < 0:
        text += ": worse than a constant"
    return Notice("ok" if explained >= LEAST_EXPLAINED else "warning", text)


def _losses(found: CriticFacts) -> TextTable:
    clipped = any(one.clipped is not None for one in found.losses)
    plain, after = (aligned([getattr(x, n) for x in found.losses]) for n in ("plain", "clipped"))
    rows = [
        (
            one.frameworks, f"±{one.clip:g}", "d²/2" if one.delta is None else f"δ = {one.delta:g}",
            plain[i], after[i], percent(one.clipped_share),
        )
        for i, one in enumerate(found.losses)
    ]  # fmt: skip
    headings = ("value loss of", "clip", "loss", "plain", "clipped", "tokens clipped")
    notes = (
        [] if clipped else ["no clip without the values after an update (--map new_values=COLUMN)"]
    )
    return TextTable(headings, rows, notes=notes, text=(0, 2))


def _wide(title: str, labels: Sequence[str], **numbers: Sequence[float]) -> TextTable:
    """Return a table whose columns are the labels."""
    digits = 2 if len(labels) > 6 else 3  # noqa: PLR2004
    rows = [
        (name.replace("_", " "), *(f"{x:.{digits}f}" for x in row)) for name, row in numbers.items()
    ]
    return TextTable((title, *labels), rows)


def _calibration(found: CriticFacts) -> TextTable:
    parts = found.calibration
    labels = [str(at + 1) for at in range(len(parts))]
    value, returns = [one.value for one in parts], [one.returns for one in parts]
    return _wide("calibration by decile", labels, mean_value=value, mean_return=returns)


def _positions(found: CriticFacts) -> TextTable:
    places = [found.first, *found.by_position[1:], found.last]
    labels = [
        "first token",
        *(span_text(x.first, x.end) for x in found.by_position[1:]),
        "last token",
    ]
    return _wide(
        "by position", labels,
        mean_value=[one.value for one in places], mean_return=[one.returns for one in places],
        error=[one.rmse for one in places],
    )  # fmt: skip


def _lambdas(found: CriticFacts) -> TextTable | None:
    best = found.best
    if best is None:
        return None
    labels = [f"{one.lam:g}{'*' if one is best else ''}" for one in found.lambdas]
    bias, std = [one.bias for one in found.lambdas], [one.std for one in found.lambdas]
    return _wide(
        "λ of the target (* least error)", labels,
        bias=bias, std=std, error=[one.error for one in found.lambdas],
    )  # fmt: skip
