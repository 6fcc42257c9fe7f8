"""The result of a search on a page: the recipes, and rows that they do not reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
_MOST_RECIPES = 5
_BY_METADATA = "← in the metadata of the file"


def search_verdict(result: Json) -> str:
    """Return by which recipe the columns were reproduced, or that none was found."""
    found = result["search"]
    if not result["reproduced"]:
        return (
            "No recipe found: the nearest differs"
            if found["near"]
            else "No recipe is near: the nearest differs"
        )
    if others := len(found["same_numbers"]):
        return f" by {others + 1} recipes with the same numbers on this file"
    return f" by `{found['best']['named']}`"


def search_lines(result: Json) -> Iterator[str]:
    """Yield the recipe of a search if a table does not have it, and that in the metadata."""
    found, metadata = result["search"], result["search"]["metadata"]
    best = found["best"]["named"]
    if not result["reproduced"]:
        # Not its share of equal numbers: a single option, on the line above, may reproduce all.
        share = "" if result["findings"] else f"; {percent(found['share_equal'])} of its numbers"
        yield f"the nearest recipe: `{best}`{f'{share} are equal' if share else ''}"
    if metadata is not None and not metadata["reproduces"]:
        yield f"not reproduced by the recipe in the metadata of the file, `{metadata['named']}`"


def search_parts(result: Json, *, verbose: bool) -> Iterator[TextTable]:
    """Yield the recipes of a search, and unexplained rows.

    Args:
        result: of `replay`, with a search.
        verbose: all recipes that the search lists, and its time.
    """
    found = result["search"]
    if result["reproduced"] and found["same_numbers"]:
        yield _same_numbers(found, verbose=verbose)
    if verbose:
        yield _search_facts(found)


def _search_facts(found: Json) -> TextTable:
    """Return how a search went, and its recipe as a file."""
    sample = found["sample"]
    scope = "" if sample["scope"] == "everything" else f" ({sample['scope']})"
    largest = number(found["largest"])
    rows = [
        ("recipes", f"{found['tried']:,} tried in {found['seconds']:.1f} s"),
        ("sample", f"{counted(sample['responses'], 'response')}{scope}"),
        ("numbers", f"{percent(found['share_equal'])} equal, largest difference {largest}"),
    ]
    return TextTable((), rows, "Search", text=(0, 1), notes=[found["best"]["toml"]])


def _same_numbers(found: Json, *, verbose: bool) -> TextTable:
    """Return the recipes with the same numbers."""
    others = found["same_numbers"]
    shown = others[: None if verbose else _MOST_RECIPES]
    mark = _BY_METADATA if found["best"]["by_metadata"] else "the fewest options"
    rows = [(found["best"]["named"], mark), *((recipe["named"], "") for recipe in shown)]
    more = len(others) - len(shown)
    return TextTable(
        (),
        rows,
        title="Recipes with the same numbers on this file",
        text=(0, 1),
        notes=[f"… {more} more: --verbose prints them"] if more else [],
    )
