"""The section about recorded columns: their replay by a recipe, or the command that finds one."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
_TITLE = "Replay of recorded columns"
_OF_METADATA = "the recipe in the metadata"
_MOST_INPUTS = 3


class RecordedColumns(NamedTuple):
    """The recorded columns of an input, and what a recipe makes of them."""

    columns: Mapping[str, str]
    """By stage."""
    named: str = ""
    """The recipe as the user typed it; empty for that in the metadata."""
    result: Json | None = None
    """Of `replay`, of a sample; None: they were compared with no recipe."""
    why_not: str = ""
    """Why a recipe was not compared."""
    options: str = ""
    """The recipe of a file as options."""

    @property
    def words(self) -> str:
        """The recipe as options, and what it computes by stage; empty if it is unknown."""
        if self.result is None:
            return ""
        options = self.options or self.named
        stages = [f"{stage} {text}" for stage, text in self.result["recipe"]["words"].items()]
        return ": ".join(filter(None, (options, "; ".join(stages))))


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
        reporter.start(_TITLE, None)
        return _compared(source, columns_map, StoredRecipe(recipe), named)
    columns = columns_of(source, NamedColumns.of(columns_map)).recorded if source.rows else {}
    stored = recipe_of_files(source) if columns else StoredRecipe()
    recipe.check_effect([] if stored.recipe is None else [stored.recipe])
    if stored.recipe is None or stored.why_not:
        return RecordedColumns(columns, why_not=stored.why_not) if columns else None
    if stored.rows not in (-1, source.rows):
        why = f"that in the metadata is of a run of {counted(stored.rows, 'response')}"
        return RecordedColumns(columns, why_not=why)
    reporter.start(_TITLE, None)
    try:
        stored = replace(stored, recipe=recipe.completed(stored.recipe, "the metadata"))
        return _compared(source, columns_map, stored, "")
    except (DataError, UsageError) as error:
        return RecordedColumns(columns, why_not=str(error).splitlines()[0])


def _compared(
    source: Source, columns_map: Mapping[str, str], stored: StoredRecipe, named: str
) -> RecordedColumns:
    from rlpost.analysis.replay.candidates import candidate_of  # noqa: PLC0415 - slow to import
    from rlpost.analysis.replay.run import ReplayRequest, replay_sample  # noqa: PLC0415

    assert stored.recipe is not None
    columns = {**stored.recipe.columns, **columns_map}
    words = named or _OF_METADATA
    request = ReplayRequest(stored.recipe, words, columns_map=columns, sample_tokens=SAMPLE_TOKENS)
    result = replay_sample(source, request)
    if result is None:
        read = columns_of(source, NamedColumns.of(columns)).recorded
        return RecordedColumns(read, named, None, "it couples more responses than a sample has")
    known = candidate_of(stored) if "--config" in named or not named else None
    return RecordedColumns(result["recorded"], named, result, "", known.named if known else "")


def section(found: RecordedColumns | None, facts: Facts) -> Section | None:
    """Return the page of `rlpost replay` as a section; None without recorded columns.

    Args:
        found: the recorded columns.
        facts: with the names of the inputs, for commands.
    """
    if found is None:
        return None
    inputs = shlex.join(facts.inputs) if len(facts.inputs) <= _MOST_INPUTS else "IN..."
    command = f"`rlpost replay {inputs} {found.named}".strip() + "`"
    if not facts.input.columns:  # a table
        command = "`rlpost.replay(...)`"
    if found.result is None:
        rows = [(STAGES[stage].title, column) for stage, column in found.columns.items()]
        table = TextTable(("stage", "column"), rows, "Recorded columns", text=(0, 1))
        verb = "compares all responses" if found.named else "finds the recipe that computes them"
        why = f"Not compared with {found.named or 'a recipe'}: {found.why_not}."
        lines = [*([why] if found.why_not else []), f"{command} {verb}."]
        return Section("replay", Page(_TITLE, lines, [table]))
    from rlpost.analysis.replay.render import page  # noqa: PLC0415 - slow to import

    printed = page(found.result, verbose=True)
    lines = [*printed.lines, *_lines(found, found.result, command)]
    return Section("replay", replace(printed, title=_TITLE, lines=lines, next_steps=()))


def _lines(found: RecordedColumns, result: Json, command: str) -> Iterator[str]:
    """Yield which recipe was compared, and what compares all responses."""
    yield "Each stage is computed from what was recorded before it."
    if found.options and found.named:
        yield f"Its options, if they differ from the defaults: `{found.options}`"
    if result["responses"] < result["of_responses"]:
        yield f"{command if found.named else '`rlpost verify`'} compares all responses."
