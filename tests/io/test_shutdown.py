"""Handlers of signals: libraries cannot replace them, and those of other programs stay."""

import signal
import subprocess
import sys

from processes import python

from rlpost.io import shutdown

REPLACED = """
import os, signal, sys
from rlpost.io import shutdown
shutdown.install_handlers()
with shutdown.keep_handlers():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_library_cannot_replace_the_handlers_while_it_starts():
    ran = python(REPLACED)
    assert (ran.returncode, ran.stdout) == (143, "usr1\n"), ran.stderr


def test_handlers_of_other_programs_stay_theirs():
    """In a process that never installed these handlers a library may install its own."""
    before = signal.getsignal(signal.SIGTERM)
    assert not shutdown.installed()
    try:
        with shutdown.keep_handlers():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


SWALLOWED = """
import os
from rlpost.cleanups import register_cleanup
from rlpost.io import shutdown

class Late:
    def __del__(self):
        os.kill(os.getpid(), 15)

shutdown.install_handlers()
register_cleanup("file", lambda: print("cleaned", flush=True))
late = Late()
del late
print("went on")
"""


def test_a_signal_in_a_finaliser_ends_the_process_at_once():
    words = [sys.executable, "-c", SWALLOWED]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "cleaned\n", "")
