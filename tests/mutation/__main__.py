"""Mutation tests: `python -m tests.mutation [--module scans] [--seconds S] [--jobs N]`.

Every mutant of rlpost/kernels and rlpost/estimators is run against the tests that reach the
function it is in; one that all of them pass survives. Survivors that change nothing that counts
are in equivalent.toml, each with the reason; any other makes the exit code 1.

Tests are collected once. Each mutant is a fork of that process, so it costs what its tests do.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import tomllib
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS))

PARTS = ("kernels", "estimators")
FILES = (
    "test_kernels.py", "test_kernel_edges.py", "test_response_kernels.py", "test_estimators.py",
    "test_losses.py", "test_corrections.py", "test_extremes.py", "test_stages.py",
    "test_numerics.py", "test_own_estimators.py",
)  # fmt: skip
SLOWEST = 60  # seconds of a mutant: one that hangs is noticed


class Plugin:
    """Takes over once pytest has collected."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.survivors: list[str] = []
        self.counts: Counter[str] = Counter()

    def pytest_collection(self) -> None:
        """Fewer examples, the same ones each time."""
        from hypothesis import settings

        own = settings(max_examples=25, derandomize=True, deadline=None, database=None)
        settings.register_profile("mutation", own)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session) -> bool:
        reached, seconds = survey(session.items)
        print(f"{len(session.items)} tests, {sum(seconds.values()):.0f} s", flush=True)
        end = time.monotonic() + self.asked.seconds
        todo = [one for one in mutants(self.asked.module) if time.monotonic() < end]
        running: dict[int, tuple[str, float]] = {}
        for mutant in todo:
            items = [x for x in session.items if touches(reached.get(x.nodeid, set()), mutant)]
            items.sort(key=lambda item: seconds[item.nodeid])
            while len(running) >= self.asked.jobs:
                self.reap(running)
            if time.monotonic() > end:
                self.counts["not run"] += 1
                continue
            pid = os.fork()
            if not pid:
                os._exit(noticed(mutant, items))
            running[pid] = (mutant.name, time.monotonic())
        while running:
            self.reap(running)
        return True

    def reap(self, running: dict[int, tuple[str, float]]) -> None:
        """Wait for one mutant, and note what became of it."""
        for pid, (name, begun) in list(running.items()):
            if time.monotonic() - begun > SLOWEST:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                self.note(name, "killed" if status else "survived")
                return
        time.sleep(0.02)

    def note(self, name: str, what: str) -> None:
        """Count a mutant; tell of one that survived and is not known to be harmless."""
        if what == "survived" and name in known():
            what = "equivalent"
        self.counts[what] += 1
        if what == "survived":
            self.survivors.append(name)
            print(f"survived  {name}", flush=True)


def known() -> dict[str, str]:
    """Mutants that no test can notice, and why."""
    return tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))


def mutants(module: str | None) -> list:
    """The mutants of all modules, or of those whose name has this in it."""
    from mutation.mutants import mutants_of

    paths = [path for part in PARTS for path in sorted((ROOT / "rlpost" / part).glob("*.py"))]
    chosen = [
        path for path in paths if module is None or module in f"{path.parent.name}/{path.stem}"
    ]
    return [mutant for path in chosen for mutant in mutants_of(path)]


def survey(items) -> tuple[dict[str, set[tuple[str, str]]], dict[str, float]]:
    """Run all tests once: which functions each reaches, and how long it takes."""
    reached: dict[str, set[tuple[str, str]]] = {}
    seconds: dict[str, float] = {}
    parts = tuple(str(ROOT / "rlpost" / part) for part in PARTS)
    for item in items:
        found: set[tuple[str, str]] = set()

        def see(frame, event, _, found=found) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(parts):
                found.add((code.co_filename, code.co_qualname.split(".<")[0]))

        begun = time.perf_counter()
        threading.setprofile(see)
        sys.setprofile(see)
        try:
            bad = failed(item)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if bad:
            print(f"left out, since it fails without a mutant: {item.nodeid}", flush=True)
            continue
        reached[item.nodeid], seconds[item.nodeid] = found, time.perf_counter() - begun
    return reached, seconds


def touches(reached: set[tuple[str, str]], mutant) -> bool:
    """Whether a test reaches a mutant: its function, or any of its module for the module's own."""
    own = {name for path, name in reached if path == str(mutant.path)}
    return mutant.function in own if mutant.function else bool(own)


def failed(item) -> bool:
    """Run one test."""
    from _pytest.runner import runtestprotocol

    return any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))


def noticed(mutant, items) -> int:
    """Whether some test fails with the mutant, as an exit code; in a process of its own."""
    from mutation.graft import graft

    signal.alarm(SLOWEST)
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        parts = mutant.path.relative_to(ROOT).with_suffix("").parts
        try:
            graft(import_module(".".join(parts).removesuffix(".__init__")), mutant.tree)
            return int(any(failed(item) for item in items))
        except BaseException:  # noqa: BLE001 - a module that can't be run is noticed at once
            return 1


def main() -> int:
    """Run, and give the exit code."""
    import pytest

    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--module", help="part of a module's name, as in kernels/scans")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    os.environ["CI"] = "true"  # Hypothesis draws the same examples each time
    plugin = Plugin(asked)
    files = [str(TESTS / name) for name in FILES if (TESTS / name).exists()]
    words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-n", "0",
             *files]  # fmt: skip
    with suppress(SystemExit):
        pytest.main(words, plugins=[plugin])
    print(", ".join(f"{count} {what}" for what, count in plugin.counts.most_common()))
    return int(bool(plugin.survivors))


if __name__ == "__main__":
    sys.exit(main())
