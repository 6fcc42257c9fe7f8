"""The sides of a comparison: advantages stored in files, or computed by a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.compare.matching import CHUNK_TOKENS
from rlpost.analysis.difference import column_chunk, recomputed, without_totals
from rlpost.analysis.responses import columns as lists
from rlpost.analysis.responses.columns import NAMES
from rlpost.errors import DataError, UsageError, closest
from rlpost.io.arrow import is_list, is_number
from rlpost.io.threads import prefetch
from rlpost.recipe.input_columns import resolve_input

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import pyarrow as pa

    from rlpost.analysis.difference import ColumnChunk
    from rlpost.api import Options
    from rlpost.io.parquet.source import RowChunk, Source, TableSource
    from rlpost.pipeline.plan import Plan
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


KEPT = ("final_response_mask", "sample_mask")
"""Columns of which tokens, or responses, a run kept; the first one that a file has counts."""
POPULATION = "policy tokens of kept responses"
RESPONSES = "kept responses"
"""The population if a side has one advantage per response; others have the mean of their tokens."""


def readable(schema: pa.Schema, name: str) -> bool:
    """Return whether a column can be a mask: numbers or lists of numbers."""
    kind = schema.field(name).type
    return is_number(kind) or lists.holds_numbers(kind)


def kept_chunk(advantages: pa.Array, mask: pa.Array | None) -> ColumnChunk:
    """Return the advantages of some rows, NaN where a mask is 0.

    Args:
        advantages: of tokens, or of responses.
        mask: of tokens or of responses; of tokens it counts for lists of the same length only.
    """
    chunk = column_chunk(advantages)
    if mask is None:
        return chunk
    if is_list(mask.type):
        flat_mask = lists.flat(mask)
        kept = lists.mask_beside(flat_mask, chunk.offsets)
    else:
        kept = np.repeat(lists.numbers(mask) != 0, chunk.lengths)
    return chunk._replace(values=np.where(kept, chunk.values, np.nan))


class EffectiveRecipe(NamedTuple):
    """A recipe with every default set, and its fields that can change the compared column."""

    recipe: Recipe
    fields: frozenset[str]


@dataclass
class FileSide:
    """The advantages stored in an input."""

    name: str
    source: Source
    columns: ColumnMap
    column: str

    @property
    def by_response(self) -> bool:
        """Whether the column has one number per response, and no lists of tokens."""
        types = (schema.field(self.column).type for schema in self.source.schemas
                 if self.column in schema.names)  # fmt: skip
        return not all(is_list(kind) for kind in types)

    def chunks(self) -> Generator[ColumnChunk]:
        """Yield the advantages in the order of the input; NaN if a mask of the file drops them."""
        names = [name for name in KEPT if name in self.source.columns and name != self.column]
        chunks = self.source.read([self.column, *names[:1]], CHUNK_TOKENS, self.column)
        yield from prefetch(map(partial(self._kept, names[:1]), chunks), 1)

    def _kept(self, masks: Sequence[str], chunk: RowChunk) -> ColumnChunk:
        table = chunk.table
        mask = [table.column(name) for name in masks if readable(table.schema, name)]
        return kept_chunk(table.column(self.column), mask[0] if mask else None)

    def effective_recipe(self, column: str) -> EffectiveRecipe | None:
        """Return the recipe in the metadata of the files; None without one, or of several."""
        from rlpost.analysis.stored_recipe import recipe_of_files  # noqa: PLC0415 - torch
        from rlpost.pipeline.resolved import resolve_recipe  # noqa: PLC0415
        from rlpost.pipeline.running_state import RunState  # noqa: PLC0415
        from rlpost.pipeline.stages import fields_behind, stages_of  # noqa: PLC0415

        recipe = recipe_of_files(self.source).without_names(self.name).recipe
        if recipe is None:
            return None
        try:
            resolved = resolve_recipe(recipe, self.columns)
        except (DataError, UsageError):
            return None  # the file lacks columns that it needs
        fields = fields_behind(stages_of(resolved, RunState()), column)
        return EffectiveRecipe(resolved.recipe, fields)

    def warnings(self) -> list[str]:
        """Return warnings of a recipe or of semantics of another version than this one."""
        from rlpost.analysis.stored_recipe import recipe_of_files  # noqa: PLC0415 - torch
        from rlpost.pipeline.output.metadata import semantics_warnings  # noqa: PLC0415 - slow to import

        stored = recipe_of_files(self.source)
        lost = stored.recipe is None and stored.why_not
        return [
            *([f"{self.name}: {stored.why_not}"] if lost else []),
            *semantics_warnings(self.source.files, self.source.footers),
        ]


@dataclass
class RecipeSide:
    """The advantages of a recipe, computed while they are read and not written to a file."""

    name: str
    plan: Plan
    options: Options

    @property
    def by_response(self) -> bool:
        """Whether the recipe computes one number per response, because the input has no tokens."""
        return self.plan.columns.rows_only

    def chunks(self) -> Generator[ColumnChunk]:
        """Yield the advantages in the order of the input; NaN if the recipe drops them."""
        from rlpost.pipeline.run import engine_for  # noqa: PLC0415 - slow to import

        engine = engine_for(without_totals(self.plan), self.options)
        names = ("response_advantage", KEPT[1]) if self.by_response else ("advantages", KEPT[0])
        responses = engine.responses(names)
        for file in range(len(self.plan.source.files)):
            yield from recomputed(engine, file, responses, names, _kept_tokens)

    def effective_recipe(self, column: str) -> EffectiveRecipe:
        """Return the recipe of the run."""
        from rlpost.pipeline.stages import fields_behind  # noqa: PLC0415 - torch

        return EffectiveRecipe(self.plan.resolved.recipe, fields_behind(self.plan.stages, column))

    @property
    def source(self) -> Source | TableSource:
        """The input."""
        return self.plan.source

    def warnings(self) -> list[str]:
        """Return no warnings: those of the run are about its input."""
        return []


def _kept_tokens(columns: pa.RecordBatch) -> ColumnChunk:
    return kept_chunk(columns.column(0), columns.column(1))


Side = FileSide | RecipeSide


def file_side(source: Source, columns_map: Mapping[str, str], column: str | None) -> FileSide:
    """Return the advantages of an input.

    Args:
        source: the input, which may be several files.
        columns_map: role to column, as in `--map`.
        column: the column to compare; None: the first of `advantages`, `response_advantage` and
            `advantage`.

    Raises:
        DataError: there is no such column, or there are no rows.
    """
    columns = resolve_input(source, columns_map)
    names = NAMES["advantage"] if column is None else (column,)
    chosen = next((name for name in names if name in source.columns), None)
    if chosen is None:
        raise DataError(
            f"{source.name}: no column {names[0]!r} to compare",
            candidates=closest(names[0], source.columns),
            tip="write it with `rlpost advantages`, name another with --column, or compute it "
            "with --estimator or --preset",
        )
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows, so there is nothing to compare")
    return FileSide(source.name, source, columns, chosen)
