"""The result of a search: the recipe, its ties, and what it leaves unexplained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.search.fields import FIELDS
from rlpost.analysis.replay.stages import STAGES
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number, percent
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_MOST_TIES = 8


@dataclass(frozen=True)
class CodeBlock:
    """Lines to copy: a command, or a file."""

    title: str
    text: str
    language: str
    notes: tuple[str, ...] = ()


def found_blocks(result: Json) -> Iterator[TextTable | CodeBlock]:
    """Yield the recipe of a search as options and as a file, ties, and what it leaves open."""
    found = result["search"]
    best, reproduced = found["best"], result["reproduced"]
    title = (
        "Nearest recipe"
        if found["near"]
        else "No recipe is near; of the presets without changes this is the nearest"
    )
    yield CodeBlock("Recipe" if reproduced else title, best["named"], "text", (_tried(found),))
    yield CodeBlock("As a recipe file, for --config", best["toml"], "toml")
    if reproduced and found["ties"]:
        yield from _ties(found)
    if found["unexplained"]:
        yield _unexplained(found)


def _tried(found: Json) -> str:
    sample = found["sample"]
    scope = "" if sample["scope"] == "everything" else f" ({sample['scope']})"
    rows = f"{counted(sample['responses'], 'response')}{scope}"
    return (
        f"{counted(found['tried'], 'recipe')} tried in {found['seconds']:.1f} s on {rows}; "
        f"{percent(found['share_equal'])} of the numbers equal, largest difference "
        f"{number(found['largest'])}"
    )


def _ties(found: Json) -> Iterator[TextTable]:
    """Yield the recipes with the same numbers, and the data that would separate them."""
    shown = found["ties"][:_MOST_TIES]
    rows = [(one["named"], str(one["changes"])) for one in shown]
    differs = [_flags(one["differs"]) for one in shown]
    more = found["tie_count"] - len(rows)
    yield TextTable(
        ("recipe", "changes"),
        rows,
        title="Ties: other recipes with the same numbers",
        notes=[f"… {more} more, see --format json"] if more else [],
        row_notes={
            i: f"differs in {one}" if one else "the same on all data"
            for i, one in enumerate(differs)
        },
    )
    kinds = dict.fromkeys(kind for one in shown for kind in one["kinds"])
    fields = dict.fromkeys(name for one in shown for name in one["differs"])
    rows = [
        (_flags([n for n in fields if kind in [one.text for one in FIELDS[n].data]]), kind)
        for kind in kinds
    ]
    if rows:
        yield TextTable(
            ("option", "data"),
            rows,
            title="Data that would separate them, not in this sample",
            text=(0, 1),
        )


def _flags(names: Sequence[str]) -> str:
    """Return the options of fields, with one `--numerics` before all `numerics.NAME`."""
    flags = [flag_of(name) for name in names if "." not in name]
    details = [name.rpartition(".")[2] for name in names if "." in name]
    return ", ".join(flags + ([f"--numerics {', '.join(details)}"] if details else []))


def _unexplained(found: Json) -> TextTable:
    """Return by stage what the nearest recipe leaves open."""
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
