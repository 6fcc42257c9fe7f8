"""Results of mutants, stored in a JSON Lines file so that an interrupted run can continue.

A stored "killed" is valid while the mutated module and the file of the test that killed the mutant
are unchanged. A stored "survived" or "timed out" is valid while all tests and all of rlpost are.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mutation.coverage import CACHE, TESTS, digest, shared_code_digest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mutation.mutants import Mutant

FILE = CACHE / "outcomes.jsonl"


@dataclass(frozen=True)
class Result:
    """The result of one mutant."""

    name: str
    number: int
    """Index among the mutants of its module that have the same name."""
    outcome: str
    """killed, survived or timed out."""
    test: str
    """The test that failed or was running at the time limit; empty if the mutant survived."""
    seconds: float
    module_digest: str
    """Digest of the mutated module."""
    test_digest: str
    """Digest of the test's file if the mutant was killed, otherwise of all tests and rlpost."""


class Results:
    """Results by mutant, read from a file and appended to it."""

    def __init__(self, path: Path, test_files: list[Path]) -> None:
        self.path = path
        self.all_digests = "".join([shared_code_digest(), *map(digest, test_files)])
        self.by_mutant: dict[tuple[str, int], Result] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                result = Result(**json.loads(line))
                self.by_mutant[result.name, result.number] = result

    def all(self) -> Iterable[Result]:
        """Return all stored results, whether still valid or not."""
        return self.by_mutant.values()

    def find(self, mutant: Mutant, number: int) -> Result | None:
        """Return the stored result of a mutant, or None if there is none or it is outdated."""
        result = self.by_mutant.get((mutant.name, number))
        if result is None or result.module_digest != digest(mutant.path):
            return None
        current = self._test_digest(result.outcome, result.test)
        return result if result.test_digest == current else None

    def add(self, mutant: Mutant, number: int, outcome: str, test: str, seconds: float) -> Result:
        """Store the result of a mutant."""
        digests = (digest(mutant.path), self._test_digest(outcome, test))
        result = Result(mutant.name, number, outcome, test, round(seconds, 2), *digests)
        self.by_mutant[mutant.name, number] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
        return result

    def _test_digest(self, outcome: str, test: str) -> str:
        path = TESTS.parent / test.partition("::")[0]
        return digest(path) if outcome == "killed" and path.is_file() else self.all_digests
