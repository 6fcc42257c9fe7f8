"""Cleanups: what is removed or restored if the process ends early."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_cleanups: dict[object, Callable[[], object]] = {}
published: list[str] = []
"""The outputs that a command wrote, in order: if it ends early, they stay."""


def register_cleanup(key: object, undo: Callable[[], object]) -> None:
    """Register a function that removes something unfinished if the process ends early.

    Args:
        key: identifies the thing, for `unregister_cleanup`.
        undo: removes it; may raise OSError.
    """
    _cleanups[key] = undo


def unregister_cleanup(key: object) -> None:
    """Unregister a cleanup: the thing is finished, or removed already."""
    _cleanups.pop(key, None)


def run_cleanups() -> None:
    """Remove everything unfinished, the latest first; call it when the process ends."""
    while _cleanups:
        with suppress(OSError, KeyError):
            _cleanups.popitem()[1]()
