"""Microbenchmarks: the scan of gae against a padded time loop, and group statistics."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import offsets_of
from tests.bench.inputs import LOG_STD, MAX_TOKENS, MEAN_TOKENS

ROUNDS = 5
DECAY = 0.95


def scans(responses: int = 4000) -> dict[str, float]:
    """Return million valid tokens per second of the ragged scan and of a padded time loop."""
    rng = np.random.default_rng(0)
    location = np.log(MEAN_TOKENS) - LOG_STD**2 / 2
    sizes = np.clip(rng.lognormal(location, LOG_STD, responses), 4, MAX_TOKENS).astype(np.int64)
    offsets = offsets_of(torch.from_numpy(sizes))
    values = torch.randn(int(offsets[-1]), dtype=torch.float64)
    longest = int(sizes.max())
    inside = torch.arange(longest)[None] < torch.from_numpy(sizes)[:, None]
    padded = torch.zeros(responses, longest)
    padded[inside] = values.float()

    def loop() -> torch.Tensor:
        running, out = torch.zeros(responses), []
        for step in reversed(range(longest)):
            running = padded[:, step] + DECAY * running
            out.append(running)
        return torch.stack(out[::-1], dim=1)[inside]

    def ragged() -> torch.Tensor:
        return reverse_scan(values, offsets, DECAY)

    error = float((loop() - ragged()).abs().max())
    speeds = {
        name: len(values) / _median(run) / 1e6 for name, run in (("ragged", ragged), ("loop", loop))
    }
    speeds |= {"ratio": speeds["ragged"] / speeds["loop"], "largest_difference": error}
    print(f"\nscan only, M valid tokens/s: {speeds}", flush=True)
    return speeds


def _median(run: object) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()  # type: ignore[operator]
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def group_statistics() -> dict[str, float]:
    """Return seconds and peak MB of GRPO's response stages: 10 M responses, 1.2 M groups."""
    argv = [sys.executable, "-m", "tests.bench.group_statistics"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    print(f"\n10 M responses, 1.2 M groups: {done.stdout}", flush=True)
    seconds, peak = (float(text) for text in done.stdout.split())
    return {"seconds": seconds, "peak_mb": peak}


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
