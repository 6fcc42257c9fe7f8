"""The registry of checks: what a check needs, what it reads, what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import CheckRun
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.display.text import counted, plural, share
from rlpost.findings import Check, Finding, Place, Registry
from rlpost.pipeline.turns import turn_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.model import Facts, Label, TokenColumn
    from rlpost.analysis.inspect.reading import PassResult
    from rlpost.recipe.roles import Unit


CheckLevel = Literal["error", "warning", "error or warning"]
MOST_NAMED = 5  # steps in a text


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
class InputCheck(Check["Callable[[CheckInput], Result]"]):
    """A check of an input: how severe its finding is, and what it needs."""

    severity: CheckLevel
    needs: tuple[str, ...]
    """Contents of the input, of `ColumnSelection.contents`; without one the check does not run."""
    needs_rows: bool
    whole_groups: bool
    """It compares numbers of rows of groups, so it does not run on the rows of a condition."""

    def result(self, data: CheckInput) -> Result:
        """Run the check if the input has what it needs."""
        if self.needs_rows and not data.count:
            return NotRun("the input has no rows")
        selection = data.reading.selection
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
) -> Callable[[Callable[[CheckInput], Result]], Callable[[CheckInput], Result]]:
    """Add a function to FINDINGS; its name is the finding's, its docstring the meaning.

    Args:
        severity: if it is `error or warning`, the problem has its level.
        needs: contents of the input, of `ColumnSelection.contents`.
        needs_rows: whether the check runs on responses.
        whole_groups: whether it needs all rows of a group.
    """

    def add(function: Callable[[CheckInput], Result]) -> Callable[[CheckInput], Result]:
        FINDINGS.add(InputCheck(function, severity, needs, needs_rows, whole_groups))
        return function

    return add


def run_checks(
    data: CheckInput, ignore: Collection[str] = ()
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


def _finding(data: CheckInput, check: InputCheck, problem: Problem) -> Finding:
    rows, files = problem.rows, [file.path for file in data.facts.input.files]
    first = (rows.arg_true() if isinstance(rows, pl.Series) else pl.Series(rows)).to_list()
    places = data.reading.rows[first[: data.evidence]].select("file", "row").iter_rows()
    advice, option = problem.advice or check.remedy, problem.option
    if option not in advice:
        advice = f"{advice.removesuffix('.')} ({option})."
    return Finding(
        check.name,
        "error" if problem.error or check.severity == "error" else "warning",
        problem.text,
        advice,
        tuple(dict.fromkeys(data.column(role) for role in problem.roles)),
        tuple(Place(files[file], row) for file, row in places)
        + tuple(Place(file) for file in problem.files[: data.evidence]),
        option,
    )


@dataclass(frozen=True)
class CheckInput:
    """The statistics of an input, and the rows behind them."""

    reading: PassResult
    table: CountedTable
    facts: Facts
    """Without findings."""
    group_rows: pl.DataFrame | None
    chosen_unit: Unit | None = None
    """What counts, as the user chose it; None: by the columns."""
    repeated: tuple[NDArray[np.int64], int] | None = None
    """The policy tokens of each row that another row of its rollout trains too, [n], and of all."""
    evidence: int = 5
    """Rows to list for each finding, at most."""
    partial: bool = False
    """The rows are those of a condition, so groups may lack some."""

    @property
    def log_probs(self) -> dict[str, TokenColumn]:
        """The columns of log-probs that were read, by role."""
        columns = self.facts.token_columns
        return {role: columns[role] for role in LOG_PROBS if role in columns}

    @property
    def by_rollout(self) -> bool:
        """Statistics count rollouts, not rows."""
        return self.table.resolved.unit == "rollout"

    @cached_property
    def turns(self) -> pl.Series:
        """Which rows look like turns of a rollout, and by what, as `turn_rows` returns it, [n]."""
        table, turn = self.table.rows, None
        if "turn" in self.reading.rows:
            turn = table["turn"].astype(np.int64)
        rollout = table.columns.get("rollout")
        if "group" not in self.reading.rows or (rollout is None and turn is None):
            return pl.zeros(self.count, pl.Int8, eager=True)
        return pl.Series(turn_rows(table["group"], rollout, turn))

    def rows_of(self, *names: str) -> pl.DataFrame:
        """Return columns of the rows, as far as they exist, and `index`: the rows have forty."""
        rows = self.reading.rows
        index = pl.int_range(pl.len(), dtype=pl.UInt32).alias("index")
        return rows.select(index, *(name for name in dict.fromkeys(names) if name in rows))

    def flags(self, name: str) -> pl.Series:
        """The flags of a column of the table, such as `failed` and `superseded`, [n]; else 0."""
        return pl.Series(self.table.rows.columns.get(name, np.zeros(self.count, np.bool_)))

    @property
    def included(self) -> pl.Series:
        """The rows that neither masks nor failures nor later attempts leave out, [n]."""
        return pl.Series(self.table.counted)

    @property
    def unmasked(self) -> pl.Series:
        """The rows that no sample mask leaves out, [n]."""
        rows = self.reading.rows
        return rows["kept"] if "kept" in rows else pl.Series(np.ones(self.count, np.bool_))

    @property
    def count(self) -> int:
        """The number of responses."""
        return len(self.reading.rows)

    def part(self, count: int) -> str:
        """Return `3 of 192 responses (1.6 %)`; `rows` where rollouts count."""
        rows = counted(self.count, self.facts.row_noun)
        return f"{count:,} of {rows} ({share(count, self.count)})"

    def column(self, role: str) -> str:
        """Return the column that has a role; the role itself if no column has it."""
        selection = self.reading.selection
        others = {"prompt": selection.prompt, "reward": selection.reward_column}
        served = others | selection.columns.columns
        return served.get(role) or role

    @property
    def steps(self) -> int:
        """The number of steps; 0 without a column of steps."""
        rows = self.reading.rows
        return rows["batch"].drop_nulls().n_unique() if "batch" in rows else 0

    def in_steps(self, steps: Collection[Label]) -> str:
        """Return ` in step 2 (1 of 3 steps)`; empty if these are all steps, or none."""
        if not steps or len(steps) >= self.steps:
            return ""
        names = ", ".join(str(step) for step in list(steps)[:MOST_NAMED])
        more = ", ..." if len(steps) > MOST_NAMED else ""
        column = self.column("batch")
        noun = column if len(steps) == 1 else plural(column)
        return f" in {noun} {names}{more} ({len(steps):,} of {self.steps:,} {plural(column)})"
