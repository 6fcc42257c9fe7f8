"""What an output of an update records about its input, and how it was made."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, cast

from rlpost.io.own_files import decode
from rlpost.io.parquet.fingerprint import FileFingerprint, fingerprint_of, footer_digest, last_entry
from rlpost.io.parquet.splice_plan import SOURCE_KEY
from rlpost.io.staged import file_errors

if TYPE_CHECKING:
    from rlpost.io.paths import AnyPath


REASONS = {
    "new": "new",
    "changed": "changed",
    "recipe": "of another recipe",
    "semantics": "of other semantics",
    "unknown": "without a fingerprint",
    "stopped": "of a stopped run",
    "coupled": "with shared batches or groups",
    "damaged": "with a damaged output",
}
"""Why a file is written, in words."""


class UpdateFile(NamedTuple):
    """A file of the input."""

    path: AnyPath
    relative: Path
    """Its path below IN."""
    table: bool
    """It is Parquet."""

    @property
    def name(self) -> str:
        """The path of its output below OUT."""
        return (self.relative if self.table else self.relative.with_suffix(".parquet")).as_posix()


@dataclass(frozen=True)
class Entry:
    """What an output records about its input, and about how it was made."""

    name: str
    """The path of the output below OUT."""
    file: str
    """The input: its path from the folder of the output, or its URL; see `recorded_path`."""
    size: int
    changed: str
    """Its time of change, or its ETag."""
    footer: str | None
    """The digest of its footer, if it is Parquet."""
    recipe: str
    """The digest of the recipe."""
    semantics: int
    roles: dict[str, str]
    """The column of each role that was read."""
    device: str
    """The device that computed it, which later updates use in place of `auto`."""

    @classmethod
    def read(cls, output: Path) -> Self | None:
        """Return the entry of an output; None if it has none, or a damaged one."""
        try:
            text = last_entry(output, SOURCE_KEY)
            return None if text is None else decode(text, cls)
        except (OSError, ValueError):
            return None

    def to_json(self) -> str:
        """Return the entry as text."""
        return json.dumps(asdict(self))


def recorded_path(path: AnyPath, target: Path) -> str:
    """Return an input's path from the folder of its output, or its URL.

    Both folders are real ones, without symbolic links, so the path does not depend on the links by
    which IN and OUT are reached.
    """
    if not isinstance(path, Path):
        return str(path)
    file = path.absolute().parent.resolve() / path.name
    folder = target.absolute().parent.resolve()
    return Path(os.path.relpath(file, folder)).as_posix()


def _with_others(own: FileFingerprint, dump: Path) -> FileFingerprint:
    """Return the fingerprint of a dump and of the files that are read with it.

    Raises:
        OSError: a file cannot be read.
    """
    from rlpost.formats import detect  # noqa: PLC0415 - imports all formats

    dump_format = detect(dump)
    others = sorted(dump_format.read_with(dump)) if dump_format else []
    if not others:
        return own
    every = [own, *(fingerprint_of(file) for file in others)]
    text = repr([*zip([dump, *others], every, strict=True)])
    return FileFingerprint(sum(one.size for one in every if one), sha256(text.encode()).hexdigest())


class Identity(NamedTuple):
    """The identity of an input."""

    fingerprint: FileFingerprint | None
    footer: str | None

    @classmethod
    def of(cls, found: UpdateFile) -> Self:
        """Return the identity of a file as it is now; raises ReadWriteError."""
        with file_errors(found.path, "cannot be read"):
            local_table = found.table and isinstance(found.path, Path)
            footer = footer_digest(found.path) if local_table else None
            own = fingerprint_of(found.path)
            if found.table or own is None:
                return cls(own, footer)
            return cls(_with_others(own, cast("Path", found.path)), footer)

    def is_of(self, entry: Entry) -> bool:
        """Return whether an output was made of this."""
        same = (entry.size, entry.changed) == self.fingerprint
        return same and entry.footer == self.footer
