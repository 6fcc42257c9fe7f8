"""The page: its data as JSON, its style and script, and the policy that allows nothing else.

What a page is made of, as plain data: sections of tiles, charts and tables.

Text of the data, cut to size and rid of what would disturb the words around it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from importlib.resources import files
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


_SCRIPTS = ("dom.js", "strip.js", "examples.js", "page.js")
# Characters that could end the script element that holds the data, or a line of script.
_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
    | {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}
)


def page_of(data: Json) -> str:
    """The whole page.

    Args:
        data: what the page's script shows; its texts are never part of the HTML itself.
    """
    style = _static("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_static, _SCRIPTS)) + "})();\n"
    parts = {
        "policy": policy(style, script),
        "style": style,
        "data": encoded(data),
        "script": script,
    }
    page = _static("page.html")
    before, *rest = page.split("{{")
    made = [before]
    for piece in rest:
        name, _, after = piece.partition("}}")
        made += [parts[name], after]
    return "".join(made)


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy: this style and this script, known by hash, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def encoded(data: Any) -> str:
    """JSON that is safe within a script element: no `<`, and every number is one."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _static(name: str) -> str:
    return (files("rlpost.analysis.report") / "static" / name).read_text(encoding="utf-8")


# Control characters, and those that turn the direction of what follows them.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060\u2066-\u2069"
    r"\ud800-\udfff\ufeff\ufffe\uffff]"
)


def cut(text: str, most: int) -> str:
    """The first characters of a text, and how many there are more."""
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} characters more"


def plain(text: str) -> str:
    r"""A text that can stand among others: what is not seen becomes U+FFFD.

    >>> plain("a\x00b\u202ec")
    'a\ufffdb\ufffdc'
    """
    return _UNSEEN.sub("\ufffd", text)


def all_plain(value: Any) -> Any:
    """The same lists and dicts with every text in them `plain`."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {name: all_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [all_plain(one) for one in value]
    return value
