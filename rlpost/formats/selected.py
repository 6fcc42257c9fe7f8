"""Parquet inputs under a condition: files of the rows that match, in a temporary folder.

The columns that the condition names are read, and then all columns of row groups with a match.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.arrow import CellLocation, is_list
from rlpost.io.input_paths import InputPaths
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.io.paths import parse_path
from rlpost.io.ranges import arrow_file
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.formats.where import Where
    from rlpost.io.paths import PathText

    Rows = NDArray[np.int64]

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
    numbers: dict[str, Rows] = {}
    find_inputs(paths)  # raises for outputs of one name
    seen: set[object] = set()
    for number, path in enumerate(paths):
        if but in Path(str(path)).parents:
            selected.append(path)
            continue
        files = [file for file in find_inputs([path]) if file.path.resolve() not in seen]
        if not files:
            continue
        seen |= {file.path.resolve() for file in files}
        source = Source(files)
        matches = _matching_rows(source, where, resolve_input(source, where.chosen).columns)
        if sum(map(len, matches)) == source.rows:
            selected.append(path)
            continue
        top = folder / str(number)
        names[str(top)] = str(path)
        for i, rows in enumerate(matches):
            if len(rows):
                target = top / files[i].relative
                numbers[str(target)], names[str(target)] = rows, str(files[i].path)
                _write(source, i, rows, target)
        single = len(files) == 1 and parse_path(path).is_file()
        if any(map(len, matches)):
            selected.append(str(top / files[0].relative) if single else str(top))
    return InputPaths(selected, names, numbers)


def _matching_rows(source: Source, where: Where, roles: Mapping[str, str]) -> list[Rows]:
    """Return the numbers of the rows of each file that match, and count them.

    Args:
        source: the input.
        where: the condition.
        roles: role -> column.

    Raises:
        UsageError, DataError, ReadWriteError: as `select_rows`.
    """
    columns: dict[str, str] = {}
    for name, column in where.columns(source.columns, roles).items():
        if column is not None:
            columns[name] = column
        elif name in ROLES:
            raise UsageError(
                f"{where.label}: {source.name} has no column for {name}",
                tip=f"--map {name}=COLUMN",
            )
        else:
            raise where.unknown(name, {*source.columns, *roles}, source.name)
    groups = {role: roles[role] for role in where.group_roles if role in roles}
    read = sorted({*columns.values(), *groups.values()})
    matches: list[list[Rows]] = [[np.zeros(0, np.int64)] for _ in source.files]
    for chunk in source.read(read, _ROWS, ""):
        first, table, path = chunk.first_row, chunk.table, str(source.files[chunk.file].path)
        values = {
            name: where.values(name, table.column(column), CellLocation(path, first, column))
            for name, column in columns.items()
        }
        kept = where.matching(values)
        where.count(kept, {role: table.column(column) for role, column in groups.items()})
        matches[chunk.file].append(first + np.flatnonzero(kept))
    return [np.concatenate(parts) for parts in matches]


def _write(source: Source, file: int, rows: Rows, target: Path) -> None:
    """Write some rows of a file, with all columns and its metadata."""
    footer, schema = source.footers[file], source.schemas[file]
    starts = np.cumsum([0, *(footer.row_group(i).num_rows for i in range(footer.num_row_groups))])
    groups = {*(np.searchsorted(starts, rows, side="right") - 1).tolist()}
    sized_by = next((column.name for column in schema if is_list(column.type)), "")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            arrow_file(target, "wb") as out,
            pq.ParquetWriter(out, schema, compression="lz4", use_dictionary=False) as writer,
        ):
            tables: list[pa.RecordBatch] = []
            for chunk in source.read_file(file, schema.names, CHUNK_TOKENS, sized_by, groups):
                first, count = chunk.first_row, chunk.table.num_rows
                chosen = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + count)]
                if len(chosen):
                    tables.append(chunk.table.take(pa.array(chosen - first)))
                if sum(table.nbytes for table in tables) >= _GROUP_BYTES:
                    _write_group(writer, tables)
            _write_group(writer, tables)
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror or error}") from None


def _write_group(writer: pq.ParquetWriter, tables: list[pa.RecordBatch]) -> None:
    if tables:
        table = pa.Table.from_batches(tables).cast(writer.schema)
        writer.write_table(table, row_group_size=table.num_rows)
        tables.clear()
