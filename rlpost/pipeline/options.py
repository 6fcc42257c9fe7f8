"""How a run is done, as opposed to what it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlpost.io.progress import Reporter, SilentReporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Options:
    """How a run is done; none of these changes a number in the output."""

    device: str = "auto"
    chunk_tokens: int | None = None
    """Tokens per piece, about; None: a million on the CPU, what its memory allows on a GPU."""
    workers: int | None = None
    """Threads that compute; None is one per core, at most 8."""
    overwrite: bool = False
    state: Path | None = None
    """Running reward moments, read before and written after."""
    reporter: Reporter = field(default_factory=SilentReporter)
    resume: bool = False
    """Go on with a run that was stopped; keep what is complete of this one, if it is."""
    verify: bool = False
    """Read what was written again, and compare, before it is published."""
    engine: str = "local"
    """`local`, or `ray`: tasks on a Ray cluster, with the same result."""
    ray_address: str | None = None
    """The cluster; None: RAY_ADDRESS, else one of this machine's own."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """What the recipe was made of: `preset`, and `asked_estimator` by the framework's name; noted
    in the files' metadata."""
