"""Control characters: shown, never sent.

Names and texts come from files of anybody's. An escape sequence among them could move the cursor,
rename the window or hide what follows, and a character that turns the direction of writing can
make a line read as another one. Wherever rlpost writes text for people, each of these becomes a
visible sign; JSON keeps them as escapes. Line ends and tabs stay in texts that have lines of their
own. Elsewhere, in cells of tables, names and sentences, they become signs, too, as do characters
without width, by which two names can look the same.
"""

from __future__ import annotations

import re

_PICTURES = 0x2400  # Unicode's pictures of the first 32 characters
_UNKNOWN = "\ufffd"
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SIGNS = {
    **{code: chr(_PICTURES + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x80, 0xA0), 0x2028, 0x2029, *_DIRECTIONS), _UNKNOWN),
}
_UNSEEN = (0x061C, *range(0x200B, 0x2010), 0x2060, 0xFEFF)  # characters without width
_LINE_SIGNS = {
    **_SIGNS,
    **{ord(char): chr(_PICTURES + ord(char)) for char in "\n\t"},
    **dict.fromkeys(_UNSEEN, _UNKNOWN),
}
_UNSAFE = re.compile(f"[{''.join(map(re.escape, map(chr, _SIGNS)))}]")


def printable(text: str) -> str:
    r"""The text with a visible sign for each control character but line ends and tabs.

    >>> shown("a\x1b[2Jb\n")
    'a␛[2Jb\n'
    """
    return text.translate(_SIGNS) if _UNSAFE.search(text) else text


def printable_line(text: str) -> str:
    r"""The text with a visible sign for each character that is not seen, line ends included.

    >>> in_line("a\r\n\tb\a\u200b")
    'a␍␊␉b␇\ufffd'
    """
    return text if text.isascii() and text.isprintable() else text.translate(_LINE_SIGNS)


def escape_json(text: str) -> str:
    r"""JSON text with each control character as an escape: within its strings, or anywhere.

    >>> escaped('["\x9b"]')
    '["\\u009b"]'
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
