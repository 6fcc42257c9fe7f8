"""How a run is done, as opposed to what it does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Literal

from rlpost.display.reporter import Reporter, SilentReporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FailOn = Literal["error", "warning"]
"""The least severity of findings that fail a run."""


@dataclass(frozen=True)
class Options:
    """How a run is done; none of these changes a number in the output.

    Args:
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` is a GPU if there is one and the input is
            large.
        chunk_tokens: approximate tokens per chunk; None: 2^19.
        workers: threads that compute; None: one per core, at most 8.
        max_memory: bytes that the process may use, or a text such as `4GB` or `50%` (of the
            machine); None: 75% of the machine, or of the limit of its container. What cannot fit
            raises NotEnoughMemoryError.
        overwrite: replace an existing output.
        state: file of the running reward statistics and of the adaptive KL coefficient: read at the
            start, written at the end.
        reporter: receives the progress; mostly `progress=True` of a function is enough.
        skip_existing: write each file of a directory OUT by itself, as soon as it is complete, and
            skip those that are up to date.
        engine: `local`, or `ray` for tasks on a Ray cluster; the result is the same.
        ray_address: address of the cluster; None: RAY_ADDRESS, else a new cluster on this machine.
        asked: what the user requested: `preset`, and `requested_estimator` by the framework's name;
            stored in the metadata of the files.
        started: when the run began, by `time.perf_counter`; None: when the function is called.
        fail_on: publish nothing and raise FindingsError if the run has errors; with `warning`, also
            if it has warnings.
        cpu_started: CPU seconds that the process had used by `started`; 0 if it began then.
    """

    device: str = "auto"
    chunk_tokens: int | None = None
    workers: int | None = None
    overwrite: bool = False
    state: Path | None = None
    reporter: Reporter = field(default_factory=SilentReporter)
    skip_existing: bool = False
    engine: str = "local"
    ray_address: str | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    started: float | None = None
    fail_on: FailOn | None = None
    cpu_started: float = 0.0
    max_memory: str | int | None = None

    def at_start(self) -> Options:
        """Return these options with a start time: their own, or now."""
        return (
            self
            if self.started is not None
            else replace(self, started=perf_counter(), cpu_started=process_time())
        )
