"""Markdown on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.markdown import CodeBlock, Markdown, MarkdownElement, TableElement
from rich.syntax import Syntax
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class _WholeTable(TableElement):
    """A table whose cells wrap: rich cuts a word that is wider than its column."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for renderable in super().__rich_console__(console, options):
            if isinstance(renderable, Table):
                for column in renderable.columns:
                    column.overflow = "fold"
            yield renderable


class _WholeCode(CodeBlock):
    """Code whose lines are not indented, filled up or wrapped, so that a copy of them runs."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax("", self.lexer_name, theme=self.theme).highlight(str(self.text).rstrip())
        yield from code.render(console, end="\n")


class MarkdownPage(Markdown):
    """Markdown in which no table and no code is cut. Print it with `crop=False`."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "table_open": _WholeTable,
        "fence": _WholeCode,
        "code_block": _WholeCode,
    }
