"""The topic `entropy`: that of the policy by position, step and domain, and with advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts, Json
    from rlpost.display.page import Page


BAR = 16  # characters
MOST_ROWS = 6  # of a table; the page is one screen


@topic
def entropy(facts: Facts) -> Page:
    """Entropy of the policy by position, step and domain; its covariance with advantages."""
    profile = facts.entropy
    if profile is None:
        return page_of(facts, "entropy", [], without_column("entropy", "old_log_probs"))
    tables = [
        TextTable(title=name_of(profile), lines=_lines(facts, profile)),
        _by("position", facts),
        _by("step", facts, facts.by("step", "covariance", "value")),
        _by("domain", facts),
    ]
    return page_of(facts, "entropy", tables, "")


def name_of(profile: Json) -> str:
    """Return what the numbers are: entropies of a column, or their estimate."""
    if profile["sampled"]:
        return f"Entropy, estimated by -log p of the sampled tokens (`{profile['column']}`)"
    return f"Entropy (`{profile['column']}`)"


def _lines(facts: Facts, profile: Json) -> list[str]:
    whole, value = facts.whole("entropy"), facts.whole("covariance")["value"]
    lines = [f"mean {number(whole['mean'])} nats over {whole['count']:,} policy tokens"]
    if value is not None:
        advantages = profile["covariance_of"]
        advantages = advantages if " " in advantages else f"`{advantages}`"
        text = f"covariance of `{profile['log_probs']}` and {advantages}"
        within = " within steps" * (len(facts.labels("step")) > 1)
        lines.append(f"{text}{within}: {number(value)}")
    return lines


def _by(key: str, facts: Facts, covariance: Sequence[float | None] = ()) -> TextTable | None:
    """Return the table of positions, steps or domains, if there are several."""
    labels, counts, means = (facts.by(key, "entropy", part) for part in ("label", "count", "mean"))
    if len(labels) < 2:  # noqa: PLR2004
        return None
    largest = max((mean or 0.0 for mean in means), default=0.0)
    bars = [bar(mean or 0.0, largest, BAR) for mean in means]
    columns = [map(str, labels), (f"{count:,}" for count in counts), aligned(means), bars]
    columns += [map(number, covariance)] if covariance else []
    headings = (key, "tokens", "mean", "", *(("covariance",) if covariance else ()))
    return TextTable(headings, elided([*zip(*columns, strict=True)], MOST_ROWS), text=(0, 3))
