"""The program `rlpost`: signals are taken over before anything else is imported."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NoReturn

BROKEN_PIPE = 141
INTERRUPTED = 130


def leave() -> NoReturn:
    """Run the command line and end the process, without taking it apart first.

    What is worth closing is closed by then. Freeing torch's modules and all memory block by block
    would take another half second.
    """
    try:
        code = _ran()
    except (KeyboardInterrupt, SystemExit) as ended:  # a signal came before the command, or after
        code = _code(ended)
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter's own way would do all the rest, too
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or BROKEN_PIPE
    os._exit(code)


def _ran() -> int:
    """The exit code of the command line."""
    # Even these take a while to import, and Ctrl-C may come any time.
    from rlpost.io import shutdown  # noqa: PLC0415

    # numpy's linear algebra has only small products to make here. A thread of its own for it would
    # keep a second core busy with waiting for work, while that has files to copy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What imports make stays: to look through it for garbage again and again takes 0.2 s.
    gc.set_threshold(100_000)
    atexit.register(shutdown.run_cleanups)  # first, so it runs last: nothing unfinished is left
    shutdown.install_handlers()
    try:
        from rlpost.cli.app import main  # noqa: PLC0415

        main()
    except BaseException as ended:
        heard = (
            shutdown.received_exit_code()
        )  # what a signal raises may come out as another's error
        if heard is None and not isinstance(ended, (KeyboardInterrupt, SystemExit)):
            raise
        return heard or _code(ended)
    finally:
        shutdown.ignore_further_signals()
    return 0


def _code(ended: BaseException) -> int:
    if isinstance(ended, SystemExit):
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return INTERRUPTED
