"""Says that a store has not answered: clients try again for half a minute, without a word."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlpost.controls import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK = 3.0  # seconds that a question about an object may take
LONG = 10.0  # seconds that a range of some megabytes may take
SLOW = 30.0  # seconds that sending a part of an upload may take
_APART = 30.0  # seconds between two such lines, for ranges are read several at a time
_LOG = logging.getLogger("rlpost")  # without handlers of the user's, warnings go to stderr


class _Last:
    """When something was said last, by the monotonic clock."""

    time = float("-inf")
    lock = threading.Lock()


@contextmanager
def waiting(url: str, seconds: float) -> Iterator[None]:
    """Log a warning where the block takes longer than so many seconds, at most one in a while."""
    timer = threading.Timer(seconds, _say, (url, seconds))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(url: str, seconds: float) -> None:
    with _Last.lock:
        now = time.monotonic()
        if now - _Last.time < _APART:
            return
        _Last.time = now
    _LOG.warning(
        "rlpost: %s: no answer for %g s; waiting, and trying again where the connection fails",
        shown(url),
        seconds,
    )
