"""Text tables for a terminal, a pipe and Markdown; lists also as JSON.

A `TextTable` prints itself on any console:

    console(sys.stdout).print(TextTable(("metric", "mean"), [("reward", "0.25")]))

On a terminal, columns of text wrap and columns of numbers are never cut: if the numbers do not fit,
each one gets a line of its own. In a pipe nothing wraps and nothing is cut.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.measure import Measurement
from rich.text import Text

from rlpost.display.console import console, wrap
from rlpost.display.text import EIGHTHS, LEVELS
from rlpost.io.text import escape_json, printable, printable_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult

    Cell = str | Text
    Row = Sequence[Cell]


MOST_ROWS = 12  # of a table by step or domain
_GAPS = (2, 1)  # blanks between columns; the second if the first has no room
_LEAST_TEXT = 10  # characters that a column of text may shrink to
_BLOCKS = frozenset(EIGHTHS + LEVELS)
_CHART = f"[{EIGHTHS.strip()}{LEVELS}]+"


@dataclass(frozen=True)
class TextTable:
    """Headings and rows, with a title and sentences above, and notes below.

    Cells are strings, or rich's Text for a style of their own. Control characters become visible
    signs, and charts of block characters get a colour.
    """

    headings: Row = ()
    rows: Sequence[Row] = ()
    title: str = ""
    lines: Sequence[str] = ()
    """Sentences between the title and the table."""
    notes: Sequence[str] = ()
    """Sentences below the table: what its numbers mean."""
    text: Collection[int] = (0,)
    """Columns of text, which are aligned left and may wrap; the others are numbers."""
    row_notes: Mapping[int, str] = field(default_factory=dict)
    """A note on the line below a row, by the number of the row."""

    def __rich_measure__(self, out: Console, options: ConsoleOptions) -> Measurement:
        """Return the width that the table needs, and the width that it can use."""
        texts = [self.title, *self.lines, *self.notes]
        widths = self._natural_widths()
        widest = max((sum(widths) + _GAPS[0] * (len(widths) - 1), *map(len, texts)))
        return Measurement(min(widest, 1), widest).with_maximum(options.max_width)

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the table."""
        if self.title:
            yield Text(printable_line(self.title), style="bold cyan")
        yield from map(_text, self.lines)
        if self.rows:
            if self.lines:
                yield Text("")
            yield from self._body(out, options)
        yield from (Text(printable(note), style="dim") for note in self.notes)

    def wrapped(self, columns: int) -> TextTable:
        """Return the table with its lines and notes in lines of at most so many columns."""
        lines = [part for line in self.lines for part in wrap(line, columns).split("\n")]
        return replace(self, lines=lines, notes=[wrap(note, columns) for note in self.notes])

    def markdown(self, *, level: int = 2, prose: str | None = None) -> str:
        """Return the table as Markdown: title, lines as a list, table, notes.

        Args:
            level: of the title's heading.
            prose: as in `markdown_table`.
        """
        parts = [
            f"{'#' * level} {_escaped(self.title)}\n" if self.title else "",
            "".join(f"- {_escaped(line)}\n" for line in self.lines),
            markdown_table(self.headings, self.rows, prose=prose, text=self.text)
            if self.rows
            else "",
            "".join(f"- {_escaped(note)}\n" for note in self.row_notes.values()),
            "\n".join(f"{_escaped(note)}\n" for text in self.notes for note in text.split("\n")),
        ]
        return "\n".join(part for part in parts if part)

    def _natural_widths(self) -> list[int]:
        if not self.headings:
            return [0]
        columns = zip(self.headings, *self.rows, strict=True)
        return [max(_text(cell).cell_len for cell in column) for column in columns]

    def _is_text(self, column: int) -> bool:
        """Whether a column may wrap: text that is no chart."""
        return column in self.text and not any(
            row[column] and set(str(row[column])) <= _BLOCKS for row in self.rows
        )

    def _widths(self, width: int, gap: int) -> list[int] | None:
        """Return the width of each column; None if the numbers do not fit."""
        widths = self._natural_widths()
        room = width - gap * (len(widths) - 1)
        if sum(widths) <= room:
            return widths
        wrapped = [column for column in range(len(widths)) if self._is_text(column)]
        room -= sum(own for column, own in enumerate(widths) if column not in wrapped)
        for words in (self._longest_words(), [0] * len(widths)):  # words break only if they must
            for most in range(max((widths[column] for column in wrapped), default=0), 0, -1):
                fits = [max(min(own, most), word) for own, word in zip(widths, words, strict=True)]
                if sum(fits[column] for column in wrapped) <= room:
                    if most < _LEAST_TEXT:
                        break
                    return [fits[i] if i in wrapped else own for i, own in enumerate(widths)]
        return None

    def _longest_words(self) -> list[int]:
        columns = zip(self.headings, *self.rows, strict=True)
        return [
            max(
                (cell_len(word) for cell in column for word in _text(cell).plain.split()), default=0
            )
            for column in columns
        ]

    def _body(self, out: Console, options: ConsoleOptions) -> Iterator[Text]:
        for gap in _GAPS:
            widths = self._widths(options.max_width, gap)
            if widths is not None:
                break
        else:
            yield from self._stacked()
            return
        headings = [Text(printable_line(str(heading)), style="bold") for heading in self.headings]
        yield from self._row(headings, widths, gap, out)
        whole = sum(widths) + gap * (len(widths) - 1)
        yield Text(("-" if options.ascii_only else "─") * whole)
        for i, row in enumerate(self.rows):
            yield from self._row(row, widths, gap, out)
            if i in self.row_notes:
                note = wrap(printable_line(self.row_notes[i]), options.max_width - 2)
                yield from (Text(f"  {line}", style="dim") for line in note.split("\n"))

    def _row(self, row: Row, widths: Sequence[int], gap: int, out: Console) -> Iterator[Text]:
        """Yield the lines of a row: more than one if a text wraps."""
        wrapped = [
            list(_text(cell).wrap(out, width, overflow="fold")) or [Text()]
            for cell, width in zip(row, widths, strict=True)
        ]
        for line in range(max(map(len, wrapped))):
            parts = []
            for column, lines in enumerate(wrapped):
                part = lines[line].copy() if line < len(lines) else Text()
                part.rstrip()
                align: JustifyMethod = "left" if column in self.text else "right"
                part.align(align, widths[column])  # type: ignore[arg-type]
                parts.append(part)
            whole = Text(" " * gap).join(parts)
            whole.rstrip()
            yield whole

    def _stacked(self) -> Iterator[Text]:
        """Yield the rows below one another, one value a line."""
        first, *headings = (printable_line(str(heading)) for heading in self.headings)
        width = max(map(len, headings), default=0)
        for i, (label, *values) in enumerate(self.rows):
            yield Text(f"{first} {printable_line(str(label))}".strip())
            for heading, value in zip(headings, values, strict=True):
                if value:
                    yield Text.assemble(f"  {heading:<{width}}  ", _text(value))
            if i in self.row_notes:
                yield Text(f"  {printable_line(self.row_notes[i])}", style="dim")


