"""Parquet inputs under a condition: files of the rows that match, in a temporary folder.

A row group is skipped if the bounds in its footer exclude every row. Of the others the columns that
the condition names are read, and then all columns of those with a match.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.arrow import CellLocation, is_list, is_string
from rlpost.io.input_paths import InputPaths
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import CHUNK_TOKENS, Source, partition_types
from rlpost.io.paths import parse_path
from rlpost.io.ranges import arrow_file
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.formats.where import Where
    from rlpost.io.parquet.source import RowChunk
    from rlpost.io.paths import PathText

    Rows = NDArray[np.int64]
    Numbers = NDArray[np.float64] | Rows

_GROUP_BYTES = 64 << 20  # of a row group that is written, in memory
_ROWS = 1 << 16  # of a chunk of scalars


def select_rows(paths: Sequence[PathText], where: Where, folder: Path, but: Path) -> InputPaths:
    """Return Parquet inputs with the rows that match; an input whose rows all match is unchanged.

    Args:
        paths: files, directories and globs.
        where: the condition.
        folder: gets the files of inputs of which only some rows match.
        but: a folder whose files are left as they are.

    Raises:
        UsageError: the condition names what the input lacks, a list, or does not fit the types.
        DataError: a file is damaged.
        ReadWriteError: a file cannot be read, or the folder is full.
    """
    selected: list[PathText] = []
    names: dict[str, str] = {}
    rows: dict[str, Rows] = {}
    find_inputs(paths)  # raises for outputs of one name
    seen: set[object] = set()
    for number, path in enumerate(paths):
        if but in Path(str(path)).parents:
            selected.append(path)
            continue
        files = [one for one in find_inputs([path]) if one.path.resolve() not in seen]
        if not files:
            continue
        seen |= {one.path.resolve() for one in files}
        source = Source(files)
        found = matching_rows(source, where, resolve_input(source, where.chosen).columns)
        if all(len(own) == footer.num_rows
               for own, footer in zip(found, source.footers, strict=True)):  # fmt: skip
            selected.append(path)
            continue
        top = folder / str(number)
        names[str(top)] = str(path)
        for i, own in enumerate(found):
            if len(own):
                target = top / source.files[i].relative
                rows[str(target)] = own
                names[str(target)] = str(source.files[i].path)
                _write(source, i, own, target)
        single = len(source.files) == 1 and parse_path(path).is_file()
        if any(map(len, found)):
            selected.append(str(top / source.files[0].relative) if single else str(top))
    return InputPaths(selected, names, rows)


def matching_rows(
    source: Source,
    where: Where,
    roles: Mapping[str, str],
    computed: Mapping[str, Callable[[], Numbers]] = MappingProxyType({}),
) -> list[Rows]:
    """Return the numbers of the rows of each file that match.

    Args:
        source: the input.
        where: the condition.
        roles: role -> column.
        computed: name -> function that returns a number for each row of the input, [N]; of names
            that no column of scalars has.

    Raises:
        UsageError, DataError, ReadWriteError: as `select_rows`.
    """
    nested = {one.name for schema in source.schemas for one in schema
              if pa.types.is_nested(one.type)}  # fmt: skip
    own = [name for name in source.columns if not (name in computed and name in nested)]
    columns: dict[str, str] = {}
    numbers: dict[str, pl.Series] = {}
    for name, column in where.columns(own, roles).items():
        if column is not None:
            columns[name] = column
        elif name in computed:
            numbers[name] = pl.Series(computed[name]())
        elif name in ROLES:
            raise UsageError(
                f"{where.matches.condition}: {source.name} has no column for {name}",
                tip=f"--map {name}=COLUMN",
            )
        else:
            raise where.unknown(name, {*source.columns, *roles, *computed}, source.name)
    return [_matching(source, i, columns, numbers, where) for i in range(len(source.files))]


def _matching(
    source: Source,
    file: int,
    columns: Mapping[str, str],
    numbers: Mapping[str, pl.Series],
    where: Where,
) -> Rows:
    """Return the numbers of the rows of a file that match."""
    footer, matches = source.footers[file], where.matches
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    sizes = [sum(one.column(i).total_compressed_size for i in range(one.num_columns))
             for one in groups]  # fmt: skip
    possible = where.possible(_bounds(source, file, columns), len(groups))
    matches.rows += footer.num_rows
    matches.row_groups += len(groups)
    matches.row_groups_skipped += int((~possible).sum())
    matches.bytes += sum(sizes)
    matches.bytes_skipped += sum(np.asarray(sizes)[~possible].tolist())
    parts = [np.zeros(0, np.int64)]
    read = sorted({*columns.values()})
    kept = {*np.flatnonzero(possible).tolist()}
    for chunk in source.read_file(file, read, _ROWS, "", kept):
        values = _values(source, chunk, columns, where)
        first = source.first_rows[file] + chunk.first_row
        values |= {name: one[first : first + chunk.table.num_rows] for name, one in numbers.items()}
        parts.append(chunk.first_row + np.flatnonzero(where.matching(values)))
    rows = np.concatenate(parts)
    matches.matched += len(rows)
    return rows


def _values(
    source: Source, chunk: RowChunk, columns: Mapping[str, str], where: Where
) -> dict[str, pl.Series]:
    """Return the values of a chunk by name."""
    path, first = str(source.files[chunk.file].path), chunk.first_row
    return {
        name: where.values(name, chunk.table.column(column), CellLocation(path, first, column))
        for name, column in columns.items()
    }


def _bounds(
    source: Source, file: int, columns: Mapping[str, str]
) -> dict[str, tuple[pl.Series, pl.Series]]:
    """Return the lowest and the highest value of each column in each row group of a file."""
    footer, schema = source.footers[file], source.schemas[file]
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    partitions = dict(source.files[file].partitions)
    bounds: dict[str, tuple[pl.Series, pl.Series]] = {}
    for name, column in columns.items():
        if column not in schema.names:
            kind = partition_types(source.files)[column]
            value = int(partitions[column]) if pa.types.is_integer(kind) else partitions[column]
            same = pl.Series([value] * len(groups))
            bounds[name] = same, same
        elif name == column or name != "truncated":  # else what counts is computed from it
            kind = _polars_type(schema.field(column).type)
            if kind is not None:
                ends = [_ends(group, column) for group in groups]
                low, high = ([pair[end] for pair in ends] for end in (0, 1))
                bounds[name] = pl.Series(low, dtype=kind), pl.Series(high, dtype=kind)
    return bounds


def _polars_type(kind: pa.DataType) -> Any:
    """Return the type of a column whose bounds are compared; None of others, such as times."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind)
            or pa.types.is_float32(kind) or pa.types.is_float64(kind)):  # fmt: skip
        return None
    series = pl.from_arrow(pa.array([], kind))
    assert isinstance(series, pl.Series)
    return series.dtype


