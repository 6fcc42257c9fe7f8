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
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_unfinished: dict[object, Callable[[], object]] = {}


def register_cleanup(key: object, undo: Callable[[], object]) -> None:
    """Register how to remove something if the process ends before `unregister_cleanup`.

    Args:
        key: what it is.
        undo: removes it; may raise OSError.
    """
    _unfinished[key] = undo


def unregister_cleanup(key: object) -> None:
    """What was remembered under a key is removed already, or meant to stay."""
    _unfinished.pop(key, None)


def run_cleanups() -> None:
    """Remove all that is unfinished, the latest first; the process ends after that."""
    while _unfinished:
        with suppress(OSError, KeyError):
            _unfinished.popitem()[1]()


GRACE = 1.3  # seconds until what is not over is ended
INTERRUPTED, TERMINATED, HUNG_UP = 130, 143, 129
EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}


class _Heard:
    """What the handler knows: the first signal, and whether it has to wait."""

    number: int | None = None
    held_back = False
    taken: tuple[signal.Signals, ...] = ()
    """What `install_handlers` took over."""


def install_handlers() -> None:
    """Take the signals over, in the main thread of a process that ends with the command.

    A signal that is ignored already, as in a shell's background job or under nohup, stays ignored.
    """
    listening, told = os.pipe()
    os.set_blocking(told, False)
    threading.Thread(target=_guard, args=(listening,), name="rlpost-signals", daemon=True).start()
    _Heard.taken = tuple(n for n in EXIT_CODES if signal.getsignal(n) is not signal.SIG_IGN)
    reinstall_handlers()
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)


def reinstall_handlers() -> None:
    """Install the handlers of `install_handlers` again, after a library replaced them.

    Does nothing in a process that never called `install_handlers`, and outside the main thread,
    which is the only one that may install handlers.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _Heard.taken:
            signal.signal(number, _heard)


def received_exit_code() -> int | None:
    """The exit code of the signal that was heard, for who meets a SystemExit of another's."""
    return EXIT_CODES[signal.Signals(_Heard.number)] if _Heard.number else None


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Let a signal wait until the block ends: for a few steps that belong together."""
    _Heard.held_back = True
    try:
        yield
    finally:
        _Heard.held_back = False
    if _Heard.number:
        _unwind(_Heard.number)


def ignore_further_signals() -> None:
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
    sys.exit(EXIT_CODES[signal.Signals(number)])


def _guard(listening: int) -> None:
    """Wait for a signal, and then end the process, unless it ends by itself before."""
    number = 0
    while number not in EXIT_CODES or signal.getsignal(number) is not _heard:
        number = os.read(listening, 1)[0]
    time.sleep(GRACE)
    while _Heard.held_back:
        time.sleep(0.01)
    run_cleanups()
    os._exit(EXIT_CODES[signal.Signals(number)])
