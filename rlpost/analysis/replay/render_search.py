"""The result of a search on a page: the recipe, its ties, and rows that it does not reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.search.fields import data_of
from rlpost.analysis.replay.stages import STAGES
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number, percent
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_MOST_TIES = 5
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
    if found["tie_count"]:
        return f" by {found['tie_count'] + 1} recipes with the same numbers on this file"
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
    """Yield the recipes of a search, the data on which they differ, and unexplained rows.

    Args:
        result: of `replay`, with a search.
        verbose: all ties that the search lists, and its time.
    """
    found = result["search"]
    if result["reproduced"] and found["ties"]:
        yield from _ties(found, verbose=verbose)
    if found["unexplained"] and not any(one["options"] for one in result["findings"]):
        yield _unexplained(found)
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


def _ties(found: Json, *, verbose: bool) -> Iterator[TextTable]:
    """Yield the recipes with the same numbers, and the data on which they differ."""
    shown = found["ties"][: None if verbose else _MOST_TIES]
    best = found["best"]
    mark = _BY_METADATA if best["by_metadata"] else "the fewest options"
    rows = [(best["named"], mark)]
    rows += [
        (one["named"], _flags(one["differs"]) or "no option: the same recipe") for one in shown
    ]
    more = found["tie_count"] - len(shown)
    hint = "--format json prints them" if verbose else "--verbose prints more"
    yield TextTable(
        ("recipe", "differs from the first in"),
        rows,
        title="Recipes with the same numbers on this file",
        text=(0, 1),
        notes=[f"… {more} more: {hint}"] if more else [],
    )
    separating = _separating(shown)
    if separating is not None:
        yield separating


def _separating(ties: Sequence[Json]) -> TextTable | None:
    """Return the data on which ties differ from the first recipe, with the options that differ.

    The file may have each kind of data that is listed for an option, and too little of it.
    """
    left = dict.fromkeys(name for one in ties for name in one["differs"])
    rows = []
    for kind in dict.fromkeys(kind for one in ties for kind in one["kinds"]):
        names = [name for name in left if kind in [one.text for one in data_of([name])]]
        rows.append((kind, _flags(names)))
    known = {kind for one in ties for kind in one["kinds"]}
    rest = [name for name in left if known.isdisjoint(one.text for one in data_of([name]))]
    if rest:
        rows.append(("more of the data that the file has", _flags(rest)))
    title = "Data on which these recipes differ"
    return TextTable(("data", "option"), rows, title, text=(0, 1)) if rows else None


def _flags(names: Sequence[str]) -> str:
    """Return the options of fields, with one `--numerics` before all `numerics.NAME`."""
    flags = [flag_of(name) for name in names if "." not in name]
    details = [name.rpartition(".")[2] for name in names if "." in name]
    return ", ".join(flags + ([f"--numerics {', '.join(details)}"] if details else []))


def _unexplained(found: Json) -> TextTable:
    """Return by stage which rows the nearest recipe does not reproduce."""
    lines = []
    for one in found["unexplained"]:
        title = STAGES[one["stage"]].title
        if not one["computed"]:
            lines.append(f"{title}: not computed")
            continue
        kinds = f", all {' and '.join(one['kinds'])}" if one["kinds"] else ""
        rows = ", ".join(map(str, one["rows"]))
        lines.append(
            f"{title}: {percent(one['share'])} of the numbers, in "
            f"{counted(one['responses'], 'response')}{kinds} of {counted(one['groups'], 'group')} "
            f"and {one['steps']} of {counted(one['of_steps'], 'step')}; rows {rows}"
            f"{', …' if one['responses'] > len(one['rows']) else ''}"
        )
    return TextTable(title="What remains unexplained", lines=lines)
