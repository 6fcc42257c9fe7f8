"""Small charts of block characters, which read in a terminal, a pipe and Markdown alike."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
MOST_WIDE = 60


def bar(value: float, largest: float, width: int) -> str:
    """A bar whose length is value / largest of the width, to an eighth of a character.

    What is over 0 shows at least an eighth.

    >>> bar(3, 4, 4)
    '███'
    >>> bar(1, 1000, 4)
    '▏'
    """
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(min(value / largest, 1.0) * width * 8))
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def spark(values: Sequence[float], *, from_zero: bool = True, wide: int = 1) -> str:
    """A line of blocks, one a value, as high as it is; what is 0 is blank where 0 is the base.

    Args:
        values: more than 60 are joined to 60, by their means.
        from_zero: the base is 0, for counts; else the lowest value.
        wide: characters a value.

    >>> spark([0, 1, 4, 2])
    ' ▂█▄'
    """
    values = _joined(values)
    low = 0.0 if from_zero else min(values)
    span = (max(values) - low) or 1.0
    return "".join(
        _level((value - low) / span, blank=from_zero and value <= 0) * wide for value in values
    )


def _level(share: float, *, blank: bool) -> str:
    return " " if blank else LEVELS[min(max(round(share * len(LEVELS)) - 1, 0), len(LEVELS) - 1)]


def _joined(values: Sequence[float]) -> list[float]:
    if len(values) <= MOST_WIDE:
        return list(values)
    bounds = [len(values) * place // MOST_WIDE for place in range(MOST_WIDE + 1)]
    parts = [values[low:high] for low, high in pairwise(bounds)]
    return [sum(part) / len(part) for part in parts]
