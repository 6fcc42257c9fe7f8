"""Topics on responses: groups, all numbers, steps, domains, columns."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import command, page_of, topic, without_column
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable
from rlpost.display.text import (
    aligned,
    counted,
    mean_beside,
    number,
    percent,
    share,
    typed_word,
    value_list,
)
from rlpost.render.trends import Trend, slice_table, trend_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts, Json, PromptGroup
    from rlpost.display.page import Page


# ---- groups ----

BAR_OF_GROUPS = 24  # characters


@topic
def groups(facts: Facts) -> Page:
    """Prompt groups: their sizes, those without signal, passes and pass@k."""
    keys, size, single = facts.prompt_groups, facts.whole("group_size"), facts.whole("single")
    if keys is None or not size["count"]:
        return page_of(facts, "groups", [], without_column("group"))
    units = facts.unit if size["max"] == 1 else f"{facts.unit}s"
    prompts = counted(keys.prompts, "prompt")
    lines = [f"{sizes(facts)} {units}, by {' and '.join(keys.by)}; {prompts}"]
    if single["total"]:
        lines.append(f"{counted(single['total'], 'group')} of one {facts.unit}")
    if not keys.pass_at_k:
        return page_of(facts, "groups", [TextTable(title="Groups", lines=lines)], "")
    lines += [without_signal(facts), *threshold_lines(facts)]
    tables = [_profile(facts, lines), _pass_at_k(keys, size), *_worst(facts)]
    worst = next((str(prompt["prompt"]) for prompt in facts.worst_prompts), "")
    steps = [f"{command(facts)} --prompt {typed_word(worst)}"] if worst else []
    return page_of(facts, "groups", tables, "", steps)


def _worst(facts: Facts) -> list[TextTable]:
    """Return the prompts that never pass, or the lowest, the worst first."""
    worst = facts.worst_prompts
    never = facts.whole("passed")["mean"] and not any(prompt["passed"] for prompt in worst)
    title = "Prompts that never pass, worst first" if never else "Lowest rewards"
    rows = [
        (str(prompt["prompt"]), f"{prompt['groups']:,}",
         f"{prompt['passed']} of {prompt['responses']}", mean, str(prompt["place"]))
        for prompt, mean in zip(worst, aligned([x["reward"] for x in worst]), strict=True)
    ]  # fmt: skip
    headings = ("prompt", "groups", "passes", "mean reward", "first row")
    return [TextTable(headings, rows, title, text=(0, 4))] * bool(rows)


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


def _profile(facts: Facts, lines: list[str]) -> TextTable:
    """Return the groups of the picture: by passes, by pass rate, or by mean reward."""
    profile = facts.profiles.get("groups") or {"by": "", "labels": [], "with": [], "without": []}
    pairs = [*zip(profile["with"], profile["without"], strict=True)]
    largest = max(map(sum, pairs), default=0)
    rows = [
        (label, f"{sum(pair):,}", f"{pair[1]:,}", bar(sum(pair), largest, BAR_OF_GROUPS))
        for label, pair in zip(profile["labels"], pairs, strict=True)
    ]
    headings = (profile["by"], "groups", "no signal", "")
    return TextTable(headings, rows, "Groups", lines, text=(0, 3))


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


# ---- all numbers ----


@topic
def numbers(facts: Facts) -> Page:
    """Every number of the input by its name in JSON, and what it counts: mean, std, min, max."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for name, entry in facts.facts.items():
        rows.setdefault(entry["of"], []).append((name, *_cells(entry["all"])))
    headings = ("", "count", "mean", "std", "min", "max")
    titles = {of: of[:1].upper() + of[1:] for of in rows}
    tables = [TextTable(headings, part, titles[of]) for of, part in rows.items()]
    return page_of(facts, "numbers", tables, "")


