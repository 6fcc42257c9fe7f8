"""How a run is done, as opposed to what it does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - the command line reads annotations
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

from rlpost.display.reporter import Reporter, SilentReporter
from rlpost.recipe.base import Count, InHelp

if TYPE_CHECKING:
    from collections.abc import Mapping

FailOn = Literal["error", "warning"]
"""The least severity of findings that fail a run."""


@dataclass(frozen=True)
class Options:
    """How a run is done; none of these changes a number in the output.

    Args:
        device: device, see `rlpost help gpu`; `cpu`, `cuda`, `cuda:1`, ...; `auto` is a GPU if
            there is one and the input is large.
        chunk_tokens: approximate tokens per chunk (default: 524288).
        workers: threads that compute (default: one per core, at most 8).
        overwrite: replace OUT if it exists.
        state: JSON: running statistics, adaptive KL: loaded and saved; at the start and the end.
        reporter: receives the progress; mostly `progress=True` of a function is enough.
        skip_existing: write each file by itself, skip those that are up to date; of a directory
            OUT, each as soon as it is complete.
        engine: compute in this process, or on Ray; the result is the same.
        ray_address: Ray cluster, or auto (default: RAY_ADDRESS or a new cluster).
        asked: what the user requested: `preset`, and `requested_estimator` by the framework's name;
            stored in the metadata of the files.
        started: when the run began, by `time.perf_counter`; None: when the function is called.
        fail_on: exit with code 1 if there are such findings; publish nothing and raise
            FindingsError if the run has errors; with `warning`, also if it has warnings.
        max_memory: memory to use: 4GB, 500MB, 50% (default: 75% of the machine's); bytes, or a
            text; in a container, of its limit. What cannot fit raises NotEnoughMemoryError.
    """

    device: Annotated[str, InHelp("auto|cpu|cuda[:N]|...")] = "auto"
    chunk_tokens: Count | None = None
    workers: Count | None = None
    overwrite: bool = False
    state: Path | None = None
    reporter: Reporter = field(default_factory=SilentReporter)
    skip_existing: bool = False
    engine: Annotated[str, InHelp("local|ray")] = "local"
    ray_address: Annotated[str | None, InHelp("ADDRESS")] = None
    asked: Mapping[str, str] = field(default_factory=dict)
    started: float | None = None
    fail_on: FailOn | None = None
    max_memory: Annotated[str | int | None, InHelp("SIZE")] = None

    def at_start(self) -> Options:
        """Return these options with a start time: their own, or now."""
        return self if self.started is not None else replace(self, started=perf_counter())
