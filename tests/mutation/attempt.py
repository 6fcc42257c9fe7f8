"""One mutant against the tests that reach it, in a fork that has run nothing before."""

from __future__ import annotations

import gc
import os
import signal
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from hypothesis import given, strategies
from mutation.graft import graft
from mutation.survey import ROOT, failed

if TYPE_CHECKING:
    from mutation.mutants import Mutant

PATIENCE = 5.0
"""A mutant's tests may take so many times their usual CPU time, and LEAST seconds more."""
LEAST = 10.0
STALLED = 10
"""Clock time against CPU time: a mutant that waits for nothing is ended, too."""


@dataclass
class Attempt:
    """A mutant that is being tried."""

    mutant: Mutant
    number: int
    tests: list[str]
    pid: int
    place: mmap
    """Shared with the fork: which of the tests it is at."""
    begun: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, mutant: Mutant, number: int, items: list, seconds: float) -> Attempt:
        """Try a mutant against these tests, in order, which take so many seconds without it."""
        place = mmap(-1, 4)
        pid = os.fork()
        if not pid:
            _limit(PATIENCE * seconds + LEAST)
            os._exit(_noticed(mutant, items, place))
        return cls(mutant, number, ["", *(item.nodeid for item in items)], pid, place)

    def ended(self) -> tuple[str, str, float] | None:
        """What became of it, the test that was last, and clock seconds; None while it runs."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if not done:
            return None
        last = self.tests[int.from_bytes(self.place[:4])]
        self.place.close()
        what = "killed" if status else "survived"
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGPROF, signal.SIGALRM}:
            what = "timed out"
        return what, "" if what == "survived" else last, time.monotonic() - self.begun


def prepare() -> None:
    """Load in this process what each fork would have to load for itself; nothing is run."""
    for path in sorted((ROOT / "rlpost").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "ray" not in parts and parts[-1] != "__main__":
            import_module(".".join(parts).removesuffix(".__init__"))
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True)  # imports for a second
    torch.use_deterministic_algorithms(mode=before)
    given(strategies.integers() | strategies.lists(strategies.floats()))(lambda _: None)()
    gc.collect()
    gc.freeze()  # else each fork copies all memory at its first collection


def _limit(seconds: float) -> None:
    """End this process after so much CPU time, or ten times as much on the clock."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, STALLED * seconds)


def _noticed(mutant: Mutant, items: list, place: mmap) -> int:
    """Whether some test fails with the mutant, as an exit code."""
    parts = mutant.path.relative_to(ROOT).with_suffix("").parts
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        try:
            graft(import_module(".".join(parts).removesuffix(".__init__")), mutant.tree)
            for number, item in enumerate(items, start=1):
                place[:4] = number.to_bytes(4)
                if failed(item):
                    return 1
        except BaseException:  # noqa: BLE001 - a module that can't be run is noticed at once
            return 1
    return 0
