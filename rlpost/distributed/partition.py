"""Partitions: the files, or row groups of a file, that one task works on, and their responses."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.io.memory_limit import limited_memory
from rlpost.io.parquet.fingerprint import check_unchanged
from rlpost.io.parquet.source import (
    RangeSource,
    Source,
    TableSource,
    row_group_ranges,
)
from rlpost.kernels.codes import dense_codes
from rlpost.pipeline.data import Responses
from rlpost.pipeline.device import CPU, single_threaded
from rlpost.pipeline.engine import row_name
from rlpost.pipeline.options import Options
from rlpost.pipeline.plan import plan_of
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.run import engine_for
from rlpost.pipeline.totals import SummaryCells

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rlpost.distributed.blocks import ArrowBlock
    from rlpost.io.parquet.fingerprint import FileFingerprint
    from rlpost.io.parquet.inputs import InputFile, InputMetadata
    from rlpost.io.parquet.source import RowGroupRange
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.data import Column
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.output.metadata import FileMetadata
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


MOST_BYTES = 256 << 20  # of a partition of several files, decompressed
PART_BYTES = 256 << 20  # about, of a part of a file: smaller parts cost more than they gain
ROW = "row"  # the column with the row number of a response in its partition
Json = dict[str, Any]
Labels = dict[str, list[str | int]]


class LoadedBatch(NamedTuple):
    """A batch of a block."""

    block: ArrowBlock
    batch: int
    """The number of the batch in the block."""
    table: int = 0
    """The number of the reduced table that has the rows; the rows of a group are in one table."""
    shift: int = 0
    """What is added to row numbers if several partitions of a file are read as one."""


@dataclass(frozen=True)
class TaskContext:
    """What all tasks of a run have in common."""

    recipe: Recipe
    columns: ColumnMap
    state: RunState
    buckets: int
    """The number of tables that responses are reduced on; one table has all rows of a step."""
    metadata: FileMetadata | None = None
    """The metadata of the run; None if the run writes no files."""
    device: str = CPU
    chunk_tokens: int | None = None
    workers: int = 1
    folder: str = ""
    """The start of relative paths; see `change_to`."""
    max_memory: str | None = None
    """The memory that the process of a task may use."""

    def plan(self, source: Source | TableSource) -> Plan:
        """Return the plan on a part of the input."""
        resolved = resolve_recipe(self.recipe, self.columns)
        return plan_of(source, self.columns, resolved, self.state)

    def plan_on_responses(self) -> Plan:
        """Return a plan without input, for tasks that read no file."""
        return self.plan(TableSource(pa.table({})))

    @contextmanager
    def engine(self, source: Source | TableSource) -> Iterator[Engine]:
        """Yield an engine on a part of the input, which must not change meanwhile."""
        options = Options(self.device, self.chunk_tokens, self.workers)
        with limited_memory(self.max_memory), single_threaded():
            yield engine_for(self.plan(source), options)
        if isinstance(source, Source):
            source.check_unchanged()


def change_to(folder: str) -> None:
    """Make a folder the start of relative paths, if it exists on this machine."""
    if folder and Path(folder).is_dir():
        os.chdir(folder)


class Partition(NamedTuple):
    """Consecutive files of the input, or a part of one, and where their outputs are staged."""

    files: tuple[InputFile, ...]
    targets: tuple[AnyPath, ...]
    fingerprints: tuple[FileFingerprint | None, ...]
    """The state of each file when the run began."""
    first: int
    """The number of the first file in the input."""
    rows: int
    part: RowGroupRange | None = None
    """A range of row groups of the one file; None for all rows of all files."""

    def source(self) -> Source:
        """Open the files; raises ReadWriteError if one was changed since the run began."""
        source = Source(self.files) if self.part is None else RangeSource(self.files, self.part)
        source.fingerprints = list(self.fingerprints)
        source.check_unchanged()
        return source

    def row_name(self, row: int) -> str:
        """Return the name of a row of the partition in errors: its file and its number there."""
        source = self.source()
        return row_name(source.files, source.first_rows, row)


def check_inputs(partitions: Iterable[Partition], then: str) -> None:
    """Raise ReadWriteError if a local input was changed since the run began.

    Args:
        partitions: of the whole input.
        then: the end of the error's sentence: since when, and what to do.
    """
    fingerprints = {
        file.path: fingerprint
        for partition in partitions
        for file, fingerprint in zip(partition.files, partition.fingerprints, strict=True)
    }
    check_unchanged(fingerprints.items(), then)


class TablePartition(NamedTuple):
    """A table as a partition."""

    table: Any
    rows: int

    def source(self) -> TableSource:
        """Return the table with the reading interface of a file."""
        return TableSource(self.table)

    def row_name(self, row: int) -> str:
        """Return the name of a row in errors."""
        return f"{TableSource.name}, row {row}"


def partition_files(
    survey: InputMetadata, targets: Sequence[AnyPath], slots: int
) -> list[Partition]:
    """Return the files in partitions of about equal size, several for each slot if possible.

    A file that is larger than half of a slot's share is divided into several partitions.

    Args:
        survey: of the input.
        targets: the output of each file.
        slots: how many tasks may run at once.
    """
    total = sum(survey.sizes)
    most = min(MOST_BYTES, total // (4 * slots) + 1)
    large = max(total // (2 * slots), 2 * PART_BYTES) if slots > 1 else total
    partitions: list[Partition] = []
    filled = most
    for number, size in enumerate(survey.sizes):
        own = survey.files[number], targets[number], survey.fingerprints[number]
        file = Partition((own[0],), (own[1],), (own[2],), number, survey.row_counts[number])
        parts = row_group_ranges(file.files[0].path, max(most, PART_BYTES)) if size > large else []
        if len(parts) > 1:
            partitions += [file._replace(part=part, rows=part.rows) for part in parts]
            filled = most  # no other file joins a part
        elif filled + size > most:
            partitions.append(file)
            filled = size
        else:
            partitions[-1] = _merged(partitions[-1], file)
            filled += size
    return partitions


def _merged(left: Partition, right: Partition) -> Partition:
    return Partition(
        left.files + right.files,
        left.targets + right.targets,
        left.fingerprints + right.fingerprints,
        left.first,
        left.rows + right.rows,
    )


def assemble_responses(
    labels: Labels, batches: Iterable[LoadedBatch], *, empty: bool
) -> tuple[Responses, Column]:
    """Return the responses of a partition in row order, and the batch that each came from, [n].

    Args:
        labels: the steps and domains of the partition, in input order; those of other columns are
            in the order of the tables.
        batches: the partition's batches of the reduced tables.
        empty: the partition has no rows; the first batch is then one of another partition.
    """
    batches = list(batches)
    tables = [loaded.block.responses(loaded.batch) for loaded in batches]
    tables = [tables[0].rows(0, 0)] if empty else tables
    first, one_table = tables[0], len({loaded.table for loaded in batches}) == 1
    sizes = [len(table) for table in tables]
    left_out = () if one_table else ("batch",)  # its codes are of one table
    columns = {
        name: np.concatenate([table[name] for table in tables])
        for name in first.columns
        if name not in left_out
    }
    for name in first.labels:
        if name not in left_out:
            found = dict.fromkeys(label for table in tables for label in table.labels[name])
            labels = {name: list(found), **labels}
            columns[name] = np.concatenate([_relabelled(table, name, labels) for table in tables])
    shifts = np.array([loaded.shift for loaded in batches[: len(tables)]], np.int64)
    columns["group"] = _distinct_codes(
        [table["group"] for table in tables], [loaded.table for loaded in batches]
    )
    order = (columns.pop(ROW) + shifts.repeat(sizes)).argsort()
    own = np.arange(len(tables)).repeat(sizes)[order]
    columns = {name: column[order] for name, column in columns.items()}
    cells, columns["cell"] = SummaryCells.of(
        columns["step"], labels["step"], columns["domain"], labels["domain"]
    )
    all_policy = bool((columns["tokens"] == columns["length"]).all())
    notes = {**first.notes, "all_policy": all_policy}
    return Responses(columns, labels, notes, first.shared, cells), own


def _relabelled(table: Responses, name: str, labels: Labels) -> Column:
    """Return a table's codes of labels as codes of the partition's labels."""
    numbers = {str(label): number for number, label in enumerate(labels[name])}
    codes = [numbers.get(str(label), -1) for label in table.labels[name]]
    return np.array(codes, np.int64)[table[name]]


def _distinct_codes(codes: Sequence[Column], tables: Sequence[int]) -> Column:
    """Return one column of codes from 0 without gaps; equal codes of two tables become two."""
    sizes: dict[int, int] = {}
    for part, table in zip(codes, tables, strict=False):
        size = int(part.max()) + 1 if len(part) else 0
        sizes[table] = max(sizes.get(table, 0), size)
    firsts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    shifted = [part + firsts[table] for part, table in zip(codes, tables, strict=False)]
    return dense_codes(np.concatenate(shifted), max(sum(sizes.values()), 1))[1]
