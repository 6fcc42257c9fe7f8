"""The page of a replay: what differs, from which stage on, and what the difference is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.analysis.replay.render_examples import examples
from rlpost.analysis.replay.render_search import search_lines, search_parts, search_verdict
from rlpost.analysis.replay.stages import STAGES
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Json = dict[str, Any]
_STYLES = {"equal": "green", "follows": "yellow", "differs": "red"}


def page(result: Json, *, verbose: bool = False) -> Page:
    """Return the page of a replay, or of a search for a recipe.

    Args:
        result: of `replay`.
        verbose: also stages that are equal, all recipes and examples, and times.
    """
    return Page(
        f"rlpost replay · {result['input']}",
        lines=[_input_line(result), *_differences(result), *_equal_line(result)],
        parts=[*_parts(result, verbose=verbose)],
        notices=[Notice("warning", text) for text in warning_texts(result)],
        verdict=verdict(result),
        next_steps=[*_next_steps(result)],
    )


def warning_texts(result: Json) -> list[str]:
    """Return what was not compared, or is not as usual, a sentence each."""
    texts = list(result["warnings"])
    if result["not_computed"]:
        names = _names(result["not_computed"])
        texts.append(f"not compared, since the recipe computes none: {names}")
    order = [one["stage"] for one in result["stages"]]
    elsewhere = [one["stage"] for one in result.get("whole_input", ()) if not one["equal"]]
    if elsewhere and order.index(elsewhere[0]) < _place(order, result["first"]):
        title = STAGES[elsewhere[0]].title
        texts.append(f"beyond these rows {title} differs, too (last table): --sample compares more")
    return texts


def _place(order: list[str], first: str | None) -> int:
    return len(order) if first is None else order.index(first)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _input_line(result: Json) -> str:
    """Return how much of the input was compared, and with what."""
    tokens = "" if result["tokens"] is None else f", {counted(result['tokens'], 'token')}"
    count = f"{counted(result['responses'], 'response')}{tokens}"
    if result["responses"] < result["of_responses"]:
        part = f"{result['responses']:,} of {counted(result['of_responses'], 'response')}"
        count = f"{part} ({result['scope']}{tokens}) stage by stage, then all"
    if "search" in result:
        return f"{count}; {counted(result['search']['tried'], 'recipe')} tried"
    named = result["recipe"]["named"]
    return f"{count}; computed by {f'`{named}`' if named.startswith('-') else named}"


def _differences(result: Json) -> Iterator[str]:
    """Yield what the difference is, the best explanation first, and what a search found."""
    own = [one for one in result["findings"] if not one["note"]]
    for i, one in enumerate(own):
        explains = "" if one["explains"] >= 1 else f" ({percent(one['explains'])} of these)"
        yield f"{'and' if i else 'The difference is'} in {one['text']}{explains}"
    if "search" in result:
        yield from search_lines(result)


def _equal_line(result: Json) -> Iterator[str]:
    """Yield the names of the columns that are equal, if no table of stages has them."""
    if result["reproduced"]:
        yield f"equal: {_names([one['column'] for one in result['stages']])}"


def verdict(result: Json) -> Notice:
    """Return whether the recipe reproduces the input, else the first stage that differs."""
    stages = result["stages"]
    within = f"within {result['tolerance']:g}"
    if result["reproduced"]:
        columns = f"{counted(len(stages), 'recorded column')} equal {within}"
        by = search_verdict(result) if "search" in result else ""
        return Notice("ok", f"Reproduced{by}: {columns}")
    first = next((one for one in stages if one["stage"] == result["first"]), None)
    if first is None and any(not one["note"] for one in result["findings"]):
        return Notice(
            "error", "Differs: recorded numbers are NaN, null or infinite; others are equal"
        )
    if first is None:
        text = "Differs, but not in the rows compared stage by stage (last table)"
        return Notice("error", text)
    unit = _unit(first, result)
    differ = f"{first['differing']:,} of {counted(first['compared'], unit)}"
    before = _names(first["from_recorded"])
    source = f", computed from the recorded {before}" if before else ""
    by = search_verdict(result) if "search" in result else "Differs"
    text = f"{by} at {first['title']}: {differ}, by {number(first['largest'])} at most"
    return Notice("error", f"{text} (`{first['column']}`{source})", advice=_advice(result))


def _advice(result: Json) -> str:
    """Return what to do about a difference."""
    found = [one for one in result["findings"] if not one["note"]]
    if found:
        return str(found[0]["advice"])
    if "search" not in result:
        return "No single change explains it: without --preset, replay searches for the recipe."
    roles = {role: one["column"] for role, one in result["roles"].items()}
    columns = _names(
        [roles[role] for role in ("reward", "group", "batch", "mask") if role in roles]
    )
    recorded = {"kl", "response_level_rewards", "token_level_rewards"} - {*result["recorded"]}
    earlier = f" Record {_names(sorted(recorded))}, too: the first that differs is the cause."
    return (
        f"Check that {columns} are the trainer's (--map ROLE=COLUMN reads others), and that no row "
        f"of a group is missing.{earlier if recorded else ''} Set the options that are "
        "certain, such as --estimator: the search then tries fewer recipes."
    )


def _unit(stage: Json, result: Json) -> str:
    """Return what the elements of a stage are: `token` or `response`."""
    level = STAGES[stage["stage"]].level if result["tokens"] is not None else "responses"
    return str(stage.get("unit", level)).removesuffix("s")


def _parts(result: Json, *, verbose: bool) -> Iterator[TextTable]:
    if "search" in result:
        yield from search_parts(result, verbose=verbose)
    if verbose or not result["reproduced"]:
        yield stage_table(result, verbose=verbose)
    yield from examples(result, verbose=verbose)
    if "whole_input" in result:
        yield _whole_input(result)


def stage_table(result: Json, *, verbose: bool) -> TextTable:
    """Return the table of the recorded stages.

    Args:
        result: of `replay`.
        verbose: with counts, and the definition of equal.
    """
    stages = result["stages"]
    columns = {
        "stage": [one["title"] for one in stages],
        "recorded column": [one["column"] for one in stages],
        "compared": [counted(one["compared"], _unit(one, result)) for one in stages],
        "equal": [percent(one["share_equal"]) for one in stages],
        "max |Δ|": aligned([one["largest"] for one in stages]),
        "verdict": [Text(_verdict_of(one), _STYLES[one["verdict"]]) for one in stages],
    }
    left_out = () if verbose else ("stage", "compared")
    shown = {name: cells for name, cells in columns.items() if name not in left_out}
    rows = [*zip(*shown.values(), strict=True)]
    text = [i for i, name in enumerate(shown) if name in ("stage", "recorded column", "verdict")]
    notes = [*_notes(result, verbose=verbose)]
    return TextTable([*shown], rows, "Stages", text=text, notes=notes)


def _verdict_of(stage: Json) -> str:
    """Return the verdict on a stage; `follows` is a stage whose input differs, and nothing else."""
    return "equal, given the stage before" if stage["verdict"] == "follows" else stage["verdict"]


def _notes(result: Json, *, verbose: bool) -> Iterator[str]:
    """Yield what the numbers of the stages mean, as far as they occur."""
    tolerance = result["tolerance"]
    if verbose:
        units = {_unit(one, result) for one in result["stages"]}
        value = " + max |value|" if "token" in units and "values" in result["roles"] else ""
        slack = f"{tolerance / 100:g}·(1 + |raw reward|{value})"
        yield f"equal: |Δ| ≤ {tolerance:g}·|computed| + {slack}"
        yield "only policy tokens count"
        for one in result["stages"]:
            before = _names(one["from_recorded"])
            if before:
                yield f"{one['title']}: computed from the recorded {before}"
    outside = [one for one in result["stages"] if one.get("outside_differing")]
    if outside:
        counts = {one["outside_differing"] for one in outside}
        most = f"{'up to ' if len(counts) > 1 else ''}{counted(max(counts), 'token')}"
        titles = ", ".join(one["title"] for one in outside)
        yield f"{titles}: {most} outside the mask differ; they do not count"
    for one in result["stages"]:
        if one.get("rounding"):
            yield (
                f"{one['title']}: in groups of equal rewards, "
                f"{counted(one['rounding'], _unit(one, result))} within the float32 rounding of "
                "the mean divided by ε: equal"
            )


def _whole_input(result: Json) -> TextTable:
    """Return the table of the whole input, from the start of the recipe."""
    every = result["whole_input"]
    largest = aligned([one["largest"] for one in every])
    rows = [
        (
            STAGES[one["stage"]].title,
            counted(one["compared"], _unit(one, result)),
            percent(one["share_equal"]),
            most,
            f"{one['responses_differing']:,}",
            ", ".join(map(str, one["first_rows"][:3])),
        )
        for one, most in zip(every, largest, strict=True)
    ]
    headings = ("stage", "compared", "equal", "max |Δ|", "responses that differ", "first rows")
    title = f"The whole input: {counted(result['of_responses'], 'response')}, from the start"
    return TextTable(headings, rows, title=title)


def _next_steps(result: Json) -> Iterator[str]:
    if "search" in result and result["reproduced"]:
        yield "next: --save-config PATH writes the first recipe as a file for --config"
