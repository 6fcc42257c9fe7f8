"""Keys that a dump does not write but its tokens or its name tell."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def prompt_key(tokens: NDArray[Any]) -> str:
    """A key for a prompt's tokens [P]: equal for equal prompts, 16 hex digits."""
    with np.errstate(invalid="ignore"):  # ids that are no numbers are refused as a column
        ids = np.ascontiguousarray(tokens, np.int64)
    return hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()


def step_of(path: Path) -> int | None:
    """The last `step_12`, `step12` or `step=12` of a path, the file's name before its folders."""
    for part in reversed(path.absolute().parts):
        found = re.findall(r"(?:^|[^a-zA-Z])step[_=]?(\d+)", part)
        if found:
            return int(found[-1])
    return None
