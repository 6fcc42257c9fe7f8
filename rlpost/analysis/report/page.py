"""The page: sections of tiles, charts and tables as JSON, with style, script and content policy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from rlpost.display.page import stylesheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.display.tables import TextTable


Json = dict[str, Any]


@dataclass(frozen=True)
class Tile:
    """One number in a box."""

    label: str
    value: str
    note: str = ""
    key: str = ""
    """Path of the number in `rlpost inspect --format json`, such as `rewards.spread.mean`."""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification, and the numbers that it shows."""

    title: str
    spec: Json
    numbers: TextTable
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page; `name` is its anchor."""

    name: str
    title: str
    lines: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[TextTable] = field(default=())


def table_data(table: TextTable) -> Json:
    """Return a table as plain data; `words` are its columns of text."""
    rows = [list(map(str, row)) for row in (table.headings, *table.rows)]
    words = sorted(table.text)
    return {"title": table.title, "headings": rows[0], "rows": rows[1:], "words": words}


_SCRIPTS = ("dom.js", "tokens.js", "examples.js", "page.js")
# Characters that could end the script element that holds the data, or a line of script.
_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
    | {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}
)


def page_of(data: Json) -> str:
    """Return the whole page.

    Args:
        data: content that the page's script inserts; its texts are never part of the HTML itself.
    """
    style = stylesheet() + _static("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_static, _SCRIPTS)) + "})();\n"
    parts = {
        "policy": policy(style, script),
        "style": style,
        "data": encoded(data),
        "script": script,
    }
    return Template(_static("page.html")).substitute(parts)


def policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows this style and this script, by hash."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def encoded(data: Any) -> str:
    """Return JSON that is safe within a script element: no `<`, no NaN."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _static(name: str) -> str:
    return (files("rlpost.analysis.report") / "static" / name).read_text(encoding="utf-8")


# Control characters, and those that change the direction of text.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060\u2066-\u2069"
    r"\ud800-\udfff\ufeff\ufffe\uffff]"
)


def cut(text: str, most: int) -> str:
    """Return the first characters of a text, with the number of the others."""
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} characters more"


def plain(text: str) -> str:
    r"""Return a text with U+FFFD in place of invisible characters.

    >>> plain("a\x00b\u202ec")
    'a\ufffdb\ufffdc'
    """
    return _UNSEEN.sub("\ufffd", text)


def all_plain(value: Any) -> Any:
    """Return the same lists and dicts with every text in them made `plain`."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {name: all_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [all_plain(one) for one in value]
    return value
