"""The manifest of a planned run: all that its shards need to know, as JSON.

What a planned run has in its folder of the state directory, for shards that go on with it.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.distributed.driver import Settled
from rlpost.distributed.executor import BatchRef
from rlpost.distributed.last_pass import in_order, joins_of
from rlpost.distributed.partition import Partition, TaskContext
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.locks import BusyError, FileLock
from rlpost.io.parquet.fingerprint import FileFingerprint
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import RowGroupRange
from rlpost.io.paths import parse_path
from rlpost.io.staged import file_errors
from rlpost.kernels.rewards import RunningMoments
from rlpost.pipeline.file_metadata import Whole
from rlpost.pipeline.summary import GroupFacts, ResponseFacts
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ColumnMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.distributed.partition import Json
    from rlpost.io.paths import AnyPath


_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """A run whose responses are settled, and whose files are to be written."""

    work: TaskContext
    partitions: list[Partition]
    settled: Settled
    inputs: list[str]
    """As the user named them."""
    targets: list[AnyPath]
    """The names that the files will get."""
    run: str
    """The name of the run; see `Waiting`."""
    state: str | None = None
    """The file of running moments that the run goes on with."""
    overwrite: bool = False
    """Whether files that have the targets' names are replaced."""

    def to_json(self) -> str:
        """The manifest as text."""
        work, found = self.work, self.settled
        groups = found.facts.groups
        return json.dumps(
            {
                "manifest": _VERSION,
                "rlpost": __version__,
                "recipe": work.recipe.model_dump(mode="json"),
                "columns": asdict(work.columns),
                "running": {name: asdict(one) for name, one in work.running.items()},
                "bundles": work.buckets,
                "whole": None if work.whole is None else asdict(work.whole),
                "device": work.device,
                "chunk_tokens": work.chunk_tokens,
                "lots": [_partition_to_json(partition) for partition in self.partitions],
                "parts": found.parts,
                "labels": found.labels,
                "own": found.own,
                "facts": {
                    "sizes": None if groups is None else [*groups.sizes.items()],
                    "zero_variance": 0 if groups is None else groups.zero_variance,
                    "empty": found.facts.empty,
                    "coefficients": found.facts.coefficients,
                    "unwhitened": found.facts.unwhitened,
                },
                "after": found.running,
                "inputs": self.inputs,
                "targets": [str(target) for target in self.targets],
                "run": self.run,
                "state": self.state,
                "overwrite": self.overwrite,
            }
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """The manifest that a text holds.

        Args:
            text: what `to_json` gave.
            where: what errors call it.

        Raises:
            UsageError: another version of rlpost wrote it.
            DataError: it is no manifest.
        """
        try:
            table = json.loads(text)
            if table["manifest"] != _VERSION or table["rlpost"] != __version__:
                raise UsageError(
                    f"{where}: planned by rlpost {table['rlpost']}, and this is {__version__}: "
                    "run `rlpost plan` again"
                )
            return cls(
                _work_of(table),
                [_partition_of(partition) for partition in table["lots"]],
                _settled_of(table),
                table["inputs"],
                [parse_path(target) for target in table["targets"]],
                table["run"],
                table["state"],
                table["overwrite"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{where}: not what `rlpost plan` writes ({error!r}): run it again"
            ) from None


def _work_of(table: Json) -> TaskContext:
    return TaskContext(
        Recipe.model_validate(table["recipe"]),
        ColumnMap(**table["columns"]),
        {name: RunningMoments(**values) for name, values in table["running"].items()},
        table["bundles"],
        None if table["whole"] is None else Whole(**table["whole"]),
        table["device"],
        table["chunk_tokens"],
    )


def _settled_of(table: Json) -> Settled:
    facts = table["facts"]
    sizes = facts["sizes"]
    groups = None if sizes is None else GroupFacts(Counter(dict(sizes)), facts["zero_variance"])
    return Settled(
        [tuple(BatchRef(*part) for part in parts) for parts in table["parts"]],
        table["labels"],
        table["own"],
        ResponseFacts({}, groups, facts["empty"], facts["coefficients"], facts["unwhitened"]),
        table["after"],
    )


def _partition_to_json(partition: Partition) -> Json:
    return {
        "files": [[_absolute(f.path), str(f.relative), f.partitions] for f in partition.files],
        "targets": [_absolute(target) for target in partition.targets],
        "stamps": partition.stamps,
        "first": partition.first,
        "rows": partition.rows,
        "part": partition.part,
    }


def _absolute(place: AnyPath) -> str:
    """Where a shard finds it that was started in another folder."""
    return str(place.absolute()) if isinstance(place, Path) else str(place)


def _partition_of(table: Json) -> Partition:
    def file_of(path: str, relative: str, partitions: list[list[str]]) -> InputFile:
        pairs: list[Any] = [tuple(pair) for pair in partitions]
        return InputFile(parse_path(path), Path(relative), tuple(pairs))

    return Partition(
        tuple(file_of(*file) for file in table["files"]),
        tuple(parse_path(target) for target in table["targets"]),
        tuple(None if stamp is None else FileFingerprint(*stamp) for stamp in table["stamps"]),
        table["first"],
        table["rows"],
        None if table["part"] is None else RowGroupRange(*table["part"]),
    )


class RunDirectory:
    """Sheets by name, and a note of each lot and of each joined file that is complete.

    Args:
        folder: of the run.
        partitions: of the run.
    """

    def __init__(self, folder: Path, partitions: Sequence[Partition]) -> None:
        done = folder / "done"
        self.folder = folder
        self.blocks = folder / "sheets"
        self.joins = joins_of(partitions)
        self.of_partitions = [done / f"{place:06d}.json" for place in range(len(partitions))]
        self.of_joins = [done / f"{own.start:06d}-{own.stop:06d}.json" for own in self.joins]
        self.notes = in_order(self.of_partitions, self.joins, self.of_joins)
        """All notes, in the order of the input."""

    def make(self) -> None:
        """Make the folders; raises ReadWriteError."""
        for folder in (self.blocks, self.folder / "done"):
            with file_errors(folder, "cannot be written"):
                folder.mkdir(parents=True)

    @staticmethod
    def encoded(partition: int) -> str:
        """The name of the sheet of what was encoded of a part of a file."""
        return f"encoded-{partition:06d}"


def run_directories(state_dir: Path) -> list[Path]:
    """The folders of all runs that were planned there, by whatever version."""
    return [blocks.parent for blocks in state_dir.glob(f"{'[0-9a-f]' * 16}/sheets")]


def claimed(note: Path, partitions: range) -> FileLock:
    """A lock on the note of a lot, for a shard that writes these lots.

    Raises:
        ReadWriteError: another process is at the lot, or the folder is not writable.
    """
    try:
        return FileLock([note])
    except BusyError:
        raise ReadWriteError(
            f"shard {partitions.start} of {partitions.step} is running already, or one of another "
            "--num-shards that writes the same files; wait until that ends"
        ) from None


@contextmanager
def turn(path: Path) -> Iterator[bool]:
    """Whether no other shard is about to write a file; none will, then, while the block runs."""
    try:
        claim = FileLock([path])
    except ReadWriteError:
        yield False
        return
    try:
        yield True
    finally:
        claim.release()
