"""Mutation tests: `python -m tests.mutation [--module scans] [--jobs N] [--budget S] [--fresh]`.

Each mutant of rlpost/kernels and rlpost/estimators runs against the tests that call the mutated
function. A mutant survives if all of these tests pass. Surviving mutants that don't change any
result are listed in equivalent.toml, each with the reason. The exit code is 1 if any other mutant
survives, if a test kills a mutant of that list, or if the list has an entry without a mutant.

pytest collects the tests once. Each mutant runs in a fork of that process, so it costs only the
time of its tests. Results are stored in .bench/mutation, and the next run continues from them.
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
    "test_segments.py", "test_scans.py", "test_moments.py", "test_moment_edges.py",
    "test_quantiles.py", "test_rewards.py", "test_kl.py", "test_corrections.py",
    "test_aggregate.py", "test_estimators.py", "test_estimator_edges.py",
    "test_estimators_base.py", "test_losses.py", "test_off_policy.py", "test_extremes.py",
    "test_stages.py", "test_stages_rewards.py", "test_stages_responses.py", "test_stages_tokens.py",
    "test_numerics.py", "test_custom_estimators.py",
)  # fmt: skip


class Plugin:
    """A pytest plugin that runs the mutants in place of the collected tests."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from mutation.results import FILE, Results

        self.arguments = arguments
        self.equivalent = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))
        if arguments.fresh:
            FILE.unlink(missing_ok=True)
        self.results = Results(FILE, test_files())
        self.counts: dict[str, Counter[str]] = {}
        self.failed = False

    def pytest_collection(self) -> None:
        """Make Hypothesis draw few examples, always the same ones, without shrinking."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        profile = settings(
            max_examples=25, derandomize=True, deadline=None, database=None, phases=phases,
            report_multiple_bugs=False,
        )  # fmt: skip
        settings.register_profile("mutation", profile)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session) -> bool:
        from mutation.coverage import measure_coverage
        from mutation.runner import preload

        if session.testsfailed:
            return True  # a test file cannot be imported
        preload()
        self.coverage = measure_coverage(session.items)
        self.items = {item.nodeid: item for item in session.items if item.nodeid in self.coverage}
        seconds = sum(test.seconds for test in self.coverage.values())
        print(f"{len(self.items)} tests, {seconds:.0f} s", flush=True)
        selected = mutants(self.arguments.module)
        for module, (control, *rest) in groupby(selected, key=lambda mutant: mutant.module):
            self.run_module(module, control, rest)
        return True

    def run_module(self, module: str, control, module_mutants: list) -> None:
        """Run all mutants of a module, if the tests pass with its unchanged copy."""
        if not module_mutants:
            return
        start, numbers = time.monotonic(), Counter()
        self.counts[module] = counts = Counter()
        running: list = []
        if not self.control_passes(control):
            return
        for mutant in module_mutants:
            number = numbers[mutant.name]
            numbers[mutant.name] += 1
            result = self.results.find(mutant, number)
            if result is not None:
                self.count(counts, result)
                continue
            while len(running) >= self.arguments.jobs:
                self.poll(running, counts)
            running.append(self.start(mutant, number))
        while running:
            self.poll(running, counts)
        for name in self.equivalent:
            if name.startswith(f"{module}.py ") and name not in numbers:
                self.failed = True
                print(f"no such mutant  {name}", flush=True)
        totals = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{module}: {totals}; {time.monotonic() - start:.0f} s", flush=True)

    def control_passes(self, control) -> bool:
        """Whether all tests pass with an unchanged copy of the module."""
        result = self.results.find(control, 0)
        if result is None:
            running = [self.start(control, 0)]
            while running:
                self.poll(running, Counter())
            result = self.results.find(control, 0)
        if result.outcome != "survived":
            self.failed = True
            print(f"{control.module}: {result.test} fails without a mutation", flush=True)
        return result.outcome == "survived"

    def start(self, mutant, number: int):
        """Start a mutant. Tests that killed other mutants of the same function run first."""
        from mutation.runner import MutantRun

        killed = [result for result in self.results.all() if result.outcome == "killed"]
        function = mutant.name.partition(": ")[0]
        killers = {result.test for result in killed if result.name.partition(": ")[0] == function}
        costs = {
            name: test.cost
            for name, test in self.coverage.items()
            if test.covers(mutant.path, mutant.function)
        }
        chosen, seconds = [], 0.0
        for name in sorted(costs, key=lambda name: (name not in killers, costs[name])):
            seconds += self.coverage[name].seconds
            if chosen and seconds > self.arguments.budget:
                break
            chosen.append(self.items[name])
        return MutantRun.start(mutant, number, chosen, seconds)

    def poll(self, running: list, counts: Counter[str]) -> None:
        """Store and count the result of one finished run; sleep briefly if there is none."""
        for run in running:
            finished = run.poll()
            if finished is not None:
                running.remove(run)
                self.count(counts, self.results.add(run.mutant, run.number, *finished))
                return
        time.sleep(0.01)

    def count(self, counts: Counter[str], result) -> None:
        """Count a result, and print it if it contradicts equivalent.toml."""
        outcome, equivalent = result.outcome, result.name in self.equivalent
        if equivalent and outcome == "survived":
            outcome = "equivalent"
        counts[outcome] += 1
        if "unchanged" in result.name:
            return
        if outcome == "survived" or (equivalent and outcome == "killed"):
            self.failed = True
            label = f"not equivalent, killed by {result.test}" if equivalent else outcome
            print(f"{label}  {result.name}", flush=True)


def test_files() -> list[Path]:
    """Return the test files that run against mutants."""
    return [path for name in FILES for path in TESTS.rglob(name)]


def mutants(module: str | None):
    """Yield each module's unchanged copy and its mutants; `module` filters by part of the name."""
    from mutation.coverage import PACKAGES
    from mutation.mutants import mutants_of, unchanged

    for package in PACKAGES:
        for path in sorted((ROOT / "rlpost" / package).glob("*.py")):
            if module is None or module in f"{path.parent.name}/{path.stem}":
                yield unchanged(path)
                yield from mutants_of(path)


def main() -> int:
    """Run the mutants and return the exit code."""
    os.environ["CI"] = "true"  # Hypothesis draws the same examples each time
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork would wait for threads that only its parent has
    import pytest

    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--module", help="part of a module's name, such as kernels/scans")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="mutants to run in parallel"
    )
    parser.add_argument(
        "--budget", type=float, default=20.0, help="CPU seconds of tests for each mutant"
    )
    parser.add_argument("--fresh", action="store_true", help="discard stored results")
    plugin = Plugin(parser.parse_args())
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-n", "0"]
    with suppress(SystemExit):
        pytest.main([*options, *map(str, test_files())], plugins=[plugin])
    total = sum(plugin.counts.values(), Counter())
    print("total: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(total.items())))
    return int(plugin.failed or not total)


if __name__ == "__main__":
    sys.exit(main())
