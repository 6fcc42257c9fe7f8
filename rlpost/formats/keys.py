"""Keys that a dump does not store: groups of prompts or blocks of records, steps of paths."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions


GROUP_OF_TEXT = "the same text"
"""How sources describe groups of a dump without a group key: rows with the same prompt."""
_ID_BYTES = 8


def text_key(prompt: str) -> str:
    """Return a key of a prompt's text: 16 hex digits of BLAKE2b.

    For dumps without a group key. Prompts of the same text in one step are one group.
    """
    return hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=_ID_BYTES).hexdigest()


def content_key(value: object) -> str:
    """Return a key of a text, or of any other JSON value, such as messages: 16 hex digits."""
    return text_key(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def prompt_key(tokens: NDArray[Any]) -> str:
    """Return a key of a prompt's tokens [P]: 16 hex digits, equal for equal prompts."""
    with np.errstate(invalid="ignore"):  # NaN is rejected later, in the column
        ids = np.ascontiguousarray(tokens, np.int64)
    return hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()


class GroupBlocks:
    """Numbers blocks of consecutive records as groups, over all dumps of a conversion.

    Without `ReadOptions.group_size` it does nothing.
    """

    def __init__(self, options: ReadOptions, where: str) -> None:
        self._size, self._stats, self._where = options.group_size, options.stats, where
        self._records = 0
        if self._size is not None:
            options.stats.sources["prompt_id"] = f"blocks of {self._size} records"

    def next(self) -> str:
        """Return the group of the next record."""
        assert self._size is not None
        self._records += 1
        return str(self._stats.groups + (self._records - 1) // self._size)

    def close(self) -> None:
        """End the dump.

        Raises:
            UsageError: the last block is incomplete.
        """
        if self._size is None:
            return
        if rest := self._records % self._size:
            raise UsageError(
                f"{self._where}: --group-size {self._size} does not divide {self._records:,} "
                f"records: the last group would have {rest}; set the number of responses per "
                "prompt, or repair the file"
            )
        self._stats.groups += self._records // self._size
