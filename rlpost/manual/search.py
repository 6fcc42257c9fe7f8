"""Search of the manual: a word, option, label or name to what the pages say about it.

The pages are the index. A row of a table is found by its first cell, and by cells that are names
alone, such as aliases; a section by its heading, else by its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from html import unescape
from typing import TYPE_CHECKING, NamedTuple

from rlpost.manual import TOPICS, page

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 5
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_OF_NAMES = re.compile(r"(?:`[^`]+`(?:, |; |$))+")


@dataclass(frozen=True)
class Passage:
    """A heading of a page and the text below it, up to the next heading of its level."""

    topic: str
    heading: str
    text: str

    @property
    def start(self) -> str:
        """The text up to the next heading of any level."""
        head, _, body = self.text.partition("\n")
        inner = _HEADING.search(_FENCE.sub(_blank, body))
        return head + "\n" + (body[: inner.start()] if inner else body)


class Entry(NamedTuple):
    """A row of a table."""

    section: Passage
    cells: dict[str, str]
    """By the headings of the table."""

    @property
    def name(self) -> str:
        """The first cell."""
        return next(iter(self.cells.values()))

    @property
    def names(self) -> list[str]:
        """The first cell, and the names of cells that have names alone."""
        names = [part for cell in self.cells.values() if _OF_NAMES.fullmatch(cell)
                 for part in re.findall("`([^`]+)`", cell)]  # fmt: skip
        return [*self.labels, *names]

    @property
    def labels(self) -> list[str]:
        """The names of the first cell, those of options without their value."""
        parts = re.split(r", | · ", self.name)
        return [part.split()[0] if part.startswith("`--") else part for part in parts]


class Explained(NamedTuple):
    """What the manual has about a word."""

    rows: list[Entry]
    sections: list[Passage]
    """One is the answer; of several, these are the nearest."""

    def __bool__(self) -> bool:
        return bool(self.rows or self.sections)


def key_of(text: str) -> str:
    """Return what a word is compared by: `--pg-clip`, `pg_clip` and `PG clip` are one.

    >>> key_of("--pg-clip"), key_of("`PG clip`"), key_of("A = 0")
    ('pg_clip', 'pg_clip', 'a_=_0')
    """
    return re.sub(r"[\s_-]+", "_", unescape(text).replace("`", " ").lower()).strip("_. :")


def _blank(block: re.Match[str]) -> str:
    """Return blanks in place of code, whose comments and pipes are no headings and tables."""
    return re.sub(".", " ", block[0])


@cache
def sections() -> list[Passage]:
    """Return the sections of all pages; a page's text before its first heading is its own."""
    explanations = []
    for topic in TOPICS:
        text = _COMMENT.sub("", page(topic))
        hidden = _FENCE.sub(_blank, text)
        heads = [*_HEADING.finditer(hidden)]
        for i, head in enumerate(heads):
            level = len(head[1])
            later = (x.start() for x in heads[i + 1 :] if len(x[1]) <= level or level == 1)
            explanations.append(
                Passage(topic, head[2], text[head.start() : next(later, None)].strip())
            )
    return explanations


@cache
def rows() -> list[Entry]:
    """Return the rows of all tables, each under the innermost heading above it."""
    return [row for section in sections() for row in _rows_of(section)]


def _rows_of(section: Passage) -> Iterator[Entry]:
    """Yield the rows of the tables of a section, without those of sections in it."""
    headings: list[str] = []
    for line in _FENCE.sub(_blank, section.start).splitlines():
        if not line.startswith("|"):
            headings = []
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in _CELL.split(line)[1:-1]]
        if not headings:
            headings = cells
        elif set(cells) != {"---"} and len(cells) == len(headings):
            yield Entry(section, {x: unescape(y) for x, y in zip(headings, cells, strict=True)})


def answer(text: str) -> Explained:
    """Return what the manual has about a word or several: rows and headings of that name.

    Else rows that have it among other names of theirs; else the sections whose text has it, those
    with it in their heading and with most of it first.
    """
    key = key_of(text)
    headed = [section for section in sections() if key_of(section.heading) == key]
    first = [row for row in rows() if key in map(key_of, row.labels)]
    if headed or first:
        return Explained(_shortest(first), headed[:1])
    also = [row for row in rows() if _is_named(key, row)]
    if also:
        return Explained(_shortest(also), [])
    return Explained([], _with_text(key))


def _is_named(key: str, row: Entry) -> bool:
    """Return whether a row has a name, with or without the first part of `actor/pg_clipfrac`."""
    names = {key_of(name) for name in row.names}
    return key in names or ("/" in key and key.partition("/")[2] in names)


def _shortest(named: list[Entry]) -> list[Entry]:
    """Return at most five rows, those of one table and name once."""
    chosen = {(row.section.topic, *row.cells.values()): row for row in named}
    return [*chosen.values()][:MOST]


def _with_text(key: str) -> list[Passage]:
    """Return the five sections without sections in them that have a word most."""
    words = re.escape(key).replace("_", r"[\s_`-]+")
    pattern = re.compile(rf"(?<![a-z0-9]){words}(?![a-z0-9])", re.IGNORECASE)
    counts = {
        i: 100 * bool(pattern.search(section.heading)) + len(pattern.findall(section.start))
        for i, section in enumerate(sections())
    }
    order = sorted((i for i, count in counts.items() if count), key=lambda i: (-counts[i], i))
    return [sections()[i] for i in order[:MOST]]


def nearest(text: str) -> list[str]:
    """Return five names of pages, sections and rows that look most like a word."""
    names = [
        *TOPICS,
        *(x.heading for x in sections()),
        *(name for row in rows() for name in row.names),
    ]
    keys = {key_of(name): name.strip("`") for name in reversed(names)}
    return [keys[key] for key in get_close_matches(key_of(text), keys, MOST, 0.6)]
