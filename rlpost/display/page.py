"""A page: what a command prints, as one value.

A page has five parts: the title, lines about the whole, tables, notices, and the verdict as the
last line. The same page is drawn for a terminal, a pipe, Markdown and HTML, so no command, notebook
or report differs from another in its drawing:

    show_page(Page("rlpost verify · out.parquet", verdict=Notice("ok", "is right")), "table")
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from rich.padding import Padding
from rich.text import Text

from rlpost.display import first
from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.picture import as_html
from rlpost.display.tables import TextTable, TypedText, escaped, hanging, html_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from rlpost.display.picture import PictureLine


Json = dict[str, Any]
Severity = Literal["ok", "warning", "error"]
MARKS: dict[Severity, str] = {"ok": "✓", "warning": "!", "error": "✗"}
STYLES: dict[Severity, str] = {"ok": "green", "warning": "yellow", "error": "red"}
_ADVICE_INDENT = 4
_NEXT = "next: "
_FIXED = 80  # columns of a picture in Markdown and HTML
_WIDEST = 160  # columns of a picture on a console


@dataclass(frozen=True)
class Notice:
    """What is right or wrong, in one sentence; what to do stands below it."""

    severity: Severity
    text: str
    name: str = ""
    """Of the check that found it."""
    advice: str = ""
    """What to do."""
    places: str = ""
    """Where, as `file:row`."""

    @property
    def details(self) -> list[str]:
        """The lines below the sentence."""
        return [line for line in (self.advice, self.places) if line]


@dataclass(frozen=True)
class Page:
    """The output of a command for people."""

    title: str
    """`rlpost COMMAND · what`."""
    lines: Sequence[str] = ()
    """Sentences about the whole, directly below the title."""
    parts: Sequence[TextTable] = ()
    notices: Sequence[Notice] = ()
    """The most severe one last, directly above the verdict."""
    verdict: Notice | None = None
    next_steps: Sequence[str] = ()
    """Commands to continue with, below the verdict, as one types them; prose begins with `#`."""
    answer: str = ""
    """What one wants to know first, at the right of the title."""
    picture: Sequence[PictureLine] = ()
    """Drawings below the title, as wide as the console."""

    def show(self, out: Console) -> None:
        """Print the page on a terminal or in a pipe."""
        width = min(out.width, _WIDEST)
        head: list[RenderableType] = [self._head(width)]
        head += [line.text(width) for line in self.picture]
        head += [hanging(Text(printable_line(line))) for line in self.lines]
        notices: list[RenderableType] = [
            line for notice in self.notices for line in _notice(notice)
        ]
        blocks: list[list[RenderableType]] = [head]
        blocks += [[part] for part in self.parts]
        blocks += [notices, self._end()]
        for i, block in enumerate(block for block in blocks if block):
            if i:
                out.print()
            for line in block:
                out.print(line)

    def _end(self) -> list[RenderableType]:
        lines = [] if self.verdict is None else [*_notice(self.verdict, whole=True)]
        hints = self._hints()
        return lines + [TypedText(Text(f"  {x}", "dim"), step, "dim") for x, step in hints]

    def _hints(self) -> list[tuple[str, str]]:
        """Return the next steps behind their label: commands below each other, then prose."""
        hints: list[tuple[str, str]] = []
        for step in sorted(map(printable_line, self.next_steps), key=lambda x: x.startswith("#")):
            label = " " * len(_NEXT) if hints else _NEXT
            hints.append(("" if step.startswith("#") else label, step))
        return hints

    def _head(self, width: int) -> Text:
        """Return the title, and the answer at its right if both fit."""
        title = _title(self.title)
        gap = width - title.cell_len - len(self.answer)
        if not self.answer:
            return title
        return Text.assemble(title, " " * gap if gap > 1 else "\n", (self.answer, "bold"))

    def _drawn(self) -> list[Text]:
        """Return the lines of the picture for a page of fixed width."""
        return [line.text(_FIXED) for line in self.picture]

    def markdown(self) -> str:
        """Return the page as Markdown: a heading, lists and tables."""
        parts = [
            f"# {escaped(self.title)}\n",
            f"{escaped(self.answer)}\n" * bool(self.answer),
            *(
                f"```text\n{drawn}\n```\n"
                for drawn in [Text("\n").join(self._drawn()).plain]
                if drawn
            ),
            "".join(f"- {escaped(line)}\n" for line in self.lines),
            *(part.markdown() for part in self.parts),
            "".join(map(_markdown_notice, self.notices)),
            "" if self.verdict is None else _markdown_notice(self.verdict),
            "".join(f"- {escaped(f'{x}{step}'.strip())}\n" for x, step in self._hints()),
        ]
        return "\n".join(part for part in parts if part)

    def html(self, figures: str = "") -> str:
        """Return the page as a fragment of HTML, which `stylesheet` styles.

        A page of HTML is read from its top: the verdict stands below the title, and the most severe
        notice is the first.

        Args:
            figures: drawings as HTML, above the tables.
        """
        parts = [
            f"<h2>{html_line(self.title)}</h2>",
            "" if self.verdict is None else _html_notice(self.verdict, whole=True),
            f'<p class="rlpost-answer">{html_line(self.answer)}</p>' * bool(self.answer),
            as_html(self._drawn()) * bool(self.picture),
            "".join(f"<p>{html_line(line)}</p>" for line in self.lines),
            *map(_html_notice, reversed(self.notices)),
            figures,
            *(part.html() for part in self.parts),
            "".join(
                f'<p class="rlpost-next">{html_line(x + step)}</p>' for x, step in self._hints()
            ),
        ]
        return f'<section class="rlpost-page">{"".join(parts)}</section>'


def stylesheet() -> str:
    """Return the style of `Page.html`, for light and dark pages."""
    return (files("rlpost.display") / "page.css").read_text(encoding="utf-8")


def show_page(page: Page, how: str, out: Console | None = None) -> None:
    """Print a page.

    Args:
        page: the page.
        how: `table` for terminals and pipes, or `markdown`.
        out: the console of a `table`; None: stdout.
    """
    first.clear()
    if how == "markdown":
        sys.stdout.write(page.markdown())
    else:
        page.show(out or console(sys.stdout))


def _title(title: str) -> Text:
    """Return the title; the program and the command are bold, what follows `·` is not."""
    command, point, what = printable_line(title).partition(" · ")
    return Text.assemble((command, "bold"), point, what)


def _notice(notice: Notice, *, whole: bool = False) -> Iterator[RenderableType]:
    """Yield the lines of a notice; the mark and the name are coloured, or the whole sentence."""
    style = STYLES[notice.severity]
    mark = f"{MARKS[notice.severity]} "
    text = printable_line(notice.text)
    if whole:
        yield hanging(Text(f"{mark}{text}", style=f"bold {style}"))
    else:
        name = f"{printable_line(notice.name)}  " if notice.name else ""
        yield hanging(Text.assemble((f"{mark}{name}", f"bold {style}"), text))
    for line in notice.details:
        dim = "" if line is notice.advice else "dim"
        text_below = Text(printable_line(line), style=dim)
        yield Padding(text_below, (0, 0, 0, 2 if whole else _ADVICE_INDENT), expand=False)


def _markdown_notice(notice: Notice) -> str:
    name = f"**{escaped(notice.name)}**: " if notice.name else ""
    head = f"- {MARKS[notice.severity]} {name}{escaped(notice.text)}\n"
    return head + "".join(f"  - {escaped(line)}\n" for line in notice.details)


def _html_notice(notice: Notice, *, whole: bool = False) -> str:
    """Return a notice as a paragraph; the sentence of a whole one is bold."""
    mark, text = MARKS[notice.severity], html_line(notice.text)
    name = f"{html_line(notice.name)}</b> {text}" if notice.name else f"</b> {text}"
    details = "".join(f"<br><span>{html_line(line)}</span>" for line in notice.details)
    kind = f"rlpost-notice rlpost-{notice.severity}{' rlpost-verdict' if whole else ''}"
    return f'<p class="{kind}"><b>{mark} {name}{details}</p>'
