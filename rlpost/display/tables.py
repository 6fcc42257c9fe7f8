"""Text tables for a terminal, a pipe, Markdown and HTML; lists also as JSON.

A `TextTable` prints itself on any console:

    console(sys.stdout).print(TextTable(("metric", "mean"), [("reward", "0.25")]))

On a terminal, columns of text wrap; texts that would wrap to many lines are printed below their
row. Columns of numbers are never cut: if the numbers do not fit, each one gets a line of its own.
In a pipe nothing wraps and nothing is cut.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from bisect import bisect_right
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from rich.measure import Measurement, measure_renderables
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rlpost.display.charts import PATTERN, is_chart
from rlpost.display.console import UNLIMITED
from rlpost.display.controls import escape_json, printable, printable_line
from rlpost.display.first import clear

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult

    Cell = str | Text
    Row = Sequence[Cell]


MOST_ROWS = 12  # of a table by step or domain
_GAPS = (2, 1)  # blanks between columns; the second if the first has no room
_MOST_LINES = 2  # of a cell; longer texts are printed below the row
_LEAST_TEXT = 10  # characters that the first column may shrink to
_INDENT = 2  # of what is below a row, and of the further lines of a sentence


@dataclass(frozen=True)
class TextTable:
    """Headings and rows, with a title and sentences above, and notes below.

    Cells are strings, or rich's Text for a style of their own. Control characters become visible
    signs, and charts of block characters get a colour. A table without headings has labels in its
    first column.
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
    """A note below a row, by the number of the row; each of its lines is a paragraph."""
    width: int | None = None
    """The columns that it can use; None: those of the console."""

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the table."""
        options = options if self.width is None else options.update_width(self.width)
        if self.title:
            yield Text(printable_line(self.title), style="bold cyan")
        yield from (hanging(_text(line)) for line in self.lines)
        if self.rows:
            yield from self._body(out, options)
        yield from (Text(printable(note), style="dim") for note in self.notes)

    def _row_notes(self) -> Iterator[str]:
        """Yield the paragraphs of the notes below rows."""
        for note in self.row_notes.values():
            yield from note.split("\n")

    def markdown(self) -> str:
        """Return the table as Markdown: title, lines as a list, table, notes."""
        headings = self.headings or ("",) * (len(self.rows[0]) if self.rows else 0)
        parts = [
            f"## {escaped(self.title)}\n" if self.title else "",
            "".join(f"- {escaped(line)}\n" for line in self.lines),
            markdown_table(headings, self.rows, text=self.text) if self.rows else "",
            "".join(f"- {escaped(note)}\n" for note in self._row_notes()),
            "\n".join(f"{escaped(note)}\n" for text in self.notes for note in text.split("\n")),
        ]
        return "\n".join(part for part in parts if part)

    def html(self) -> str:
        """Return the table as HTML: title, lines, table, notes."""
        parts = [
            f"<h3>{html_line(self.title)}</h3>" if self.title else "",
            "".join(f"<p>{html_line(line)}</p>" for line in self.lines),
            self._html_table() if self.rows else "",
            "".join(
                f'<p class="rlpost-note">{html_line(note)}</p>'
                for note in (*self._row_notes(), *self.notes)
            ),
        ]
        return "".join(parts)

    def _html_table(self) -> str:
        head = "".join(self._html_cells("th", self.headings)) if self.headings else ""
        rows = "".join(f"<tr>{''.join(self._html_cells('td', row))}</tr>" for row in self.rows)
        head = f"<thead><tr>{head}</tr></thead>" if head else ""
        table = f'<table class="rlpost-table">{head}<tbody>{rows}</tbody></table>'
        return f'<div class="rlpost-wide">{table}</div>'

    def _html_cells(self, tag: str, row: Row) -> Iterator[str]:
        for column, cell in enumerate(row):
            kind = "" if column in self.text else ' class="rlpost-number"'
            kind = ' class="rlpost-chart"' if is_chart(str(cell)) else kind
            yield f"<{tag}{kind}>{html_line(str(cell))}</{tag}>"

    def _is_text(self, column: int) -> bool:
        """Whether a column may wrap: text that is no chart."""
        return column in self.text and not any(is_chart(str(row[column])) for row in self.rows)

    def _sizes(self, out: Console) -> list[Measurement]:
        """Return the least and the natural width of each column."""
        options = out.options.update_width(UNLIMITED)
        columns = zip(*([self.headings] if self.headings else []), *self.rows, strict=True)
        sizes = [measure_renderables(out, options, [*map(_text, cells)]) for cells in columns]
        for i, (word, whole) in enumerate(sizes):
            least = max(word, -(-whole // _MOST_LINES) if i else 0)
            if i and not self.headings:  # a text beside its label: a long path in it may break
                least = min(word, 2 * _LEAST_TEXT)
            sizes[i] = Measurement(least if self._is_text(i) else whole, whole)
        return sizes

    def _layout(self, out: Console, options: ConsoleOptions) -> tuple[dict[int, int], int]:
        """Return the widths of the columns that are side by side, and the gap between them.

        The others are printed below their row: first the longest texts, at last all columns.
        """
        sizes = self._sizes(out)
        texts = [column for column in range(1, len(sizes)) if self._is_text(column)]
        texts.sort(key=lambda column: sizes[column].maximum)
        # Words of the first column break only if they must.
        for first in (sizes[0].minimum, min(sizes[0].minimum, _LEAST_TEXT)):
            if self._is_text(0):
                sizes[0] = Measurement(first, sizes[0].maximum)
            for below in range(len(texts) + 1):
                beside = {*range(len(sizes))} - {*texts[len(texts) - below :]}
                for gap in _GAPS:
                    room = options.max_width - gap * (len(beside) - 1)
                    if widths := _fitted({i: sizes[i] for i in sorted(beside)}, room):
                        return widths, gap
        return {}, 0

    def _body(self, out: Console, options: ConsoleOptions) -> RenderResult:
        widths, gap = self._layout(out, options)
        headings = [Text(printable_line(str(heading)), style="bold") for heading in self.headings]
        below = [column for column in range(1, len(self.rows[0])) if column not in widths]
        if widths and headings:
            yield from _without_blanks(self._row(headings, widths, gap), out, options)
        for i, row in enumerate(self.rows):
            if widths:
                yield from _without_blanks(self._row(row, widths, gap), out, options)
            else:
                label = f"{headings[0]} " if headings else ""
                yield Text(f"{label}{printable_line(str(row[0]))}".strip())
            beneath = self._below(row, below, label=len(below) > 1 or not widths)
            yield from _without_blanks(beneath, out, options)
            for line in self.row_notes[i].split("\n") if i in self.row_notes else ():
                text = hanging(Text(printable_line(line), style="dim"))
                note = Padding(text, (0, 0, 0, _INDENT), expand=False)
                yield from _without_blanks(note, out, options)

    def _row(self, row: Row, widths: Mapping[int, int], gap: int) -> Table:
        """Return the cells of a row that are side by side."""
        grid = Table.grid(padding=(0, gap, 0, 0))
        for column, width in widths.items():
            justify: JustifyMethod = "left" if column in self.text else "right"
            grid.add_column(width=width, justify=justify, overflow="fold")
        grid.add_row(*(_text(row[column]) for column in widths))
        return grid

    def _below(self, row: Row, columns: Sequence[int], *, label: bool) -> Padding:
        """Return the cells of a row that are below it, after their headings."""
        grid = Table.grid(padding=(0, _GAPS[0], 0, 0))
        for _ in range(1 + label):
            grid.add_column(overflow="fold")
        for column in columns:
            name = str(self.headings[column]) if self.headings else ""
            heading = Text(printable_line(name), style="dim")
            if row[column]:
                grid.add_row(*[heading] * label, _text(row[column]))
        return Padding(grid, (0, 0, 0, _INDENT), expand=False)


def _fitted(sizes: Mapping[int, Measurement], room: int) -> dict[int, int]:
    """Return widths that fit the room, the widest columns shrunk to one width; none if none fit."""

    def widths(most: int) -> dict[int, int]:
        return {i: max(min(size.maximum, most), size.minimum) for i, size in sizes.items()}

    widest = max(size.maximum for size in sizes.values())
    most = bisect_right(range(widest + 1), room, key=lambda most: sum(widths(most).values()))
    return widths(most - 1) if most else {}


def hanging(text: Text, indent: int = _INDENT) -> HangingText:
    """Return text whose further lines are indented, beyond its own indentation."""
    return HangingText(text, indent)


@dataclass(frozen=True)
class HangingText:
    """A text whose further lines are indented, beyond its own indentation."""

    text: Text
    indent: int

    def _grid(self) -> Table:
        own = self.indent + len(self.text.plain) - len(self.text.plain.lstrip())
        grid = Table.grid()
        grid.add_column(width=self.text[:own].cell_len, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self.text[:own], self.text[own:])
        return grid

    def __rich_measure__(self, out: Console, options: ConsoleOptions) -> Measurement:
        """Return the widths of the text."""
        return Measurement.get(out, options, self._grid())

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the text."""
        yield from _without_blanks(self._grid(), out, options)