def _cells(whole: Json) -> tuple[str, ...]:
    """Return count, mean, std, min and max; a share is a percentage, a value stands as a mean."""
    count = f"{whole['count']:,}" if "count" in whole else ""
    if "total" in whole:
        return count, percent(whole["mean"]), "", "", ""
    whole = {"mean": whole.get("value"), **whole}
    if "std" in whole:
        whole["mean"] = mean_beside(whole["mean"], whole["std"])
    parts = (whole.get(part) for part in ("mean", "std", "min", "max"))
    return count, *("" if part is None else number(part) for part in parts)


def without_tokens_lines(facts: Facts) -> list[str]:
    """Return the line on an input without a list of tokens: why nothing is about tokens."""
    if facts.tokens is None:
        advice = "set their column with --map response_length=COLUMN"
        return [f"no column has tokens, so lengths are unknown ({advice})"]
    if facts.tokens["all"] is None and "response_length" in facts.roles:
        count = counted(facts.tokens["policy"], "policy token")
        column = facts.roles["response_length"].column
        return [f"no column has tokens; {count} according to `{column}`"]
    return []


TREATMENTS = {
    "drop": "left out here, as of `rlpost advantages`: --failures drop, the default",
    "mask": "--failures mask: they count here, but are left out of training",
    "keep": "--failures keep: they count as any other",
    "zero": "--failures zero: they count with reward 0",
}
"""What becomes of failed responses."""


def failure_lines(facts: Facts) -> list[str]:
    """Return the line on failed responses, if there are any."""
    failures, failed = facts.failures, facts.whole("failed")
    if failures is None or not failed["total"]:
        return []
    text = f"{percent(failed['mean'])} of {counted(failed['count'], facts.unit)} failed: "
    return [f"{text}{value_list(failures.reasons)} ({TREATMENTS[failures.treatment]})"]


# ---- steps, domains ----

MOST_ROWS = 60
MOST_NAMED = 3
NUMBERS = {
    "reward": ("reward", ""),
    "passed": ("pass", ""),
    "equal_rewards": ("no signal", ""),
    "policy_tokens": ("policy tokens", "tokens"),
    "truncated": ("truncated", ""),
    "failed": ("failed", ""),
    "kl": ("KL per token", "KL"),
    "engine_k3": ("engine ‖ trainer", "engine KL"),
    "advantage_zero": ("A = 0", ""),
}
"""By measure, its name beside a trend, and as the heading of a table if that is another one."""
_ALWAYS = ("reward", "passed", "equal_rewards")
"""Measures that are shown also where they are 0 throughout."""
SHARES = ("passed", "equal_rewards", "truncated", "failed", "advantage_zero")


@topic
def steps(facts: Facts) -> Page:
    """Trends over the steps: rewards, groups without signal, lengths, failures, KL."""
    labels, lines, trends = facts.labels("step"), trends_of(facts), None
    if labels[1:] and lines:
        trends = trend_table(facts.roles["batch"].column, labels, lines)
    return _slices(facts, "step", "batch", range(len(labels)), trends)


@topic
def domains(facts: Facts) -> Page:
    """Rewards, groups without signal, lengths and KL by domain; the least signal first."""
    order, labels = by_signal(facts), facts.labels("domain")
    steps = []
    if labels[1:] and facts.labels("step")[1:] and not facts.where:
        worst = labels[order[0]]
        literal = str(worst) if isinstance(worst, int) else "'" + worst.replace("'", "''") + "'"
        condition = typed_word(f"domain = {literal}")
        steps = [f"{command(facts)} --where {condition} --about steps"]
    return replace(_slices(facts, "domain", "domain", order), next_steps=steps)


def _slices(
    facts: Facts, key: str, role: str, order: Sequence[int], *above: TextTable | None
) -> Page:
    """Return the page of several steps or domains."""
    labels = facts.labels(key)
    otherwise = f"There is one {key}, {labels[0]}." if labels else without_column(role)
    tables = [*above, _slice_table(facts, key, role, order)] if labels[1:] else []
    return page_of(facts, f"{key}s", tables, otherwise)


def trends_of(facts: Facts) -> list[Trend]:
    """Return the numbers by step, without those that say nothing."""
    return [
        Trend(_trend_names(facts, name)[0], values, share=name in SHARES)
        for name in NUMBERS
        if _says(name, values := facts.by("step", name))
    ]


