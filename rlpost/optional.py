"""Optional libraries of extras, and the error if one is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from rlpost.errors import UnavailableError


def need(what: str, extra: str, *modules: str) -> None:
    """Check that the libraries of an extra are installed, without importing them.

    Args:
        what: the feature that needs them, in words: "the browser".
        extra: the name in `pip install 'rlpost[NAME]'`.
        modules: top-level modules that the extra installs.

    Raises:
        UnavailableError: one of them is not installed; the text has the pip command.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UnavailableError(
            f"{what} needs {' and '.join(missing)}, which {verb} not installed: "
            f"pip install 'rlpost[{extra}]'"
        )
