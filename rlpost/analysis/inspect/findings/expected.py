"""The finding about what a user expects of the input."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.display.text import counted
from rlpost.pipeline.expectations import FACTS, Expectation, MeasuredFact, unmet

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.analysis.inspect.findings.base import CheckInput, Result
    from rlpost.analysis.inspect.model import FindingEvidence


@check("error", needs_rows=False)
def unmet_expectations(data: CheckInput) -> Result:
    """The input differs from what --expect names.

    Correct the dump, or the expectation. `rlpost advantages --expect` publishes nothing then.
    """
    if not data.expectations:
        return NotRun("no --expect")
    failed = unmet(data.expectations, _facts(data))
    if not failed:
        return None
    each = -(-data.evidence // len(failed))
    evidence = [row for one in failed for row in _evidence(data, one)[:each]]
    return Problem(
        100,
        "; ".join(failed.values()),
        "correct the dump, or the expectation; `rlpost advantages --expect` publishes nothing then",
        len(failed), len(data.expectations), evidence[:data.evidence],
    )  # fmt: skip


def _facts(data: CheckInput) -> dict[str, MeasuredFact | str]:
    """Return each fact of the input, or why it is unknown."""
    rows = data.reading.rows
    facts: dict[str, MeasuredFact | str] = {
        "responses": _one(data.count),
        "files": _one(len(data.input.files)),
        "groups": _one(data.groups.count) if data.groups else _without(data, "group"),
    }
    for name, role in (("steps", "batch"), ("domains", "domain")):
        known = role in rows
        facts[name] = _one(rows[role].drop_nulls().n_unique()) if known else _without(data, role)
    for name, (content, numbers) in _NUMBERS.items():
        column = numbers(data)
        if column is None:
            facts[name] = _without(data, content)
        elif not len(column):
            facts[name] = "there are no such numbers"
        else:
            facts[name] = _ends(column, FACTS[name].unit)
    return facts


def _one(value: float) -> MeasuredFact:
    return MeasuredFact(value, value)


def _without(data: CheckInput, content: str) -> str:
    return data.reading.selection.why_without(content)


def _ends(numbers: pl.Series, unit: str) -> MeasuredFact:
    """Return a fact of each group, step or response."""

    def outside(expectation: Expectation) -> str:
        return f", in {_outside(numbers, expectation).sum():,} of {counted(len(numbers), unit)}"

    low, high = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
    return MeasuredFact(low, high, outside)


def _outside(numbers: pl.Series, expectation: Expectation) -> pl.Series:
    return ~numbers.is_between(expectation.low, expectation.high)


def _group_sizes(data: CheckInput) -> pl.Series | None:
    return None if data.group_rows is None else data.group_rows["rows"]


def _step_sizes(data: CheckInput) -> pl.Series | None:
    steps = _steps(data)
    return None if steps is None else steps["count"]


def _steps(data: CheckInput) -> pl.DataFrame | None:
    """Return the number of responses of each step, in the order of the input."""
    if "batch" not in data.reading.rows:
        return None
    rows = data.reading.rows.drop_nulls("batch")
    return rows.group_by("batch", maintain_order=True).agg(count=pl.len())


def _finite(data: CheckInput, column: str) -> pl.Series | None:
    if column not in data.reading.rows:
        return None
    values = data.reading.rows[column].cast(pl.Float64)
    return values.filter(values.is_finite())


_NUMBERS: dict[str, tuple[str, Callable[[CheckInput], pl.Series | None]]] = {
    "group_size": ("group", _group_sizes),
    "responses_per_step": ("batch", _step_sizes),
    "policy_tokens": ("lengths", lambda data: _finite(data, "tokens")),
    "rewards": ("reward", lambda data: _finite(data, "reward")),
}
"""For each fact of several groups, steps or responses: what it needs, and its numbers."""


def _evidence(data: CheckInput, expectation: Expectation) -> list[FindingEvidence]:
    """Return groups, steps or responses that differ from an expectation; none of other facts."""
    name = expectation.name
    numbers = _NUMBERS[name][1](data) if name in _NUMBERS else None
    if numbers is None:
        return []
    if name == "group_size":
        return data.examples_of_groups(_outside(numbers, expectation))
    if name == "responses_per_step":
        steps = _steps(data)
        assert steps is not None
        wrong = steps.filter(_outside(numbers, expectation)).head(data.evidence)
        return [
            replace(
                data.examples_of_steps([step])[0],
                text=f"{data.column('batch')} {step}: {counted(count, 'response')}",
            )
            for step, count in wrong.iter_rows()
        ]
    column = {"policy_tokens": "tokens", "rewards": "reward"}[name]
    values = data.reading.rows[column].cast(pl.Float64)
    return data.examples(values.is_finite() & _outside(values, expectation), column)
