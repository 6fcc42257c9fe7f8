"""Consoles for terminals and for pipes, which show control characters instead of sending them."""

from __future__ import annotations

import os
import shutil
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, RenderHook

from rlpost.display import first
from rlpost.display.charts import ascii_chart
from rlpost.display.controls import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult


# Text as it is; and to its stream, where rich would write to the cell of a notebook.
_VERBATIM: dict[str, Any] = {
    "highlight": False,
    "markup": False,
    "emoji": False,
    "force_jupyter": False,
}
PIPED_WIDTH = 120
UNLIMITED = 100_000


class Pipe(Console):
    """A console for programs, logs and files: nothing is cut, a paragraph is one line.

    No line ends with blanks. `width` is for code that chooses a layout by it.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but cut no object to `width`."""
        width, self.width = self.width, UNLIMITED
        try:
            with self.capture() as captured:
                super().print(*objects, **options)
        finally:
            self.width = width
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def console(stream: TextIO) -> Console:
    """Return a console for a stream: a `Pipe` unless the stream is a terminal."""
    first.clear()
    plain = os.environ.get("TERM") == "dumb"
    if stream.isatty():
        out = Console(file=stream, no_color=plain or None, **_VERBATIM)
    else:
        out = Pipe(file=stream, width=PIPED_WIDTH, force_terminal=False, no_color=True, **_VERBATIM)
    out.push_render_hook(_ShowControlCharacters())
    return out


def is_terminal() -> bool:
    """Return whether a person types and reads."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def as_text(show: Callable[[Console], None]) -> str:
    """Return what is printed to a terminal of the present width, without colors."""
    width = min(shutil.get_terminal_size().columns, PIPED_WIDTH)
    out = Console(file=StringIO(), width=width, force_terminal=True, color_system=None, **_VERBATIM)
    out.push_render_hook(_ShowControlCharacters())
    with out.capture() as captured:
        show(out)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


class _ShowControlCharacters(RenderHook):
    """Shows the control characters of everything that is printed; rich sends most of them."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Shown(renderable) for renderable in renderables]


class Shown:
    """A renderable with visible signs in place of control characters.

    Where the encoding has no block characters, charts are ASCII.
    """

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        for segment in out.render(self._inner, options):
            text = printable(segment.text)
            text = ascii_chart(text) if options.ascii_only else text
            yield segment if segment.control else segment._replace(text=text)
