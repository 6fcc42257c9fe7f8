"""The topic `entropy`: that of the policy by position, step and domain, and with advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.inspect.token_model import EntropyFacts, EntropyMean
    from rlpost.display.page import Page


BAR = 16  # characters
MOST_ROWS = 6  # of a table; the page is one screen


@topic
def entropy(facts: Facts) -> Page:
    """Entropy of the policy by position, step and domain; its covariance with advantages."""
    found = facts.entropy
    if found is None:
        return page_of(facts, "entropy", [], without_column("entropy", "old_log_probs"))
    covariance: dict[object, float] = {one.label: one.value for one in found.covariance}
    tables = [
        TextTable(title=name_of(found), lines=_lines(found)),
        _table("position", found.by_position, {}),
        _table("step", found.steps, covariance) if len(found.steps) > 1 else None,
        _table("domain", found.domains, {}) if len(found.domains) > 1 else None,
    ]
    return page_of(facts, "entropy", tables, "")


def name_of(found: EntropyFacts) -> str:
    """Return what the numbers are: entropies of a column, or their estimate."""
    if found.sampled:
        return f"Entropy, estimated by -log p of the sampled tokens (`{found.column}`)"
    return f"Entropy (`{found.column}`)"


def covariance_text(found: EntropyFacts) -> str:
    """Return what the covariance is of."""
    of_column = found.advantages and " " not in found.advantages
    advantages = f"`{found.advantages}`" if of_column else found.advantages
    return f"of `{found.log_probs}` and {advantages}"


def _lines(found: EntropyFacts) -> list[str]:
    top = f"the highest 20 % of tokens (from {number(found.top_least)})"
    lines = [
        f"mean {number(found.mean)} nats over {found.tokens:,} policy tokens",
        f"{top} have {percent(found.top_share)} of the sum",
    ]
    if found.covariance:
        lines.append(f"covariance {covariance_text(found)}: {number(found.covariance[0].value)}")
    return lines


def _table(by: str, means: Sequence[EntropyMean], covariance: dict[object, float]) -> TextTable:
    largest = max((one.mean for one in means), default=0.0)
    numbers = aligned([one.mean for one in means])
    rows = [
        (
            str(one.label), f"{one.tokens:,}", numbers[i], bar(one.mean, largest, BAR),
            *((number(covariance.get(one.label)),) if covariance else ()),
        )
        for i, one in enumerate(means)
    ]  # fmt: skip
    headings = (by, "tokens", "mean", "", *(("covariance",) if covariance else ()))
    return TextTable(headings, elided(rows, MOST_ROWS), text=(0, 3))
