"""Cost of a loss sweep: `python -m tests.bench.sweep [--responses N] [--rounds R] [--steps S]`.

Runs `rlpost loss` with one setting and with twenty, each as a whole process, in alternation. The
result is the ratio of their median times. The input has advantages, and log-probs of a policy that
was updated since the rollout.
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

from tests.bench.commands import Measured, timed
from tests.bench.inputs import write_rollouts

RLPOST = [str(Path(sys.executable).with_name("rlpost")), "loss"]
CLIPS = ",".join(f"{0.05 * (step + 1):.2f}" for step in range(10))
SWEEP = ["--sweep", f"pg_clip={CLIPS}", "--sweep", "loss=ppo,cispo"]
MAX_RATIO = 2.0


def add_policy_columns(source: Path, target: Path, steps: int, seed: int = 0) -> None:
    """Add `log_probs`, the old ones with noise, and `advantages`, constant within a response.

    Responses are assigned to steps in turn, so that every chunk of the file contains all steps.
    """
    float_columns = ["old_log_probs", "ref_log_probs", "infer_log_probs", "values", "log_probs"]
    file, writer = pq.ParquetFile(source), None
    for index in range(file.num_row_groups):
        table = file.read_row_group(index)
        rng = np.random.default_rng([seed, index])
        old = table.column("old_log_probs").combine_chunks()
        updated = old.values.to_numpy() + rng.normal(0, 0.08, len(old.values)).astype(np.float32)
        step = pa.array(np.arange(len(old)) % steps)
        table = table.set_column(table.schema.get_field_index("step"), "step", step)
        lengths = pc.list_value_length(old).to_numpy()
        gain = rng.standard_normal(len(old), dtype=np.float32).repeat(lengths)
        for name, values in (("log_probs", np.minimum(updated, 0)), ("advantages", gain)):
            column = pa.ListArray.from_arrays(old.offsets, pa.array(values))
            table = table.append_column(name, column)
        writer = writer or pq.ParquetWriter(
            target,
            table.schema,
            compression="zstd",
            use_dictionary=["prompt_id", "domain", "response_mask.list.element"],
            column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in float_columns},
        )
        writer.write_table(table)
    assert writer is not None, "at least one response"
    writer.close()


def main() -> None:
    """Write the input, run both commands in turn, and print the ratio of their times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    commands = {"one setting": RLPOST, "twenty settings": [*RLPOST, *SWEEP]}
    runs: dict[str, list[Measured]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory(prefix="rlpost-bench-") as folder:
        plain, source = Path(folder) / "plain.parquet", Path(folder) / "in.parquet"
        write_rollouts(plain, arguments.responses)
        add_policy_columns(plain, source, arguments.steps)
        for _ in range(arguments.rounds):
            for name, argv in commands.items():
                options = ["--summary-json", str(Path(folder) / "out.json"), "--quiet"]
                runs[name].append(timed([*argv, str(source), *options]))
    medians = {
        name: statistics.median(run.seconds for run in measured) for name, measured in runs.items()
    }
    for name, measured in runs.items():
        print(f"{name:16} {medians[name]:6.2f} s {max(run.peak_mb for run in measured):6.0f} MB")
    ratio = medians["twenty settings"] / medians["one setting"]
    print(f"ratio {ratio:.2f}, at most {MAX_RATIO}: {'met' if ratio <= MAX_RATIO else 'MISSED'}")


if __name__ == "__main__":
    main()
