"""Mutation tests: `python -m tests.mutation [--module scans] [--jobs N] [--budget S] [--fresh]`.

Every mutant of rlpost/kernels and rlpost/estimators is run against the tests that reach the
function it is in; one that all of them pass survives. Survivors that change nothing that counts
are in equivalent.toml, each with the reason; any other makes the exit code 1, and so does an entry
there that a test has killed or that is no mutant any more.

Tests are collected once. Each mutant is a fork of that process, so it costs what its tests do. The
outcomes are kept in .bench/mutation, and a run goes on from them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import tomllib
from collections import Counter
from contextlib import suppress
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS))

FILES = (
    "test_kernels.py", "test_kernel_edges.py", "test_moment_edges.py", "test_reward_edges.py",
    "test_response_kernels.py", "test_estimators.py", "test_estimator_edges.py",
    "test_estimator_table.py", "test_losses.py", "test_corrections.py", "test_extremes.py",
    "test_stages.py", "test_numerics.py", "test_custom_estimators.py",
)  # fmt: skip


class Plugin:
    """Takes over once pytest has collected."""

    def __init__(self, asked: argparse.Namespace) -> None:
        from mutation.ledger import FILE, Ledger

        self.asked = asked
        self.equivalent = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))
        if asked.fresh:
            FILE.unlink(missing_ok=True)
        self.ledger = Ledger(FILE, tests())
        self.counts: dict[str, Counter[str]] = {}
        self.bad = False

    def pytest_collection(self) -> None:
        """Fewer examples, the same ones each time; a failure need not be made small."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        own = settings(
            max_examples=25, derandomize=True, deadline=None, database=None, phases=phases,
            report_multiple_bugs=False,
        )  # fmt: skip
        settings.register_profile("mutation", own)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session) -> bool:
        from mutation.attempt import prepare
        from mutation.survey import survey

        if session.testsfailed:
            return True  # a file of tests cannot be imported
        prepare()
        self.reach = survey(session.items)
        self.items = {x.nodeid: x for x in session.items if x.nodeid in self.reach}
        total = sum(one.seconds for one in self.reach.values())
        print(f"{len(self.items)} tests, {total:.0f} s", flush=True)
        for module, found in groupby(mutants(self.asked.module), key=lambda one: one.module):
            self.one_module(module, *found)
        return True

    def one_module(self, module: str, control, *found) -> None:
        """Try all mutants of a module, once its unchanged self has passed."""
        if not found:
            return
        begun, seen = time.monotonic(), Counter()
        self.counts[module] = counts = Counter()
        running: list = []
        if not self.sound(control):
            return
        for mutant in found:
            number = seen[mutant.name]
            seen[mutant.name] += 1
            fate = self.ledger.known(mutant, number)
            if fate is not None:
                self.note(counts, fate)
                continue
            while len(running) >= self.asked.jobs:
                self.reap(running, counts)
            running.append(self.start(mutant, number))
        while running:
            self.reap(running, counts)
        for name in self.equivalent:
            if name.startswith(f"{module}.py ") and name not in seen:
                self.bad = True
                print(f"no such mutant  {name}", flush=True)
        told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        print(f"{module}: {told}; {time.monotonic() - begun:.0f} s", flush=True)

    def sound(self, control) -> bool:
        """Whether no test notices when a module is put in the place of itself."""
        fate = self.ledger.known(control, 0)
        if fate is None:
            alone = [self.start(control, 0)]
            while alone:
                self.reap(alone, Counter())
            fate = self.ledger.known(control, 0)
        if fate.what != "survived":
            self.bad = True
            print(f"{control.module}: unchanged, and {fate.by} fails", flush=True)
        return fate.what == "survived"

    def start(self, mutant, number: int):
        """Begin with a mutant: the tests that noticed its neighbours go first."""
        from mutation.attempt import Attempt

        fates = [x for x in self.ledger.fates.values() if x.what == "killed"]
        where = mutant.name.partition(": ")[0]
        near = {x.by for x in fates if x.name.partition(": ")[0] == where}
        reach = {n: r for n, r in self.reach.items() if r.of(mutant.path, mutant.function)}
        order = sorted(reach, key=lambda name: (name not in near, reach[name].cost))
        chosen, spent = [], 0.0
        for name in order:
            spent += reach[name].seconds
            if chosen and spent > self.asked.budget:
                break
            chosen.append(self.items[name])
        return Attempt.start(mutant, number, chosen, spent)

    def reap(self, running: list, counts: Counter[str]) -> None:
        """Wait for one mutant, and note what became of it."""
        for one in running:
            ended = one.ended()
            if ended is not None:
                running.remove(one)
                self.note(counts, self.ledger.add(one.mutant, one.number, *ended))
                return
        time.sleep(0.01)

    def note(self, counts: Counter[str], fate) -> None:
        """Count a mutant; tell of one that survived and is not known to be harmless."""
        what, harmless = fate.what, fate.name in self.equivalent
        if harmless and what == "survived":
            what = "equivalent"
        counts[what] += 1
        if "unchanged" in fate.name:
            return
        if what == "survived" or (harmless and what == "killed"):
            self.bad = True
            told = f"not equivalent, {fate.by} notices" if harmless else what
            print(f"{told}  {fate.name}", flush=True)


def tests() -> list[Path]:
    """The files of tests."""
    return [path for name in FILES for path in TESTS.rglob(name)]


def mutants(module: str | None):
    """The mutants of all modules, or of those whose name has this in it."""
    from mutation.mutants import mutants_of, unchanged
    from mutation.survey import PARTS

    for part in PARTS:
        for path in sorted((ROOT / "rlpost" / part).glob("*.py")):
            if module is None or module in f"{path.parent.name}/{path.stem}":
                yield unchanged(path)
                yield from mutants_of(path)


def main() -> int:
    """Run, and give the exit code."""
    os.environ["CI"] = "true"  # Hypothesis draws the same examples each time
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork must not wait for threads that it has not
    import pytest

    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--module", help="part of a module's name, as in kernels/scans")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=20.0, help="CPU seconds of tests a mutant")
    parser.add_argument("--fresh", action="store_true", help="forget the outcomes so far")
    plugin = Plugin(parser.parse_args())
    words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-n", "0",
             *map(str, tests())]  # fmt: skip
    with suppress(SystemExit):
        pytest.main(words, plugins=[plugin])
    total = sum(plugin.counts.values(), Counter())
    print("all: " + ", ".join(f"{count} {what}" for what, count in sorted(total.items())))
    return int(plugin.bad or not total)


if __name__ == "__main__":
    sys.exit(main())
