"""Keys that a dump does not store: groups of prompts or blocks of records, steps of paths."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions


SAME_TEXT = "the same text"
"""How a group is told, in `Format.fields`, where the dump names none."""


SAME_TOKENS = "the same prompt tokens"


_ID_BYTES = 8


def text_key(prompt: str) -> str:
    """A short name for a prompt, the same wherever its text is: 16 hex digits of BLAKE2b.

    For dumps that name no group. Two prompts of the same text in one step count as one group.
    """
    return hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=_ID_BYTES).hexdigest()


def prompt_key(tokens: NDArray[Any]) -> str:
    """A key for a prompt's tokens [P]: equal for equal prompts, 16 hex digits."""
    with np.errstate(invalid="ignore"):  # ids that are no numbers are refused as a column
        ids = np.ascontiguousarray(tokens, np.int64)
    return hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()


def step_key_of(path: Path) -> int | None:
    """The last `step_12`, `step12` or `step=12` of a path, the file's name before its folders."""
    for part in reversed(path.absolute().parts):
        found = re.findall(r"(?:^|[^a-zA-Z])step[_=]?(\d+)", part)
        if found:
            return int(found[-1])
    return None


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
