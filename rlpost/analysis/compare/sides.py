"""The sides of a comparison: advantages stored in files, or computed by a recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.difference import column_chunk, recomputed, without_totals
from rlpost.analysis.responses import columns as lists
from rlpost.errors import DataError, UsageError, closest
from rlpost.findings import Finding
from rlpost.io.arrow import is_list, is_number
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.io.threads import prefetch
from rlpost.recipe.recipe import EXTRA, ROW_COLUMNS, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import pyarrow as pa

    from rlpost.analysis.difference import ColumnChunk
    from rlpost.api import Options
    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


KEPT = ("final_response_mask", "sample_mask")
"""Columns of which tokens, or responses, a run kept; the first one that a file has counts."""


@dataclass(frozen=True)
class Side:
    """Advantages of an input."""

    name: str
    source: Source | TableSource
    chunks: Callable[[], Generator[ColumnChunk]]
    """Yields them in the order of the input; NaN where a token or a response is dropped."""
    by_response: bool
    """There is one number per response, and none of tokens."""
    recipe: Recipe | None = None
    """With every default set; None if it is unknown."""
    fields: frozenset[str] = frozenset()
    """Those of the recipe that can change the numbers."""
    findings: tuple[Finding, ...] = ()
    mask: str | None = None
    """The column of policy tokens, if all others are dropped."""


def file_side(source: Source, roles: ColumnMap, name: str, column: str | None) -> Side:
    """Return the numbers in a column of an input.

    Args:
        source: the input, which may be several files.
        roles: their columns.
        name: of the side.
        column: what is compared; None: the first of `advantages`, `response_advantage` and
            `advantage`.

    Raises:
        DataError: there is no such column, or there are no rows.
    """
    from rlpost.analysis.stored_recipe import recipe_of_files  # noqa: PLC0415 - torch
    from rlpost.pipeline.effects import fields_behind  # noqa: PLC0415
    from rlpost.pipeline.output.metadata import semantics_warnings  # noqa: PLC0415
    from rlpost.pipeline.resolved import resolve_recipe  # noqa: PLC0415

    names = lists.NAMES["advantage"] if column is None else (column,)
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
    masks = [mask for mask in KEPT if mask in source.columns and mask != chosen]
    masks = [mask for mask in masks if all(map(_holds_numbers, _types(source, mask)))][:1]

    stored = recipe_of_files(source)
    findings = []
    if stored.recipe is None and stored.why_not:
        text, _, advice = f"{name}: {stored.why_not}".partition("; ")
        findings.append(Finding("stored_recipe", "warning", text, advice))
    again = "`rlpost advantages --replace` writes them again"
    texts = semantics_warnings(source.files, source.footers)
    findings += [Finding("other_semantics", "warning", text, again) for text in texts]
    side = Side(
        name,
        source,
        partial(read_rows, source, chosen, *masks),
        by_response=not all(map(is_list, _types(source, chosen))),
        findings=tuple(findings),
    )
    recipe = stored.without_names(name).recipe
    if recipe is None:
        return side
    try:
        resolved = resolve_recipe(recipe, roles)
    except (DataError, UsageError):
        return side  # the file lacks columns that it needs
    return replace(side, recipe=resolved.recipe, fields=fields_behind(resolved, chosen))


def _types(source: Source, column: str) -> list[pa.DataType]:
    """Return the type of a column in each file; a column of folder names has none."""
    schemas = (schema for schema in source.schemas if column in schema.names)
    return [schema.field(column).type for schema in schemas]


def _holds_numbers(kind: pa.DataType) -> bool:
    return is_number(kind) or lists.holds_numbers(kind)


def recipe_side(
    name: str, source: Source, recipe: Recipe, column: str | None, options: Options
) -> Side:
    """Return what a recipe computes, while it is read; no file is written.

    Args:
        name: of the recipe.
        source: the input.
        recipe: what is computed.
        column: that is compared; None, or one that no recipe writes: the advantages.
        options: how it is computed.
    """
    from rlpost.pipeline.effects import fields_behind  # noqa: PLC0415 - slow to import
    from rlpost.pipeline.output.columns import emitted  # noqa: PLC0415
    from rlpost.pipeline.run import bind, engine_for  # noqa: PLC0415

    if column not in (*WRITTEN, *EXTRA):
        plan = bind(source, recipe)
        column = "response_advantage" if plan.columns.rows_only else "advantages"
    else:
        plan = bind(source, recipe.model_copy(update={"emit": (column,)}))
        (column,) = emitted(plan.resolved)
    names = column, KEPT[plan.columns.rows_only]

    def chunks() -> Generator[ColumnChunk]:
        engine = engine_for(without_totals(plan), options)
        responses = engine.responses(names)
        for file in range(len(source.files)):
            yield from recomputed(engine, file, responses, names, _kept_rows)

    return Side(
        name,
        source,
        chunks,
        column in ROW_COLUMNS,
        plan.resolved.recipe,
        fields_behind(plan.resolved, column),
        mask=plan.columns.columns.get("mask"),
    )


def _kept_rows(columns: pa.RecordBatch) -> ColumnChunk:
    return kept_chunk(*columns.columns)


def read_rows(source: Source | TableSource, column: str, *masks: str) -> Generator[ColumnChunk]:
    """Yield a column of an input in its order, read ahead in a thread; NaN where a mask is 0."""
    tables = (chunk.table for chunk in source.read([column, *masks], CHUNK_TOKENS, column))
    kept = (kept_chunk(*map(table.column, [column, *masks])) for table in tables)
    yield from prefetch(kept, 1)


def kept_chunk(advantages: pa.Array, mask: pa.Array | None = None) -> ColumnChunk:
    """Return the advantages of some rows, NaN where a mask is 0.

    Args:
        advantages: of tokens, or of responses.
        mask: of tokens or of responses; of tokens it counts for lists of the same length only.
    """
    chunk = column_chunk(advantages)
    if mask is None:
        return chunk
    if is_list(mask.type):
        kept = lists.mask_beside(lists.flat(mask), chunk.offsets)
    else:
        kept = np.repeat(lists.numbers(mask) != 0, chunk.lengths)
    return chunk._replace(values=np.where(kept, chunk.values, np.nan))
