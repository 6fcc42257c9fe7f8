"""Ctrl-C, SIGTERM and SIGHUP: a run is taken down in order, within two seconds in any case.

The first signal raises KeyboardInterrupt or SystemExit in the main thread, which closes all that
is open; later ones change nothing. But the main thread may be deep in a call that lasts, or in
code that swallows the exception, as some modules do while they are imported. So a second thread
hears of signals, too, through a pipe that the C handler writes to: what is not over by then, it
ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from rlpost.io.cleanup import undo_all

if TYPE_CHECKING:
    from collections.abc import Iterator


GRACE = 1.3  # seconds until what is not over is ended
INTERRUPTED, TERMINATED, HUNG_UP = 130, 143, 129
CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}


class _Heard:
    """What the handler knows: the first signal, and whether it has to wait."""

    number: int | None = None
    held_back = False
    taken: tuple[signal.Signals, ...] = ()
    """What `watch` took over."""


def watch() -> None:
    """Take the signals over, in the main thread of a process that ends with the command.

    A signal that is ignored already, as in a shell's background job or under nohup, stays ignored.
    """
    listening, told = os.pipe()
    os.set_blocking(told, False)
    threading.Thread(target=_guard, args=(listening,), name="rlpost-signals", daemon=True).start()
    _Heard.taken = tuple(n for n in CODES if signal.getsignal(n) is not signal.SIG_IGN)
    retake()
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)


def retake() -> None:
    """Take over again what `watch` took over, after a library that has put handlers of its own.

    In a process that `watch` was not called in, as a user's own is, nothing changes; nor outside
    the main thread, where handlers can't be put.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _Heard.taken:
            signal.signal(number, _heard)


def code_heard() -> int | None:
    """The exit code of the signal that was heard, for who meets a SystemExit of another's."""
    return CODES[signal.Signals(_Heard.number)] if _Heard.number else None


@contextmanager
def held_back() -> Iterator[None]:
    """Let a signal wait until the block ends: for a few steps that belong together."""
    _Heard.held_back = True
    try:
        yield
    finally:
        _Heard.held_back = False
    if _Heard.number:
        _unwind(_Heard.number)


def let_end() -> None:
    """From now on the process is ending anyway: signals that come raise nothing any more."""
    _Heard.number = _Heard.number or 0


def _heard(number: int, frame: object) -> None:  # noqa: ARG001
    if _Heard.number is None:
        _Heard.number = number
        if not _Heard.held_back:
            _unwind(number)


def _unwind(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(CODES[signal.Signals(number)])


def _guard(listening: int) -> None:
    """Wait for a signal, and then end the process, unless it ends by itself before."""
    number = 0
    while number not in CODES or signal.getsignal(number) is not _heard:
        number = os.read(listening, 1)[0]
    time.sleep(GRACE)
    while _Heard.held_back:
        time.sleep(0.01)
    undo_all()
    os._exit(CODES[signal.Signals(number)])
