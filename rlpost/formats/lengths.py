"""Where a response lies in a sequence: by its mask, and by the lengths that the record says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


MOST_TOKENS = 1 << 27
"""Of one response: more than any model produces, and 128 MB of mask."""


def believable(where: str, name: str, length: int) -> int:
    """A length that a record claims, before anything of that length is made.

    Raises:
        DataError: it is negative, or more than MOST_TOKENS.
    """
    if not 0 <= length <= MOST_TOKENS:
        raise DataError(
            f"{where}: {name} is {length}; a response has from 0 to {MOST_TOKENS:,} tokens"
        )
    return length


def response_start(mask: NDArray[np.uint8]) -> int:
    """Where the response begins: the first token with mask 1, the end if there is none."""
    return int(mask.argmax()) if mask.any() else len(mask)


def sequence_end(where: str, mask: NDArray[np.uint8], response: int) -> int | None:
    """Where a response of that length ends, from the first mask 1 on; None if there is none.

    Raises:
        DataError: the mask has a 1 behind it, or it ends behind the mask.
    """
    if not mask.any():
        return None
    begin, last = response_start(mask), int(np.flatnonzero(mask)[-1])
    if not last < begin + response <= len(mask):
        raise DataError(
            f"{where}: `response_length` is {response}, but the mask has {len(mask)} entries and "
            f"is 1 from token {begin} to token {last}; --map response_length=none leaves it out, "
            "where it counts something else"
        )
    return begin + response


def check_prompt(where: str, begin: int, prompt: int | None) -> None:
    """Refuse lists that are said to hold a response alone, and begin with the prompt all the same.

    Args:
        where: the record.
        begin: where the first mask 1 is.
        prompt: tokens of the prompt, where the record tells.

    Raises:
        DataError: the mask is 0 for as many tokens as the prompt has, or more.
    """
    if prompt and begin >= prompt:
        raise DataError(
            f"{where}: the mask is 0 for the first {begin} tokens, and the prompt has {prompt}: "
            "lists that hold the prompt need --layout padded, shifted, compact or left-padded; "
            "--layout response says that these hold the response alone"
        )
