"""Shutdown: signals, their exit codes, and the end of a process that one of them stops.

The first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt or SystemExit in the main thread, whose
context managers then close files and remove unfinished output. Later signals change nothing. While
a module is imported, or in a finaliser, the cleanups run at once instead, and end the process. The
main thread may be in a long call, or in code that swallows the exception. So a watchdog thread
reads the signal from a pipe that the C handler writes to. If the process still runs after a grace
period, the watchdog runs the cleanups and ends it: within two seconds of the signal. Without it a
run whose store does not answer an upload goes on for minutes, and leaves the upload. A call that
holds the interpreter's lock delays that, too: loading torch's library takes 0.2 s of CPU time, more
on a busy machine.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rlpost.cleanups import run_cleanups

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


GRACE = 1.3  # seconds from a signal until the watchdog ends the process
EXIT_CODES = {x: 128 + x for x in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
INTERRUPTED, TERMINATED = EXIT_CODES[signal.SIGINT], EXIT_CODES[signal.SIGTERM]


class _State:
    """State of the signal handler."""

    received: int | None = None
    """The first signal; 0 after `ignore_further_signals`."""
    deferred = False
    handled: tuple[signal.Signals, ...] = ()
    """The signals for which `install_handlers` installed a handler."""


def install_handlers() -> None:
    """Install the handlers, in the main thread of a process that ends with the command.

    A signal that is ignored already stays ignored: in a shell's background job, or under nohup.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_watchdog, args=(reader,), name="rlpost-signals", daemon=True).start()
    _State.handled = tuple(n for n in EXIT_CODES if signal.getsignal(n) is not signal.SIG_IGN)
    reinstall_handlers()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


def reinstall_handlers() -> None:
    """Install the handlers of `install_handlers` again, after a library replaced them.

    Does nothing in a process that never called `install_handlers`, or outside the main thread,
    which alone may install handlers.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _State.handled:
            signal.signal(number, _handle)


def installed() -> bool:
    """Return whether `install_handlers` was called in this process."""
    return bool(_State.handled)


@contextmanager
def keep_handlers() -> Iterator[None]:
    """Keep these handlers while a library is called that would install its own.

    In the block `signal.signal` does nothing for the signals that are handled here; other threads
    and child processes are not affected.
    """
    original = signal.signal

    def install(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number in _State.handled else original(number, handler)

    signal.signal = install  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = original
        reinstall_handlers()  # a library in C does not call `signal.signal`


def received_exit_code() -> int | None:
    """Return the exit code of the signal that was received, None if there was none."""
    return EXIT_CODES[signal.Signals(_State.received)] if _State.received else None


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer signals to the end of the outermost block, for steps that must not be separated."""
    outer, _State.deferred = _State.deferred, True
    try:
        yield
    finally:
        _State.deferred = outer
    if _State.received and not outer:
        _raise(_State.received)


def ignore_further_signals() -> None:
    """Raise nothing for later signals: the process is ending."""
    _State.received = _State.received or 0


def _handle(number: int, frame: FrameType | None) -> None:
    if _State.received is None:
        _State.received = number
        if not _State.deferred:
            if _may_swallow(frame):
                _end(number)
            _raise(number)


def _may_swallow(frame: FrameType | None) -> bool:
    """Return whether an exception may not arrive: in an import, a finaliser, a weakref callback.

    Python prints those of finalisers and callbacks, and goes on. Modules may swallow an exception
    while they are imported. And torch calls Python from C++ code in which an exception aborts the
    process, with all files as they are.
    """
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if code.co_filename == "<frozen importlib._bootstrap>" or code.co_name == "__del__":
            return True
        if module in ("weakref", "_weakrefset") and code.co_name in ("remove", "_remove"):
            return True
        frame = frame.f_back
    return False


def _end(number: int) -> NoReturn:
    run_cleanups()
    os._exit(EXIT_CODES[signal.Signals(number)])


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(EXIT_CODES[signal.Signals(number)])


def _watchdog(reader: int) -> None:
    """Read a signal from the pipe; end the process if it still runs after the grace period."""
    number = 0
    while number not in EXIT_CODES or signal.getsignal(number) is not _handle:
        number = os.read(reader, 1)[0]
    time.sleep(GRACE)
    while _State.deferred:
        time.sleep(0.01)
    _end(number)
