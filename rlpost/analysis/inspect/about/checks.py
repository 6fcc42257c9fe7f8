"""The topic `checks`, and the page of a check: what it is, why, what to do, and what it found."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rlpost.analysis.inspect.about.base import title, topic
from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.display.controls import printable_line
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.findings.base import InputCheck
    from rlpost.analysis.inspect.model import (
        CheckRun,
        Facts,
        FindingEvidence,
        InputFinding,
        Severity,
    )


MOST_PLACES = 3  # below a finding of the overview
MOST_KEY = 40  # characters of a group's key
SEVERITIES: tuple[Severity, ...] = ("error", "warning")


@topic
def checks(facts: Facts) -> Page:
    """Which checks ran, what they found, and why the others did not run."""
    found = {one.name: one for one in facts.findings}
    rows = []
    for run in facts.checks:
        result = found[run.name].severity if run.name in found else "ok"
        rows.append((run.name, "did not run" if run.not_run else result, run.not_run or ""))
    rows.sort(key=lambda row: _ORDER.index(row[1]))
    table = TextTable(("check", "result", "why"), rows, "Checks", text=range(3))
    return Page(title(facts.inputs, "checks"), parts=[table], verdict=verdict(facts))


_ORDER = ("did not run", "ok", "warning", "error")


def list_page() -> Page:
    """Return every check and what it means."""
    rows = [(one.name, one.severity, ", ".join(one.needs)) for one in FINDINGS.values()]
    notes = {i: one.meaning for i, one in enumerate(FINDINGS.values())}
    table = TextTable(("check", "severity", "needs"), rows, text=range(3), row_notes=notes)
    return Page(
        "rlpost inspect · checks", parts=[table], next_steps=["rlpost inspect --about CHECK"]
    )


def checks_json(facts: Facts | None) -> list[dict[str, Any]]:
    """Return every check as plain data."""
    return [check_json(name, facts) for name in FINDINGS]


def _check_json(check: InputCheck) -> dict[str, Any]:
    return {
        "finding": check.name,
        "severity": check.severity,
        "needs": ", ".join(check.needs),
        "meaning": check.meaning,
    }


def check_json(name: str, facts: Facts | None) -> dict[str, Any]:
    """Return a check as plain data; of an input, with `not_run` and `found`: its finding."""
    check = FINDINGS[name]
    entry = {**_check_json(check), "why": check.advice or None}
    if facts is None:
        return entry
    run, finding = _run_of(name, facts)
    return {**entry, "not_run": run.not_run, "found": finding and asdict(finding)}


def check_page(name: str, facts: Facts | None = None) -> Page:
    """Return the page of a check: its meaning; of an input, what it found, with all its rows."""
    check = FINDINGS[name]
    needs = f"needs: {', '.join(check.needs)}" if check.needs else ""
    lines = [line for line in (check.meaning, check.advice, needs) if line]
    if facts is None:
        return Page(f"rlpost inspect · {name} ({check.severity})", lines)
    run, finding = _run_of(name, facts)
    page = Page(title(facts.inputs, f"{name} ({check.severity})"), lines)
    if finding is not None:
        notice = replace(notice_of(finding), name="", places="")
        return replace(page, parts=_evidence(finding), verdict=notice)
    if run.not_run:
        return replace(page, verdict=Notice("warning", f"did not run: {run.not_run}"))
    return replace(page, verdict=Notice("ok", "no problem"))


def _run_of(name: str, facts: Facts) -> tuple[CheckRun, InputFinding | None]:
    """Return whether a check ran, and what it found."""
    run = next(one for one in facts.checks if one.name == name)
    return run, next((one for one in facts.findings if one.name == name), None)


def _evidence(finding: InputFinding) -> list[TextTable]:
    """Return a row for each place that shows a finding."""
    cells = [
        (place(one), "" if one.group is None else str(one.group), one.text)
        for one in finding.evidence
    ]
    if not cells:
        return []
    headings = ("file:row" if finding.evidence[0].row is not None else "file", "group", "")
    used = [i for i in range(3) if any(row[i] for row in cells)]
    rows = [[row[i] for i in used] for row in cells]
    return [TextTable([headings[i] for i in used], rows, text=range(3))]


def place(one: FindingEvidence) -> str:
    """Return `file:row`, or the file of evidence that is about a whole file."""
    return one.file if one.row is None else f"{one.file}:{one.row}"


def places(evidence: Sequence[FindingEvidence]) -> str:
    """Return the first places: `a.parquet:11 (30 policy tokens), :25 (28 policy tokens)`."""
    texts, file = [], None
    for one in evidence[:MOST_PLACES]:
        where = f":{one.row}" if one.row is not None and one.file == file else place(one)
        note = textwrap.shorten(printable_line(one.text), 2 * MOST_KEY, placeholder="…")
        texts.append(f"{where} ({note})" if note else where)
        file = one.file
    return ", ".join(texts)


def notice_of(finding: InputFinding) -> Notice:
    """Return a finding for a page."""
    return Notice(
        finding.severity, finding.text, finding.name, finding.advice, places(finding.evidence)
    )


def notices(facts: Facts) -> list[Notice]:
    """Return the findings, the most severe and harmful last."""
    order = sorted(facts.findings, key=lambda one: (one.severity == "error", one.harm))
    return [notice_of(one) for one in order]


def verdict(facts: Facts) -> Notice:
    """Return how many errors and warnings were found, and by how many checks."""
    by = checks_ran(facts)
    counts = {of: sum(one.severity == of for one in facts.findings) for of in SEVERITIES}
    if not facts.findings:
        return Notice("ok", f"No problems ({by})")
    severity = next(of for of in SEVERITIES if counts[of])
    found = " and ".join(counted(count, of) for of, count in counts.items() if count)
    return Notice(severity, f"Found {found} ({by})")


def checks_ran(facts: Facts) -> str:
    """Return `28 checks`, or `24 of 28 checks` if some did not run."""
    ran, count = sum(one.not_run is None for one in facts.checks), len(facts.checks)
    return f"{count} checks" if ran == count else f"{ran} of {count} checks"
