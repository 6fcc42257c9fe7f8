r"""Control characters in text of unknown origin: replaced by visible signs, or escaped.

Names and texts come from anybody's files. An escape sequence in them could move the cursor, rename
the window or hide the text after it. A character that changes the writing direction could make a
line read as another one. Text for people gets a visible sign for each of these; JSON gets escapes.
Multi-line text keeps line ends and tabs. A byte of a file name that is not UTF-8 becomes `\xff`.
In cells of tables, in names and in sentences, line ends, tabs and zero-width characters become
signs, too: with the latter, two names can look the same. Long ones are cut, since an id may have a
megabyte. JSON and a response's own text stay whole.
"""

from __future__ import annotations

import re
import unicodedata

MOST_CHARACTERS = 1000
"""Of an id, a name, a cell or a sentence on any screen, in pipes and in Markdown."""
_PICTURES = 0x2400  # Unicode's pictures of the first 32 characters
_UNKNOWN = "\ufffd"
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SIGNS = {
    **{code: chr(_PICTURES + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x80, 0xA0), 0x2028, 0x2029, *_DIRECTIONS), _UNKNOWN),
    **dict.fromkeys(range(0xD800, 0xE000), _UNKNOWN),
    **{0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)},  # of names not in UTF-8
}
_ZERO_WIDTH = (0x061C, *range(0x200B, 0x2010), 0x2060, 0xFEFF)
_LINE_SIGNS = {
    **_SIGNS,
    **{ord(char): chr(_PICTURES + ord(char)) for char in "\n\t"},
    **dict.fromkeys(_ZERO_WIDTH, _UNKNOWN),
}
_UNSAFE = re.compile(f"[{''.join(map(re.escape, map(chr, _SIGNS)))}]")

_ASCII = {
    **{chr(_PICTURES + code): f"\\x{code:02x}" for code in range(0x20)},
    "\u2421": "\\x7f",
    **dict(zip("▁▂▃▄▅▆▇█", "_.-~=+*#", strict=True)),
    **dict(zip("▏▎▍▌▋▊▉", "...####", strict=True)),
    **dict(zip("–−─·↑↓›✓✗■░", "---.^v>vx#.", strict=True)),
    **dict(
        zip(
            "±‖≥≤≠→←²√λ",
            ["+-", "||", ">=", "<=", "!=", "->", "<-", "^2", "sqrt", "lambda"],
            strict=True,
        )
    ),
}


def ascii_signs(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding lacks by ASCII, else `?`; a handler for `codecs.register_error`.

    Letters become their base (`t` for a subscript), Greek ones their name.
    """
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(map(_ascii, missing)), error.end


def _ascii(char: str) -> str:
    base = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
    name = unicodedata.name(char, "")
    greek = name.rpartition(" ")[2].lower() if name.startswith("GREEK") else ""
    return _ASCII.get(char) or base or greek or "?"


def in_utf8(name: str) -> str:
    r"""Return a name, of which a byte that is not UTF-8 becomes `\xff`.

    >>> in_utf8("a\udcff")
    'a\\xff'
    """
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def printable(text: str) -> str:
    r"""Replace control characters by visible signs, except line ends and tabs.

    >>> printable("a\x1b[2Jb\n")
    'a␛[2Jb\n'
    """
    return text.translate(_SIGNS) if _UNSAFE.search(text) else text


def printable_line(text: str) -> str:
    r"""Replace control characters, line ends, tabs and zero-width characters by visible signs.

    Of a longer text than `MOST_CHARACTERS`, the beginning and the end remain.

    >>> printable_line("a\r\n\tb\a\u200b")
    'a␍␊␉b␇\ufffd'
    """
    if len(text) > MOST_CHARACTERS:
        begin, end = text[: MOST_CHARACTERS // 2], text[-MOST_CHARACTERS // 4 :]
        left_out = len(text) - len(begin) - len(end)
        text = f"{begin}… {left_out:,} more characters …{end}"
    return text if text.isascii() and text.isprintable() else text.translate(_LINE_SIGNS)


def escape_json(text: str) -> str:
    r"""Escape control characters in JSON text.

    >>> escape_json('["\x9b"]')
    '["\\u009b"]'
    """
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
