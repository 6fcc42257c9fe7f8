"""Which part of which run a file is: noted in its metadata, so that it can be made again.

The statistics of a run may span its files. So a file says how many files the run had, which of
these it is, and by a digest of all their names and rows which run it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.kernels.rewards import RunningMoments
    from rlpost.parquet.inputs import InputFile

KEY = "rlpost.run"
PRESET = "rlpost.preset"


@dataclass(frozen=True)
class Part:
    """A file's place in its run."""

    run: str
    """The same for all files of a run."""
    file: int
    """Which one it is, from 0."""
    files: int
    rows: int
    """Of all files."""
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The running moments that the run began with, by domain, where it used any."""
    asked: dict[str, str] = field(default_factory=dict)
    """The preset that the recipe was made of, and the estimator by the framework's name."""

    @property
    def note(self) -> dict[str, str]:
        """The entries of the file's metadata."""
        values = asdict(self)
        asked = values.pop("asked")
        if not self.running:
            del values["running"]
        return {KEY: json.dumps(values)} | ({PRESET: json.dumps(asked)} if asked else {})

    @classmethod
    def of(cls, text: str) -> Part:
        """The part that a note speaks of; raises ValueError, TypeError where it is none."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Whole:
    """All files of a run."""

    run: str
    files: int
    rows: int
    running: dict[str, dict[str, Any]]
    asked: dict[str, str] = field(default_factory=dict)

    def part(self, index: int) -> Part:
        """One of its files."""
        return Part(self.run, index, self.files, self.rows, self.running, self.asked)


def whole_of(
    files: Sequence[InputFile],
    first_rows: Sequence[int],
    running: Mapping[str, RunningMoments],
    asked: Mapping[str, str],
) -> Whole:
    """A run over these files.

    Args:
        files: the inputs.
        first_rows: the row number of each one's first row, and that of all rows.
        running: the moments that the run begins with, where it uses any.
        asked: the preset and the estimator that were asked for, where a preset was.
    """
    text = json.dumps([[str(file.relative) for file in files], [*first_rows]])
    moments = {name: asdict(one) for name, one in running.items()}
    return Whole(
        sha256(text.encode()).hexdigest()[:32], len(files), first_rows[-1], moments, dict(asked)
    )
