"""The page of `rlpost inspect`: one screen, whose last line is the verdict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about import TOPICS, topics_of
from rlpost.analysis.inspect.about.base import command, title
from rlpost.analysis.inspect.about.checks import notices, places, verdict
from rlpost.analysis.inspect.about.responses import (
    domain_lines,
    failure_lines,
    ignored_lines,
    sizes,
    threshold_lines,
    without_tokens_lines,
)
from rlpost.analysis.inspect.about.tokens import left_out_lines
from rlpost.display.charts import spark
from rlpost.display.controls import printable_line
from rlpost.display.page import Page
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, mean_beside, number, percent, share
from rlpost.render.picture import picture_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.analysis.inspect.model import Facts, Histogram, Json
    from rlpost.display.picture import PictureLine

    Row = tuple[str, ...]


def page(facts: Facts, *, verbose: bool = False) -> Page:
    """Return the overview and the findings.

    Args:
        facts: of the input.
        verbose: with the tables of every topic, and the time.
    """
    parts = [_distributions(facts)]
    if verbose:
        parts = [part for topic in TOPICS.values() for part in topic.run(facts).parts]
    lines = overview(facts) + ([f"{facts.seconds:.2f} s"] if verbose else [])
    return Page(
        title(facts.inputs), lines, [part for part in parts if part.rows or part.lines],
        notices(facts), verdict(facts), _next_steps(facts, verbose=verbose),
        _answer(facts), [*_picture(facts)],
    )  # fmt: skip


def _answer(facts: Facts) -> str:
    """Return how many groups have signal; empty without groups."""
    equal = facts.whole("equal_rewards")
    if not equal["count"]:
        return ""
    return f"{equal['count'] - equal['total']:,} of {counted(equal['count'], 'group')} have signal"


def _picture(facts: Facts) -> Iterator[PictureLine]:
    counts = facts.whole("counted")["total"]
    stages = [] if counts is None else [(facts.responses, ""), (counts, "not left out")]
    findings = [finding.as_json() for finding in facts.findings]
    signs = "tokens" if facts.token_columns or "mask" in facts.roles else "responses"
    return picture_of(facts.profiles, facts.facts, findings, stages, signs=signs)


def show_findings(facts: Facts) -> None:
    """Print each finding on one line, of any length, with its severity and its name."""
    for finding in facts.findings:
        where = f" ({places(finding.rows)})" if finding.rows else ""
        text = f"{finding.level}: {finding.check}: {finding.text}{where}"
        sys.stdout.write(f"{printable_line(text)}\n")


def overview(facts: Facts) -> list[str]:
    """Return the first lines: responses, tokens and groups, and what is unusual about columns."""
    lines = [", ".join(_counts(facts)), *facts.input_lines]
    return [
        *lines, *domain_lines(facts), *_shares(facts), *threshold_lines(facts),
        *without_tokens_lines(facts), *_mapped_lines(facts), *ignored_lines(facts),
        *left_out_lines(facts), *failure_lines(facts),
    ]  # fmt: skip


def _counts(facts: Facts) -> list[str]:
    """Return `512 responses`, `10,991 policy tokens`, `64 groups of 8 by prompt_id`, `4 steps`."""
    parts = [counted(facts.responses, facts.row_noun)]
    if facts.rollouts is not None:
        parts[0] += f" of {counted(facts.rollouts, 'rollout')}"
    if facts.tokens is not None and facts.tokens["all"] is not None:
        total, policy = facts.tokens["all"], facts.tokens["policy"]
        text = f"{counted(total, 'token')} ({share(policy, total)} policy)"
        if "mask" not in facts.roles:
            text = f"{counted(total, 'token')} (no mask: all are policy tokens)"
        elif policy == total:
            text = counted(policy, "policy token")
        parts.append(text)
    if facts.whole("group_size")["count"]:
        keys = facts.prompt_groups
        parts.append(f"{sizes(facts)} by {' and '.join(keys.by)}" if keys else sizes(facts))
    slices = {key: len(facts.labels(key)) for key in ("step", "domain")}
    return parts + [counted(count, key) for key, count in slices.items() if count]


def _mapped_lines(facts: Facts) -> list[str]:
    """Return the roles whose column has another name than usual; none if there is none."""
    by = {"map": "--map", "alias": "alias"}
    mapped = [
        f"{role} from `{served.column}` ({by[served.found_by]})"
        for role, served in facts.roles.items()
        if served.found_by in by
    ]
    return [f"columns: {', '.join(mapped)}"] if mapped else []


_ASKED = ("groups", "numbers", "steps", "domains", "mismatch")
"""Topics that are asked for most."""


def _next_steps(facts: Facts, *, verbose: bool) -> list[str]:
    """Return the commands that print more: on the most severe finding, and on a topic."""
    typed = command(facts)
    steps = [f"{typed} --about {finding.check}" for finding in facts.findings[:1]]
    if not verbose:
        topics = topics_of(facts)
        first, *others = [x for x in _ASKED if x in topics] or topics
        steps.append(f"{typed} --about {first}  # {', '.join(others)}, ...; --verbose: all")
    return steps


# ---- numbers per response ----


def _distributions(facts: Facts) -> TextTable:
    """Return a row for each number of a response: histogram, mean and standard deviation."""
    rows: list[Row] = []
    of = "/row" if facts.rollouts is not None else ""
    names = {
        "reward": "reward",
        "policy_tokens": f"tokens{of}" if of else "policy tokens",
        "kl": "KL per token",
        "advantage": "recorded advantage"
        if (facts.advantages or {}).get("recorded")
        else "advantage",
    }
    for measure, name in names.items():
        if measure in facts.facts:
            rows.append(_row(name, facts.histograms.get(measure), facts.whole(measure)))
    return TextTable(("", "", "", "", "mean", "std"), rows, text=(0, 2, 3))


def _row(name: str, histogram: Histogram | None, spread: Json) -> Row:
    """Return a row of the histogram between its ends, or of the ends alone."""
    ends: Sequence[float | None] = (spread["min"], spread["max"])
    if histogram is not None:
        ends = (histogram.edges[0], histogram.edges[-1])
    low, high = map(number, ends)
    mean, std = aligned([mean_beside(spread["mean"], spread["std"]), spread["std"]])
    return name, low, spark(histogram.counts) if histogram else "to", high, mean, std


def _shares(facts: Facts) -> list[str]:
    """Return `pass@1 46.9 %, pass@8 76.6 %, truncated 6.1 %`, and the share of zero advantages."""
    shares: dict[str, float | None] = {}
    if (groups := facts.prompt_groups) and groups.pass_at_k:
        ks = [*groups.pass_at_k_of_all[:1], *groups.pass_at_k_of_all[1:][-1:]]
        shares |= {f"pass@{x.k}": x.value for x in ks}
    if "truncated" in facts.facts:
        shares["truncated"] = facts.whole("truncated")["mean"] or 0.0
    if facts.advantages:
        shares["A = 0"] = facts.whole("advantage_zero")["mean"]
    parts = [f"{name} {percent(value)}" for name, value in shares.items()]
    return [", ".join(parts)] if parts else []
