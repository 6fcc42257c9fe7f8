"""Which functions each test reaches and how long it takes, kept from one run to the next.

A file of tests is surveyed anew when it has changed, or when anything in rlpost or a helper of the
tests has. It happens in a process of its own, so that no thread or cache is left behind that a
fork of this one would be hurt by.
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
KEPT = ROOT / ".bench" / "mutation"
PARTS = ("kernels", "estimators")
TABLE = "test_estimator_table.py"


@dataclass(frozen=True)
class Reach:
    """What is known of one test."""

    functions: frozenset[tuple[str, str]]
    """Path from the root, and qualified name."""
    seconds: float
    """CPU time."""
    table: bool
    """Whether it is one of TABLE."""

    @property
    def cost(self) -> float:
        """Tests go in this order: quick ones first, and those that are about little else."""
        return self.seconds * len(self.functions)

    def of(self, path: Path, function: str) -> bool:
        """Whether it reaches a function, or a class by a method; with none named, the module.

        Tests of the table look at what modules hold, and need not run any of their functions.
        """
        own = {name for where, name in self.functions if where == str(path.relative_to(ROOT))}
        if not function:
            return bool(own) or self.table
        return function in own or any(name.startswith(f"{function}.") for name in own)


@cache
def digest(path: Path) -> str:
    """What a file holds, in short."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@cache
def surroundings() -> str:
    """What all of rlpost, the tests' helpers and these modules hold, in short."""
    places = [
        (ROOT / "rlpost").rglob("*.py"),
        TESTS.rglob("*.py"),
    ]
    paths = [path for place in places for path in place]
    own = [digest(path) for path in sorted(paths) if not path.name.startswith("test_")]
    return hashlib.sha256("".join(own).encode()).hexdigest()[:16]


def survey(items) -> dict[str, Reach]:
    """What each test reaches, by its id; without those that fail when nothing is changed."""
    files: dict[Path, list] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    found: dict[str, Reach] = {}
    for path, own in files.items():
        kept = KEPT / f"{path.stem}-{surroundings()}-{digest(path)}.json"
        if not kept.exists():
            _in_a_fork(own, kept)
        for name, row in json.loads(kept.read_text(encoding="utf-8")).items():
            reached = frozenset(map(tuple, row["functions"]))
            found[name] = Reach(reached, row["seconds"], path.name == TABLE)
    return found


def _in_a_fork(items, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if not pid:
        rows = dict(_watched(item) for item in items)
        part = kept.with_suffix(".part")
        part.write_text(json.dumps({n: r for n, r in rows.items() if r}), encoding="utf-8")
        part.replace(kept)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"the tests of {items[0].path} cannot be run")


def _watched(item) -> tuple[str, dict | None]:
    """Run a test and write down what it reaches."""
    found: set[tuple[str, str]] = set()
    parts = tuple(str(ROOT / "rlpost" / part) for part in PARTS)

    def see(frame, event, _) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(parts):
            name = code.co_qualname.replace(".<locals>", "").split(".<")[0]
            found.add((str(Path(code.co_filename).relative_to(ROOT)), name))

    begun = time.process_time()
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        bad = failed(item)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if bad:
        print(f"left out, since it fails without a mutant: {item.nodeid}", flush=True)
        return item.nodeid, None
    spent = time.process_time() - begun
    return item.nodeid, {"functions": sorted(found), "seconds": spent}


def failed(item) -> bool:
    """Run one test."""
    from _pytest.runner import runtestprotocol

    return any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))
