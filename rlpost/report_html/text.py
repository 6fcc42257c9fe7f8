"""Text of the data, cut to size and rid of what would disturb the words around it."""

from __future__ import annotations

import re
from typing import Any

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
