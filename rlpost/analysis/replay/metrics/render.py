"""The page of a replay of logged metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.search.candidates import in_line
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_MOST_NAMES = 4
_MOST_KEYS = 8
_MOST_STEPS_OF = 2


def metric_page(result: Json, *, verbose: bool = False) -> Page:
    """Return the page of a replay of logged metrics.

    Args:
        result: of `replay_log`.
        verbose: with medians of differences, the steps of all metrics that differ, and all keys.
    """
    return Page(
        f"rlpost replay · {result['file']} against {result['input']}",
        lines=[*_lines(result)],
        parts=[*_parts(result, verbose=verbose)],
        notices=[Notice("warning", text) for text in result["warnings"]],
        verdict=_verdict(result),
    )


def _verdict(result: Json) -> Notice:
    equal = sum(one["reproduced"] for one in result["metrics"])
    count = counted(len(result["metrics"]), "metric")
    digits = any(one["rounding"] for one in result["metrics"])
    rounded = ", or half of the log's last digit" if digits else ""
    not_computed = len(result["not_computed"])
    others = f"; {not_computed} not compared" if not_computed else ""
    text = f"{equal} of {count} equal within {result['tolerance']:g}{rounded}{others}"
    if result["reproduced"]:
        return Notice("ok", f"Reproduced: {text}")
    return Notice("error", f"Differs: {text}")


def _parts(result: Json, *, verbose: bool) -> Iterator[TextTable]:
    if result["metrics"]:
        yield _metric_table(result, verbose=verbose)
    if result["ties"]:
        yield TextTable(title="Ties", lines=[_tie(one) for one in result["ties"]])
    differing = [one for one in result["metrics"] if not one["reproduced"]]
    most = None if verbose else _MOST_STEPS_OF
    yield from (_steps(one) for one in differing[:most] if len(one["steps"]) > 1)
    others = [*_others(result)]
    if others:
        yield TextTable(title="Not compared", lines=others)


def _metric_table(result: Json, *, verbose: bool) -> TextTable:
    """Return the metrics; those that differ come first."""
    headings = ("metric", "recorded", "computed", "max |Δ|", "median", "computed as")
    metrics = sorted(result["metrics"], key=lambda one: one["reproduced"])
    rows = [_row(one) for one in metrics]
    shown = [i for i, heading in enumerate(headings) if verbose or heading != "median"]
    return TextTable(
        [headings[i] for i in shown],
        [[row[i] for i in shown] for row in rows],
        notes=["recorded and computed: of the step that differs the most"],
        text=(0, len(shown) - 1),
    )


def _lines(result: Json) -> Iterator[str]:
    steps, description = result["steps"], result["description"]
    by = {"value": "by number", "order": "in order", "shift": "shifted"}[steps["matched_by"]]
    key = "" if steps["key"] is None else f" (`{steps['key']}`)"
    responses, matched = counted(result["responses"], "response"), counted(steps["matched"], "step")
    yield f"{responses} of {matched}, matched {by}{key} to the log"
    for i, one in enumerate(result["findings"]):
        yield f"{'and' if i else 'The difference is'} in {one['name']}: {one['text']}"
    if description["options"]:
        yield f"simplest description: `{in_line(description['options'])}`"
    if description["micro_batch"] or description["ranks"] > 1 or description["updates"] > 1:
        yield f"split: {description['split']}"


def _tie(tie: Json) -> str:
    names, more = tie["values"][:_MOST_NAMES], len(tie["values"]) - _MOST_NAMES
    if not names:
        return f"{tie['option']}: {tie['text']}; separated by {tie['separating_data']}"
    which = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    joined = "; ".join(names) + (f"; and {more} more" if more > 0 else "")
    which = joined if any("," in name or " " in name for name in names) else which
    return f"{tie['option']}: also {which}; separated by {tie['separating_data']}"


def _row(one: Json) -> Sequence[str]:
    worst = max(
        (step for step in one["steps"] if None not in (step["recorded"], step["computed"])),
        key=lambda step: abs(step["recorded"] - step["computed"]),
        default={"recorded": None, "computed": None},
    )
    return (
        one["key"],
        _number(worst["recorded"]),
        _number(worst["computed"]),
        "0" if one["max_difference"] == 0 else _short(one["max_difference"]),
        "0" if one["median_difference"] == 0 else _short(one["median_difference"]),
        _about(one),
    )


def _about(one: Json) -> str:
    """Return how a metric is computed."""
    about = one["computed_as"] if "relation" not in one else f"closest: {one['computed_as']}"
    return about if one["informative"] else f"{about} (0 throughout)"


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
