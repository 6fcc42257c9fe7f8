"""How numpy and torch round sqrt, exp, expm1 and log, and what files have of it.

`python -m tests.bench.rounding [--values 10000000] [--responses 64000]` prints two tables: the
share of float64 values whose last bits differ, and what differs between files of `--device cpu` and
`torch:cpu`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import torch

import rlpost
from rlpost.kernels.arrays import numpy_arrays, torch_arrays
from rlpost.kernels.segments import segment_sum
from rlpost.pipeline.device import CPU, TORCH_CPU
from tests.bench.commands import write_input
from tests.bench.machine import machine

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

CHUNK = 1 << 20
RECIPES = {
    "grpo, KL k3": {"estimator": "grpo", "kl_coef": 0.05, "kl_estimator": "k3"},
    "gae, KL k1, whitened": {"estimator": "gae", "kl_coef": 0.05, "whiten_advantages": True},
    "reinforce_pp, clipped": {
        "estimator": "reinforce_pp", "kl_coef": 0.05, "kl_estimator": "k3", "advantage_clip": 2,
    },
    "grpo, weights and masks": {
        "estimator": "grpo", "is_weight": "token", "is_cap": 1.02,
        "is_filter": ("sequence:k3::0.001",),
        "emit": ("advantages", "is_weight", "final_response_mask"),
    },
}  # fmt: skip


def functions(count: int) -> None:
    """Print the share of values that each function rounds otherwise, and by how much."""
    drawn = np.random.default_rng(0)
    print("| function | of | differ | most |\n|---|---|---|---|")
    cases = {
        "sqrt": ("10^-8 to 10^8", lambda size: 10 ** drawn.uniform(-8, 8, size)),
        "rsqrt": ("10^-8 to 10^8", lambda size: 10 ** drawn.uniform(-8, 8, size)),
        "exp": ("-20 to 20", lambda size: drawn.uniform(-20, 20, size)),
        "expm1": ("-2 to 2", lambda size: drawn.uniform(-2, 2, size)),
        "log": ("10^-8 to 10^8", lambda size: 10 ** drawn.uniform(-8, 8, size)),
    }
    for name, (values_of, draw) in cases.items():
        differing, most = 0, 0
        for _ in range(0, count, CHUNK):
            values = draw(CHUNK)
            ours, theirs = (_applied(name, xp, values) for xp in (numpy_arrays, torch_arrays))
            units = np.abs(ours.view(np.int64) - theirs.view(np.int64))
            differing += int((units > 0).sum())
            most = max(most, int(units.max()))
        share = differing / (-(-count // CHUNK) * CHUNK)
        print(f"| {name} | {values_of} | {share:.3%} | {most} ulp |", flush=True)
    sizes = drawn.integers(0, 2000, count // 1000)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values = drawn.standard_normal(offsets[-1])
    ours = segment_sum(values, offsets)
    theirs = segment_sum(torch.from_numpy(values), torch.from_numpy(offsets)).numpy()
    far = np.abs(ours - theirs) / np.maximum(segment_sum(np.abs(values), offsets), 1)
    share = (ours != theirs).mean()
    print(f"| sums of responses | up to 2,000 tokens | {share:.3%} | {far.max():.1e} of Σ\\|x\\| |")


def _applied(name: str, xp: ModuleType, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the results of a function of a library; rsqrt is 1 / sqrt in both."""
    given = values if xp is numpy_arrays else torch.from_numpy(values)
    function = (lambda x: 1 / xp.sqrt(x)) if name == "rsqrt" else getattr(xp, name)
    return np.asarray(function(given))


def runs(responses: int, folder: Path) -> None:
    """Print what of it whole runs write, as float32, booleans and counts."""
    source = folder / "in.parquet"
    write_input("rollouts", source, responses)
    print("\n| recipe | column | of | differ | most |\n|---|---|---|---|---|")
    for name, fields in RECIPES.items():
        recipe = rlpost.Recipe(**fields, emit_only=True)
        outs, summaries = [], []
        for device in (CPU, TORCH_CPU):
            outs.append(folder / f"{device.replace(':', '-')}.parquet")
            options = rlpost.Options(device, overwrite=True)
            summaries.append(rlpost.advantages(source, outs[-1], recipe, options))
        for column in summaries[0]["new_columns"]:
            one, other = (_flat(out, column) for out in outs)
            different = one != other
            far = np.abs(one - other)[different] / np.maximum(np.abs(one[different]), 1e-6)
            most = f"{far.max():.1e}" if len(far) else ""
            counts = f"{len(one):,} | {int(different.sum()):,}"
            print(f"| {name} | {column} | {counts} | {most} |", flush=True)


def _flat(path: Path, column: str) -> NDArray[np.float64]:
    """Return the numbers of a column, as float64."""
    values = pq.read_table(path, columns=[column])[column].combine_chunks()
    while hasattr(values, "flatten") and hasattr(values.type, "value_type"):
        values = values.flatten()
    numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rounding", description=__doc__)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--responses", type=int, default=64_000)
    arguments = parser.parse_args()
    print(machine())
    functions(arguments.values)
    with tempfile.TemporaryDirectory(prefix="rlpost-bench-") as name:
        runs(arguments.responses, Path(name))


if __name__ == "__main__":
    main()
