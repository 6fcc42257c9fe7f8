"""What a planned run has in its folder of the state directory, for shards that go on with it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError
from rlpost.leftovers import BusyError, Locks
from rlpost.parquet.staged import naming
from rlpost.tasks.last import in_order, joins_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rlpost.tasks.lots import Lot


class Shelf:
    """Sheets by name, and a note of each lot and of each joined file that is complete.

    Args:
        folder: of the run.
        lots: of the run.
    """

    def __init__(self, folder: Path, lots: Sequence[Lot]) -> None:
        done = folder / "done"
        self.folder = folder
        self.sheets = folder / "sheets"
        self.joins = joins_of(lots)
        self.of_lots = [done / f"{place:06d}.json" for place in range(len(lots))]
        self.of_joins = [done / f"{own.start:06d}-{own.stop:06d}.json" for own in self.joins]
        self.notes = in_order(self.of_lots, self.joins, self.of_joins)
        """All notes, in the order of the input."""

    def make(self) -> None:
        """Make the folders; raises ReadWriteError."""
        for folder in (self.sheets, self.folder / "done"):
            with naming(folder, "cannot be written"):
                folder.mkdir(parents=True)

    @staticmethod
    def encoded(lot: int) -> str:
        """The name of the sheet of what was encoded of a part of a file."""
        return f"encoded-{lot:06d}"


def shelves(state_dir: Path) -> list[Path]:
    """The folders of all runs that were planned there, by whatever version."""
    return [sheets.parent for sheets in state_dir.glob(f"{'[0-9a-f]' * 16}/sheets")]


def claimed(note: Path, lots: range) -> Locks:
    """A lock on the note of a lot, for a shard that writes these lots.

    Raises:
        ReadWriteError: another process is at the lot, or the folder is not writable.
    """
    try:
        return Locks([note])
    except BusyError:
        raise ReadWriteError(
            f"shard {lots.start} of {lots.step} is running already, or one of another --num-shards "
            "that writes the same files; wait until that ends"
        ) from None


@contextmanager
def turn(path: Path) -> Iterator[bool]:
    """Whether no other shard is about to write a file; none will, then, while the block runs."""
    try:
        claim = Locks([path])
    except ReadWriteError:
        yield False
        return
    try:
        yield True
    finally:
        claim.release()
