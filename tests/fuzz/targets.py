"""Fuzz targets: each input must cause an RlpostError, or a correct result.

A target takes bytes and returns the name of the outcome. It raises `WrongError` for a wrong result,
and any unexpected exception of rlpost. Its files are in a temporary folder, empty after each input.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz import mutate, seeds

from rlpost import api
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.loss.run import loss
from rlpost.analysis.verify import verify
from rlpost.errors import DataError, RlpostError
from rlpost.formats.base import TOKEN_COLUMNS, ReadOptions
from rlpost.formats.convert import convert
from rlpost.io.parquet.checks import read_metadata
from rlpost.io.parquet.sink import open_sink
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, NotImplementedError)
OPTIONS = api.Options(device="cpu", workers=1, overwrite=True, chunk_tokens=16)


class WrongError(AssertionError):
    """A result is wrong: there was no error, and the output does not match the input."""


@cache
def folder() -> Path:
    """Return this process's temporary folder, in memory if possible."""
    memory = Path("/dev/shm")  # noqa: S108 - the parent of a temporary folder
    parent = memory if memory.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="rlpost-fuzz-", dir=parent))


def clean_up() -> None:
    """Remove this process's temporary folder."""
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()


def _expect(truth: bool, text: str) -> None:  # noqa: FBT001
    if not truth:
        raise WrongError(text)


# Parquet

RECIPES = (
    Recipe(),
    Recipe(estimator="gae", whiten_advantages=True, nonfinite="mask"),
    Recipe(emit_only=True, emit=("advantages", "kl", "group_mean", "final_response_mask")),
    Recipe(kl_coef=0.1, kl_estimator="k3", is_weight="sequence", drop_truncated=True),
    Recipe(estimator="optimal_token_baseline", columns={"sum_pi_squared": "values"}),
    Recipe(estimator="raw", emit=("token_level_rewards",)),
)


def check_parquet(data: bytes) -> str:
    """Run a command on a Parquet file: an error, or an output with the input's columns."""
    source, target = folder() / "in.parquet", folder() / "out.parquet"
    source.write_bytes(data)
    command = FILE_COMMANDS[zlib.crc32(data) % len(FILE_COMMANDS)]
    try:
        command(source, target)
    except RlpostError as error:
        _expect(bool(str(error)), "an error without a message")
        _expect(sorted(folder().iterdir()) == [source], "a failed run left files")
        return type(error).__name__
    else:
        if target.exists():
            same_columns(source, target, NEW)
        return "done"
    finally:
        for path in folder().iterdir():
            path.unlink()


def _enrich(recipe: Recipe, source: Path, target: Path) -> None:
    api.advantages(source, target, recipe, OPTIONS)
    new = {*pq.read_schema(target).names} - {*pq.read_schema(source).names}
    table = pq.ParquetFile(target).read(sorted(new & {"advantages", "returns"}))
    made = table.schema.field("advantages").type if "advantages" in table.column_names else None
    if made == pa.list_(pa.float32()) and "response_mask" in pq.read_schema(source).names:
        masks = pq.ParquetFile(source).read(["response_mask"])["response_mask"]
        lengths = [[len(row) for row in x.to_pylist()] for x in (masks, table["advantages"])]
        _expect(lengths[0] == lengths[1], "advantages are not one per response token")


FIELDS = pa.schema([("advantages", pa.list_(pa.float32())), ("kept", pa.bool_())])
NEW = {*FIELDS.names, *WRITTEN, *EXTRA}
MOST_ROWS = 10_000


def _splice(source: Path, target: Path) -> None:
    """Append constant columns: faster than computing them."""
    try:
        footer = read_metadata(source)[0]
    except READ_ERRORS as error:
        raise DataError(str(error)) from None
    if footer.num_rows > MOST_ROWS:
        raise DataError("too many rows")
    sink = open_sink(source, target, FIELDS, drop=FIELDS.names)
    try:
        for group in range(footer.num_row_groups):
            rows = footer.row_group(group).num_rows
            lists = pa.array([[0.5] * (row % 3) for row in range(rows)], FIELDS[0].type)
            kept = pa.array([row % 2 == 0 for row in range(rows)])
            sink.append(group, *sink.encode([pa.record_batch([lists, kept], schema=FIELDS)]))
        sink.complete({"rlpost.version": "0"})
        sink.output.publish()
    finally:
        sink.abort()
    found = pq.ParquetFile(target).read(["advantages", "kept"], use_threads=False)
    _expect(found.num_rows == footer.num_rows, "the new columns have a wrong number of rows")


