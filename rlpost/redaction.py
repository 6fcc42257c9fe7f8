"""URLs without their secrets: user names, passwords, queries and fragments."""

from __future__ import annotations

import re

HIDDEN = "***"
_END = r"\s\"'<>`"
"""What ends a URL in a text."""
# The lengths of names are bounded: a text of one long word would take the square of its length.
_URL = re.compile(rf"([A-Za-z][\w+.-]{{1,30}})(://+|(?<=http):/|(?<=https):/)([^{_END}]+)")
_PUNCTUATION = re.compile(r"[:;,.)\]}]*$")
_HTTP = ("http", "https")
_CONTAINERS = ("abfs", "abfss", "adl", "az", "azure", "wasb", "wasbs")
"""Schemes with `container@account` in place of a user name."""
_PARAMETER = re.compile(
    r"([?&;][\w.%-]{0,30}(?:sig|token|secret|passw|credential|key|auth)[\w.%-]{0,30}=)"
    rf"[^&;{_END}]*[^&:;,.)\]}}{_END}]",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return a text in which each URL is as `public_url` returns it.

    Parameters of a query with names such as `sig` and `token` lose their values also where the
    URL has no scheme.

    >>> without_secrets("cannot read (https://me:pw@host/a.parquet?sig=abc): 403")
    'cannot read (https://***@host/a.parquet?***): 403'
    """
    if "://" not in text and ":/" not in text and "=" not in text:
        return text
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", _URL.sub(_public_match, text))


def _public_match(match: re.Match[str]) -> str:
    scheme, slashes, rest = match.groups()
    end = _PUNCTUATION.search(rest)
    tail = end[0] if end else ""
    return f"{scheme}{slashes}{_public(scheme, rest.removesuffix(tail))}{tail}"


def public_url(url: str) -> str:
    """Return a URL with its scheme, host and path, and `***` for what may be secret.

    Of other schemes than HTTP, a `?` or `#` begins a query only before `NAME=`: it may be part of
    a key, or of a glob.

    >>> public_url("s3://lab/step=?/a.parquet")
    's3://lab/step=?/a.parquet'
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{_public(scheme, rest)}" if separator else url


def _public(scheme: str, rest: str) -> str:
    """Return what follows the scheme of a URL, without its secrets."""
    scheme = scheme.rpartition("::")[2].lower()
    if chained := re.search(r"::(?=[A-Za-z][\w+.-]+://)", rest):  # zip://inner::https://host/a.zip
        return f"{_public(scheme, rest[: chained.start()])}::{public_url(rest[chained.end() :])}"
    rest = _without_user(scheme, rest)
    query = re.search(r"[?#]" if scheme in _HTTP else r"[?#][^\s/?#&=]+=", rest)
    return f"{rest[: query.start() + 1]}{HIDDEN}" if query else rest


def _without_user(scheme: str, rest: str) -> str:
    """Return what follows the scheme of a URL, without user name and password."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user = authority.rpartition("@")[0]
    host, colon, port = authority.rpartition(":")
    if not user and colon and not re.fullmatch(r"\d*|.*\]", port):  # no port, but a password
        user = rest.rpartition("@")[0]
        if not user:
            return f"{host}:{HIDDEN}{rest[len(authority) :]}"
    if not user or (scheme in _CONTAINERS and ":" not in user):
        return rest
    return HIDDEN + rest[len(user) :]
