"""The replay of logged metrics as tables for a terminal, a pipe and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.replay import options_as_typed
from rlpost.display.tables import TextTable
from rlpost.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_MOST_NAMES = 4
_MOST_KEYS = 8


def metric_tables(result: Json) -> Iterator[TextTable]:
    """Yield the tables of a result of `replay_metrics`: the description, metrics, ties, the rest.

    Args:
        result: as returned.
    """
    yield TextTable(title=_title(result), lines=[*_lines(result)])
    yield TextTable(
        ("metric", "recorded", "computed", "max diff", "median", "computed as"),
        [_row(one) for one in result["metrics"]],
        notes=["Recorded and computed are of the step that differs the most."],
        text=(0, 5),
    )
    differing = [one for one in result["metrics"] if not one["reproduced"]]
    yield from (_steps(one) for one in differing[:2] if len(one["steps"]) > 1)
    others = [*_others(result)]
    if others:
        yield TextTable(title="not compared", lines=others)


def _title(result: Json) -> str:
    equal = [one for one in result["metrics"] if one["reproduced"]]
    count = len(result["metrics"])
    if not count:
        return "metrics: none can be computed from this dump"
    which = "all" if len(equal) == count > 1 else str(len(equal))
    return f"metrics: {which} of {count} reproduced" if which != "all" else (
        f"metrics: all {count} reproduced"
    )  # fmt: skip


def _lines(result: Json) -> Iterator[str]:
    steps, description = result["steps"], result["description"]
    by = {"value": "by number", "order": "in order", "shift": "shifted"}[steps["matched_by"]]
    yield (
        f"{result['file']} ({result['format']}): {counted(steps['matched'], 'step')} matched {by}, "
        f"{counted(result['responses'], 'response')}"
    )
    if description["options"]:
        yield f"smallest description: {options_as_typed(description['options'])}"
    if description["micro_batch"] or description["ranks"] > 1 or description["updates"] > 1:
        yield f"split: {description['split']}"
    for one in result["findings"]:
        yield f"{one['finding']}: {one['text']}"
    for tie in result["ties"]:
        yield f"tie: {_tie(tie)}"


def _tie(tie: Json) -> str:
    names, more = tie["values"][:_MOST_NAMES], len(tie["values"]) - _MOST_NAMES
    if not names:
        return f"{tie['option']}: {tie['text']}; told apart by {tie['told_apart_by']}"
    which = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    joined = "; ".join(names) + (f"; and {more} more" if more > 0 else "")
    which = joined if any("," in name or " " in name for name in names) else which
    return f"{tie['option']}: also {which}; told apart by {tie['told_apart_by']}"


def _row(one: Json) -> Sequence[str]:
    worst = max(
        (step for step in one["steps"] if None not in (step["recorded"], step["computed"])),
        key=lambda step: abs(step["recorded"] - step["computed"]),
        default={"recorded": None, "computed": None},
    )
    about = one["computed_as"] if one["reproduced"] else f"closest: {one['computed_as']}"
    about += "" if one["informative"] else " (0 throughout)"
    return (
        one["key"],
        _number(worst["recorded"]),
        _number(worst["computed"]),
        "0" if one["max_difference"] == 0 else _short(one["max_difference"]),
        "0" if one["median_difference"] == 0 else _short(one["median_difference"]),
        about,
    )


def _steps(one: Json) -> TextTable:
    """Return the steps of a metric that is not reproduced."""
    rows = [
        (
            str(step["step"]),
            _number(step["recorded"]),
            _number(step["computed"]),
            _ratio(step["recorded"], step["computed"]),
        )
        for step in one["steps"][:12]
    ]
    more = len(one["steps"]) - len(rows)
    notes = [f"{counted(more, 'more step')}"] if more > 0 else []
    headings = ("step", "recorded", "computed", "ratio")
    return TextTable(headings, rows, title=f"{one['key']} by step", notes=notes)


def _others(result: Json) -> Iterator[str]:
    for one in result["not_computed"]:
        yield f"{one['key']}: {one['text']}"
    unknown = result["unknown_keys"]
    if unknown:
        names = ", ".join(unknown[:_MOST_KEYS])
        more = len(unknown) - _MOST_KEYS
        yield (
            f"{counted(len(unknown), 'unknown key')}: {names}"
            + (f" and {more} more" if more > 0 else "")
            + "; --map-metric METRIC=KEY names one"
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _ratio(left: float | None, right: float | None) -> str:
    return "" if left is None or not right else f"{left / right:.6g}"