def _says(measure: str, values: Sequence[float | None]) -> bool:
    """Return whether numbers of steps or domains are worth a row: not 0 or unknown in all."""
    return any(values) or (measure in _ALWAYS and any(value is not None for value in values))


def _trend_names(facts: Facts, measure: str) -> tuple[str, str]:
    """Return the names of NUMBERS; tokens are those of rows, not of rollouts."""
    of_row = measure == "policy_tokens" and facts.rollouts is not None
    return ("tokens/row", "tokens") if of_row else NUMBERS[measure]


def _slice_table(facts: Facts, key: str, role: str, order: Sequence[int]) -> TextTable:
    """Return a row for each step or domain, with those columns in which any has a number."""
    trends = []
    for name in NUMBERS:
        (long, short), values = _trend_names(facts, name), facts.by(key, name)
        digits = 2 if name in ("kl", "engine_k3") else None  # so that tables fit
        if _says(name, values):
            trends.append(Trend(short or long, values, name in SHARES, digits))
    column, counts = facts.roles[role].column, facts.by(key, "counted", "total")
    rows = any(trend.name == "tokens" for trend in trends) and facts.rollouts is not None
    title = f"By {column}{', tokens of a row' * rows}"
    return slice_table(column, facts.labels(key), (f"{facts.row_noun}s", counts), trends,
                       order=order, most=MOST_ROWS, title=title)  # fmt: skip


def by_signal(facts: Facts) -> list[int]:
    """Return the places of domains, those with the most groups without signal first."""
    shares = [share or 0.0 for share in facts.by("domain", "equal_rewards")]
    shares = shares or [0.0] * len(facts.labels("domain"))
    return sorted(range(len(shares)), key=lambda place: -shares[place])


def domain_lines(facts: Facts) -> list[str]:
    """Return the domains with the most groups without signal; none if all domains are alike."""
    labels, shares = facts.labels("domain"), facts.by("domain", "equal_rewards")
    if not any(shares) or len({*shares}) < 2:  # noqa: PLR2004
        return []
    worst = by_signal(facts)
    named = ", ".join(f"{labels[at]} {percent(shares[at])}" for at in worst[:MOST_NAMED])
    more = f"; {len(worst) - MOST_NAMED:,} more" if worst[MOST_NAMED:] else ""
    return [f"no signal by {facts.roles['domain'].column}: {named}{more}"]


# ---- columns ----

EXPECTED = ("group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "batch")


@topic
def columns(facts: Facts) -> Page:
    """The column of each role, how it was found, and roles without a column."""
    known = {*facts.roles, *({"reward"} & facts.facts.keys())}  # of components
    missing = [role for role in EXPECTED if role not in known]
    lines = [f"no column for {', '.join(missing)} (set with --map ROLE=COLUMN)"] if missing else []
    lacks: dict[str, str] = {}
    for file in facts.input.files:
        lacks |= (file.rlpost or {}).get("missing_roles") or {}
    reasons: dict[str, list[str]] = {}
    for role in missing:
        if role in lacks:
            reasons.setdefault(lacks[role], []).append(role)
    lines += [f"{', '.join(roles)}: {reason}" for reason, roles in reasons.items()]
    rows = [(role, x.column, x.found_by, _plain(x.type)) for role, x in facts.roles.items()]
    headings, lines = ("role", "column", "found by", "type"), [*lines, *ignored_lines(facts)]
    table = TextTable(headings, rows, "Columns by role", lines, text=range(4))
    return page_of(facts, "columns", [table], "")


def ignored_lines(facts: Facts) -> list[str]:
    """Return the columns that have the name of a role which another column serves."""
    return [
        f"{' and '.join(f'`{name}`' for name in served.ignored)} ignored: {role} is read from "
        f"`{served.column}` (--map {role}=COLUMN)"
        for role, served in facts.roles.items()
        if served.ignored
    ]


def _plain(kind: str) -> str:
    """Return a type without the names inside lists."""
    return re.sub(r"(list(?:_view)?<)\w+: ", r"\1", kind)
