"""Commands about rlpost itself: `rlpost list` and `rlpost help`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.help_screen import argument, command
from rlpost.errors import UsageError
from rlpost.manual import TOPICS, page, topic_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.cli.search import Explained, Passage

WIDEST = 100
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_IMAGE = re.compile(r"^!\[.*?\]\(.*?\)\n*", re.MULTILINE)
_PAGE = re.compile(r"\[([^\]]+)\]\(([\w-]+)\.md\)")
_FILE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(.+?)\)")


# ---- list ----


@command(name="list")
def show(
    kind: Annotated[
        str | None, argument("KIND", "What to list (default: the kinds).", completion.kinds)
    ] = None,
    names: Annotated[
        list[str] | None,
        argument("NAME...", "All about these (default: a line for each).", completion.listed),
    ] = None,
    how: declared.Output = "table",
) -> None:
    """List what there is of a kind, or print all about one by its name.

    KIND is estimators, losses, presets (of --preset), dumps (that convert reads), targets (of
    export) or checks (of inspect). A preset is printed as a TOML file for --config; `default` has
    all numerics. Estimators of installed packages are imported only by name.

    Examples:
      rlpost list estimators
      rlpost list estimators gae grpo
      rlpost list presets verl > verl.toml
      rlpost list losses --format json
    """
    from rlpost.cli.render import catalogue  # noqa: PLC0415 - rich takes a while to import

    if kind == "presets" and names:
        for name in names:
            catalogue.show_preset(name, how)
    else:
        catalogue.show(kind, names or [], how)


# ---- help ----


@command(name="help", ignore_unknown_options=True)
def show_help(
    words: Annotated[
        list[str] | None,
        argument(
            "WORD...",
            "A page, command, option, label, metric or other name.",
            lambda: [*TOPICS.items()],
        ),
    ] = None,
) -> None:
    """Explain a word, or print a page of the manual; without a word the list of pages.

    Options, roles, estimators, losses, presets, checks, what screens print, names in JSON and the
    metrics of frameworks are found: the manual's rows and sections of that name, or the five
    nearest.

    Examples:
      rlpost help
      rlpost help advantages
      rlpost help no signal
      rlpost help --reward-clip
      rlpost help actor/pg_clipfrac
    """  # fmt: skip
    if not words:
        _show_topics()
        return
    text = " ".join(words)
    if topic := topic_of(text):
        _show_page(_COMMENT.sub("", page(topic)))
        return
    from rlpost.cli import search  # noqa: PLC0415

    explained = search.answer(text)
    if not explained:
        lists = "" if (near := search.nearest(text)) else "rlpost help  # lists the pages"
        raise UsageError(f"help: nothing about {text!r}", candidates=near, tip=lists)
    _show_page("\n\n".join(_answered(explained)) + "\n")


def _answered(explained: Explained) -> Iterator[str]:
    """Yield what the manual has about a word, as Markdown."""
    for row in explained.rows:
        _, *others = row.cells.items()
        yield f"{row.name}: {_place(row.section)}\n" + "".join(
            f"\n- {heading}: {cell}" for heading, cell in others if cell
        )
    if explained.is_named:
        yield from (section.text for section in explained.sections)
    elif explained.sections:
        yield "\n".join(f"- {_place(section)}" for section in explained.sections)
    first, *_ = [row.section for row in explained.rows] or explained.sections
    yield f"next: rlpost help {first.topic}"


def _place(section: Passage) -> str:
    """Return the command that prints a section."""
    heading = section.heading.replace("`", "").lower()
    return f"`rlpost help {section.topic}`" + f", {heading}" * (heading != section.topic)


def _show_topics() -> None:
    from rlpost.display.console import console  # noqa: PLC0415
    from rlpost.display.tables import TextTable  # noqa: PLC0415

    rows = [(name, about) for name, about in TOPICS.items() if name != "index"]
    console(sys.stdout).print(TextTable(("topic", "content"), rows, text=(0, 1)))


def _show_page(text: str) -> None:
    """Print Markdown: rendered on a terminal, unchanged to a pipe."""
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.theme import Theme  # noqa: PLC0415

    from rlpost.display.console import console  # noqa: PLC0415
    from rlpost.display.markdown import MarkdownPage  # noqa: PLC0415
    from rlpost.display.pager import show_text  # noqa: PLC0415

    out = console(sys.stdout)
    out.width = min(out.width, WIDEST)
    theme = Theme({"markdown.code": "cyan", "markdown.code_block": "default"})
    drawn = MarkdownPage(for_terminal(text), hyperlinks=False, code_theme="ansi_dark")
    with out.use_theme(theme), out.capture() as captured:
        out.print(drawn, crop=False)
    show_text(captured.get())


def for_terminal(text: str) -> str:
    """Return the text without images, and with commands in place of links to pages.

    >>> for_terminal("the roles ([input](columns.md)), [all fields](start.md)")
    'the roles (`rlpost help columns`), all fields (`rlpost help start`)'
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
