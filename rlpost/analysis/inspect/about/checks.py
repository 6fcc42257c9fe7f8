"""The topic `checks`, and the page of a check: what it is, why, what to do, and what it found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.analysis.inspect.about.base import title, topic
from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import CheckRun, Facts
    from rlpost.findings import Finding, Place


MOST_PLACES = 3  # below a finding of the overview


@topic
def checks(facts: Facts) -> Page:
    """Which checks ran, what they found, and why the others did not run."""
    levels = {finding.check: finding.level for finding in facts.findings}
    rows = []
    for run in facts.checks:
        result = levels.get(run.name, "ok")
        rows.append((run.name, "did not run" if run.not_run else result, run.not_run or ""))
    rows.sort(key=lambda row: _ORDER.index(row[1]))
    table = TextTable(("check", "result", "why"), rows, "Checks", text=range(3))
    return Page(title(facts.inputs, "checks"), parts=[table], verdict=verdict(facts))


_ORDER = ("did not run", "ok", "warning", "error")


def checks_json(facts: Facts) -> list[dict[str, Any]]:
    """Return every check as plain data."""
    return [check_json(name, facts) for name in FINDINGS]


def check_json(name: str, facts: Facts | None) -> dict[str, Any]:
    """Return a check as plain data; of an input, with `not_run` and `found`: its finding."""
    check = FINDINGS[name]
    entry = {
        "finding": name, "severity": check.severity, "needs": ", ".join(check.needs),
        "meaning": check.meaning, "why": check.advice or None,
    }  # fmt: skip
    if facts is None:
        return entry
    run, finding = _run_of(name, facts)
    return {**entry, "not_run": run.not_run, "found": finding and finding.as_json()}


def check_page(name: str, facts: Facts) -> Page:
    """Return the page of a check: its meaning, and what it found, with all its rows."""
    check = FINDINGS[name]
    needs = f"needs: {', '.join(check.needs)}" if check.needs else ""
    lines = [line for line in (check.meaning, check.advice, needs) if line]
    run, finding = _run_of(name, facts)
    page = Page(title(facts.inputs, f"{name} ({check.severity})"), lines)
    if finding is not None:
        notice = replace(notice_of(finding), name="", places="")
        rows = [(str(place),) for place in finding.rows]
        return replace(page, parts=[TextTable(("file:row",), rows)] * bool(rows), verdict=notice)
    if run.not_run:
        return replace(page, verdict=Notice("warning", f"did not run: {run.not_run}"))
    return replace(page, verdict=Notice("ok", "no problem"))


def _run_of(name: str, facts: Facts) -> tuple[CheckRun, Finding | None]:
    """Return whether a check ran, and what it found."""
    run = next(run for run in facts.checks if run.name == name)
    return run, next((finding for finding in facts.findings if finding.check == name), None)


def places(rows: Sequence[Place]) -> str:
    """Return the first places: `a.parquet:11, :25, b.parquet:3`."""
    texts: list[str] = []
    before = None
    for place in rows[:MOST_PLACES]:
        texts.append(f":{place.row}" if place.file == before else str(place))
        before = place.file
    return ", ".join(texts)


def notice_of(finding: Finding) -> Notice:
    """Return a finding for a page."""
    return Notice(finding.level, finding.text, finding.check, finding.advice, places(finding.rows))


def notices(facts: Facts) -> list[Notice]:
    """Return the findings, the most severe last."""
    return [notice_of(finding) for finding in reversed(facts.findings)]


def verdict(facts: Facts) -> Notice:
    """Return how many errors and warnings were found, and by how many checks."""
    return Notice(facts.verdict["level"], facts.verdict["text"])
