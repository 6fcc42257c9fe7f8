"""The page of a replay: what differs, from which stage on, and what the difference is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.analysis.difference import largest_table
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Json = dict[str, Any]
_STYLES = {"equal": "green", "differs": "red"}
_MOST_RECIPES = 5


def page(result: Json, *, verbose: bool = False) -> Page:
    """Return the page of a replay, or of a search for a recipe.

    Args:
        result: of `replay`.
        verbose: also stages that are equal, all recipes, and times.
    """
    return Page(
        f"rlpost replay · {result['input']}",
        lines=[_input_line(result), *_differences(result), *_equal_line(result)],
        parts=[*_parts(result, verbose=verbose)],
        notices=[Notice("warning", text) for text in result["warnings"]],
        verdict=verdict(result),
        next_steps=[*_next_steps(result)],
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _input_line(result: Json) -> str:
    """Return how much of the input was compared, and with what."""
    tokens = "" if result["tokens"] is None else f", {counted(result['tokens'], 'token')}"
    count = f"{counted(result['responses'], 'response')}{tokens}"
    if result["responses"] < result["of_responses"]:
        part = f"{result['responses']:,} of {counted(result['of_responses'], 'response')}"
        count = f"the first {part} ({result['scope']}{tokens}; --sample TOKENS compares more)"
    if result.get("search", {}).get("tried"):
        return f"{count}; {counted(result['search']['tried'], 'recipe')} tried"
    named = result["recipe"]["named"]
    return f"{count}; computed by {f'`{named}`' if named.startswith('-') else named}"


def _differences(result: Json) -> Iterator[str]:
    """Yield what the difference is, the best explanation first, and what a search found."""
    for i, finding in enumerate(result["findings"]):
        share = finding["explains"]
        explains = "" if share >= 1 else f" ({percent(share)} of these)"
        yield f"{'and' if i else 'The difference is'} in {finding['text']}{explains}"
    if "search" in result and not result["reproduced"]:
        # Not its share of equal numbers: a single option, on the line above, may reproduce all.
        share, best = result["search"]["share_equal"], result["search"]["best"]["named"]
        equal = "" if result["findings"] else f"; {percent(share)} of its numbers are equal"
        yield f"the nearest recipe: `{best}`{equal}"


def _equal_line(result: Json) -> Iterator[str]:
    """Yield the names of the columns that are equal, if no table of stages has them."""
    if result["reproduced"]:
        yield f"equal: {_names([stage['column'] for stage in result['stages']])}"


# ---- the verdict ----


def verdict(result: Json) -> Notice:
    """Return whether the recipe reproduces the input, else the first stage that differs."""
    stages = result["stages"]
    if result["reproduced"]:
        columns = f"{counted(len(stages), 'recorded column')} equal within"
        return Notice("ok", f"Reproduced{_by(result)}: {columns} {result['tolerance']:g}")
    first = next((stage for stage in stages if stage["stage"] == result["first"]), None)
    if first is None:
        return Notice(
            "error", "Differs: recorded numbers are NaN, null or infinite; others are equal"
        )
    differ = f"{first['differing']:,} of {counted(first['compared'], _unit(first))}"
    text = f"{_by(result)} at {first['title']}: {differ}, by {number(first['largest'])} at most"
    return Notice("error", f"{text} (`{first['column']}`)", advice=_advice(result))


def _by(result: Json) -> str:
    """Return by which recipe the columns were reproduced, or that none was found."""
    reproduced, search = result["reproduced"], result.get("search")
    if search is None:
        return "" if reproduced else "Differs"
    if not reproduced:
        return "No recipe found: the nearest differs"
    others = len(search["same_numbers"])
    if others:
        return f" by {others + 1} recipes with the same numbers on this file"
    by_metadata = ", the recipe in its metadata" * search["best"]["by_metadata"]
    return f" by `{search['best']['named']}`{by_metadata}"


def _advice(result: Json) -> str:
    """Return what to do about a difference."""
    if result["findings"]:
        return str(result["findings"][0]["advice"])
    if "search" not in result:
        return "No single change explains it: without --preset, replay searches for the recipe."
    roles = {role: facts["column"] for role, facts in result["roles"].items()}
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


def _next_steps(result: Json) -> Iterator[str]:
    if "search" in result and result["reproduced"]:
        words = result["search"]["best"]["named"]
        yield f"rlpost config {words} --format toml  # a file for --config"


# ---- tables ----


def _parts(result: Json, *, verbose: bool) -> Iterator[TextTable]:
    search = result.get("search")
    if search and result["reproduced"] and search["same_numbers"]:
        yield _same_numbers(search, verbose=verbose)
    if verbose or not result["reproduced"]:
        yield stage_table(result, verbose=verbose)
    sides = {"recorded": "recorded", "computed": "computed"}
    of = "".join(x["title"] for x in result["stages"] if x["first"])
    yield from largest_table(result["examples"], sides, f"Largest differences of {of}")


def _same_numbers(search: Json, *, verbose: bool) -> TextTable:
    """Return the recipes with the same numbers."""
    others = search["same_numbers"]
    listed = others[: None if verbose else _MOST_RECIPES]
    rows = [(search["best"]["named"], "the fewest options")]
    rows += [(recipe["named"], "") for recipe in listed]
    more = len(others) - len(listed)
    title = "Recipes with the same numbers on this file"
    notes = [f"… {more} more: --verbose prints them"] if more else []
    return TextTable((), rows, title=title, text=(0, 1), notes=notes)


def stage_table(result: Json, *, verbose: bool) -> TextTable:
    """Return the table of the recorded stages; verbose with counts."""
    stages = result["stages"]
    columns = {
        "stage": [stage["title"] for stage in stages],
        "recorded column": [stage["column"] for stage in stages],
        "compared": [counted(stage["compared"], _unit(stage)) for stage in stages],
        "equal": [percent(stage["share_equal"]) for stage in stages],
        "max |Δ|": aligned([stage["largest"] for stage in stages]),
        "verdict": [Text(stage["verdict"], _STYLES[stage["verdict"]]) for stage in stages],
    }
    left_out = () if verbose else ("stage", "compared")
    kept = {name: cells for name, cells in columns.items() if name not in left_out}
    rows = [*zip(*kept.values(), strict=True)]
    text = [i for i, name in enumerate(kept) if name in ("stage", "recorded column", "verdict")]
    notes = [*_notes(stages)]
    return TextTable([*kept], rows, "Stages", text=text, notes=notes)


def _unit(stage: Json) -> str:
    """Return what the elements of a stage are: `token` or `response`."""
    return str(stage["unit"]).removesuffix("s")


def _notes(stages: Sequence[Json]) -> Iterator[str]:
    """Yield what differs in the stages and does not count."""
    for stage in stages:
        title = stage["title"]
        if stage["outside_differing"]:
            tokens = counted(stage["outside_differing"], "token")
            yield f"{title}: {tokens} outside the mask differ; they do not count"
        if stage["rounding"]:
            yield (
                f"{title}: in groups of equal rewards, {counted(stage['rounding'], _unit(stage))} "
                "within the float32 rounding of the mean divided by ε: equal"
            )
