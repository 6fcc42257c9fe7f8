"""The page: sections as HTML, examples as JSON, with style, script and content policy."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.analysis.report.charts import figures
from rlpost.display.page import MARKS, stylesheet
from rlpost.display.tables import html_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.report.charts import Chart
    from rlpost.display.page import Notice, Page

Json = dict[str, Any]
_SCRIPTS = ("dom.js", "tokens.js", "examples.js", "page.js")
# Characters that could end the script element that holds the data, or a line of script.
_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
    | {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}
)


@dataclass(frozen=True)
class Section:
    """A part of the page; `name` is its anchor."""

    name: str
    page: Page
    charts: Sequence[Chart] = ()

    def html(self) -> str:
        """Return the section as HTML, which the script of the page only links."""
        return f'<section id="{self.name}">{self.page.html(figures(self.charts))}</section>'


def html_of(sections: Sequence[Section], data: Json, *, inputs: str, verdict: Notice) -> str:
    """Return the whole page.

    Args:
        sections: in their order.
        data: findings and examples, which the page's script inserts as text.
        inputs: the names of the inputs.
        verdict: how many problems were found.
    """
    style = stylesheet() + _static("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_static, _SCRIPTS)) + "})();\n"
    parts = {
        "policy": policy(style, script),
        "style": style,
        "inputs": html_line(inputs),
        "severity": verdict.severity,
        "verdict": html_line(f"{MARKS[verdict.severity]} {verdict.text}"),
        "sections": "\n".join(section.html() for section in sections),
        "version": __version__,
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
