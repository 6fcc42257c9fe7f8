"""The program `rlpost`: handles signals before it imports anything else, and until its end.

A signal while Python itself starts ends the process by the signal, since no handler exists yet.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes 5 ms to import
import atexit
import gc
import os
import sys
import time

TYPE_CHECKING = False  # `typing` takes 10 ms to import
if TYPE_CHECKING:
    from typing import NoReturn

FIRST_LINE = time.perf_counter()
BROKEN_PIPE = 141
INTERRUPTED = 130
ON_DATA = frozenset(
    "advantages inspect loss compare report verify replay convert export".split()  # noqa: SIM905
)
"""Commands that print something before they import what they need."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a run, with exit code 128 + number."""


def leave() -> NoReturn:
    """Run the command line and end the process, without the interpreter's own clean-up.

    All files are closed by then. Freeing torch's modules and all memory block by block would take
    another half second, and the interpreter removes the signal handlers first.
    """
    _end_at_signals()
    debug = "--debug" in sys.argv
    try:
        code = _run()
    except (KeyboardInterrupt, SystemExit) as end:  # a signal came before the command, or after
        code = _code(end)
    except BaseException as error:  # noqa: BLE001 - a bug, --debug, or nothing more can be imported
        code, line = (1, "") if debug else _scarcity(error)
        try:  # noqa: SIM105 - `contextlib` may be one module too many
            _print_traceback() if not line else sys.stderr.write(line)
        except (ImportError, MemoryError, OSError):  # stderr is full, or no file can be opened
            pass
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter's own way would do all the rest, too
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or BROKEN_PIPE
    os._exit(code)


def _scarcity(error: BaseException) -> tuple[int, str]:
    """Return exit code and line of an error of a limit of the process, which a panic has as text.

    They are 1 and an empty line for others.
    """
    text = str(error).lower().replace(" ", "")
    if "toomanyopenfiles" in text:
        return 4, "error: too many open files; raise `ulimit -n`\n"
    if isinstance(error, MemoryError) or "startnewthread" in text or "failedtomap" in text:
        return 5, "error: there is not enough memory; raise `ulimit -v`\n"
    return 1, ""


def _print_traceback() -> None:
    """Print the traceback of the current exception, without the secrets of URLs."""
    import traceback  # noqa: PLC0415 - only a bug and --debug need it

    from rlpost.redaction import without_secrets  # noqa: PLC0415

    sys.stderr.write(without_secrets(traceback.format_exc()))


def _end_at_signals() -> None:
    """End at once at signals, until `install_handlers`: nothing is open yet."""
    for name in SIGNALS:
        number = getattr(_signal, name, None)
        if number is not None and _signal.getsignal(number) is not _signal.SIG_IGN:
            _signal.signal(number, lambda number, _: os._exit(128 + number))


def _run() -> int:
    """Run the command line and return its exit code."""
    if {"-h", "--help"}.isdisjoint(sys.argv) and ON_DATA & {*sys.argv[1:2]}:
        from rlpost.display import first  # noqa: PLC0415

        first.show()
        atexit.register(first.clear)
    # Even these take a while to import, and Ctrl-C may come any time.
    from rlpost.cleanups import published, run_cleanups  # noqa: PLC0415
    from rlpost.io import shutdown  # noqa: PLC0415

    # numpy's linear algebra has only small products to compute here. A thread pool of its own would
    # busy-wait on a second core, which has files to copy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pyarrow's own allocator keeps a part of the memory for each thread: 50 to 70 MB more.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # The allocator of polars returns freed memory at once: 100 MB of a million responses.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    # rich reads the size of the terminal from these, and fails at ² as if it were a number.
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "0").isdecimal():
            del os.environ[name]
    # The objects of imported modules stay: collecting garbage among them repeatedly takes 0.2 s.
    gc.set_threshold(100_000)
    atexit.register(run_cleanups)  # first, so it runs last: nothing unfinished is left
    shutdown.install_handlers()
    try:
        from rlpost.cli.app import main  # noqa: PLC0415

        main(FIRST_LINE)
    except BaseException as end:
        received = shutdown.received_exit_code()  # libraries turn a signal into other exceptions
        if received is None and not isinstance(end, (KeyboardInterrupt, SystemExit)):
            raise
        if received and published:
            _print_published(published)
        return received or _code(end)
    finally:
        shutdown.ignore_further_signals()
    return 0


def _print_published(outputs: list[str]) -> None:
    """Print which outputs a command wrote before a signal ended it."""
    from rlpost.display.controls import printable  # noqa: PLC0415 - only here

    first, more = outputs[0], len(outputs) - 1
    others = f" and {more} more outputs" if more else ""
    sys.stderr.write(f"rlpost: a signal ended it after it wrote {printable(first)}{others}\n")


def _code(end: BaseException) -> int:
    if isinstance(end, SystemExit):
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return INTERRUPTED
