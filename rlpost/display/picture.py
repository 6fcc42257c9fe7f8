"""The picture of an input: lines of a label and a drawing that uses the width of the console.

Each line has one scale. A colour is never all that tells two things apart: signs differ, too.
"""

from __future__ import annotations

import textwrap
from functools import partial
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from rlpost.display.charts import means_of, spark
from rlpost.display.controls import printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LABEL = 14
"""Columns of the labels."""
MOST_BLOCKS = 24
"""Of a line of blocks."""
_WIDE = 100
WITH, WITHOUT = "█", "░"


class PictureLine(NamedTuple):
    """A line of the picture."""

    label: str
    draw: Callable[[int], Text]
    """Returns the drawing, of at most so many columns."""

    def text(self, width: int) -> Text:
        """Return the whole line."""
        return Text.assemble((self.label.ljust(LABEL), "bold"), self.draw(width - LABEL))


class Bin(NamedTuple):
    """Some of the whole, in two kinds."""

    label: str
    full: int
    light: int = 0


class Share(NamedTuple):
    """A share of the whole."""

    label: str
    share: float
    sign: str
    style: str = ""


class Blocks(NamedTuple):
    """Numbers as a line of blocks, between texts."""

    before: str
    values: Sequence[float | None]
    after: str = ""
    bounds: tuple[float, float] | None = None
    """The values of the lowest and the highest block; None: 0, which is blank, and the largest."""


def bins(name: str, parts: Sequence[Bin], noun: str) -> PictureLine:
    """Return a line of bars, one after the other, with one scale, which is said if it is not 1."""

    def draw(width: int) -> Text:
        chosen = [*parts]
        while len(chosen) > 2 and _room(chosen, width) < 2 * len(chosen):  # noqa: PLR2004
            chosen = _merged(chosen)
        each, note, total = 1, "", sum(part.full + part.light for part in parts)
        while each < total and _length(chosen, each) > _room(chosen, width - len(note)):
            each = max(each + 1, int(1.05 * each))
            note = f"  {WITH} {each:,} {noun}s"
        text = Text()
        for i, part in enumerate(chosen):
            text.append(f"{' ' * bool(i)}{part.label} ", "" if part.full + part.light else "dim")
            text.append(WITH * _signs(part.full, each), "cyan")
            text.append(WITHOUT * _signs(part.light, each), "dim")
        text.append(note, "dim")
        text.truncate(width)
        return text

    return PictureLine(name, draw)


def _room(parts: Sequence[Bin], width: int) -> int:
    """Return the columns that are left for bars."""
    return width - sum(len(part.label) + 2 for part in parts) + 1


def _signs(count: int, each: int) -> int:
    """Return the signs of a count, at least one of any."""
    return max(round(count / each), int(count > 0))


def _length(parts: Sequence[Bin], each: int) -> int:
    return sum(_signs(part.full, each) + _signs(part.light, each) for part in parts)


def _merged(parts: Sequence[Bin]) -> list[Bin]:
    """Return half as many bins, with the labels of the first of two."""
    pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
    return [
        Bin(pair[0].label, sum(x.full for x in pair), sum(x.light for x in pair)) for pair in pairs
    ]


def shares(name: str, parts: Sequence[Share], note: str = "") -> PictureLine:
    """Return a line of the parts of a whole, whose bars together are the whole."""

    def draw(width: int) -> Text:
        labels = sum(len(part.label) + 1 for part in parts) + 2 * (len(parts) - 1)
        room = max(min(width, 2 * 66) - labels - len(note) - 2 * bool(note), len(parts))
        text = Text()
        for i, part in enumerate(parts):
            length = max(int(part.share > 0), round(part.share * (room - len(parts))))
            text.append(f"{'  ' * bool(i)}{part.label} ")
            text.append(part.sign * length, part.style)
        text.append(f"  {note}" * bool(note), "dim")
        text.truncate(width)
        return text

    return PictureLine(name, draw)


def blocks(name: str, parts: Sequence[Blocks], *, counted: bool = False) -> PictureLine:
    """Return a line of lines of blocks; values beyond them are means of bins, which it says."""
    longest = max((len(x.values) for x in parts), default=0)
    fixed = sum(len(x.before) + len(x.after) + 2 for x in parts) + 3 * (len(parts) - 1)
    drawn = max(sum(bool(x.values) for x in parts), 1)

    def most_of(width: int) -> int:
        """Return the blocks of each part."""
        allowed = MOST_BLOCKS if width < _WIDE else 2 * MOST_BLOCKS
        return max(4, min((width - fixed) // drawn, allowed))

    def draw(width: int) -> Text:
        most, said = most_of(width), ""
        if counted and longest > most:
            most = most_of(width - len(f"  {longest:,} in {most} bins"))
            said = f"  {longest:,} in {most} bins"
        text = Text()
        for i, part in enumerate(parts):
            words = [
                x
                for x in (part.before, spark(means_of(part.values, most), part.bounds), part.after)
                if x
            ]
            text.append(f"{'   ' * bool(i)}{' '.join(words)}")
        text.append(said, "dim")
        text.highlight_regex("[▁▂▃▄▅▆▇█]+", "blue")
        text.truncate(width)
        return text

    return PictureLine(name, draw)


def words(name: str, text: str) -> PictureLine:
    """Return a line of words alone, which wrap."""
    below = f"\n{' ' * LABEL}"
    lines = partial(textwrap.wrap, printable_line(text))
    return PictureLine(name, lambda width: Text(below.join(lines(width))))


def as_html(lines: Sequence[Text]) -> str:
    """Return lines as preformatted HTML, whose parts have the class of their style."""
    drawn = []
    for line in lines:
        out = ""
        for part in line.divide(sorted({x for span in line.spans for x in (span.start, span.end)})):
            style = " ".join(
                f"rlpost-{word}" for span in part.spans for word in str(span.style).split()
            )
            text = escape(part.plain)
            out += f'<span class="{style}">{text}</span>' if style else text
        drawn.append(out)
    return f'<pre class="rlpost-picture">{chr(10).join(drawn)}</pre>'
