"""Which files rlpost made: nothing else is overwritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.parquet.reader import footer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.places import AnyPath


_MADE = (b"rlpost.recipe", b"rlpost.loss")  # the keys that outputs have, and converted dumps lack


def check_ours(targets: Sequence[AnyPath]) -> None:
    """Refuse to overwrite data: Parquet files that `rlpost advantages` or `loss` did not write.

    What is no Parquet file, or a damaged one, may be overwritten.

    Raises:
        UsageError: a target is such a file, most likely an input that was taken for OUT.
    """
    for target in targets:
        if target.is_file() and _is_data(target):
            raise UsageError(
                f"{target}: is Parquet that rlpost did not write, so it looks like an input, and "
                "--overwrite leaves it alone; the last path is OUT: name another one, or remove "
                "the file first. `rlpost loss` takes one IN; a directory or a quoted glob has "
                "several files"
            )


def _is_data(place: AnyPath) -> bool:
    try:
        metadata = footer_of(place).metadata or {}
    except (DataError, ReadWriteError, OSError, ValueError):  # Arrow's errors are of the last two
        return False
    return not any(key in metadata for key in _MADE)
