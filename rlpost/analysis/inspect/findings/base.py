"""The registry of checks: what a check needs, what it reads, what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from rlpost.analysis.inspect.model import CheckRun
from rlpost.findings import Check, Finding, Place, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rlpost.analysis.inspect.inspected import Inspected


CheckLevel = Literal["error", "warning", "error or warning"]


@dataclass(frozen=True)
class Problem:
    """What a check returns if it finds a problem; run_checks makes a finding of it."""

    text: str
    rows: pl.Series | Sequence[int] = ()
    """The responses that show it, as flags, [n] bool, or as indices."""
    roles: Sequence[str] = ()
    """Of the columns that show it, or names of columns."""
    option: str = ""
    files: Sequence[str] = ()
    """The files that show it, if it is not about responses."""
    error: bool = False
    """Of a check that is an error or a warning."""
    advice: str = ""
    """What to do, in place of the last paragraph of the check's docstring."""


@dataclass(frozen=True)
class NotRun:
    """What a check returns if the input has its columns, but too little in them to check."""

    why: str


Result = Problem | NotRun | None
"""None: the check ran, and there is no problem."""


@dataclass(frozen=True)
class InputCheck(Check["Callable[[Inspected], Result]"]):
    """A check of an input: how severe its finding is, and what it needs."""

    severity: CheckLevel
    needs: tuple[str, ...]
    """Contents of the input, of `ColumnSelection.contents`; without one the check does not run."""
    needs_rows: bool
    whole_groups: bool
    """It compares numbers of rows of groups, so it does not run on the rows of a condition."""

    def result(self, data: Inspected) -> Result:
        """Run the check if the input has what it needs."""
        if self.needs_rows and not data.count:
            return NotRun("the input has no rows")
        selection = data.selection
        if data.partial and self.whole_groups:
            return NotRun("--where may leave rows of groups out")
        for need in self.needs:
            if need not in selection.contents:
                return NotRun(selection.why_without(need))
        return self.run(data)


FINDINGS: Registry[InputCheck] = Registry()
"""Every check, by the name of its finding; those of wrong numbers first."""


def check(
    severity: CheckLevel, *needs: str, needs_rows: bool = True, whole_groups: bool = False
) -> Callable[[Callable[[Inspected], Result]], Callable[[Inspected], Result]]:
    """Add a function to FINDINGS; its name is the finding's, its docstring the meaning.

    Args:
        severity: if it is `error or warning`, the problem has its level.
        needs: contents of the input, of `ColumnSelection.contents`.
        needs_rows: whether the check runs on responses.
        whole_groups: whether it needs all rows of a group.
    """

    def add(function: Callable[[Inspected], Result]) -> Callable[[Inspected], Result]:
        FINDINGS.add(InputCheck(function, severity, needs, needs_rows, whole_groups))
        return function

    return add


def run_checks(
    data: Inspected, ignore: Collection[str] = ()
) -> tuple[list[Finding], list[CheckRun]]:
    """Run every check; return the findings, errors first, and which checks ran.

    Args:
        data: the input.
        ignore: names of checks that are not run.
    """
    findings: list[Finding] = []
    runs: list[CheckRun] = []
    for name, check in FINDINGS.items():
        result = NotRun("ignored with --ignore") if name in ignore else check.result(data)
        not_run = result.why if isinstance(result, NotRun) else None
        runs.append(CheckRun(name, not_run, found=isinstance(result, Problem)))
        if isinstance(result, Problem):
            findings.append(_finding(data, check, result))
    return sorted(findings, key=lambda finding: finding.level == "warning"), runs


def _finding(data: Inspected, check: InputCheck, problem: Problem) -> Finding:
    rows = problem.rows
    first = rows.arg_true().to_list() if isinstance(rows, pl.Series) else [*rows]
    advice, option = problem.advice or check.remedy, problem.option
    if option not in advice:
        advice = f"{advice.removesuffix('.')} ({option})."
    return Finding(
        check.name,
        "error" if problem.error or check.severity == "error" else "warning",
        problem.text,
        advice,
        tuple(dict.fromkeys(data.column(role) for role in problem.roles)),
        tuple(map(data.place, first[: data.evidence]))
        + tuple(map(Place, [*dict.fromkeys(problem.files)][: data.evidence])),
        option,
    )
