"""What a page is made of, as plain data: sections of tiles, charts and tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]
Row = tuple[str, ...]


@dataclass(frozen=True)
class Tile:
    """One number that is seen at once."""

    label: str
    value: str
    note: str = ""
    key: str = ""
    """Where `rlpost inspect --format json` has the number, with dots: `rewards.spread.mean`."""


@dataclass(frozen=True)
class Table:
    """Rows of text below headings; the first column is of names, the others of numbers."""

    title: str
    headings: Row
    rows: Sequence[Row]
    words: tuple[int, ...] = (0,)
    """Columns of words; the others are aligned as numbers."""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification, and the numbers that it draws."""

    title: str
    spec: Json
    numbers: Table
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page; `name` is its anchor."""

    name: str
    title: str
    lines: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = field(default=())
