"""Lots: the files that a task works on, or a part of one, and the rows that belong to them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from rlpost.io.parquet.fingerprint import check_unchanged
from rlpost.io.parquet.source import (
    RangeSource,
    Source,
    TableSource,
    row_group_ranges,
)
from rlpost.kernels.moments import dense_codes
from rlpost.pipeline.data import Responses
from rlpost.pipeline.engine import single_threaded_torch
from rlpost.pipeline.options import Options
from rlpost.pipeline.plan import plan_of
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.run import engine_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rlpost.distributed.exchange import ArrowBlock
    from rlpost.io.parquet.fingerprint import FileFingerprint
    from rlpost.io.parquet.inputs import InputFile, InputMetadata
    from rlpost.io.parquet.source import RowGroupRange
    from rlpost.io.paths import AnyPath
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.file_metadata import Whole
    from rlpost.pipeline.plan import Plan
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


MOST_BYTES = 256 << 20  # of a lot of several files, decompressed
PART_BYTES = 256 << 20  # of a part of a file, about: smaller ones cost more than they gain
ROW = "row"  # the column that says which row of its lot a response is
Json = dict[str, Any]
Labels = dict[str, list[str | int]]


class Part(NamedTuple):
    """A batch of a sheet."""

    block: ArrowBlock
    place: int
    """Which of its batches."""
    table: int = 0
    """Which settled table the rows are of; groups are within one."""
    shift: int = 0
    """What is added to numbers of rows: a file in several lots is more than the first."""


@dataclass(frozen=True)
class TaskContext:
    """What all tasks of a run have in common."""

    recipe: Recipe
    columns: ColumnMap
    running: Mapping[str, RunningMoments]
    buckets: int
    """How many tables the responses are settled on; the rows of a step are all on one."""
    whole: Whole | None = None
    """The run that files say they are of; None where there are no files."""
    device: str = "cpu"
    chunk_tokens: int | None = None
    workers: int = 1
    folder: str = ""
    """Where relative paths begin; see `go_to`."""
    verify: bool = False
    """Files are read again before they wait for the others."""

    def plan(self, source: Source | TableSource) -> Plan:
        """The job on a part of the input."""
        return plan_of(
            source, self.columns, resolve_recipe(self.recipe, self.columns), self.running
        )

    def plan_on_responses(self) -> Plan:
        """The job for who reads no file."""
        return self.plan(TableSource(pa.table({})))

    @contextmanager
    def engine(self, source: Source | TableSource) -> Iterator[Engine]:
        """An engine on a part of the input."""
        options = Options(self.device, self.chunk_tokens, self.workers)
        with single_threaded_torch():
            yield engine_for(self.plan(source), options)
        if isinstance(source, Source):
            source.check_unchanged()


def go_to(folder: str) -> None:
    """Make relative paths begin there, for a task that started elsewhere; where it is there."""
    if folder and Path(folder).is_dir():
        os.chdir(folder)


class Partition(NamedTuple):
    """Consecutive files of the input, or a part of one, and where their twins go."""

    files: tuple[InputFile, ...]
    targets: tuple[AnyPath, ...]
    stamps: tuple[FileFingerprint | None, ...]
    """When each file was changed, as it was when the run began."""
    first: int
    """The number of the first file in the input."""
    rows: int
    part: RowGroupRange | None = None
    """The row groups of the one file that are meant; None for all rows of all files."""

    def source(self) -> Source:
        """The files, opened; raises ReadWriteError where one is not what it was."""
        source = Source(self.files) if self.part is None else RangeSource(self.files, self.part)
        source.fingerprints = list(self.stamps)
        source.check_unchanged()
        return source


def check_inputs(partitions: Iterable[Partition], then: str) -> None:
    """Raise ReadWriteError where a local input is not what it was when the run began.

    Args:
        partitions: of the whole input.
        then: what the error says of the time since, and what to do.
    """
    fingerprints = {
        file.path: fingerprint
        for partition in partitions
        for file, fingerprint in zip(partition.files, partition.stamps, strict=True)
    }
    check_unchanged(fingerprints.items(), then)


class Block(NamedTuple):
    """A table as a lot."""

    table: Any
    rows: int

    def source(self) -> TableSource:
        """The table, to be read as a file would be."""
        return TableSource(self.table)


def partition_files(
    survey: InputMetadata, targets: Sequence[AnyPath], slots: int
) -> list[Partition]:
    """The files in lots of about equal size: several for each slot, where there are that many.

    A file that is more than half of what a slot gets is divided into several lots.

    Args:
        survey: of the input.
        targets: where each file's twin goes.
        slots: how many tasks may run at once.
    """
    total = sum(survey.sizes)
    most = min(MOST_BYTES, total // (4 * slots) + 1)
    large = max(total // (2 * slots), 2 * PART_BYTES) if slots > 1 else total
    found: list[Partition] = []
    filled = most
    for place, size in enumerate(survey.sizes):
        file = _one_file(survey, targets, place)
        parts = row_group_ranges(file.files[0].path, max(most, PART_BYTES)) if size > large else []
        if len(parts) > 1:
            found += [file._replace(part=part, rows=part.rows) for part in parts]
            filled = most  # another file does not join a part
        elif filled + size > most:
            found.append(file)
            filled = size
        else:
            found[-1] = _both(found[-1], file)
            filled += size
    return found


def _one_file(survey: InputMetadata, targets: Sequence[AnyPath], place: int) -> Partition:
    """A lot of one file."""
    own = survey.files[place], targets[place], survey.fingerprints[place]
    return Partition((own[0],), (own[1],), (own[2],), place, survey.row_counts[place])


def _both(left: Partition, right: Partition) -> Partition:
    """Two lots as one."""
    return Partition(
        left.files + right.files,
        left.targets + right.targets,
        left.stamps + right.stamps,
        left.first,
        left.rows + right.rows,
    )


def assemble_responses(
    labels: Labels, parts: Iterable[Part], *, empty: bool
) -> tuple[Responses, Tensor]:
    """The responses of a lot, in the order of its rows, and which part each came from, [n].

    Args:
        labels: the steps and domains of the lot, in the order that they have in the input.
        parts: the lot's batches of the settled tables.
        empty: the lot has no rows; the first part is one of another lot then.
    """
    parts = list(parts)
    tables = [part.block.responses(part.place) for part in parts]
    tables = [tables[0].rows(0, 0)] if empty else tables
    only, alone = tables[0], len({part.table for part in parts}) == 1
    sizes = torch.tensor([len(table) for table in tables])
    names = [name for name in only.columns if alone or name != "batch"]
    columns = {name: torch.cat([table[name] for table in tables]) for name in names}
    for name in ("step", "domain"):
        columns[name] = torch.cat([_relabelled(table, name, labels) for table in tables])
    shifts = torch.tensor([part.shift for part in parts[: len(tables)]])
    columns["group"] = _apart([table["group"] for table in tables], [part.table for part in parts])
    order = (columns.pop(ROW) + shifts.repeat_interleave(sizes)).argsort()
    own = torch.arange(len(tables)).repeat_interleave(sizes)[order]
    columns = {name: column[order] for name, column in columns.items()}
    domains = len(labels["domain"])
    code = columns["step"] * domains + columns["domain"]
    cells, columns["cell"] = dense_codes(code, len(labels["step"]) * domains)
    found: Labels = {**labels, "cell": cells.tolist()}
    if alone:
        found["batch"] = only.labels["batch"]
    whole = bool((columns["tokens"] == columns["length"]).all())
    return Responses(columns, found, {**only.notes, "all_policy": whole}, only.shared), own


def _relabelled(table: Responses, name: str, labels: Labels) -> Tensor:
    """Codes of steps or domains for labels of one table, as codes for those of the lot."""
    places = {str(label): place for place, label in enumerate(labels[name])}
    codes = [places.get(str(label), -1) for label in table.labels[name]]
    return torch.tensor(codes, dtype=torch.int64)[table[name]]


def _apart(codes: Sequence[Tensor], tables: Sequence[int]) -> Tensor:
    """One column of codes from 0 without gaps; equal codes of two tables mean two things."""
    sizes: dict[int, int] = {}
    for part, table in zip(codes, tables, strict=False):
        size = int(part.max()) + 1 if part.numel() else 0
        sizes[table] = max(sizes.get(table, 0), size)
    firsts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    shifted = [part + firsts[table] for part, table in zip(codes, tables, strict=False)]
    return dense_codes(torch.cat(shifted), max(sum(sizes.values()), 1))[1]
