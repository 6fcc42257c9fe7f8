"""Fuzzing loops: run inputs in this process and log findings, for the watchdog in `__main__`."""

from __future__ import annotations

import hashlib
import os
import random
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.targets import Target


@dataclass
class Log:
    """The log of a loop: files in a folder that the watchdog reads.

    The file `current` is the running input, which must survive a crash of the process.
    """

    top: Path
    target: Target
    outcomes: Counter[str] = field(default_factory=Counter)
    found: set[str] = field(default_factory=set)

    def run(self, data: bytes) -> None:
        """Run one input; store an unexpected error, once for each code location that raises it."""
        (self.top / "current").write_bytes(data)
        os.utime(self.top)  # the watchdog reads this time
        try:
            self.outcomes[self.target.check(data)] += 1
        except Exception as error:  # noqa: BLE001 - everything unexpected is a finding
            self.outcomes["FOUND"] += 1
            self._keep(data, error)

    def _keep(self, data: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [one for one in frames if "rlpost" in one.filename] or frames
        where = f"{type(error).__name__} {Path(own[-1].filename).name}:{own[-1].lineno}"
        if where in self.found:
            return
        self.found.add(where)
        name = hashlib.sha256(data).hexdigest()[:12]
        (self.top / f"{self.target.name}-{name}.input").write_bytes(data)
        text = f"{where}\n{''.join(traceback.format_exception(error)[-12:])}"
        (self.top / f"{self.target.name}-{name}.txt").write_text(text, errors="replace")

    def close(self) -> None:
        """Write the counts of outcomes."""
        lines = [f"{count} {outcome}" for outcome, count in self.outcomes.most_common()]
        (self.top / "counts").write_text("\n".join(lines))


def at_random(log: Log, seed: int, files: int, seconds: float) -> None:
    """Run mutants of seeds, of the corpus, and of mutants with a new outcome."""
    rng = random.Random(f"{seed} {log.target.name}")  # noqa: S311
    pool = list(log.target.start)
    for data in pool[:files]:
        log.run(data)
    end = time.monotonic() + seconds
    for place in range(len(pool), files):
        if time.monotonic() > end:
            break
        data = log.target.mutate(rng.choice(pool), rng, pool)
        before = len(log.outcomes)
        log.run(data)
        if len(log.outcomes) > before:
            pool.append(data)
        if place % 100 == 0:
            log.close()  # a loop that is cut short has told what it did
    log.close()
