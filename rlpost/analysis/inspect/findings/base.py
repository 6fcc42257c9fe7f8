"""The registry of checks: what a check needs, what it reads, what it returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from rlpost.analysis.findings import Check, Registry
from rlpost.analysis.inspect.failures import signs_of_failures
from rlpost.analysis.inspect.model import CheckRun, FindingEvidence, InputFinding, Severity
from rlpost.display.text import counted, plural
from rlpost.pipeline.turns import turn_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.model import (
        FailureFacts,
        InputFacts,
        Label,
        LengthFacts,
        MaskFacts,
        Mismatch,
        PromptGroup,
        RewardFacts,
        TokenFacts,
    )
    from rlpost.analysis.inspect.selection import PassResult
    from rlpost.recipe.roles import Unit


CheckSeverity = Literal["error", "warning", "error or warning"]
MOST_NAMED = 5  # steps in a text
UNITS = {"length": "entry", "tokens": "policy token"}
"""What columns of `PassResult.rows` count."""


@dataclass(frozen=True)
class Problem:
    """What a check returns if it finds a problem; with its name it is an `InputFinding`."""

    harm: float
    """0 to 100, orders findings. From 90 on, numbers are wrong; from 70 on, training may learn the
    wrong thing; below, it learns little or slowly."""
    text: str
    """The problem, with numbers."""
    advice: str
    count: int
    """Responses, groups, tokens or columns that show it."""
    of: int
    evidence: Sequence[FindingEvidence] = ()
    severity: Severity | None = None
    """For a check that is an error or a warning."""


@dataclass(frozen=True)
class NotRun:
    """What a check returns if the input has its columns, but too little in them to check."""

    why: str


Result = Problem | NotRun | None
"""None: the check ran, and there is no problem."""


@dataclass(frozen=True)
class InputCheck(Check["Callable[[CheckInput], Result]"]):
    """A check of an input: how severe its finding is, and what it needs."""

    severity: CheckSeverity
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
"""Every check, by the name of its finding."""


def check(
    severity: CheckSeverity, *needs: str, needs_rows: bool = True, whole_groups: bool = False
) -> Callable[[Callable[[CheckInput], Result]], Callable[[CheckInput], Result]]:
    """Add a function to FINDINGS; its name is the finding's, its docstring the meaning.

    Args:
        severity: if it is `error or warning`, the problem has its severity.
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
) -> tuple[list[InputFinding], list[CheckRun]]:
    """Run every check; return the findings, the most harmful first, and which checks ran.

    Args:
        data: the input.
        ignore: names of checks that are not run.
    """
    findings: list[InputFinding] = []
    runs: list[CheckRun] = []
    for one in FINDINGS.values():
        result = NotRun("ignored with --ignore") if one.name in ignore else one.result(data)
        not_run = result.why if isinstance(result, NotRun) else None
        runs.append(CheckRun(one.name, not_run, found=isinstance(result, Problem)))
        if isinstance(result, Problem):
            severity: Any = result.severity or one.severity
            parts = {**vars(result), "evidence": list(result.evidence), "severity": severity}
            findings.append(InputFinding(name=one.name, **parts))
    return sorted(findings, key=lambda finding: -finding.harm), runs


