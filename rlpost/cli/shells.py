"""Completion requests of shells, beside what typer does: words that bash splits."""

from __future__ import annotations

import io
import re
import sys
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

REQUEST = "_RLPOST_COMPLETE"
"""The environment variable by which typer's scripts request completion."""
_SPLIT = re.compile(r"\n([=:]+)(?:\n|\Z)")


@contextmanager
def completion(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Complete a word that bash split at `=` and `:`, and print only the part after the split."""
    # Without rich typer prints descriptions unchanged. With it they take 0.1 s, are wrapped at 80
    # columns, and fish offers the other lines as values.
    sys.modules["rich"] = None  # type: ignore[assignment]
    before = join_words(environment)
    try:
        with redirect_stdout(io.StringIO()) as offered:
            yield
    finally:
        for line in offered.getvalue().splitlines(keepends=True):
            sys.stdout.write(line.removeprefix(before))


def join_words(environment: MutableMapping[str, str]) -> str:
    """Join the words of COMP_WORDS that bash split at `=` and `:`, as in `--map role=column`.

    Returns:
        The part of the last word before the split, which completions for bash do not repeat.
    """
    if environment.get(REQUEST) != "complete_bash" or "\n" not in environment["COMP_WORDS"]:
        return ""
    words = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    joined = _SPLIT.sub(r"\1", "\n".join(words)).split("\n")
    environment["COMP_WORDS"] = "\n".join(joined)
    environment["COMP_CWORD"] = str(len(joined) - 1)
    before = joined[-1].removesuffix(words[-1].lstrip("=:"))
    # `--flag=value`: the flag is no part of the completed word.
    return before.partition("=")[2] if before.startswith("--") else before
