"""Groups that a dump does not name: consecutive records, a given number each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import UsageError

if TYPE_CHECKING:
    from rlpost.formats.base import ReadOptions


class Blocks:
    """Numbers the blocks of a dump's records; those of the next dump go on behind them.

    Without a size it does nothing.
    """

    def __init__(self, options: ReadOptions, where: str) -> None:
        self._size = options.group_size
        self._told = options.told
        self._where = where
        self._records = 0

    def next(self) -> str:
        """The group of the next record."""
        assert self._size is not None
        group = self._told.groups + self._records // self._size
        self._records += 1
        return str(group)

    def close(self) -> None:
        """End the dump.

        Raises:
            UsageError: the last block is not full.
        """
        if self._size is None:
            return
        check_blocks(self._where, self._records, self._size)
        self._told.groups += self._records // self._size


def check_blocks(where: str, records: int, size: int) -> None:
    """Refuse records that do not make whole blocks.

    Raises:
        UsageError: the last one would be smaller.
    """
    if rest := records % size:
        raise UsageError(
            f"{where}: --group-size {size}, but there are {records:,} records: the last group "
            f"would have {rest}; give the number of responses per prompt, or mend the file"
        )
