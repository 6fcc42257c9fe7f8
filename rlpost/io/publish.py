"""Publication: files that others see complete, all together, or not at all.

Every file that rlpost writes for others is published here: it is locked and written beside its
target, and renamed when it is complete. What was not published is undone.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.errors import ReadWriteError
from rlpost.io.locks import claim
from rlpost.io.shutdown import signals_deferred
from rlpost.io.staged import StagedFile, file_errors
from rlpost.io.system import allow_open_files, sync_folder
from rlpost.io.threads import map_ordered
from rlpost.io.uploads import OutputFile, Upload, stage_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlpost.io.paths import AnyPath


_REQUESTS = 8  # objects that are published at a time
_OTHER_FILES = 256  # that are open beside the outputs


def publish_files(
    files: Iterable[OutputFile],
    before: Callable[[], None] | None = None,
    folders: Iterable[Path] = (),
) -> None:
    """Publish complete files; a signal is deferred until all of them are published.

    Args:
        files: in the order in which local ones are renamed; objects follow.
        before: is called before the first.
        folders: that are synced beside those of the files, since there are new names in them.

    Raises:
        ReadWriteError: a file cannot be renamed; those before it are published, and perhaps some
            objects after it.
    """
    uploads: list[Upload] = []
    changed = {*folders}
    with signals_deferred():
        if before is not None:
            before()
        for file in files:
            if isinstance(file, Upload):
                uploads.append(file)
            else:
                file.rename()
                changed.add(file.target.parent)
        for _ in map_ordered(Upload.publish, iter(uploads), _REQUESTS):
            pass
        for folder in changed:
            with file_errors(folder, "cannot be written"):
                sync_folder(folder)


def write_file(target: Path, data: bytes | memoryview) -> None:
    """Write a local file as a whole, or leave it as it is.

    Args:
        target: the file, in an existing folder.
        data: its content.

    Raises:
        BusyError: another run writes the file.
        ReadWriteError: it cannot be written.
    """
    with StagedFile(target) as staged:
        claim({target: staged.path})
        staged.write(0, data)
        staged.complete()
        publish_files([staged])


class StagedFiles:
    """Files that are published together: a context manager that undoes what is not published.

    In the block, the folders of all targets exist, no other run can write the targets, and what
    killed runs left of them is removed.

    Args:
        targets: in the order in which they are published.

    Raises:
        ReadWriteError: on entering: a folder cannot be created or written.
        BusyError: on entering: another run writes a file.
    """

    def __init__(self, targets: Iterable[AnyPath]) -> None:
        self.targets = [*targets]
        self._locked: dict[Path, StagedFile] = {}
        self._files: dict[AnyPath, OutputFile] = {}
        self._created: list[Path] = []
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        allow_open_files(len(self.targets) + _OTHER_FILES)
        with ExitStack() as undo:
            for target in self.targets:
                self._create_folders(target, undo)
                if isinstance(target, Path):
                    self._locked[target] = file = StagedFile(target)
                    undo.callback(file.discard)
            claim({target: file.path for target, file in self._locked.items()})
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _create_folders(self, target: AnyPath, undo: ExitStack) -> None:
        """Create the folders of a target that are missing."""
        missing = [folder for folder in target.parents if not folder.exists()]
        try:
            for folder in reversed(missing):
                register_cleanup(folder, folder.rmdir)
                undo.callback(_remove_folder, folder)
                folder.mkdir(exist_ok=True)
                self._created.append(folder)
        except OSError as error:
            raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None

    def stage(self, target: AnyPath) -> OutputFile:
        """Return the file of a target, to be written.

        Raises:
            ReadWriteError: it cannot be created.
        """
        file = self._locked[target] if isinstance(target, Path) else stage_file(target)
        self._files[target] = file
        self._undo.callback(file.discard)
        return file

    def drop(self, target: AnyPath) -> None:
        """Discard the file of a target, which then stays as it is."""
        self._files.pop(target).discard()

    def complete(self) -> None:
        """Sync and close the files.

        Raises:
            ReadWriteError: one cannot be written.
        """
        for file in self._files.values():
            file.complete()

    def publish(self, before: Callable[[], None] | None = None) -> None:
        """Publish the complete files; see `publish_files`.

        Args:
            before: is called before the first; signals are deferred in it, too.
        """
        files = [self._files[target] for target in self.targets if target in self._files]
        publish_files(files, before, [folder.parent for folder in self._created])


def _remove_folder(folder: Path) -> None:
    """Remove a folder that was created, unless a file was published in it."""
    unregister_cleanup(folder)
    with suppress(OSError):
        folder.rmdir()
