"""Parquet inputs under a condition: files of the rows that match, in a temporary folder.

The columns that the condition names are read, and then all columns of row groups with a match.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.formats.where import KEYS
from rlpost.io.arrow import is_list
from rlpost.io.input_paths import InputPaths
from rlpost.io.outputs import file_errors
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.io.paths import parse_path
from rlpost.io.ranges import arrow_file
from rlpost.recipe.input_columns import resolve_input

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        matches = _matching_rows(source, where)
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


def _matching_rows(source: Source, where: Where) -> list[Rows]:
    """Return the numbers of the rows of each file that match, and count them."""
    roles = resolve_input(source, where.chosen).columns
    for name in where.names:
        if name in source.lacking and name not in {*source.columns, *roles}:
            raise where.error(f"{source.lacking[name]} has no {name!r}, which other files have")
    columns = where.columns(source.columns, roles)
    where.check(columns, {*source.columns, *roles}, source.name)
    keys = [roles[role] for role in KEYS if role in roles]
    matches: list[list[Rows]] = [[np.zeros(0, np.int64)] for _ in source.files]
    for chunk in source.read(sorted({*columns.values(), *keys}), _ROWS, ""):
        kept = where.kept(chunk.table, roles, str(source.files[chunk.file].path), chunk.first_row)
        matches[chunk.file].append(chunk.first_row + np.flatnonzero(kept))
    return [np.concatenate(parts) for parts in matches]


def _write(source: Source, file: int, rows: Rows, target: Path) -> None:
    """Write some rows of a file, with all columns and its metadata."""
    footer, schema = source.footers[file], source.schemas[file]
    starts = np.cumsum([0, *(footer.row_group(i).num_rows for i in range(footer.num_row_groups))])
    groups = {*(np.searchsorted(starts, rows, side="right") - 1).tolist()}
    sized_by = next((column.name for column in schema if is_list(column.type)), "")
    with file_errors(target, "cannot be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            arrow_file(target, "wb") as out,
            pq.ParquetWriter(out, schema, compression="lz4", use_dictionary=False) as writer,
        ):
            tables: list[pa.RecordBatch] = []
            for chunk in source.read_file(file, schema.names, CHUNK_TOKENS, sized_by, groups):
                first, count = chunk.first_row, chunk.table.num_rows
                chosen = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + count)]
                tables += [chunk.table.take(pa.array(chosen - first))] if len(chosen) else []
                if sum(table.nbytes for table in tables) >= _GROUP_BYTES:
                    writer.write_table(_group(tables, schema))
                    tables.clear()
            if tables:
                writer.write_table(_group(tables, schema))


def _group(tables: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(tables).cast(schema)
