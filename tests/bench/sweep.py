"""What a sweep costs: `python -m tests.bench.sweep [--responses N] [--rounds R] [--steps S]`.

Whole processes of `rlpost loss`, one setting and twenty, interleaved; what counts is the ratio of
their medians. The input has log-probs of a policy that moved, and advantages.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.bench.__main__ import timed
from tests.bench.make import make

RLPOST = [str(Path(sys.executable).with_name("rlpost")), "loss"]
CLIPS = ",".join(f"{0.05 * (step + 1):.2f}" for step in range(10))
SWEEP = ["--sweep", f"pg_clip={CLIPS}", "--sweep", "loss=ppo,cispo"]
MOST = 2.0


def with_policy(source: Path, target: Path, steps: int, seed: int = 0) -> None:
    """Add `log_probs`, a noisy copy of the old ones, and `advantages`, equal in a response.

    Responses are dealt out to the steps in turn, so that every piece of the file has all of them.
    """
    split = ["old_log_probs", "ref_log_probs", "infer_log_probs", "values", "log_probs"]
    file, writer = pq.ParquetFile(source), None
    for place in range(file.num_row_groups):
        table = file.read_row_group(place)
        rng = np.random.default_rng([seed, place])
        old = table.column("old_log_probs").combine_chunks()
        moved = old.values.to_numpy() + rng.normal(0, 0.08, len(old.values)).astype(np.float32)
        step = pa.array(np.arange(len(old)) % steps)
        table = table.set_column(table.schema.get_field_index("step"), "step", step)
        lengths = pc.list_value_length(old).to_numpy()
        gain = rng.standard_normal(len(old), dtype=np.float32).repeat(lengths)
        for name, values in (("log_probs", np.minimum(moved, 0)), ("advantages", gain)):
            column = pa.ListArray.from_arrays(old.offsets, pa.array(values))
            table = table.append_column(name, column)
        writer = writer or pq.ParquetWriter(
            target,
            table.schema,
            compression="zstd",
            use_dictionary=["prompt_id", "domain", "response_mask.list.element"],
            column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in split},
        )
        writer.write_table(table)
    assert writer is not None, "at least one response"
    writer.close()


def main() -> None:
    """Make the input, run both commands in turn, and say how they compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    commands = {"one setting": RLPOST, "twenty settings": [*RLPOST, *SWEEP]}
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory(prefix="rlpost-bench-") as folder:
        plain, source = Path(folder) / "plain.parquet", Path(folder) / "in.parquet"
        make(plain, given.responses)
        with_policy(plain, source, given.steps)
        for _ in range(given.rounds):
            for name, argv in commands.items():
                words = [*argv, str(source), "--summary-json", str(Path(folder) / "out.json")]
                runs[name].append(timed([*words, "--quiet"]))
    medians = {name: statistics.median(one for one, _ in took) for name, took in runs.items()}
    for name, took in runs.items():
        print(f"{name:16} {medians[name]:6.2f} s {max(peak for _, peak in took):6.0f} MB")
    ratio = medians["twenty settings"] / medians["one setting"]
    print(f"ratio {ratio:.2f}, at most {MOST}: {'met' if ratio <= MOST else 'MISSED'}")


if __name__ == "__main__":
    main()