@dataclass(frozen=True)
class CheckInput:
    """The statistics of an input, and the rows behind them."""

    reading: PassResult
    table: CountedTable
    input: InputFacts
    group_rows: pl.DataFrame | None
    groups: PromptGroup | None
    rewards: RewardFacts | None
    lengths: LengthFacts | None
    masks: MaskFacts | None
    tokens: TokenFacts | None
    mismatch: Mismatch | None
    chosen_unit: Unit | None = None
    """What counts, as the user chose it; None: by the columns."""
    failures: FailureFacts | None = None
    repeated: tuple[NDArray[np.int64], int] | None = None
    """The policy tokens of each row that another row of its rollout trains too, [n], and of all."""
    evidence: int = 5
    """Rows to list for each finding, at most."""
    partial: bool = False
    """The rows are those of a condition, so groups may lack some."""

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

    @property
    def failed(self) -> pl.Series:
        """Which rows failed, by a column, [n]."""
        return self._flags("failed")

    @property
    def replaced(self) -> pl.Series:
        """The rows of whose step a later attempt of the run has rows, [n]."""
        return self._flags("superseded")

    def _flags(self, name: str) -> pl.Series:
        none = np.zeros(self.count, np.bool_)
        return pl.Series(self.table.rows.columns.get(name, none))

    @cached_property
    def no_answers(self) -> pl.Series:
        """Which rows with reward 0 look like failures that no column names, [n]."""
        none = pl.zeros(self.count, pl.Int8, eager=True) > 0
        if self.failures is not None:
            return none
        for flags in signs_of_failures(self.reading.rows).values():
            none |= flags
        return none

    @property
    def included(self) -> pl.Series:
        """The rows that neither masks nor failures nor later attempts leave out, [n]."""
        return pl.Series(self.table.counted)

    @property
    def counted(self) -> pl.Series:
        """The rows that no sample mask leaves out, [n]."""
        rows = self.reading.rows
        return rows["kept"] if "kept" in rows else pl.ones(self.count, pl.Int8, eager=True) > 0

    @property
    def count(self) -> int:
        """The number of responses."""
        return len(self.reading.rows)

    @property
    def unit(self) -> str:
        """What sizes of groups count: `response` or `rollout`."""
        return self.groups.of if self.groups else "response"

    def column(self, role: str) -> str:
        """Return the column that has a role; the role itself if no column has it."""
        return self.reading.selection.columns.columns.get(role, role)

    def examples(self, flags: pl.Series, *also: str) -> list[FindingEvidence]:
        """Return the first responses whose flag is set.

        Args:
            flags: [n] bool.
            also: columns of `PassResult.rows` whose numbers are part of the evidence.
        """
        rows = self.reading.rows.filter(flags).head(self.evidence)
        return [self._response(row, also) for row in rows.iter_rows(named=True)]

    def examples_named(self, flags: Mapping[str, pl.Series]) -> list[FindingEvidence]:
        """Return the first responses with one of these flags, with the names of their flags.

        Args:
            flags: [n] bool by name.
        """
        indices = (
            pl.DataFrame([*flags.values()])
            .select(pl.arg_where(pl.any_horizontal(pl.all())))
            .to_series()[: self.evidence]
            .to_list()
        )
        texts = [", ".join(n for n, flag in flags.items() if flag[i]) for i in indices]
        rows = self.examples_at(indices)
        return [replace(row, text=text) for row, text in zip(rows, texts, strict=True)]

    def examples_at(self, indices: Sequence[int], *also: str) -> list[FindingEvidence]:
        """Return the responses at these indices of `PassResult.rows`, in this order."""
        rows = self.reading.rows[list(indices[: self.evidence])]
        return [self._response(row, also) for row in rows.iter_rows(named=True)]

    def examples_of_steps(self, steps: Collection[Label], *also: str) -> list[FindingEvidence]:
        """Return the first response of each step; of a single step its first responses."""
        rows, steps = self.reading.rows, list(steps)
        if len(steps) == 1:
            return self.examples(rows["batch"] == steps[0], *also)
        firsts = [
            rows.select(index=pl.arg_where(pl.col("batch") == step))["index"].head(1).to_list()
            for step in steps[: self.evidence]
        ]
        return self.examples_at([index for first in firsts for index in first], *also)

    def examples_of_groups(self, flags: pl.Series) -> list[FindingEvidence]:
        """Return the first groups whose flag is set, [G] bool."""
        assert self.group_rows is not None
        groups = self.group_rows.filter(flags).head(self.evidence)
        firsts = self.reading.rows[groups["first"].to_list()]
        pairs = zip(groups.iter_rows(named=True), firsts.iter_rows(named=True), strict=True)
        return [self._group(group, first) for group, first in pairs]

    def step_count(self) -> int:
        """Return the number of different steps; 0 without a step column."""
        rows = self.reading.rows
        return rows["batch"].drop_nulls().n_unique() if "batch" in rows else 0

    def in_steps(self, steps: Collection[Label]) -> str:
        """Return ` in step 2 (1 of 3 steps)`; empty if these are all steps, or none."""
        count = self.step_count()
        if not steps or len(steps) >= count:
            return ""
        names = ", ".join(str(step) for step in list(steps)[:MOST_NAMED])
        more = ", ..." if len(steps) > MOST_NAMED else ""
        column = self.column("batch")
        noun = column if len(steps) == 1 else plural(column)
        return f" in {noun} {names}{more} ({len(steps):,} of {count:,} {plural(column)})"

    def _response(self, row: dict[str, Any], also: tuple[str, ...]) -> FindingEvidence:
        known = {name: row[name] for name in also if row.get(name) is not None}
        numbers = [name for name, value in known.items() if not math.isnan(value)]
        text = ", ".join(_with_unit(name, row[name]) for name in numbers)
        return FindingEvidence(self._file(row), row["row"], row.get("group"), text)

    def _group(self, group: dict[str, Any], first: dict[str, Any]) -> FindingEvidence:
        step = f"{self.column('batch')} {group['batch']}, " if "batch" in group else ""
        mean = group.get("mean")
        reward = "" if mean is None else f", mean reward {mean:.4g}"
        text = f"{step}{counted(group['rows'], self.unit)}{reward}"
        return FindingEvidence(self._file(first), first["row"], group["group"], text)

    def _file(self, row: dict[str, Any]) -> str:
        return self.input.files[int(row["file"])].path


def _with_unit(name: str, value: float) -> str:
    """Return `30 policy tokens`, or `reward 0.5`."""
    return counted(int(value), UNITS[name]) if name in UNITS else f"{name} {value:g}"
