"""The topic `groups`: sizes of prompt groups, groups without signal, pass rates, pass@k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number, share

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts, PromptGroup
    from rlpost.display.page import Page


BAR = 24  # characters
SMALL = 17  # responses of the largest group, at most, for a pass rate as `3 of 8`


@topic
def groups(facts: Facts) -> Page:
    """Prompt groups: their sizes, those without signal, pass rates and pass@k."""
    found = facts.prompt_groups
    if found is None or not found.size:
        return page_of(facts, "groups", [], without_column("group"))
    by, prompts = " and ".join(found.by), counted(found.prompts, "prompt")
    units = found.of if found.size["max"] == 1 else f"{found.of}s"
    lines = [f"{sizes(found)} {units}, by {by}; {prompts}"]
    if found.single:
        lines.append(f"{counted(found.single, 'group')} of one {found.of}")
    if not found.pass_rates:
        return page_of(facts, "groups", [TextTable(title="Groups", lines=lines)], "")
    lines += [without_signal(found), *threshold_lines(facts)]
    return page_of(facts, "groups", [_pass_rates(found, lines), _pass_at_k(found)], "")


def sizes(found: PromptGroup) -> str:
    """Return `64 groups of 8`, or `of 7 to 8`."""
    text = counted(found.count, "group")
    if not found.size:
        return text
    low, high = found.size["min"], found.size["max"]
    return f"{text} of {low:,}" + (f" to {high:,}" if low != high else "")


def without_signal(found: PromptGroup) -> str:
    """Return how many groups of several responses have equal rewards, and which."""
    several, equal = found.count - found.single, found.no_signal
    text = f"no signal in {equal:,} of {counted(several, 'group')} ({share(equal, several)})"
    kinds = {
        "all pass": found.equal_all_pass,
        "none pass": found.equal_all_fail,
    }
    parts = [f"{count:,} {kind}" for kind, count in kinds.items() if count]
    return f"{text}: {', '.join(parts)}" if equal and parts else text


def threshold_lines(facts: Facts) -> list[str]:
    """Return the line on a threshold of passing that no reward reaches."""
    highest, groups = facts.whole("reward")["max"], facts.prompt_groups
    if groups is None or highest is None or highest >= groups.pass_threshold:
        return []
    threshold = f"{groups.pass_threshold:g} (--pass-threshold)"
    return [f"no reward reaches {threshold}, the highest is {number(highest)}"]


def _pass_rates(found: PromptGroup, lines: list[str]) -> TextTable:
    largest = max(rate.groups for rate in found.pass_rates)
    bins, size = len(found.pass_rates), found.size["max"] if found.size else 0
    by_count = 1 < size <= SMALL and found.size is not None and found.size["min"] == size
    rows = []
    for i, rate in enumerate(found.pass_rates):
        label = f"{i} of {size}" if by_count else f"{100 * rate.low:.3g} to {100 * rate.high:.3g} %"
        label = {0: "none", bins - 1: "all"}.get(i, label)
        rows.append((label, f"{rate.groups:,}", bar(rate.groups, largest, BAR)))
    headings = (f"{found.of}s that pass (reward ≥ {found.pass_threshold:g})", "groups", "")
    return TextTable(headings, rows, "Groups", lines, text=(0, 2))


def _pass_at_k(found: PromptGroup) -> TextTable:
    """Return pass@k up to the largest k that all groups have: of fewer groups it may fall."""
    shown = found.pass_at_k_of_all
    notes = [
        f"k {one.k:,}: only {one.groups:,} of {counted(found.count, 'group')} are so large"
        for one in found.pass_at_k[len(shown) :][:1]
    ]
    return TextTable(
        ("k", *(str(one.k) for one in shown)),
        [("pass@k", *(f"{one.value:.3f}" for one in shown))],
        notes=notes,
    )
