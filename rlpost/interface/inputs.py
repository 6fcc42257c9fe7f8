"""Inputs of the Python functions: paths of files, dumps and URLs, or tables in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, Union

from rlpost.errors import DataError, UsageError
from rlpost.io.input_paths import UNDECLARED, Declaration, InputPaths, naming_errors, without_paths
from rlpost.io.parquet.column_names import first_table, is_canonical
from rlpost.io.paths import location_of, parse_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

    from rlpost.display.reporter import Reporter
    from rlpost.formats.where import Where
    from rlpost.io.memory import ArrowStream
    from rlpost.io.paths import RemotePath
    from rlpost.pipeline.options import Options
    from rlpost.recipe.recipe import Recipe

Input = Union[str, Path, "ArrowStream", "pl.LazyFrame"]
Inputs = Input | Sequence[Input]
Json = dict[str, Any]


@dataclass(frozen=True)
class OpenInputs(InputPaths):
    """Inputs as paths of Parquet files, and how results name them."""

    inputs: list[str] = field(default_factory=list)
    """Paths as they were passed, tables by their type."""
    of_tables: bool = False
    """No input is a path."""
    where: Where | None = None
    """The condition that the rows of the paths fulfil."""

    def columns(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Return the user's columns by role, without those that are fields of converted dumps."""
        kept = {role: x for role, x in chosen.items() if role not in self.bound or x == "none"}
        rollout = {"rollout": "rollout_id"} if "rollout" in chosen.keys() - kept.keys() else {}
        return {**kept, **rollout}

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return a recipe without the columns that are fields of converted dumps."""
        columns = self.columns(recipe.columns)
        same = columns == recipe.columns
        return recipe if same else recipe.model_copy(update={"columns": columns})

    def result(self, values: Json) -> Json:
        """Return a result with the names of inputs, if what it read was temporary."""
        if not self.names:
            return values
        return {**without_paths(values, self.names), "inputs": self.inputs}


@contextmanager
def open_inputs(
    inputs: Inputs,
    output: str | Path | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter,
    where: Where | None = None,
    declared: Declaration = UNDECLARED,
) -> Iterator[OpenInputs]:
    """Yield inputs as paths of Parquet files, which exist until the block ends.

    Tables are written to temporary files, and dumps are converted; the reporter gets a note about
    each input of dumps. Errors from within the block name the tables and dumps.

    Args:
        inputs: one or several paths, directories, globs, URLs or tables.
        output: the output, whose folder also has the converted dumps.
        overwrite: whether the output may exist.
        reporter: gets the notes.
        where: which rows the paths have; None: all.
        declared: what the user says about dumps; Parquet is read as one, too, if format, rows or
            groups are set.

    Raises:
        UsageError: there is no input, or an input is neither a path nor a table.
        DataError, ReadWriteError: as `rlpost convert`.
    """
    several = _listed(inputs)
    if not several:
        raise UsageError("no input: a path or a table is needed")
    if any(path == "-" for path in several if _is_path(path)):
        raise UsageError("-: rollouts are not read from standard input: name files")
    beside = None if output is None else parse_path(output)
    with table_paths(several) as tables:
        plain = where is None and not declared.of_dumps
        if plain and all(_is_canonical(path) for path in several if _is_path(path)):
            yield tables
            return
        from rlpost.formats.convert import canonical_inputs  # noqa: PLC0415 - imports all formats

        with canonical_inputs(
            tables.paths, beside, overwrite=overwrite, note=reporter.note, where=where,
            declared=declared,
        ) as paths:  # fmt: skip
            converted = paths.made_of(tables)
            fields = {x: getattr(converted, x) for x in ("paths", "names", "rows", "bound")}
            yield replace(tables, **fields, where=where)


def condition(text: str | None, columns_map: Mapping[str, str] | None) -> Where | None:
    """Return the condition of `--where`; raise UsageError for a wrong one."""
    if text is None:
        return None
    from rlpost.formats.where import Where  # noqa: PLC0415 - imports polars

    return Where(text, columns_map or {})


def of_steps(text: str | None, recipe: Recipe, options: Options) -> Where | None:
    """Return the condition of `--steps`; raise UsageError for options that need whole inputs."""
    if text is None:
        return None
    unfit = {
        "--skip-existing": (options.skip_existing, "compares whole files"),
        f"--engine {options.engine}": (options.engine != "local", "reads files where they are"),
    }
    for flag, (is_set, why) in unfit.items():
        if is_set:
            tip = "divide it into files: hive partitions (step=300/), or `rlpost convert`"
            raise UsageError(f"--steps {text}: excludes {flag}, which {why}", tip=tip)
    from rlpost.formats import where  # noqa: PLC0415 - imports polars

    return where.of_steps(text, recipe.columns)


@contextmanager
def table_paths(inputs: Sequence[Input]) -> Iterator[OpenInputs]:
    """Yield inputs as paths: tables are written to temporary files; other paths are unchanged.

    Errors from within the block name the tables.

    Raises:
        UsageError: an input is neither a path nor a table.
    """
    names = [_name(value, number) for number, value in enumerate(inputs)]
    tables = {name for name, value in zip(names, inputs, strict=True) if not _is_path(value)}
    if not tables:
        yield OpenInputs([location_of(path) for path in inputs if _is_path(path)], inputs=names)
        return
    from rlpost.io.locks import scratch_folder  # noqa: PLC0415 - of tables alone

    with scratch_folder(None) as folder:
        files = {str(folder / name): name for name in tables}
        with naming_errors(InputPaths((), files)):
            paths = [_path(value, folder / name) for value, name in zip(inputs, names, strict=True)]
            yield OpenInputs(paths, files, inputs=names, of_tables=len(tables) == len(names))


def _is_canonical(path: str | Path) -> bool:
    """Return whether a path is Parquet of responses, which no dump format needs to look at."""
    table = first_table(location_of(path))
    return table is not None and is_canonical(table)


def _listed(inputs: Inputs) -> list[Any]:
    return [*inputs] if isinstance(inputs, list | tuple) else [inputs]


def _is_path(value: object) -> TypeGuard[str | Path]:
    return isinstance(value, str | Path)


def path_names(inputs: Inputs, where: str, of: str) -> list[str | RemotePath]:
    """Return inputs that are all paths.

    Args:
        inputs: one, or several.
        where: what needs paths, for the error.
        of: what kind of files.

    Raises:
        UsageError: an input is a table.
    """
    several = _listed(inputs)
    for value in several:
        if not _is_path(value):
            raise UsageError(
                f"{where}: {type(value).__name__} came; a path is needed, or a list of paths, "
                f"of {of}"
            )
    return [location_of(path) for path in several]


def _path(value: Any, file: Path) -> str | RemotePath:
    """Return a path as it is; write a table to the file, and return its path."""
    if _is_path(value):
        return location_of(value)
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    from rlpost.io.memory import arrow_table, is_table  # noqa: PLC0415
    from rlpost.io.ranges import arrow_file  # noqa: PLC0415

    if not is_table(value):
        raise UsageError(
            f"{type(value).__name__} came; a path or a table with Arrow's interface (polars, "
            "pandas, duckdb, pyarrow, datasets) is needed"
        )
    table = arrow_table(value)
    if not table.num_columns:
        raise DataError(f"{file.name}: there are no columns, so there is nothing to read")
    with arrow_file(file, "wb") as written:
        pq.write_table(table, written, compression="lz4", use_dictionary=False)
    return str(file)


def _name(value: object, number: int) -> str:
    """Return what results call an input: its path, or its type and number."""
    if _is_path(value):
        return str(location_of(value))
    return f"{type(value).__name__} {number}" if number else type(value).__name__
