"""Parts measured alone: the scan of gae against a padded time loop, and group statistics."""

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
from tests.bench.make import MEAN_TOKENS, MOST_TOKENS, SPREAD

ROUNDS = 5
DECAY = 0.95


def scans(responses: int = 4000) -> dict[str, float]:
    """Million valid tokens a second of the ragged scan, and of a loop over padded time steps."""
    rng = np.random.default_rng(0)
    location = np.log(MEAN_TOKENS) - SPREAD**2 / 2
    sizes = np.clip(rng.lognormal(location, SPREAD, responses), 4, MOST_TOKENS).astype(np.int64)
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
    found = {
        name: len(values) / _median(run) / 1e6 for name, run in (("ragged", ragged), ("loop", loop))
    }
    found |= {"ratio": found["ragged"] / found["loop"], "largest_difference": error}
    print(f"\nscan alone, M valid tokens/s: {found}", flush=True)
    return found


def _median(run: object) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()  # type: ignore[operator]
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def group_statistics() -> dict[str, float]:
    """Seconds and peak MB of GRPO's response-level work: 10 M responses in 1.2 M groups."""
    argv = [sys.executable, "-m", "tests.bench.groups"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    print(f"\n10 M responses, 1.2 M groups: {done.stdout}", flush=True)
    seconds, peak = (float(word) for word in done.stdout.split())
    return {"seconds": seconds, "peak_mb": peak}


def peak_mb() -> float:
    """The most memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
