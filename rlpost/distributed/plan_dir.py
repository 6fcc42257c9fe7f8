"""The directory of a planned run: the plan as JSON, blocks, and notes of complete partitions."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.distributed.driver import Reduced, divided_files, in_input_order
from rlpost.distributed.executor import BatchRef
from rlpost.distributed.partition import Partition, TaskContext
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.locks import BusyError, FileLock
from rlpost.io.own_files import parse, seal, unseal
from rlpost.io.parquet.fingerprint import FileFingerprint
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import RowGroupRange
from rlpost.io.paths import parse_path
from rlpost.io.staged import file_errors
from rlpost.pipeline.device_choice import DeviceChoice
from rlpost.pipeline.output.metadata import FileMetadata
from rlpost.pipeline.running_state import RunState
from rlpost.pipeline.summary import ResponseFacts
from rlpost.recipe import semantics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ColumnMap
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.distributed.partition import Json
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.expectations import FailOn


_VERSION = 2
_RUN_NAME = "[0-9a-f]" * 16


@dataclass(frozen=True)
class Manifest:
    """A planned run: its responses are reduced, its files are not written yet."""

    context: TaskContext
    partitions: list[Partition]
    reduced: Reduced
    inputs: list[str]
    """As the user named them."""
    targets: list[AnyPath]
    """The final paths of the files."""
    run: str
    """The name of the run; see `StagedOutputs`."""
    state: str | None = None
    """The file of running reward statistics."""
    overwrite: bool = False
    """Whether existing files at the targets are replaced."""
    fail_on: FailOn | None = None
    expect: Mapping[str, object] = field(default_factory=dict)
    """Findings that keep the last shard from publishing, as in `Options`."""

    def to_json(self) -> str:
        """Return the manifest as text."""
        context, reduced = self.context, self.reduced
        recipe = context.recipe.model_dump(mode="json")
        metadata = None
        if context.metadata is not None:
            metadata = {**vars(context.metadata), "recipe": recipe}
        return seal(
            {
                "manifest": _VERSION,
                "rlpost": __version__,
                "semantics": SEMANTICS,
                "recipe": recipe,
                "columns": asdict(context.columns),
                "before": context.state.to_json(),
                "buckets": context.buckets,
                "metadata": metadata,
                "device": context.device._asdict(),
                "chunk_tokens": context.chunk_tokens,
                "partitions": [_partition_to_json(one) for one in self.partitions],
                "batches": reduced.batches,
                "labels": reduced.labels,
                "own": reduced.own,
                "facts": reduced.facts.to_json(),
                "after": reduced.after,
                "inputs": self.inputs,
                "targets": [str(target) for target in self.targets],
                "run": self.run,
                "state": self.state,
                "overwrite": self.overwrite,
                "fail_on": self.fail_on,
                "expect": self.expect,
            }
        )

    @classmethod
    def from_json(cls, text: bytes, path: str) -> Manifest:
        """Return the manifest from what `to_json` returned.

        Args:
            text: of the manifest.
            path: its file, for errors.

        Raises:
            UsageError: another version of rlpost wrote it, or it has other semantics.
            DataError: it is no manifest, or was changed.
        """
        try:
            table = parse(text)
            if table["manifest"] != _VERSION or table["rlpost"] != __version__:
                raise UsageError(
                    f"{path}: rlpost {table['rlpost']} wrote this plan, and this is {__version__}: "
                    "run `rlpost plan` again"
                )
            if (number := semantics.parse(table["semantics"])) != SEMANTICS:
                raise UsageError(
                    f"{path}: a plan of {semantics.describe(number)}. Files of both must not be "
                    "mixed: run `rlpost plan --overwrite` again"
                )
            table = unseal(text)
            recipe = Recipe.model_validate(table["recipe"])
            metadata = table["metadata"]
            context = TaskContext(
                recipe,
                ColumnMap(**table["columns"]),
                RunState.of(table["before"]),
                table["buckets"],
                None if metadata is None else FileMetadata(**{**metadata, "recipe": recipe}),
                DeviceChoice(**table["device"]),
                table["chunk_tokens"],
            )
            reduced = Reduced(
                [tuple(_batch_ref(*batch) for batch in own) for own in table["batches"]],
                table["labels"],
                table["own"],
                ResponseFacts.from_json(table["facts"]),
                table["after"],
            )
            return cls(
                context,
                [_partition_of(one) for one in table["partitions"]],
                reduced,
                table["inputs"],
                [parse_path(target) for target in table["targets"]],
                _run_name(table["run"]),
                table["state"],
                table["overwrite"],
                table["fail_on"],
                table["expect"],
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: `rlpost plan` did not write this file, or it was changed ({error!r}); "
                "run it again"
            ) from None


def _run_name(text: str) -> str:
    """Return the name of a run; ValueError if it is none, but a path, for example."""
    if not fnmatchcase(text, _RUN_NAME):
        raise ValueError(f"run {text!r}")
    return text


def _batch_ref(block: str, *numbers: int) -> BatchRef:
    """Return a reference to a batch of a block in the folder of the run; else ValueError."""
    if Path(block).name != block:
        raise ValueError(f"block {block!r}")
    return BatchRef(block, *numbers)


def _partition_to_json(partition: Partition) -> Json:
    return {
        "files": [[_absolute(f.path), str(f.relative), f.partitions] for f in partition.files],
        "targets": [_absolute(target) for target in partition.targets],
        "fingerprints": partition.fingerprints,
        "first": partition.first,
        "rows": partition.rows,
        "part": partition.part,
    }


def _absolute(path: AnyPath) -> str:
    """Return a path that is valid in any working directory."""
    return str(path.absolute()) if isinstance(path, Path) else str(path)


def _partition_of(table: Json) -> Partition:
    def file_of(path: str, relative: str, partitions: list[list[str]]) -> InputFile:
        pairs: list[Any] = [tuple(pair) for pair in partitions]
        return InputFile(parse_path(path), Path(relative), tuple(pairs))

    return Partition(
        tuple(file_of(*file) for file in table["files"]),
        tuple(parse_path(target) for target in table["targets"]),
        tuple(None if one is None else FileFingerprint(*one) for one in table["fingerprints"]),
        table["first"],
        table["rows"],
        None if table["part"] is None else RowGroupRange(*table["part"]),
    )


class RunDirectory:
    """The paths of a run: blocks, and a note of each partition and joined file that is complete.

    Args:
        folder: of the run.
        partitions: of the run.
    """

    def __init__(self, folder: Path, partitions: Sequence[Partition]) -> None:
        done = folder / "done"
        self.folder = folder
        self.blocks = folder / "blocks"
        self.divided = divided_files(partitions)
        self.of_partitions = [done / f"{number:06d}.json" for number in range(len(partitions))]
        self.of_divided = [done / f"{own.start:06d}-{own.stop:06d}.json" for own in self.divided]
        self.notes = in_input_order(self.of_partitions, self.divided, self.of_divided)
        """All notes, in the order of the input."""

    def create(self) -> None:
        """Create the folders; raises ReadWriteError."""
        for folder in (self.blocks, self.folder / "done"):
            with file_errors(folder, "cannot be written"):
                folder.mkdir(parents=True)

    @staticmethod
    def encoded(partition: int) -> str:
        """Return the name of the block with the encoded columns of a part of a file."""
        return f"encoded-{partition:06d}"


def run_directories(state_dir: Path) -> list[Path]:
    """Return the folders of all runs that any version planned in a directory."""
    blocks = ("blocks", "sheets")  # rlpost 0.1 called them sheets
    return [path.parent for name in blocks for path in state_dir.glob(f"{_RUN_NAME}/{name}")]


def partition_lock(note: Path, partitions: range) -> FileLock:
    """Return a lock on the note of a partition, for the shard that writes these partitions.

    Raises:
        ReadWriteError: another process writes the partition, or the folder is not writable.
    """
    try:
        return FileLock([note])
    except BusyError:
        raise ReadWriteError(
            f"shard {partitions.start} of {partitions.step} is already running, or a shard of "
            "another --num-shards that writes the same files is; start this one when that ends"
        ) from None


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Yield whether this process has the lock on a file; it keeps the lock in the block."""
    try:
        lock = FileLock([path])
    except ReadWriteError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