def _ends(group: pq.RowGroupMetaData, column: str) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a column in a row group; None if unknown."""
    chunks = (group.column(i) for i in range(group.num_columns))
    chunk = next((one for one in chunks if one.path_in_schema == column), None)
    bounds = None if chunk is None else chunk.statistics
    if bounds is None or not bounds.has_min_max:
        return None, None
    return bounds.min, bounds.max


def _write(source: Source, file: int, rows: Rows, target: Path) -> None:
    """Write some rows of a file, with all columns and its metadata."""
    footer, schema = source.footers[file], source.schemas[file]
    starts = np.cumsum([0, *(footer.row_group(i).num_rows for i in range(footer.num_row_groups))])
    groups = {*(np.searchsorted(starts, rows, side="right") - 1).tolist()}
    sized_by = next((one.name for one in schema if is_list(one.type)), "")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            arrow_file(target, "wb") as out,
            pq.ParquetWriter(out, schema, compression="lz4", use_dictionary=False) as writer,
        ):
            tables: list[pa.RecordBatch] = []
            for chunk in source.read_file(file, schema.names, CHUNK_TOKENS, sized_by, groups):
                first, count = chunk.first_row, chunk.table.num_rows
                own = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + count)]
                if len(own):
                    tables.append(chunk.table.take(pa.array(own - first)))
                if sum(one.nbytes for one in tables) >= _GROUP_BYTES:
                    _write_group(writer, tables)
            _write_group(writer, tables)
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror or error}") from None


def _write_group(writer: pq.ParquetWriter, tables: list[pa.RecordBatch]) -> None:
    if tables:
        table = pa.Table.from_batches(tables).cast(writer.schema)
        writer.write_table(table, row_group_size=table.num_rows)
        tables.clear()
