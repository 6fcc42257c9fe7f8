"""A console that no terminal reads: what it prints is for programs, logs and files."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from rich.console import Console
from rich.text import Text

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
