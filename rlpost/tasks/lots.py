"""Lots: the files that a task works on, and the rows of responses that belong to them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from rlpost.batch import Responses
from rlpost.engine import single_threaded_torch
from rlpost.kernels.moments import dense
from rlpost.parquet.memory import TableSource
from rlpost.parquet.source import Source
from rlpost.plan import job_of
from rlpost.run import engine_of
from rlpost.run_options import Options
from rlpost.shape import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rlpost.engine import Engine
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.parquet.inputs import InputFile
    from rlpost.parquet.places import Place
    from rlpost.parquet.stamps import Stamp
    from rlpost.parquet.survey import Survey
    from rlpost.plan import Job
    from rlpost.provenance import Whole
    from rlpost.recipe import Recipe
    from rlpost.schema import ColumnMap
    from rlpost.tasks.sheets import Sheet

MOST_BYTES = 256 << 20  # of a lot of several files, decompressed
ROW = "row"  # the column that says which row of its lot a response is
Json = dict[str, Any]
Labels = dict[str, list[str | int]]
Part = tuple["Sheet", int]
"""A sheet, and the batch of it that is meant."""


@dataclass(frozen=True)
class Work:
    """What all tasks of a run have in common."""

    recipe: Recipe
    columns: ColumnMap
    running: Mapping[str, RunningMoments]
    bundles: int
    """How many tables the responses are settled on; the rows of a step are all on one."""
    whole: Whole | None = None
    """The run that files say they are of; None where there are no files."""
    device: str = "cpu"
    chunk_tokens: int | None = None
    workers: int = 1
    folder: str = ""
    """Where relative paths begin; see `go_to`."""

    def job(self, source: Source | TableSource) -> Job:
        """The job on a part of the input."""
        return job_of(source, self.columns, shape_of(self.recipe, self.columns), self.running)

    def job_on_responses(self) -> Job:
        """The job for who reads no file."""
        return self.job(TableSource(pa.table({})))

    @contextmanager
    def engine(self, source: Source | TableSource) -> Iterator[Engine]:
        """An engine on a part of the input."""
        options = Options(self.device, self.chunk_tokens, self.workers)
        with single_threaded_torch():
            yield engine_of(self.job(source), options)
        if isinstance(source, Source):
            source.check_unchanged()


def go_to(folder: str) -> None:
    """Make relative paths begin there, for a task that started elsewhere; where it is there."""
    if folder and Path(folder).is_dir():
        os.chdir(folder)


class Lot(NamedTuple):
    """Consecutive files of the input, and where their twins go."""

    files: tuple[InputFile, ...]
    targets: tuple[Place, ...]
    stamps: tuple[Stamp | None, ...]
    """When each file was changed, as it was when the run began."""
    first: int
    """The number of the first file in the input."""
    rows: int

    def source(self) -> Source:
        """The files, opened; raises ReadWriteError where one is not what it was."""
        source = Source(self.files)
        source.stamps = list(self.stamps)
        source.check_unchanged()
        return source


class Block(NamedTuple):
    """A table as a lot."""

    table: Any
    rows: int

    def source(self) -> TableSource:
        """The table, to be read as a file would be."""
        return TableSource(self.table)


def lots_of(survey: Survey, targets: Sequence[Place], slots: int) -> list[Lot]:
    """The files in lots of about equal size: several for each slot, where there are that many.

    Args:
        survey: of the input.
        targets: where each file's twin goes.
        slots: how many tasks may run at once.
    """
    most = min(MOST_BYTES, sum(survey.sizes) // (4 * slots) + 1)
    found: list[list[int]] = []
    filled = most
    for place, size in enumerate(survey.sizes):
        if filled + size > most:
            found.append([])
            filled = 0
        found[-1].append(place)
        filled += size
    return [
        Lot(
            tuple(survey.files[place] for place in places),
            tuple(targets[place] for place in places),
            tuple(survey.stamps[place] for place in places),
            places[0],
            sum(survey.counts[place] for place in places),
        )
        for places in found
    ]


def assembled(labels: Labels, parts: Iterable[Part], *, empty: bool) -> tuple[Responses, Tensor]:
    """The responses of a lot, in the order of its rows, and which part each came from, [n].

    Args:
        labels: the steps and domains of the lot, in the order that they have in the input.
        parts: the lot's batches of the settled tables.
        empty: the lot has no rows; the first part is one of another lot then.
    """
    tables = [sheet.responses(place) for sheet, place in parts]
    tables = [tables[0].rows(0, 0)] if empty else tables
    only = tables[0]
    sizes = torch.tensor([len(table) for table in tables])
    names = [name for name in only.columns if len(tables) == 1 or name != "batch"]
    columns = {name: torch.cat([table[name] for table in tables]) for name in names}
    for name in ("step", "domain"):
        columns[name] = torch.cat([_relabelled(table, name, labels) for table in tables])
    columns["group"] = _apart([table["group"] for table in tables])
    order = columns.pop(ROW).argsort()
    own = torch.arange(len(tables)).repeat_interleave(sizes)[order]
    columns = {name: column[order] for name, column in columns.items()}
    domains = len(labels["domain"])
    code = columns["step"] * domains + columns["domain"]
    cells, columns["cell"] = dense(code, len(labels["step"]) * domains)
    found: Labels = {**labels, "cell": cells.tolist()}
    if len(tables) == 1:
        found["batch"] = only.labels["batch"]
    whole = bool((columns["tokens"] == columns["length"]).all())
    return Responses(columns, found, {**only.notes, "all_policy": whole}, only.shared), own


def _relabelled(table: Responses, name: str, labels: Labels) -> Tensor:
    """Codes of steps or domains for labels of one table, as codes for those of the lot."""
    places = {str(label): place for place, label in enumerate(labels[name])}
    codes = [places.get(str(label), -1) for label in table.labels[name]]
    return torch.tensor(codes, dtype=torch.int64)[table[name]]


def _apart(codes: Sequence[Tensor]) -> Tensor:
    """One column of codes from 0 without gaps, where equal codes of two parts mean two things."""
    first, shifted = 0, []
    for part in codes:
        shifted.append(part + first)
        first += int(part.max()) + 1 if part.numel() else 0
    return dense(torch.cat(shifted), max(first, 1))[1]