_TYPED = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
_COMMENT = "  # "


def typed_lines(command: str, width: int) -> list[str]:
    r"""Return a command as lines that one can paste: a backslash ends them, `#` begins comments.

    >>> typed_lines("rlpost inspect 'my file.parquet' --about groups  # steps, domains", 33)
    ["rlpost inspect 'my file.parquet' \\", '--about groups  # steps, domains']
    """
    words, _, comment = f"  {command}".partition(_COMMENT)
    lines, rest = [""], f"{_COMMENT}{comment}" * bool(comment)
    for word in _TYPED.findall(words):
        if lines[-1] and len(lines[-1]) + len(word) + len(" \\") > width:
            lines[-1] += " \\"
            lines.append("")
        lines[-1] += f"{' ' * bool(lines[-1])}{word}"
    if len(lines[-1]) + len(rest) <= width:
        return [*lines[:-1], (lines[-1] + rest).strip()]
    comments = [f"# {line}" for line in textwrap.wrap(comment, max(width - 2, 20))]
    return [*filter(None, lines), *comments]


@dataclass(frozen=True)
class TypedText:
    """A command behind a label, as `typed_lines`."""

    label: Text
    command: str
    style: str = ""

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the command."""
        begin, indent = self.label, self.label.cell_len
        for line in typed_lines(self.command, options.max_width - indent):
            yield Text.assemble(begin, (line, self.style), overflow="fold")
            begin = Text(" " * indent)


def _without_blanks(
    renderable: RenderableType, out: Console, options: ConsoleOptions
) -> Iterator[Segment]:
    """Yield the lines of a renderable without the blanks at their ends, with which rich pads."""
    for line in out.render_lines(renderable, options, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
        yield from line
        yield Segment.line()


def _text(cell: Cell) -> Text:
    """Return a cell on one line, with its chart in a colour."""
    if isinstance(cell, Text):
        return cell
    text = Text(printable_line(cell))
    text.highlight_regex(PATTERN, "blue")
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


def json_of(value: Any) -> Any:
    """Return a result as its JSON has it: `facts` are rows, one for each measure and key.

    A row has `measure`, `by` (`all`, `step`, ...), `of` and the numbers, which are lists beside
    `label` but for `all`.
    """
    if isinstance(value, list | tuple):
        return [json_of(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _rows_of(part) if key == "facts" and isinstance(part, dict) else json_of(part)
        for key, part in value.items()
    }


def _rows_of(facts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"measure": name, "by": by, "of": entry["of"], **numbers}
        for name, entry in facts.items()
        for by, numbers in entry.items()
        if by != "of"
    ]


def show_json(value: Any) -> None:
    """Print a value on stdout as JSON, with escapes for what stdout cannot encode."""
    clear()
    value = json_of(value)
    text = escape_json(json.dumps(value, indent=1, ensure_ascii=False))
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = json.dumps(value, indent=1)
    sys.stdout.write(text + "\n")


def show_markdown(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, prose: str | None = None
) -> None:
    """Print rows on stdout as a Markdown table; see `markdown_table`."""
    clear()
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


def escaped(text: str) -> str:
    """Return text on one line, whose `<` opens no tag in Markdown."""
    return printable_line(text).replace("<", "&lt;")


def html_line(text: str) -> str:
    """Return text on one line as HTML; what stands in backticks is code."""
    pieces = escape(printable_line(text)).split("`")
    if len(pieces) % 2 == 0:  # one backtick has no partner
        return "`".join(pieces)
    return "".join(f"<code>{one}</code>" if i % 2 else one for i, one in enumerate(pieces))