def _inspect(source: Path, target: Path) -> None:  # noqa: ARG001
    inspect([source]).as_json()


def _verify(source: Path, target: Path) -> None:  # noqa: ARG001
    verify([source], OPTIONS)


def _loss(source: Path, target: Path) -> None:
    loss(source, target, options=OPTIONS)


FILE_COMMANDS: tuple[Callable[[Path, Path], None], ...] = (
    *(partial(_enrich, recipe) for recipe in RECIPES),
    _inspect,
    _loss,
    _verify,
    *([_splice] * 10),
)


def same_columns(source: Path, target: Path, replaced: Collection[str] = ()) -> None:
    """Check that kept columns have the same values, or cannot be read in both files."""
    before, after = pq.ParquetFile(source), pq.ParquetFile(target)
    _expect(before.metadata.num_rows == after.metadata.num_rows, "wrong number of rows")
    for field in before.schema_arrow:
        if field.name in replaced or field.name not in after.schema_arrow.names:
            continue
        _expect(after.schema_arrow.field(field.name).equals(field), f"{field.name!r}: wrong type")
        old, new = _column(before, field.name), _column(after, field.name)
        if isinstance(old, str) or isinstance(new, str):
            _expect(isinstance(old, str) == isinstance(new, str), f"{field.name!r}: {old} / {new}")
        elif not old.equals(new):  # for `equals`, NaN differs from NaN
            _expect(old.to_pylist().__repr__() == new.to_pylist().__repr__(), f"{field.name!r}")


def _column(file: pq.ParquetFile, name: str) -> pa.ChunkedArray | str:
    """Return a column, or the error if it cannot be read."""
    try:
        return file.read([name], use_threads=False)[name]
    except READ_ERRORS as error:
        return f"{type(error).__name__}: {error}"


# Dumps


def check_dump(data: bytes) -> str:
    """Convert a dump: an error, or token lists of equal length in each row."""
    name, suffix = seeds.FORMATS[data[0] % len(seeds.FORMATS)] if data else seeds.FORMATS[0]
    source, target = folder() / f"in{suffix}", folder() / "out.parquet"
    source.write_bytes(data[1:])
    try:
        convert(source, target, name, ReadOptions())
        table = pq.read_table(target)
        lists = [table[name] for name in TOKEN_COLUMNS if name in table.column_names]
        lengths = [[len(values) for values in column.to_pylist()] for column in lists]
        _expect(all(x == lengths[0] for x in lengths), "token lists differ in length")
    except RlpostError as error:
        _expect(sorted(folder().iterdir()) == [source], "a failed run left files")
        return type(error).__name__
    finally:
        for path in folder().iterdir():
            path.unlink()
    return "done"


def _dump_mutator(data: bytes, rng: Any, others: Any) -> bytes:
    place = data[0] % len(seeds.FORMATS) if data else 0
    suffix = seeds.FORMATS[place][1]
    by = {".pt": mutate.archive, ".parquet": mutate.parquet}.get(suffix, mutate.json_text)
    return bytes([place]) + by(data[1:], rng, [x[1:] for x in others[:8]])


@dataclass(frozen=True)
class Target:
    """One kind of file to fuzz."""

    name: str
    check: Callable[[bytes], str]
    mutate: mutate.Mutator
    good: Callable[[], list[bytes]]

    def start(self) -> list[bytes]:
        """Return the inputs to mutate: seeds, and the packed corpus."""
        return [*self.good(), *seeds.packed(self.name)]


TARGETS = {
    target.name: target
    for target in (
        Target("parquet", check_parquet, mutate.parquet, seeds.parquet_seeds),
        Target("dumps", check_dump, _dump_mutator, seeds.dump_seeds),
    )
}