def _text(cell: Cell) -> Text:
    """Return a cell on one line, with its chart in a colour."""
    if isinstance(cell, Text):
        return cell
    text = Text(printable_line(cell))
    text.highlight_regex(_CHART, "blue")
    return text


def elided(rows: Sequence[Row], most: int = MOST_ROWS) -> list[Row]:
    """Return the first and the last of many rows, with a row between them that counts the rest.

    >>> elided([("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")], 2)
    [('a', '1'), ('… 2 more', ''), ('d', '4')]
    """
    if len(rows) <= most:
        return list(rows)
    rest = (f"… {len(rows) - most} more", *("",) * (len(rows[0]) - 1))
    return [*rows[: most - most // 2], rest, *rows[len(rows) - most // 2 :]]


def show_list(headings: Sequence[str], rows: Sequence[Sequence[Any]], how: str) -> None:
    """Print rows on stdout, as a `table` or `markdown` of text, or as `json` of any values."""
    if how == "json":
        show_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif how == "markdown":
        show_markdown(headings, rows)
    else:
        console(sys.stdout).print(TextTable(headings, rows, text=range(len(headings))))


def show_json(value: Any) -> None:
    """Print a value on stdout as JSON."""
    sys.stdout.write(escape_json(json.dumps(value, indent=1, ensure_ascii=False)) + "\n")


def show_markdown(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, prose: str | None = None
) -> None:
    """Print rows on stdout as a Markdown table; see `markdown_table`."""
    sys.stdout.write(markdown_table(headings, rows, prose=prose))


def markdown_table(
    headings: Row,
    rows: Sequence[Row],
    *,
    prose: str | None = None,
    text: Collection[int] | None = None,
) -> str:
    """Return rows as a Markdown table; no cell ends itself or its row, or opens a tag.

    Args:
        headings: of the columns.
        rows: cells, as many as headings.
        prose: the heading of a column of whole texts, whose line ends become blanks and which may
            join characters; in other columns these become signs.
        text: columns of text; the others are aligned right. None: all are text.
    """
    rules = ["---" if text is None or i in text else "---:" for i in range(len(headings))]
    kinds = [prose is not None and heading == prose for heading in headings]
    lines = [headings, rules, *rows]
    return "".join(f"| {' | '.join(map(_cell, line, kinds))} |\n" for line in lines)


def _cell(cell: Cell, prose: bool) -> str:  # noqa: FBT001
    text = str(cell)
    line = printable(text).replace("\n", " ") if prose else printable_line(text)
    return line.replace("|", "\\|").replace("<", "&lt;")


def _escaped(text: str) -> str:
    """Return text on one line, whose `<` opens no tag."""
    return printable_line(text).replace("<", "&lt;")
