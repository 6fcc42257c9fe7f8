"""Facts that a user expects of an input, and the findings that fail a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlpost.display.text import counted
from rlpost.errors import FindingsError, UsageError, no_such

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Json = dict[str, Any]
FailOn = Literal["error", "warning"]
GroupRow = Callable[[int], str]
MOST_EXAMPLES = 3


class ExpectedFact(NamedTuple):
    """A fact that a user can expect."""

    meaning: str
    unit: str = ""
    """What has a number each, all of which have to fit; empty for a single number."""


FACTS = {
    "responses": ExpectedFact("number of responses"),
    "files": ExpectedFact("number of files"),
    "steps": ExpectedFact("number of different steps"),
    "domains": ExpectedFact("number of different domains"),
    "groups": ExpectedFact("number of prompt groups"),
    "group_size": ExpectedFact("responses of each group; rollouts if these count", "group"),
    "responses_per_step": ExpectedFact("responses of each step", "step"),
    "policy_tokens": ExpectedFact("policy tokens of each response", "response"),
    "rewards": ExpectedFact("raw reward of each response, where it is finite", "response"),
}
"""What can be expected, by name."""


@dataclass(frozen=True)
class Expectation:
    """A fact that has to be between two bounds, both inclusive."""

    name: str
    low: float
    high: float
    text: str
    """As typed."""

    @classmethod
    def of(cls, name: str, value: object) -> Expectation:
        """Parse an expectation.

        Args:
            name: of `FACTS`.
            value: a number, or a range as text: `4..8`, `4..`, `..8`.

        Raises:
            UsageError: there is no such fact, or the value is neither.
        """
        text = f"{name}={value}"
        if name not in FACTS:
            every = f"there are {', '.join(FACTS)}"
            raise UsageError(no_such(f"--expect {text}: no fact {name!r}", name, FACTS, every))
        low, dots, high = str(value).partition("..")
        try:
            bounds = float(low or -math.inf), float((high or math.inf) if dots else low)
        except ValueError:
            bounds = math.nan, math.nan
        if not bounds[0] <= bounds[1] or bounds == (-math.inf, math.inf):
            raise UsageError(f"--expect {text}: write it {name}=NUMBER or {name}=LOW..HIGH")
        return cls(name, *bounds, text)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def expectations_of(expected: Mapping[str, object]) -> list[Expectation]:
    """Return expectations, by name and value; raises UsageError as `Expectation.of`."""
    return [Expectation.of(name, value) for name, value in expected.items()]


def _nowhere(_: Expectation) -> str:
    return ""


class MeasuredFact(NamedTuple):
    """What a fact is in an input."""

    low: float
    high: float
    """The smallest and the largest, if there are several; else the same number twice."""
    outside: Callable[[Expectation], str] = _nowhere
    """Returns where it is outside the bounds, as the end of a sentence."""


def unmet(
    expectations: Iterable[Expectation], facts: Mapping[str, MeasuredFact | str]
) -> dict[Expectation, str]:
    """Return the expectations that are not met, with what the input has.

    Args:
        expectations: to check.
        facts: by name; why it is unknown, as a text.
    """
    texts = {}
    for one in expectations:
        fact = facts[one.name]
        if isinstance(fact, str):
            texts[one] = f"--expect {one.text}: unknown, {fact}"
        elif fact.low not in one or fact.high not in one:
            span = f"{fact.low:,.6g}"
            span += f" to {fact.high:,.6g}" if fact.high != fact.low else ""
            texts[one] = f"--expect {one.text}: {span} came{fact.outside(one)}"
    return texts


def facts_of_summary(summary: Json, group_row: GroupRow) -> dict[str, MeasuredFact | str]:
    """Return the facts of a run, from its summary; arguments of `check_findings`."""
    tables = {name: summary[name] for name in ("steps", "domains")}
    facts: dict[str, MeasuredFact | str] = {
        "responses": _one(summary["responses"]),
        "files": _one(len(summary["inputs"])) if "inputs" in summary else "the input is a table",
        "responses_per_step": "no column for batch",
        "groups": "no column for group",
        "group_size": "no column for group",
    }
    for name, role in (("steps", "batch"), ("domains", "domain")):
        facts[name] = _one(len(tables[name])) if tables[name] else f"no column for {role}"
    if tables["steps"]:
        sizes = {one["step"]: one["responses"] for one in tables["steps"]}
        facts["responses_per_step"] = _by_step(sizes, sizes)
    if summary["groups"]:
        facts["groups"] = _one(summary["groups"]["count"])
        facts["group_size"] = _group_sizes(summary["groups"], group_row)
    for name, key in (("policy_tokens", "policy_tokens"), ("rewards", "reward")):
        facts[name] = "there are no such numbers"
        if key in summary and summary[key]["mean"] is not None:
            own = {one["step"]: one[key] for one in tables["steps"] if one[key]["min"] is not None}
            low, high = ({step: one[end] for step, one in own.items()} for end in ("min", "max"))
            ends = _by_step(low, high)
            facts[name] = MeasuredFact(summary[key]["min"], summary[key]["max"], ends.outside)
    return facts


def _one(value: float) -> MeasuredFact:
    return MeasuredFact(value, value)


def _by_step(low: Mapping[Any, float], high: Mapping[Any, float]) -> MeasuredFact:
    """Return a fact of each step, from its smallest and its largest number."""

    def outside(expectation: Expectation) -> str:
        steps = [one for one in low if low[one] not in expectation or high[one] not in expectation]
        named = ", ".join(map(str, steps[:MOST_EXAMPLES]))
        more = ", ..." if len(steps) > MOST_EXAMPLES else ""
        return f", in {len(steps):,} of {counted(len(low), 'step')}: {named}{more}" if low else ""

    return MeasuredFact(min(low.values(), default=0), max(high.values(), default=0), outside)


def _group_sizes(groups: Json, group_row: GroupRow) -> MeasuredFact | str:
    if not groups["count"]:
        return "no response has a finite reward"

    def outside(expectation: Expectation) -> str:
        sizes = {int(size): count for size, count in groups["sizes"].items()}
        wrong = {size: count for size, count in sizes.items() if size not in expectation}
        count, of = sum(wrong.values()), counted(groups["count"], "group")
        examples = [
            f"{counted(wrong[size], 'group')} of {size:,} (the first begins at {group_row(size)})"
            for size in sorted(wrong)[:MOST_EXAMPLES]
        ]
        return f", in {count:,} of {of}: {'; '.join(examples)}"

    return MeasuredFact(groups["size"]["min"], groups["size"]["max"], outside)


def check_findings(
    summary: Json,
    expected: Mapping[str, object],
    fail_on: FailOn | None,
    group_row: GroupRow,
) -> None:
    """Raise FindingsError before a run publishes its files, if it has findings that fail it.

    An expectation that is not met always does. It is added to `errors` of the summary.

    Args:
        summary: of the whole run.
        expected: facts by name; see `Expectation.of`.
        fail_on: the least severity of findings that fail a run; None: none does.
        group_row: returns the name of the first row of the first group of a size.
    """
    failed = unmet(expectations_of(expected), facts_of_summary(summary, group_row)).values()
    summary["errors"] = [*failed, *summary["errors"]]
    errors = summary["errors"] if fail_on else [*failed]
    warnings = summary["warnings"] if fail_on == "warning" else []
    if errors or warnings:
        findings = counted(len(errors) + len(warnings), "finding")
        last = f"nothing was published because of {findings}"
        raise FindingsError(*errors, *warnings, last, summary=summary | {"outputs": []})
