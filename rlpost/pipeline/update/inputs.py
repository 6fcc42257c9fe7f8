"""The files that an update reads: Parquet as it is, dumps as converted files."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlpost.errors import ReadWriteError, RlpostError
from rlpost.formats import detect
from rlpost.formats.dumps import Dump, check_mixed, common_format, is_dump_table
from rlpost.formats.inputs import convert_dumps, converted_line
from rlpost.io.input_paths import without_paths
from rlpost.io.locks import scratch_folder
from rlpost.io.parquet.inputs import InputFile, partitions_of
from rlpost.pipeline.update.entry import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlpost.formats.writer import CanonicalFile
    from rlpost.pipeline.update.entry import UpdateFile
    from rlpost.pipeline.update.files import Update


class UpdateInputs:
    """The chosen files of an update as Parquet files.

    Args:
        update: the update, with the chosen files.
        folder: for converted dumps.
        report: is called with a line or two per converted dump; None: no reports.
    """

    def __init__(self, update: Update, folder: Path, report: Callable[[str], None] | None) -> None:
        self.update = update
        self._folder = folder
        self._report = report
        self._files: dict[UpdateFile, InputFile] = {}
        self._dumps: dict[UpdateFile, Dump] = {}

    @classmethod
    @contextmanager
    def of(cls, update: Update, report: Callable[[str], None] | None) -> Iterator[Self]:
        """Yield the inputs; converted dumps exist until the block ends, and errors name the dumps.

        Raises:
            ReadWriteError: the folder beside OUT is not writable.
        """
        with scratch_folder(update.output.absolute().parent) as folder:
            inputs = cls(update, folder, report)
            try:
                yield inputs
            except RlpostError as error:
                names = {str(inputs._target(found)): str(found.path) for found in inputs._dumps}
                raise error.reworded(partial(without_paths, names=names)) from None

    def files(self) -> list[InputFile]:
        """Return the chosen files; those that change while they are converted are left out.

        Raises:
            ReadWriteError: a file cannot be read, or no file of a directory has a known format.
            UsageError: the dumps have several formats.
            DataError: a record of a dump is bad.
        """
        update = self.update
        fresh = [found for found in update.chosen if found not in self._files]
        for found in fresh:
            dump = self._as_dump(found)
            if dump is not None:
                self._dumps[found] = dump
        if self._dumps:
            common_format([*self._dumps.values()])
            check_mixed(str(update.output), [*self._dumps.values()])
        files = {found: file for found in fresh if (file := self._prepare(found)) is not None}
        if files and self._report is not None:
            self._report(converted_line([self._dumps[one] for one in files], [*files.values()]))
        if update.skipped and not update.chosen and not update.kept:
            raise ReadWriteError(
                f"{update.skipped[0].path}: its format is unknown, and so is that of all files; "
                "rlpost convert --list lists the formats"
            )
        return [self._files[found] for found in update.chosen]

    def _as_dump(self, found: UpdateFile) -> Dump | None:
        path = found.path
        if not isinstance(path, Path) or (found.table and not is_dump_table(path)):
            return None
        dump_format = detect(path)
        dump = None if dump_format is None else Dump(path, dump_format, found.relative)
        others = {other.path for other in self.update.files}
        return None if dump is None or dump.owner in others else dump

    def _target(self, found: UpdateFile) -> Path:
        """Return the path of a converted dump."""
        return self._folder / "0" / found.name

    def _prepare(self, found: UpdateFile) -> CanonicalFile | None:
        """Convert a dump, or use a table as it is; or take the file out of the chosen ones."""
        update, dump = self.update, self._dumps.get(found)
        if dump is None and not found.table:
            update.skipped.append(found)
            del update.chosen[found]
            return None
        update.sources[found] = Identity.of(found)
        if dump is None:
            self._files[found] = InputFile(found.path, Path(found.name), partitions_of(found.path))
            return None
        target = self._target(found)
        file = convert_dumps([dump], target)
        if Identity.of(found) != update.sources[found]:
            update.incomplete.append(found)
            del update.chosen[found]
            return None
        self._files[found] = InputFile(target, Path(found.name), partitions_of(target))
        return file
