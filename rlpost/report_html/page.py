"""The page: its data as JSON, its style and script, and the policy that allows nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlpost.report_html.model import Json

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
    return (files("rlpost.report_html") / "static" / name).read_text(encoding="utf-8")
