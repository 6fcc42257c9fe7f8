"""`rlpost help`: the pages of the manual."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from rlpost.cli.help_screen import argument, command
from rlpost.errors import UsageError, no_such
from rlpost.manual import OF_COMMANDS, TOPICS, page, topics_of

WIDEST = 100
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_IMAGE = re.compile(r"^!\[.*?\]\(.*?\)\n*", re.MULTILINE)
_PAGE = re.compile(r"\[([^\]]+)\]\(([\w-]+)\.md\)")
_FILE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(.+?)\)")
EPILOG = """Examples:

  rlpost help

  rlpost help pipeline

  rlpost help estimators | less
"""

app = typer.Typer(add_completion=False)


@command(app, name="help", epilog=EPILOG)
def show_help(
    topic: Annotated[
        str | None,
        argument("TOPIC", "Page to print (default: the list of pages).", lambda: [*TOPICS.items()]),
    ] = None,
) -> None:
    """Print a page of the manual, or the list of its pages."""
    if topic is None:
        _show_topics()
        return
    names = topics_of(topic)
    if len(names) > 1:
        raise UsageError(f"no manual page {topic!r}", candidates=names)
    if not names:
        lists = "`rlpost help` lists the pages"
        pages = (*TOPICS, *OF_COMMANDS)
        raise UsageError(no_such(f"no manual page {topic!r}", topic, pages, lists))
    _show_page(_COMMENT.sub("", page(names[0])))


def _show_topics() -> None:
    from rlpost.display.tables import show_list  # noqa: PLC0415

    rows = [(name, about) for name, about in TOPICS.items() if name != "index"]
    show_list(("topic", "content"), rows, "table")


def _show_page(text: str) -> None:
    """Print Markdown: rendered on a terminal, unchanged to a pipe."""
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.theme import Theme  # noqa: PLC0415

    from rlpost.display.console import console  # noqa: PLC0415
    from rlpost.display.markdown import MarkdownPage  # noqa: PLC0415
    from rlpost.display.pager import paged  # noqa: PLC0415

    out = console(sys.stdout)
    out.width = min(out.width, WIDEST)
    theme = Theme({"markdown.code": "cyan", "markdown.code_block": "default"})
    with out.use_theme(theme), paged(out):
        out.print(
            MarkdownPage(for_terminal(text), hyperlinks=False, code_theme="ansi_dark"), crop=False
        )


def for_terminal(text: str) -> str:
    """Return the text without images, and with commands in place of links to pages.

    >>> for_terminal("the roles ([input](input.md)), [all fields](recipes.md)")
    'the roles (`rlpost help input`), all fields (`rlpost help recipes`)'
    >>> for_terminal("| [input](input.md) | [benchmarks](../../tests/bench/README.md) |")
    '| input | benchmarks (`tests/bench/README.md`) |'
    """
    text = _IMAGE.sub("", text)
    text = _PAGE.sub(_command, text)
    return _FILE.sub(r"\1 (`\2`)", text)


def _command(link: re.Match[str]) -> str:
    """Return what replaces a link: a command, or in a table the topic's name."""
    words, name = link.groups()
    command = f"`rlpost help {name}`"
    before, after = link.string[: link.start()], link.string[link.end() :]
    if before.endswith("| ") and words == name:
        return words
    if before.endswith("(") or after.startswith(")"):
        return command
    return f"{words} ({command})"
