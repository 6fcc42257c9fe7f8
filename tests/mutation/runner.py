"""One mutant and the tests that cover it, run in a fork of the process that collected them."""

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
from mutation.coverage import ROOT, test_fails
from mutation.patch import patch_module

if TYPE_CHECKING:
    from mutation.mutants import Mutant

CPU_TIME_FACTOR = 5.0
"""A mutant's tests time out after their usual CPU time, times this factor, plus EXTRA_SECONDS."""
EXTRA_SECONDS = 10.0
CLOCK_FACTOR = 10
"""Limit of clock time, as a multiple of the CPU time limit: it also stops a deadlock."""


@dataclass
class MutantRun:
    """A mutant that is running in a fork."""

    mutant: Mutant
    number: int
    tests: list[str]
    pid: int
    progress: mmap
    """Memory shared with the fork: the number of its current test, from 1."""
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, mutant: Mutant, number: int, items: list, seconds: float) -> MutantRun:
        """Run tests, in this order, against a mutant; without it they take `seconds`."""
        progress = mmap(-1, 4)
        pid = os.fork()
        if not pid:
            _limit(CPU_TIME_FACTOR * seconds + EXTRA_SECONDS)
            os._exit(_run_tests(mutant, items, progress))
        return cls(mutant, number, ["", *(item.nodeid for item in items)], pid, progress)

    def poll(self) -> tuple[str, str, float] | None:
        """Return the outcome, the last test and clock seconds; None while the fork runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        last = self.tests[int.from_bytes(self.progress[:4])]
        self.progress.close()
        outcome = "killed" if status else "survived"
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGPROF, signal.SIGALRM}:
            outcome = "timed out"
        return outcome, "" if outcome == "survived" else last, time.monotonic() - self.started


def preload() -> None:
    """Import in this process what each fork would otherwise import; run no tests."""
    for path in sorted((ROOT / "rlpost").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "ray" not in parts and parts[-1] != "__main__":
            import_module(".".join(parts).removesuffix(".__init__"))
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True)  # its first call imports for a second
    torch.use_deterministic_algorithms(mode=before)
    given(strategies.integers() | strategies.lists(strategies.floats()))(lambda _: None)()
    gc.collect()
    gc.freeze()  # otherwise each fork copies all memory in its first garbage collection


def _limit(seconds: float) -> None:
    """Kill this process after this much CPU time, or CLOCK_FACTOR times as much clock time."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, CLOCK_FACTOR * seconds)


def _run_tests(mutant: Mutant, items: list, progress: mmap) -> int:
    """Return 1 if a test fails with the mutant, otherwise 0."""
    parts = mutant.path.relative_to(ROOT).with_suffix("").parts
    with Path(os.devnull).open("w") as null, redirect_stdout(null), redirect_stderr(null):
        try:
            module = import_module(".".join(parts).removesuffix(".__init__"))
            patch_module(module, mutant.tree)
            for number, item in enumerate(items, start=1):
                progress[:4] = number.to_bytes(4)
                if test_fails(item):
                    return 1
        except BaseException:  # noqa: BLE001 - a module that fails to load is a killed mutant
            return 1
    return 0
