"""The page: topics of `rlpost inspect` with charts as HTML, examples as JSON, content policy."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.analysis.inspect.about import TOPICS
from rlpost.analysis.inspect.about.responses import trends_of
from rlpost.analysis.inspect.render import page
from rlpost.analysis.report.charts import (
    bars,
    figures,
    histogram,
    line,
)
from rlpost.display.page import MARKS, stylesheet
from rlpost.display.tables import html_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.report.charts import Chart
    from rlpost.display.page import Notice, Page


Json = dict[str, Any]
_SCRIPTS = ("dom.js", "tokens.js", "examples.js", "page.js")
# Characters that could end the script element that holds the data, or a line of script.
_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
    | {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}
)


@dataclass(frozen=True)
class Section:
    """A part of the page; `name` is its anchor."""

    name: str
    page: Page
    charts: Sequence[Chart] = ()

    def html(self) -> str:
        """Return the section as HTML, which the script of the page only links."""
        return f'<section id="{self.name}">{self.page.html(figures(self.charts))}</section>'


def html_of(sections: Sequence[Section], data: Json, *, inputs: str, verdict: Notice) -> str:
    """Return the whole page.

    Args:
        sections: in their order.
        data: findings and examples, which the page's script inserts as text.
        inputs: the names of the inputs.
        verdict: how many problems were found.
    """
    style = stylesheet() + _static("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_static, _SCRIPTS)) + "})();\n"
    parts = {
        "policy": policy(style, script),
        "style": style,
        "inputs": html_line(inputs),
        "severity": verdict.severity,
        "verdict": html_line(f"{MARKS[verdict.severity]} {verdict.text}"),
        "sections": "\n".join(section.html() for section in sections),
        "version": __version__,
        "data": encoded(data),
        "script": script,
    }
    return Template(_static("page.html")).substitute(parts)


def policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows this style and this script, by hash."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def encoded(data: Any) -> str:
    """Return JSON that is safe within a script element: no `<`, no NaN."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _static(name: str) -> str:
    return (files("rlpost.analysis.report") / "static" / name).read_text(encoding="utf-8")


_TITLES = {"mismatch": "Rollout engine against trainer"}


def overview(facts: Facts) -> Section:
    """Return the first screen of `rlpost inspect`, whose findings are a section of their own."""
    whole = replace(page(facts), title="Overview", notices=(), verdict=None, next_steps=())
    return Section("overview", whole)


def topics(facts: Facts) -> Iterator[Section]:
    """Yield the topics on which the input has something, those with charts first."""
    others = (name for name in TOPICS if name not in CHARTS)
    for name in (*CHARTS, *others):
        about = TOPICS[name].run(facts)
        if about.parts:
            title = _TITLES.get(name, name.replace("_", "-").capitalize())
            charts = [*CHARTS[name](facts)] if name in CHARTS else ()
            yield Section(name, replace(about, title=title, next_steps=()), charts)


def _steps(facts: Facts) -> Iterator[Chart]:
    axis, labels = facts.roles["batch"].column, facts.labels("step")
    for trend in trends_of(facts):
        from_zero = trend.name in ("policy tokens", "engine ‖ trainer")
        yield _trend(trend.name, labels, trend.values, axis, trend.share, from_zero)
    deviations = facts.by("step", "advantage", "std")
    if any(value is not None for value in deviations):
        yield _trend("std of A", labels, deviations, axis, share=False, from_zero=True)


def _trend(
    title: str, labels: Sequence[str | int], values: Sequence[float | None], axis: str,
    share: bool, from_zero: bool,  # noqa: FBT001
) -> Chart:  # fmt: skip
    return line(title, labels, values, axis, share=share, from_zero=from_zero)


def _numbers(facts: Facts) -> Iterator[Chart]:
    noun = facts.row_noun
    named = {
        "reward": ("Rewards", f"{facts.unit}s", "reward"),
        "policy_tokens": ("Lengths", f"{noun}s", f"policy tokens of a {noun}"),
    }
    for measure, (title, unit, axis) in named.items():
        if measure in facts.histograms:
            yield histogram(title, facts.histograms[measure], unit, axis)
    if bins := facts.histograms.get("advantage"):
        credit = facts.facts["advantage"]
        zeros = credit["all"]["count"] - sum(bins.counts)
        yield histogram("Advantages", bins, credit["of"], "advantage", zeros=zeros)


def _groups(facts: Facts) -> Iterator[Chart]:
    groups = facts.prompt_groups
    if groups is None:
        return
    if profile := facts.profiles.get("groups"):
        pairs = zip(profile["with"], profile["without"], strict=True)
        yield bars("Groups", profile["labels"], [*map(sum, pairs)], "groups", profile["by"])
    pass_at_k = groups.pass_at_k_of_all
    if len(pass_at_k) > 1:
        ks, values = [str(rate.k) for rate in pass_at_k], [rate.value for rate in pass_at_k]
        yield line("Pass@k", ks, values, "k", share=True, note="over all groups")
    if len(groups.sizes) > 1:
        labels, counts = [str(size) for size in groups.sizes], [*groups.sizes.values()]
        yield bars("Sizes of groups", labels, counts, "groups", f"{facts.unit}s of a group")


def _entropy(facts: Facts) -> Iterator[Chart]:
    if facts.entropy is None:
        return
    labels, means = (facts.by("position", "entropy", x)[:-1] for x in ("label", "mean"))
    title = "Mean entropy by position in the response"
    yield bars(title, labels, means, "nats", "policy token")
    steps, values = facts.labels("step"), facts.by("step", "entropy")
    if len(values) > 1:
        axis = facts.roles["batch"].column
        yield line("Mean entropy by step", steps, values, axis, from_zero=True)


CHARTS: dict[str, Callable[[Facts], Iterator[Chart]]] = {
    "steps": _steps,
    "numbers": _numbers,
    "groups": _groups,
    "entropy": _entropy,
}
"""By topic, its charts; the page has the topics in this order."""
