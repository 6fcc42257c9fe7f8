"""Optional libraries of extras, and the error if one is not installed."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

from rlpost.errors import UnavailableError


def need(what: str, extra: str, *modules: str) -> None:
    """Check that the libraries of an extra are installed, without importing them.

    Args:
        what: the feature that needs them, in words: "--engine ray".
        extra: its name in the requirements of rlpost.
        modules: top-level modules that the extra installs.

    Raises:
        UnavailableError: one of them is not installed; its tip is the command that installs them
            for this Python.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        words = [sys.executable, "-m", "pip", "install", *(_libraries(extra) or missing)]
        text = f"{what} needs {' and '.join(missing)}, which {verb} not installed"
        raise UnavailableError(text, tip=shlex.join(words))


def _libraries(extra: str) -> list[str]:
    """Return the requirements of an extra, as pip reads them."""
    try:
        lines = requires("rlpost") or []
    except PackageNotFoundError:
        return []
    named = re.compile(rf"""extra == ['"]{re.escape(extra)}['"]""")
    return [line.partition(";")[0].strip() for line in lines if named.search(line)]
