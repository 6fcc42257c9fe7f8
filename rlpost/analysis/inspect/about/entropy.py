"""The topic `entropy`: that of the policy by position, step and domain, and with advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, number, percent

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
    places = {name: values[:-1] for name, values in profile["by_position"].items()}
    covariance = facts.by("step", "covariance", "value")
    steps, domains = (facts.facts["entropy"].get(key) for key in ("step", "domain"))
    tables = [
        TextTable(title=name_of(profile), lines=_lines(facts, profile)),
        _table("position", places["label"], places["count"], places["entropy"]),
        _by("step", steps, covariance),
        _by("domain", domains),
    ]
    return page_of(facts, "entropy", tables, "")


def name_of(profile: Json) -> str:
    """Return what the numbers are: entropies of a column, or their estimate."""
    if profile["sampled"]:
        return f"Entropy, estimated by -log p of the sampled tokens (`{profile['column']}`)"
    return f"Entropy (`{profile['column']}`)"


def _lines(facts: Facts, profile: Json) -> list[str]:
    whole, value = facts.whole("entropy"), facts.whole("covariance")["value"]
    top = f"the highest 20 % of tokens (from {number(profile['top_least'])})"
    lines = [
        f"mean {number(whole['mean'])} nats over {whole['count']:,} policy tokens",
        f"{top} have {percent(profile['top_share'])} of the sum",
    ]
    if value is not None:
        advantages = profile["covariance_of"]
        advantages = advantages if " " in advantages else f"`{advantages}`"
        lines.append(f"covariance of `{profile['log_probs']}` and {advantages}: {number(value)}")
    return lines


def _by(key: str, numbers: Json | None, covariance: Sequence[float | None] = ()) -> Any:
    """Return the table of steps or domains, if there are several."""
    if numbers is None or len(numbers["label"]) < 2:  # noqa: PLR2004
        return None
    return _table(key, numbers["label"], numbers["count"], numbers["mean"], covariance)


def _table(
    by: str, labels: Sequence[Any], counts: Sequence[int], means: Sequence[float | None],
    covariance: Sequence[float | None] = (),
) -> TextTable:  # fmt: skip
    largest = max((mean or 0.0 for mean in means), default=0.0)
    numbers = aligned(means)
    rows = [
        (
            str(label), f"{counts[i]:,}", numbers[i], bar(means[i] or 0.0, largest, BAR),
            *((number(covariance[i]),) if covariance else ()),
        )
        for i, label in enumerate(labels)
    ]  # fmt: skip
    headings = (by, "tokens", "mean", "", *(("covariance",) if covariance else ()))
    return TextTable(headings, elided(rows, MOST_ROWS), text=(0, 3))
