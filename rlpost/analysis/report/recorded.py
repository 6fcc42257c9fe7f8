"""The section about recorded columns: their replay by a recipe, or the command that finds one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.input_columns import NamedColumns, columns_of
from rlpost.analysis.replay.stages import STAGES
from rlpost.analysis.report.page import Section
from rlpost.analysis.stored_recipe import StoredRecipe, recipe_of_files
from rlpost.display.page import Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.analysis.inspect.model import Facts
    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import Source
    from rlpost.recipe.named import NamedByUser

Json = dict[str, Any]
SAMPLE_TOKENS = 400_000
"""Tokens that are compared at most, in whole steps or prompt groups."""
_PURPOSE = "compare recorded columns"
_TITLE = "Replay of recorded columns"
_MOST_INPUTS = 3


@dataclass(frozen=True)
class RecordedColumns:
    """The recorded columns of an input, and what a recipe makes of them."""

    columns: Mapping[str, str]
    """By stage."""
    result: Json | None = None
    """Of `replay`, of a sample; None: they were compared with no recipe."""
    named: str = ""
    """The recipe as the user typed it; empty for that in the metadata."""
    options: str = ""
    """The recipe of a file as options."""
    why_not: str = ""
    """Why a recipe was not compared."""

    @property
    def words(self) -> str:
        """The recipe as options, and what it computes by stage; empty if it is unknown."""
        if self.result is None:
            return ""
        options = self.options or self.named
        stages = [f"{stage} {text}" for stage, text in self.result["recipe"]["words"].items()]
        return ": ".join(
            part for part in (f"`{options}`" * bool(options), "; ".join(stages)) if part
        )


def recorded(
    source: Source,
    columns_map: Mapping[str, str],
    recipe: Recipe | NamedByUser,
    named: str,
    reporter: Reporter,
) -> RecordedColumns | None:
    """Compare the recorded columns of an input with a recipe, or with that in its metadata.

    Args:
        source: the input.
        columns_map: role, or stage, to column.
        recipe: as the user sets it; or what replaces the code and the tokenizer of the one in the
            metadata of enriched files.
        named: the recipe as typed.
        reporter: receives the start of a comparison.

    Returns:
        The columns, and the comparison of a sample if there is a recipe; None without columns.

    Raises:
        DataError, UsageError: the user's recipe cannot be compared; or a name of the user's has no
            effect.
    """
    if isinstance(recipe, Recipe):
        reporter.start(_PURPOSE, None)
        return _compared(source, columns_map, StoredRecipe(recipe), named)
    columns = _columns(source, columns_map) if source.rows else {}
    stored = recipe_of_files(source) if columns else StoredRecipe()
    recipe.check_effect([] if stored.recipe is None else [stored.recipe])
    if not columns:
        return None
    reporter.start(_PURPOSE, None)
    return _of_metadata(source, columns_map, columns, stored, recipe)


def _of_metadata(
    source: Source,
    columns_map: Mapping[str, str],
    columns: Mapping[str, str],
    found: StoredRecipe,
    by_user: NamedByUser,
) -> RecordedColumns:
    """Compare with the recipe in the metadata of enriched files, if there is one that can be."""
    if found.recipe is None or found.why_not:
        return RecordedColumns(columns, why_not=found.why_not)
    if found.rows not in (-1, source.rows):
        text = f"that in the metadata is of a run of {counted(found.rows, 'response')}"
        return RecordedColumns(columns, why_not=text)
    try:
        recipe = by_user.completed(found.recipe, "the metadata")
        return _compared(source, columns_map, replace(found, recipe=recipe))
    except (DataError, UsageError) as error:
        return RecordedColumns(columns, why_not=str(error).splitlines()[0])


def _compared(
    source: Source, columns_map: Mapping[str, str], stored: StoredRecipe, named: str = ""
) -> RecordedColumns:
    from rlpost.analysis.replay.candidates import candidate_of  # noqa: PLC0415
    from rlpost.analysis.replay.run import ReplayRequest, replay_sample  # noqa: PLC0415 - slow to import

    recipe = stored.recipe
    assert recipe is not None
    columns = {**recipe.columns, **columns_map}
    request = ReplayRequest(recipe, named, columns_map=columns, sample_tokens=SAMPLE_TOKENS)
    result = replay_sample(source, request)
    if result is None:
        why = "it couples more responses than a sample has"
        return RecordedColumns(_columns(source, columns), named=named, why_not=why)
    hidden = "--config" in named or not named
    candidate = candidate_of(stored) if hidden else None
    options = "" if candidate is None else candidate.named
    return RecordedColumns(result["recorded"], result, named, options)


def _columns(source: Source, columns_map: Mapping[str, str]) -> dict[str, str]:
    return columns_of(source, NamedColumns.of(columns_map)).recorded


def section(found: RecordedColumns | None, facts: Facts) -> Section | None:
    """Return the page of `rlpost replay` as a section; None without recorded columns.

    Args:
        found: the recorded columns.
        facts: with the names of the inputs, for commands.
    """
    if found is None:
        return None
    if found.result is None:
        rows = [(STAGES[stage].title, column) for stage, column in found.columns.items()]
        table = TextTable(("stage", "column"), rows, "Recorded columns", text=(0, 1))
        return Section("replay", Page(_TITLE, [*_why_not(found, facts)], [table]))
    from rlpost.analysis.replay.render import page  # noqa: PLC0415 - slow to import

    printed = page(found.result, verbose=True)
    lines = [*printed.lines, *_lines(found, found.result, facts)]
    return Section("replay", replace(printed, title=_TITLE, lines=lines, next_steps=()))


def _why_not(found: RecordedColumns, facts: Facts) -> Iterator[str]:
    """Yield why there is no comparison, and how to get one."""
    if found.why_not:
        yield f"Not compared with {found.named or 'a recipe'}: {found.why_not}."
    if found.named:
        yield f"`{_command(found, facts)}` compares all responses."
        return
    with_recipe = "rlpost.report(..., recipe=...)"
    if facts.input.columns:
        with_recipe = "rlpost report with --preset NAME or --config PATH"
    yield (
        f"`{_command(found, facts)}` finds the recipe that computes these columns; {with_recipe} "
        "compares them with one."
    )


def _command(found: RecordedColumns, facts: Facts) -> str:
    """Return the command that compares the input, or the function if it is a table."""
    if not facts.input.columns:
        return "rlpost.replay(...)"
    inputs = shlex.join(facts.inputs) if len(facts.inputs) <= _MOST_INPUTS else "IN..."
    return f"rlpost replay {inputs} {found.named}".strip()


def _lines(found: RecordedColumns, result: Json, facts: Facts) -> Iterator[str]:
    """Yield which recipe was compared, and what compares all responses."""
    recipe = found.named or "the recipe in the metadata"
    yield f"Each stage is computed from what was recorded before it, by {recipe}."
    if found.options and found.named:
        yield f"Its options, if they differ from the defaults: `{found.options}`"
    if result["responses"] < result["of_responses"]:
        check = "rlpost verify" if not found.named else _command(found, facts)
        yield f"`{check}` compares all responses."
