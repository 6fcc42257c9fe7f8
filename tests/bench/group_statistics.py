"""Response-level stages of GRPO on 10 M responses in 1.2 M groups, without any token."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import torch

from rlpost.pipeline.data import Collector
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.running_state import RunState
from rlpost.pipeline.stages import stages_of
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import resolve
from tests.bench.micro import peak_mb

RESPONSES, GROUPS, CHUNK = 10_000_000, 1_200_000, 100_000


def filled_collector() -> Collector:
    """Return a collector with prompt ids, steps and rewards, added chunk by chunk."""
    collector, rng = Collector(), np.random.default_rng(0)
    for first in range(0, RESPONSES, CHUNK):
        groups = rng.integers(0, GROUPS, CHUNK)
        tokens = torch.from_numpy(rng.integers(1, 4000, CHUNK))
        rows = {
            "group": pa.array(np.char.add("prompt-", groups.astype(str))),
            "batch": pa.array(np.full(CHUNK, first * 8 // RESPONSES)),
            "reward": torch.from_numpy(rng.integers(0, 2, CHUNK).astype(np.float64)),
        }
        collector.add(rows, {"tokens": tokens, "length": tokens})
    return collector


def main() -> None:
    """Print seconds and peak MB."""
    recipe = Recipe(estimator="grpo")
    columns = resolve(["prompt_id", "reward", "step", "response_mask"], {}, "bench")
    collector = filled_collector()
    start = time.perf_counter()
    responses = collector.finish(recipe)
    for stage in stages_of(resolve_recipe(recipe, columns), RunState()):
        if stage.reduce:
            responses = stage.reduce(responses)
    print(time.perf_counter() - start, peak_mb())


if __name__ == "__main__":
    main()
