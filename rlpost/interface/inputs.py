"""Inputs of the Python functions: paths of files, dumps and URLs, or tables in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import pyarrow.parquet as pq

from rlpost.errors import DataError, RlpostError, UsageError
from rlpost.formats.inputs import canonical_inputs
from rlpost.io.locks import scratch_folder
from rlpost.io.memory import ArrowStream, arrow_table, is_table
from rlpost.io.paths import parse_path, without_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

Input = Union[str, Path, ArrowStream, "pl.LazyFrame"]
Inputs = Input | Sequence[Input]


@contextmanager
def input_paths(
    inputs: Inputs, output: str | Path | None = None, *, overwrite: bool = False
) -> Iterator[list[str]]:
    """Yield inputs as paths of Parquet files, which exist until the block ends.

    Tables are written to temporary files, and dumps are converted, as by the commands. Errors from
    within the block name the tables and dumps.

    Args:
        inputs: one or several paths, directories, globs, URLs or tables.
        output: the output, whose folder also has the converted dumps.
        overwrite: whether the output may exist.

    Raises:
        UsageError: there is no input, or an input is neither a path nor a table.
        DataError, ReadWriteError: as `rlpost convert`.
    """
    several: list[Any] = [*inputs] if isinstance(inputs, list | tuple) else [inputs]
    if not several:
        raise UsageError("no input: a path or a table is needed")
    target = None if output is None else parse_path(output)
    with (
        table_paths(several) as paths,
        canonical_inputs(paths, target, overwrite=overwrite) as canonical,
    ):
        yield canonical


@contextmanager
def table_paths(inputs: Sequence[Input]) -> Iterator[list[str]]:
    """Yield inputs as paths: tables are written to temporary files; other paths are unchanged.

    Errors from within the block name the tables.

    Raises:
        UsageError: an input is neither a path nor a table.
    """
    with scratch_folder(None) as folder:
        names: dict[str, str] = {}
        paths = [_path(one, folder, number, names) for number, one in enumerate(inputs)]
        try:
            yield paths
        except RlpostError as error:
            raise type(error)(without_paths(str(error), names)) from None


def input_names(inputs: Inputs) -> list[str]:
    """Return the inputs as results name them: paths as they were passed, tables by their type."""
    several = [*inputs] if isinstance(inputs, list | tuple) else [inputs]
    return [
        str(one) if isinstance(one, str | Path) else _name(one, i) for i, one in enumerate(several)
    ]


def path_names(inputs: Inputs, where: str, of: str) -> list[str]:
    """Return inputs that are all paths.

    Args:
        inputs: one, or several.
        where: what needs paths, for the error.
        of: what kind of files.

    Raises:
        UsageError: an input is a table.
    """
    several = [*inputs] if isinstance(inputs, list | tuple) else [inputs]
    for one in several:
        if not isinstance(one, str | Path):
            raise UsageError(
                f"{where}: {type(one).__name__} came; a path is needed, or a list of paths, of {of}"
            )
    return [str(one) for one in several]


def _path(one: Any, folder: Path, number: int, names: dict[str, str]) -> str:
    """Return a path as it is; write a table to a file of its name, and return its path."""
    if isinstance(one, str | Path):
        return str(one)
    if not is_table(one):
        raise UsageError(
            f"{type(one).__name__} came; a path or a table with Arrow's interface (polars, pandas, "
            "duckdb, pyarrow, datasets) is needed"
        )
    table, file = arrow_table(one), folder / _name(one, number)
    if not table.num_columns:
        raise DataError(f"{file.name}: there are no columns, so there is nothing to read")
    pq.write_table(table, file, compression="lz4", use_dictionary=False)
    names[str(file)] = file.name
    return str(file)


def _name(table: object, number: int) -> str:
    return f"{type(table).__name__} {number}" if number else type(table).__name__
