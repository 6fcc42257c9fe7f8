"""What a killed run leaves behind is found and removed; what a running one writes is locked.

Every folder that is written to has a lock file, `.rlpost-lock`, while a run is at work there: each
output is a byte of it, by the hash of its name, and the run holds a lock on that byte. The kernel
lets go of a lock when its process ends, however it ends, so a lock says more than a process id:
that may be another process's by now, or one of another machine or container. Whoever gets the
lock of an output knows that nobody else writes it, and may remove what lies about under its name.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_unfinished: dict[object, Callable[[], object]] = {}


def undo_at_exit(key: object, undo: Callable[[], object]) -> None:
    """Remember how to remove something, should the process end before `settled` is called.

    Args:
        key: what it is.
        undo: removes it; may raise OSError.
    """
    _unfinished[key] = undo


def settled(key: object) -> None:
    """What was remembered under a key is removed already, or meant to stay."""
    _unfinished.pop(key, None)


def undo_all() -> None:
    """Remove all that is unfinished, the latest first; the process ends after that."""
    while _unfinished:
        with suppress(OSError, KeyError):
            _unfinished.popitem()[1]()
