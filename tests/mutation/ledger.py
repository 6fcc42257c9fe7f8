"""What became of each mutant, in a file that is added to line by line.

A run that was broken off goes on where it was. A kill counts as long as the mutated module and the
test that noticed are the same; that a mutant survived, as long as everything is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mutation.survey import KEPT, TESTS, digest, surroundings

if TYPE_CHECKING:
    from pathlib import Path

    from mutation.mutants import Mutant

FILE = KEPT / "results.jsonl"


@dataclass(frozen=True)
class Fate:
    """What became of a mutant."""

    name: str
    number: int
    """Which of its module's mutants of this name."""
    what: str
    """killed, survived or timed out."""
    by: str
    """The test that noticed, or had run for too long."""
    seconds: float
    module: str
    """What its module held, in short."""
    tests: str
    """What the test's file held; of a survivor: all files of tests, and the rest of rlpost."""


class Ledger:
    """Fates by mutant, kept in a file."""

    def __init__(self, path: Path, files: list[Path]) -> None:
        self.path = path
        self.all = "".join([surroundings(), *map(digest, files)])
        self.fates: dict[tuple[str, int], Fate] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                fate = Fate(**json.loads(line))
                self.fates[fate.name, fate.number] = fate

    def known(self, mutant: Mutant, number: int) -> Fate | None:
        """What became of it, if that still holds."""
        fate = self.fates.get((mutant.name, number))
        if fate is None or fate.module != digest(mutant.path):
            return None
        return fate if fate.tests == self._tests(fate.what, fate.by) else None

    def add(self, mutant: Mutant, number: int, what: str, by: str, seconds: float) -> Fate:
        """Write down what became of a mutant."""
        own = (digest(mutant.path), self._tests(what, by))
        fate = Fate(mutant.name, number, what, by, round(seconds, 2), *own)
        self.fates[mutant.name, number] = fate
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(fate), ensure_ascii=False) + "\n")
        return fate

    def _tests(self, what: str, by: str) -> str:
        path = TESTS.parent / by.partition("::")[0]
        return digest(path) if what == "killed" and path.is_file() else self.all
