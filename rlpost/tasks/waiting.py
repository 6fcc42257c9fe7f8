"""Files that are complete and wait for the others of their run, each beside its target.

Tasks run in any process, on any machine that sees the output. So what is complete lies under a
name that everyone can tell: the target's own, in a hidden folder beside it that is called after
the run. Who drives the run gives all of them their names at the end.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.parquet.places import Remote, reaching
from rlpost.parquet.staged import naming, sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.parquet.places import Place

PREFIX = ".rlpost-run-"


class Waiting:
    """Where the files of a run wait.

    Args:
        targets: the names that they will get; the folders exist, where they are local.
    """

    def __init__(self, targets: Sequence[Place]) -> None:
        self.targets = list(targets)
        names = "\n".join(str(target) for target in targets)
        self._name = PREFIX + blake2b(names.encode(), digest_size=8).hexdigest()

    @property
    def places(self) -> list[Place]:
        """Where each file is written."""
        return [self._folder(target) / target.name for target in self.targets]

    def _folder(self, target: Place) -> Place:
        if isinstance(target, Path):
            return target.parent / self._name
        return target.sibling(target.path.rpartition("/")[0]) / self._name

    def begin(self) -> None:
        """Make the folders, and remove what a run over the same files left in them.

        Raises:
            ReadWriteError: a folder can't be made.
        """
        self.discard()
        for folder in self._local():
            with naming(folder, "cannot be written"):
                folder.mkdir(exist_ok=True)

    def publish(self) -> None:
        """Give every file its name. What has it already keeps it, so this may be done again.

        Raises:
            ReadWriteError: one can't be renamed; those before it are published then.
        """
        for place, target in zip(self.places, self.targets, strict=True):
            if isinstance(place, Remote):
                with reaching(place, "cannot be renamed"):
                    if place.exists():
                        place.client.mv(place.path, target.path)  # type: ignore[union-attr]
                continue
            with naming(Path(str(target)), "cannot be written"), suppress(FileNotFoundError):
                place.replace(Path(str(target)))
        for folder in self._local():
            with naming(folder, "cannot be written"):
                sync_folder(folder.parent)
        self.discard()

    def discard(self) -> None:
        """Remove what waits; never raises."""
        for folder in self._local():
            shutil.rmtree(folder, ignore_errors=True)
        for place in self.places:
            if isinstance(place, Remote):
                with suppress(Exception):
                    place.client.rm(place.path)

    def _local(self) -> list[Path]:
        folders = {self._folder(target): None for target in self.targets}
        return [folder for folder in folders if isinstance(folder, Path)]
