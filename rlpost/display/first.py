"""The first line on a terminal, before anything slow is imported: it is gone when others come."""

from __future__ import annotations

import os
import sys

WORDS = "reading ..."
_shown = False


def show() -> None:
    """Print the line on stderr, if a person reads stderr and stdout there."""
    global _shown  # noqa: PLW0603 - there is one terminal
    stderr = sys.stderr
    if stderr is not None and stderr.isatty() and os.environ.get("TERM") != "dumb":
        stderr.write(f"\r{WORDS}")
        stderr.flush()
        _shown = True


def clear() -> None:
    """Remove the line."""
    global _shown  # noqa: PLW0603
    if _shown:
        _shown = False
        sys.stderr.write(f"\r{' ' * len(WORDS)}\r")
        sys.stderr.flush()
