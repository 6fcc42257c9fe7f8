"""The topic `critic`: values against returns, value losses, calibration, λ of the targets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.analysis.inspect.measures import LOSSES
from rlpost.display.page import Notice
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts, Json
    from rlpost.display.page import Page


LEAST_EXPLAINED = 0.05
TURNS = "rows_are_turns"


@topic
def critic(facts: Facts) -> Page:
    """Values of the critic: losses, explained variance, calibration, bias and variance of λ."""
    profile = facts.critic
    otherwise = without_column("values", "reward").replace(" or ", " and ")
    if profile is None:
        return page_of(facts, "critic", [], otherwise)
    parts = profile["calibration"]
    deciles = [str(at + 1) for at in range(len(parts["count"]))]
    places = profile["by_position"]
    labels = ["first token", *places["label"][1:-1], "last token"]
    errors = [math.sqrt(square) for square in places["squared_value_error"]]
    tables = [
        _losses(facts),
        _wide("by decile", deciles, mean_value=parts["value"], mean_return=parts["return"]),
        _wide("by position", labels, mean_value=places["value"], mean_return=places["reward_to_go"],
              error=errors),
        _lambdas(profile["lambdas"]),
    ]  # fmt: skip
    page = page_of(facts, "critic", tables, otherwise)
    return replace(page, lines=summary_lines(facts), verdict=verdict(facts))


def summary_lines(facts: Facts) -> list[str]:
    """Return the numbers of all tokens, and what the returns leave out."""
    names = ("value", "reward_to_go", "squared_value_error")
    value, returns, square = map(facts.whole, names)
    means = f"mean value {number(value['mean'])}, mean return {number(returns['mean'])}"
    error = f"error {number(math.sqrt(square['mean']))} (root mean square)"
    lines = [f"{value['count']:,} policy tokens: {means}, {error}"]
    if (facts.critic or {}).get("turns") or any(x.check == TURNS for x in facts.findings):
        lines.append("rows are turns: a return has the rewards of its row, not of later turns")
    return lines


def verdict(facts: Facts) -> Notice:
    """Return how much of the variance of returns the values explain."""
    explained = facts.whole("critic_explained")["value"]
    if explained is None:
        return Notice("warning", "all returns are equal: there is nothing to explain")
    returns = "the returns (sums of later rewards, γ = 1)"
    text = f"the values explain {percent(explained)} of the variance of {returns}"
    if explained < 0:
        text += ": worse than a constant"
    return Notice("ok" if explained >= LEAST_EXPLAINED else "warning", text)


def _losses(facts: Facts) -> TextTable:
    names = ("value_loss", "clipped_value_loss", "value_clipped")
    plain, after, shares = (
        [facts.whole(f"{name}:{x.frameworks}")["mean"] for x in LOSSES] for name in names
    )
    cells = aligned(plain), aligned(after)
    rows = [
        (
            x.frameworks, f"±{x.clip:g}", "d²/2" if math.isinf(x.delta) else f"δ = {x.delta:g}",
            cells[0][i], cells[1][i], percent(shares[i]),
        )
        for i, x in enumerate(LOSSES)
    ]  # fmt: skip
    headings = ("value loss of", "clip", "loss", "plain", "clipped", "tokens clipped")
    note = "no clip without the values after an update (--map new_values=COLUMN)"
    return TextTable(headings, rows, notes=[note] if after[0] is None else [], text=(0, 2))


def _wide(title: str, labels: Sequence[str], **numbers: Sequence[float]) -> TextTable:
    """Return a table whose columns are the labels."""
    digits = 2 if len(labels) > 6 else 3  # noqa: PLR2004
    rows = [
        (name.replace("_", " "), *(f"{x:.{digits}f}" for x in row)) for name, row in numbers.items()
    ]
    return TextTable((title, *labels), rows)


def _lambdas(targets: Json | None) -> TextTable | None:
    if targets is None:
        return None
    best = targets["error"].index(min(targets["error"]))
    labels = [f"{lam:g}{'*' if at == best else ''}" for at, lam in enumerate(targets["lambda"])]
    numbers = {name: targets[name] for name in ("bias", "std", "error")}
    return _wide("λ of the target (* least error)", labels, **numbers)
