"""URLs without their secrets: user names, passwords, parameters, queries and fragments."""

from __future__ import annotations

import re

HIDDEN = "***"
_HTTP = ("http", "https")
_CONTAINERS = ("abfs", "abfss", "adl", "az", "azure", "wasb", "wasbs")
"""Schemes with `container@account` in place of a user name."""
_SECRET = re.compile("sig|token|secret|passw|credential|key|auth|session", re.IGNORECASE)
"""In the name of a parameter whose value is hidden also where no URL is."""
_DELIMITERS = "\"'<>`"
_TRAILING = re.compile(rf"(?<![:;,.)\]}}{_DELIMITERS}])[:;,.)\]}}{_DELIMITERS}]+$")


def _token(character: str) -> str:
    """Return the pattern of a character, percent-encoded any number of times or not."""
    return rf"(?:{re.escape(character)}|%(?:25)*{ord(character):02X})"


_AT, _COLON, _SLASH, _EQUALS = map(_token, "@:/=")
# The length of a scheme is bounded: a text of one long word would take the square of its length.
_START = re.compile(
    rf"(?:(?<![A-Za-z])([A-Za-z][A-Za-z0-9+.-]{{1,30}}){_COLON}|(?<![\w:/.%*-])(?={_SLASH}{{2}}))"
    rf"({_SLASH}+)",
    re.IGNORECASE,
)
_LAST_AT = re.compile(rf".*{_AT}", re.IGNORECASE | re.DOTALL)
_LAST_COLON = re.compile(rf"(.*){_COLON}(.*)", re.IGNORECASE | re.DOTALL)
_PARAMETERS = re.compile(rf"[?#;]|%(?:25)*(?:3F|23|3B)(?=[^/\s]{{0,99}}?{_EQUALS})", re.IGNORECASE)
_NAMED = re.compile(rf"(?:[?#;]|%(?:25)*(?:3F|23|3B))[^\s/?#&=]{{1,99}}?{_EQUALS}", re.IGNORECASE)
_VALUE = re.compile(
    rf"((?:[?&;#]|%(?:25)*(?:3F|26|3B|23))([\w.-]{{0,60}}?){_EQUALS})([^&;{_DELIMITERS}]+)",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return a text in which each URL is as `public_url` returns it.

    A URL ends with its word. Parameters of a query with names such as `sig` and `token` lose their
    values also where the URL has no scheme.

    >>> without_secrets("cannot read (https://me:pw@host/a.parquet?sig=abc): 403")
    'cannot read (https://***@host/a.parquet?***): 403'
    """
    return "".join(map(_public_word, re.split(r"(\s+)", text)))


def _public_word(word: str) -> str:
    """Return a word without the secrets of its URLs, which may be chained, or stand in quotes."""
    parts, rest = list[str](), word
    while start := _START.search(rest):
        following = _START.search(rest, start.end())
        url = rest[start.end() : following.start() if following else None]
        printed, parameters = _public(start, _without_trailing(url))
        if parameters is not None:  # they end with a quote, and may have a URL
            quote = re.search(f"[{_DELIMITERS}]", rest[start.end() + parameters :])
            length = parameters + quote.start() if quote else len(rest) - start.end()
        else:
            length = len(url)
        url = _without_trailing(rest[start.end() : start.end() + length])
        parts += [rest[: start.end()], printed]
        rest = rest[start.end() + len(url) :]
        if not url:
            parts.append(rest[:1])
            rest = rest[1:]
    return "".join(parts) + _VALUE.sub(_public_value, rest)


def _without_trailing(url: str) -> str:
    """Return a URL without the punctuation of a text behind it."""
    return re.sub(_TRAILING, "", url)


def _public_value(match: re.Match[str]) -> str:
    name, value = match[1], match[3]
    if not _SECRET.search(match[2]):
        return match[0]
    end = _TRAILING.search(value)
    return f"{name}{HIDDEN}{end[0] if end else ''}"


def public_url(url: str) -> str:
    """Return a URL with its scheme, host and path, and `***` for what may be secret.

    Of other schemes than HTTP, a `?`, `#` or `;` begins parameters only before `NAME=`: it may be
    part of a key, or of a glob.

    >>> public_url("s3://lab/step=?/a.parquet")
    's3://lab/step=?/a.parquet'
    """
    if chained := re.search(r"::(?=[A-Za-z][\w+.-]+:)", url):  # zip://inner::https://host/a.zip
        return f"{public_url(url[: chained.start()])}::{public_url(url[chained.end() :])}"
    start = _START.match(url)
    return url if start is None else start[0] + _public(start, url[start.end() :])[0]


def _public(start: re.Match[str], rest: str) -> tuple[str, int | None]:
    """Return what follows the scheme of a URL, without its secrets; where parameters begin.

    Args:
        start: the scheme, if the URL has one, and the slashes.
        rest: what follows them.
    """
    scheme = (start[1] or "").lower()
    encoded = "%" in start[2]  # so are the slashes that follow
    public = _without_user(scheme, rest, encoded=encoded)
    parameters = (_PARAMETERS if scheme in _HTTP else _NAMED).search(public)
    if parameters is None:
        return public, None
    mark = re.match(r"[?#;]|%(?:25)*\w\w", parameters[0])
    begin = len(rest) - len(public) + parameters.start()
    return f"{public[: parameters.start()]}{mark[0] if mark else ''}{HIDDEN}", begin


def _without_user(scheme: str, rest: str, *, encoded: bool) -> str:
    """Return what follows the scheme of a URL, without user name and password."""
    ends = rf"{_SLASH}|[?#]" if encoded else "[/?#]"
    authority = re.split(ends, rest, maxsplit=1, flags=re.IGNORECASE)[0]
    user = _LAST_AT.match(authority)
    if user is None and (colon := _LAST_COLON.match(authority)):
        port = scheme in _HTTP or not scheme or "%" in colon[2]
        if not (port and re.fullmatch(r"\d*|.*\]", colon[2])):  # a password, maybe with a slash
            user = _LAST_AT.match(rest)
            if user is None and re.fullmatch(r"\d*|.*\]", colon[2]):
                return rest
            if user is None:
                hidden = authority[: len(authority) - len(colon[2])]
                return f"{hidden}{HIDDEN}{rest[len(authority) :]}"
    if user is None:
        return rest
    name = re.sub(rf"{_AT}$", "", user[0], flags=re.IGNORECASE)
    if scheme in _CONTAINERS and not _LAST_COLON.match(name):
        return rest
    return HIDDEN + rest[len(name) :]
