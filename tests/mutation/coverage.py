"""Functions that each test calls and the test's CPU time, cached between runs.

A test file is measured again if it changed, or if rlpost or a helper module of the tests changed.
A fork measures it, so that its threads and caches can't affect later forks of this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
CACHE = ROOT / ".bench" / "mutation"
PACKAGES = ("kernels", "estimators")
TABLE_TESTS = "test_estimators_base.py"


@dataclass(frozen=True)
class TestCoverage:
    """Functions that one test calls, and its CPU time."""

    functions: frozenset[tuple[str, str]]
    """Path relative to the repository root, and qualified name."""
    seconds: float
    """CPU time."""
    reads_table: bool
    """Whether it is in TABLE_TESTS: it inspects modules and may call none of their functions."""

    @property
    def cost(self) -> float:
        """Sort key of the order in which tests run: fast tests that call few functions first."""
        return self.seconds * len(self.functions)

    def covers(self, path: Path, function: str) -> bool:
        """Whether the test calls a function, or a method of a class with this name.

        An empty name stands for the top level of the module: any call into the module covers it,
        and so do the tests of the estimator table.
        """
        module = str(path.relative_to(ROOT))
        names = {name for name_path, name in self.functions if name_path == module}
        if not function:
            return bool(names) or self.reads_table
        return function in names or any(name.startswith(f"{function}.") for name in names)


@cache
def digest(path: Path) -> str:
    """Return a short hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@cache
def shared_code_digest() -> str:
    """Return a short hash of rlpost and of all modules in tests/ that are not test files."""
    paths = [*(ROOT / "rlpost").rglob("*.py"), *TESTS.rglob("*.py")]
    digests = [digest(path) for path in sorted(paths) if not path.name.startswith("test_")]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def measure_coverage(items) -> dict[str, TestCoverage]:
    """Return the coverage of each test by its id, without tests that fail on unchanged code."""
    by_file: dict[Path, list] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    coverage: dict[str, TestCoverage] = {}
    for path, file_items in by_file.items():
        cached = CACHE / f"{path.stem}-{shared_code_digest()}-{digest(path)}.json"
        if not cached.exists():
            _measure_in_fork(file_items, cached)
        for name, row in json.loads(cached.read_text(encoding="utf-8")).items():
            functions = frozenset(map(tuple, row["functions"]))
            coverage[name] = TestCoverage(functions, row["seconds"], path.name == TABLE_TESTS)
    return coverage


def _measure_in_fork(items, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if not pid:
        rows = dict(_measure(item) for item in items)
        temporary = target.with_suffix(".part")
        passed = {name: row for name, row in rows.items() if row}
        temporary.write_text(json.dumps(passed), encoding="utf-8")
        temporary.replace(target)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"the tests of {items[0].path} crashed while their coverage was measured")


def _measure(item) -> tuple[str, dict | None]:
    """Run a test and record the functions that it calls; None if it fails."""
    functions: set[tuple[str, str]] = set()
    prefixes = tuple(str(ROOT / "rlpost" / package) for package in PACKAGES)

    def record(frame, event, _) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefixes):
            name = code.co_qualname.replace(".<locals>", "").split(".<")[0]
            functions.add((str(Path(code.co_filename).relative_to(ROOT)), name))

    start = time.process_time()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        fails = test_fails(item)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if fails:
        print(f"excluded, since it fails without a mutation: {item.nodeid}", flush=True)
        return item.nodeid, None
    seconds = time.process_time() - start
    return item.nodeid, {"functions": sorted(functions), "seconds": seconds}


def test_fails(item) -> bool:
    """Run one test and return whether it fails."""
    from _pytest.runner import runtestprotocol

    return any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))
