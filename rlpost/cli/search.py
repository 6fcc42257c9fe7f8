"""Search of the manual: a word, option, label or name to what the pages say about it.

The pages are the index. A row of a table is found by its first cell, and by cells that are names
alone, such as aliases; a section by its heading, else by its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from html import unescape
from math import log
from typing import TYPE_CHECKING, NamedTuple

from rlpost.errors import closest
from rlpost.manual import TOPICS, page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST = 5
_LEAST = 0.7  # of the best score
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_SMALL = "a an and are do doe for how i in is it my of or that the to what which".split()  # noqa: SIM905
"""Words that no search is about."""
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
    is_named: bool = True
    """Whether the word is their name; else they only have it."""

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

    Else rows that have it among other names of theirs; else the five rows and sections that have
    most of its words, rare ones before frequent ones.
    """
    key = key_of(text)
    keys = {key, key.partition("/")[2] or key}  # of actor/pg_clipfrac also what follows
    headed = [section for section in sections() if key_of(section.heading) == key]
    for of_row in (lambda row: [row.name, *row.labels], lambda row: row.names):
        named = [row for row in rows() if not keys.isdisjoint(map(key_of, of_row(row)))]
        if headed or named:
            return Explained(_distinct(named)[:MOST], headed[:1])
    return _with_words(text)


def _distinct(named: Iterable[Entry]) -> list[Entry]:
    """Return rows, those of one page and name once."""
    return [*{(row.section.topic, *row.cells.values()): row for row in named}.values()]


@cache
def _words_of_all() -> list[tuple[Entry | Passage, list[str]]]:
    """Return the words of each row, with those of its heading, and of each section; names twice."""
    texts: list[tuple[Entry | Passage, list[str]]] = [
        (row, [row.name, row.section.heading, row.section.heading, *row.cells.values()])
        for row in rows()
    ]
    texts += [(section, [section.heading, section.start]) for section in sections()]
    return [(unit, [word for text in parts for word in {*_words(text)}]) for unit, parts in texts]


def _words(text: str) -> list[str]:
    """Return the words of a text, without the `s` of plurals."""
    return [word.rstrip("s") for word in re.findall(r"[^\W_]+", text.lower())]


def _with_words(text: str) -> Explained:
    """Return the pages that a text names, and the rows and sections with most of its words."""
    units, words = _words_of_all(), _words(text)
    words = [word for word in words if word not in _SMALL] or words
    counts = {word: sum(word in unit for _, unit in units) for word in words}
    rarity = {word: log(1 + len(units) / count) for word, count in counts.items() if count}
    scores = [sum(x * min(unit.count(word), 2) for word, x in rarity.items()) for _, unit in units]
    order = sorted(range(len(units)), key=lambda i: (-scores[i], len(units[i][1])))
    near = [units[i][0] for i in order[:MOST] if scores[i] > _LEAST * max(scores)]
    pages = {x.topic: x for x in reversed(sections()) if x.topic.rstrip("s") in words}
    others = [x for x in near if isinstance(x, Passage) and x not in pages.values()]
    rows_with_words = _distinct(x for x in near if isinstance(x, Entry))
    return Explained(rows_with_words, [*pages.values(), *others], is_named=False)


def nearest(text: str) -> tuple[str, ...]:
    """Return the names of pages, sections and rows that look most like a word."""
    names = [*TOPICS, *(x.heading for x in sections()), *(x for row in rows() for x in row.names)]
    return closest(text, (name.strip("`").lower() for name in names))
