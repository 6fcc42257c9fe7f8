"""A console that no terminal reads: what it prints is for programs, logs and files."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, RenderHook
from rich.text import Text

from rlpost.io.text import shown

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult


_ENDLESS = 100_000


class Pipe(Console):
    """Prints tables as wide as they need be, and each paragraph as one line.

    Where COLUMNS is set, paragraphs wrap there. No line ends with blanks. `width` is for those who
    choose a layout by it.
    """

    def print(self, *objects: Any, **how: Any) -> None:
        """As rich's, but that no object is cut to `width`."""
        columns = os.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns):
            objects = tuple(_wrapped(one, int(columns)) for one in objects)
        chosen, self.width = self.width, _ENDLESS
        try:
            with self.capture() as captured:
                super().print(*objects, **how)
        finally:
            self.width = chosen
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def _wrapped(one: Any, columns: int) -> Any:
    """A text in lines of so many columns, longer only for a word; anything else as it is."""
    if not isinstance(one, Text):
        return one
    lines = one.plain.split("\n")
    wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
    return Text("\n".join(map(wrapper.fill, lines)))


PIPED_WIDTH = 120


def console(stream: TextIO) -> Console:
    """A console for a stream: plain where no terminal reads it, and nothing is cut there."""
    plain = os.environ.get("TERM") == "dumb"
    as_it_is: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    if stream.isatty():
        out = Console(file=stream, no_color=plain or None, **as_it_is)
    else:
        out = Pipe(file=stream, width=PIPED_WIDTH, force_terminal=False, no_color=True, **as_it_is)
    out.push_render_hook(_Visible())
    return out


class _Visible(RenderHook):
    """Shows control characters of whatever is printed, where rich sends most of them."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Shown(one) for one in renderables]


class Shown:
    """A renderable whose text has visible signs in place of control characters."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        for segment in out.render(self._inner, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))
