"""The topic `groups`: sizes of prompt groups, groups without signal, pass rates, pass@k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number, share

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts, Json, PromptGroup
    from rlpost.display.page import Page


BAR = 24  # characters


@topic
def groups(facts: Facts) -> Page:
    """Prompt groups: their sizes, those without signal, pass rates and pass@k."""
    keys, size, single = facts.prompt_groups, facts.whole("group_size"), facts.whole("single")
    if keys is None or not size["count"]:
        return page_of(facts, "groups", [], without_column("group"))
    units = facts.unit if size["max"] == 1 else f"{facts.unit}s"
    prompts = counted(keys.prompts, "prompt")
    lines = [f"{sizes(facts)} {units}, by {' and '.join(keys.by)}; {prompts}"]
    if single["total"]:
        lines.append(f"{counted(single['total'], 'group')} of one {facts.unit}")
    if not keys.pass_rates:
        return page_of(facts, "groups", [TextTable(title="Groups", lines=lines)], "")
    lines += [without_signal(facts), *threshold_lines(facts)]
    return page_of(facts, "groups", [_pass_rates(facts, keys, lines), _pass_at_k(keys, size)], "")


def sizes(facts: Facts) -> str:
    """Return `64 groups of 8`, or `of 7 to 8`."""
    size = facts.whole("group_size")
    text, low, high = counted(size["count"], "group"), size["min"], size["max"]
    if not size["count"]:
        return text
    return f"{text} of {low:,.0f}" + (f" to {high:,.0f}" if low != high else "")


def without_signal(facts: Facts) -> str:
    """Return how many groups of several responses have equal rewards, and which."""
    equal, passing = facts.whole("equal_rewards"), facts.whole("all_pass")["total"]
    count, several = equal["total"], equal["count"]
    text = f"no signal in {count:,} of {counted(several, 'group')} ({share(count, several)})"
    kinds = {"all pass": passing, "none pass": count - passing}
    parts = [f"{part:,} {kind}" for kind, part in kinds.items() if part]
    return f"{text}: {', '.join(parts)}" if parts else text


def threshold_lines(facts: Facts) -> list[str]:
    """Return the line on a threshold of passing that no reward reaches."""
    highest, groups = facts.whole("reward")["max"], facts.prompt_groups
    if groups is None or highest is None or highest >= groups.pass_threshold:
        return []
    threshold = f"{groups.pass_threshold:g} (--pass-threshold)"
    return [f"no reward reaches {threshold}, the highest is {number(highest)}"]


def rate_names(facts: Facts, keys: PromptGroup) -> list[str]:
    """Return names of the bins of pass rates: `3 of 8` if groups have one size, else a range."""
    between, size = keys.pass_rates[1:-1], facts.whole("group_size")
    names = [f"{100 * rate.low:.3g} to {100 * rate.high:.3g} %" for rate in between]
    if size["min"] == size["max"] == len(between) + 1:
        names = [f"{count} of {size['max']:.0f}" for count in range(1, len(between) + 1)]
    return ["none", *names, "all"]


def _pass_rates(facts: Facts, keys: PromptGroup, lines: list[str]) -> TextTable:
    counts = [rate.groups for rate in keys.pass_rates]
    rows = [
        (name, f"{count:,}", bar(count, max(counts), BAR))
        for name, count in zip(rate_names(facts, keys), counts, strict=True)
    ]
    headings = (f"{facts.unit}s that pass (reward ≥ {keys.pass_threshold:g})", "groups", "")
    return TextTable(headings, rows, "Groups", lines, text=(0, 2))


def _pass_at_k(keys: PromptGroup, size: Json) -> TextTable:
    """Return pass@k up to the largest k that all groups have: of fewer groups it may fall."""
    shown = keys.pass_at_k_of_all
    notes = [
        f"k {x.k:,}: only {x.groups:,} of {counted(size['count'], 'group')} are so large"
        for x in keys.pass_at_k[len(shown) :][:1]
    ]
    return TextTable(
        ("k", *(str(x.k) for x in shown)),
        [("pass@k", *(f"{x.value:.3f}" for x in shown))],
        notes=notes,
    )
