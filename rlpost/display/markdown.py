"""Markdown on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.markdown import CodeBlock, Markdown, MarkdownElement, TableElement
from rich.syntax import Syntax
from rich.text import Text

from rlpost.display.tables import TextTable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class _PageTable(TableElement):
    """A table as commands print theirs, whose names do not break: rich cuts them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        lines = [] if self.header is None or self.header.row is None else [self.header.row]
        lines += [] if self.body is None else self.body.rows
        headings, *rows = [[cell.content for cell in line.cells] for line in lines]
        numbers = {i for i, cell in enumerate(lines[0].cells) if cell.justify == "right"}
        texts = [i for i in range(len(headings)) if i not in numbers]
        yield TextTable(headings, rows, text=texts)
        yield Text("")


class _WholeCode(CodeBlock):
    """Code whose lines are not indented, filled up or wrapped, so that a copy of them runs."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax("", self.lexer_name, theme=self.theme).highlight(str(self.text).rstrip())
        yield from code.render(console, end="\n")


class MarkdownPage(Markdown):
    """Markdown in which no table and no code is cut. Print it with `crop=False`."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "table_open": _PageTable,
        "fence": _WholeCode,
        "code_block": _WholeCode,
    }
