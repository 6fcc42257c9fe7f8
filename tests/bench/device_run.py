"""One run on a device as a process of its own: prints its summary and the device's peak memory.

python -m tests.bench.device_run IN OUT RECIPE_JSON OPTIONS_JSON
"""

import time

STARTED = time.perf_counter()

import json  # noqa: E402 - the clock starts first
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import rlpost  # noqa: E402
from rlpost.pipeline.device import CPU, TORCH_CPU  # noqa: E402


def run(source: str, target: str, recipe: str, options: str) -> dict[str, Any]:
    """Run once; recipe and options are the fields of `Recipe` and `Options` as JSON."""
    settings = rlpost.Options(**json.loads(options), overwrite=True, started=STARTED)
    summary = rlpost.advantages(source, target, rlpost.Recipe(**json.loads(recipe)), settings)
    found = {name: summary[name] for name in ("seconds", "bytes", "split_chunks")}
    return {**found, "size": Path(target).stat().st_size, **_peaks(settings.device)}


def _peaks(device: str) -> dict[str, int]:
    """Return the most bytes that tensors had, and that torch reserved for them, on the device."""
    if device in (CPU, TORCH_CPU):
        return {"device_peak": 0, "device_reserved": 0}
    import torch  # noqa: PLC0415 - a run on the CPU imports it where rlpost does

    module = torch.get_device_module(device)
    return {
        "device_peak": module.max_memory_allocated(),
        "device_reserved": module.max_memory_reserved(),
    }


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
