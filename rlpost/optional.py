"""Optional libraries: what an extra of the package brings, and the one message for its absence."""

from __future__ import annotations

from importlib.util import find_spec

from rlpost.errors import UnavailableError


def need(what: str, extra: str, *modules: str) -> None:
    """Make sure that the libraries of an extra are there, without importing them.

    Args:
        what: what asks for them, as a user would call it: "the browser".
        extra: the name in `pip install 'rlpost[NAME]'`.
        modules: top-level modules that the extra installs.

    Raises:
        UnavailableError: one of them is not installed; the text says what to type.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"{what} needs {' and '.join(missing)}, which rlpost does not install by itself: "
            f"pip install 'rlpost[{extra}]'"
        )
