"""Charts of block characters: bars and sparklines, for a terminal, a pipe and Markdown alike.

A chart is a string, so it stands in a sentence, in a cell and in a file. A console whose encoding
has no blocks prints the characters of `ascii_chart` in their place.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


MOST_WIDE = 60
_WIDTHS = " ▏▎▍▌▋▊▉█"  # eighths of a character, from the left
_HEIGHTS = " ▁▂▃▄▅▆▇█"  # eighths of a character, from below
_BLOCKS = frozenset(_WIDTHS + _HEIGHTS)
PATTERN = f"[{''.join(sorted(_BLOCKS - {' '}))}]+"
"""A regular expression of the blocks in a text."""
_ASCII = str.maketrans(_WIDTHS[1:-1] + _HEIGHTS[1:], "|" * 7 + "_.:-=+*#")


def bar(value: float, largest: float, width: int) -> str:
    """Return a bar whose length is value / largest of the width, to an eighth of a character.

    A value over 0 has at least an eighth.

    >>> bar(3, 4, 4), bar(5, 16, 4), bar(1, 1000, 4), bar(0, 4, 4)
    ('███', '█▎', '▏', '')
    """
    whole, rest = divmod(_eighths(value, largest, width), 8)
    return "█" * whole + _WIDTHS[rest].strip()


def spark(values: Sequence[float | None], bounds: tuple[float, float] | None = None) -> str:
    """Return a line of blocks, one for each value, whose heights are the values; None is blank.

    Args:
        values: more than 60 are reduced to 60 means.
        bounds: the values of the lowest and of the highest block. None: 0, whose block is blank,
            and the largest value.

    >>> spark([0, 1, 4, 2]), spark([0, None, 1], (-0.1, 1)), spark([3, 3], (3, 3))
    (' ▂█▄', '▂ █', '▁▁')
    """
    values = means_of(values, MOST_WIDE)
    largest = max((value for value in values if value is not None), default=0.0)

    def height(value: float | None) -> int:
        if value is None or bounds is None:
            return _eighths(value or 0.0, largest)
        return 1 + round(7 * _share(value - bounds[0], bounds[1] - bounds[0]))

    return "".join(_HEIGHTS[height(value)] for value in values)


def means_of(values: Sequence[float | None], most: int) -> list[float | None]:
    """Return at most so many means of neighbouring values; None where no value is a number."""
    if len(values) <= most:
        return [*values]
    bounds = [len(values) * i // most for i in range(most + 1)]
    parts = [[x for x in values[low:high] if x is not None] for low, high in pairwise(bounds)]
    return [sum(part) / len(part) if part else None for part in parts]


def is_chart(text: str) -> bool:
    """Return whether a text is a bar or a sparkline.

    >>> is_chart(bar(1, 3, 4)), is_chart("1 █"), is_chart("")
    (True, False, False)
    """
    return bool(text) and _BLOCKS.issuperset(text)


def ascii_chart(text: str) -> str:
    """Return a text whose blocks are ASCII characters, as many.

    >>> ascii_chart(f"{bar(5, 16, 4)} of {spark([0, 1, 2, 3, 4])}")
    '#| of  .-+#'
    """
    return text.translate(_ASCII)


def _eighths(value: float, largest: float, width: int = 1) -> int:
    """Return value / largest of a width in eighths of a character, at least 1 over 0."""
    return max(int(value > 0), round(_share(value, largest) * width * 8))


def _share(value: float, largest: float) -> float:
    return min(max(value / largest, 0.0), 1.0) if largest > 0 else 0.0
