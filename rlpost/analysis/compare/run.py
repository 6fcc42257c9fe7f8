"""What `rlpost compare` does: opens its sides and compares them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.analysis.compare import matching
from rlpost.analysis.compare.report import compare
from rlpost.analysis.compare.sides import FileSide, RecipeSide, file_side
from rlpost.errors import UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.threads import cores
from rlpost.recipe.roles import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.compare.sides import Side
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


Json = dict[str, Any]


def files(
    paths: Sequence[str], columns_map: Mapping[str, str], *, column: str | None, count: int
) -> Json:
    """Compare the advantages of two or more inputs, each a file, a directory or a glob.

    Args:
        paths: the inputs.
        columns_map: role to column, as `--map` says, of every input.
        column: the column to compare; None: `advantages`, or else `advantage`.
        count: how many of the rows that differ most are listed for each pair.

    Raises:
        UsageError: there is one input alone.
        DataError: an input lacks the column, or no rows match.
        ReadWriteError: an input can't be read.
    """
    if len(paths) == 1:
        raise UsageError(
            f"{paths[0]} alone: name another input, or two of --recipe, --preset, --estimator"
        )
    sides = [file_side(_source([path]), columns_map, column) for path in paths]
    short = [Path(path).name for path in paths]
    if len(set(short)) == len(short):
        sides = [replace(side, name=name) for side, name in zip(sides, short, strict=True)]
    rows = [matching.rows_of(side.source, side.columns) for side in sides]
    return compare(sides, rows, _mask(sides[0].source, sides[0].columns), count)


def recipes(
    paths: Sequence[str],
    asked: Sequence[tuple[str, Recipe]],
    columns_map: Mapping[str, str],
    *,
    column: str | None,
    count: int,
) -> Json:
    """Compare what recipes make of one input; a single one with the advantages that it holds.

    Nothing is written: the recipes run side by side, piece by piece.

    Args:
        paths: files, directories and globs, which together are the input.
        asked: name and recipe of each side.
        columns_map: role to column, as `--map` says.
        column: the column that a single recipe is compared with.
        count: how many of the rows that differ most are listed for each pair.

    Raises:
        UsageError, DataError, UnavailableError, ReadWriteError: as `rlpost.advantages`.
    """
    from rlpost.api import Options  # noqa: PLC0415 - torch takes a second to import
    from rlpost.pipeline.engine import single_threaded_torch  # noqa: PLC0415

    source = _source(paths)
    columns = resolve(source.columns, columns_map, source.name)
    options = Options(workers=max(1, cores() // len(asked)))
    sides: list[Side] = [RecipeSide(name, paths, recipe, options) for name, recipe in asked]
    if len(sides) == 1:
        own: FileSide = file_side(source, columns_map, column)
        sides.insert(0, own)
    rows = matching.rows_of(source, columns)
    with single_threaded_torch():
        return compare(sides, [rows], _mask(source, columns), count)


def _source(paths: Sequence[str]) -> Source:
    return Source(find_inputs(list(paths)))


def _mask(source: Source, columns: ColumnMap) -> tuple[Source, str] | None:
    return (source, columns.column("mask")) if "mask" in columns else None
