"""What the commands read: sample data, golden inputs, frames made from these, dumps, recipes."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

RECIPES = {
    "gae": """
estimator = "gae"
gamma = 0.99
kl_coef = 0.05
kl_estimator = "k3"
whiten_advantages = true
advantage_clip = 2.0

[numerics]
whiten_ddof = 0

[loss]
loss = "gspo"
pg_clip = 0.01
""",
    "verl": """
preset = "verl"
estimator = "grpo"
length_weight = true
drop_truncated = true
""",
}


def make(folder: Path, top: Path) -> None:
    """Write all inputs into a folder.

    Args:
        folder: where they go.
        top: the tree with `sample_data` and `tests`, whose own writers of dumps are used.
    """
    folder.mkdir(parents=True)
    for source in (*top.glob("sample_data/*.parquet"), *top.glob("tests/golden/inputs/*.parquet")):
        table = pq.read_table(source)
        if "traj_id" in table.column_names and source.stem != "agentic":  # rows count
            table = table.rename_columns({"traj_id": "trajectory"})
            pq.write_table(table, folder / source.name)
        else:
            shutil.copy(source, folder / source.name)
    frames(folder)
    turns(folder)
    dumps(folder / "dumps", top)
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    (folder / "own.py").write_text(
        "def midrange(rewards):\n    return rewards - (rewards.max() + rewards.min()) / 2\n",
        encoding="utf-8",
    )


def frames(folder: Path) -> None:
    """Variants of the inputs: columns, types, layouts and values that the originals lack."""
    draw = np.random.default_rng(0)
    arithmetic = pq.read_table(folder / "arithmetic.parquet")
    steps, basic = (pq.read_table(folder / f"{name}.parquet") for name in ("steps", "basic"))

    rich = with_lists(steps, draw, ("teacher_a", "teacher_b"), -2.0, 0.0)
    rich = with_lists(rich, draw, ("token_rewards",), -0.5, 0.5)
    ids = pa.array([f"rollout-{row // 2}" for row in range(rich.num_rows)])
    pq.write_table(rich.append_column("pair", ids), folder / "rich.parquet", row_group_size=9)

    # Values that are no numbers, in rewards and in lists.
    rewards = steps["reward"].to_numpy().copy()
    rewards[[3, 17, 40]] = np.nan, np.inf, -np.inf
    broken = replaced(steps, "reward", pa.array(rewards))
    lists = [list(row) for row in steps["old_log_probs"].to_pylist()]
    lists[8][1], lists[30][0] = float("nan"), float("-inf")
    broken = replaced(broken, "old_log_probs", pa.array(lists, pa.list_(pa.float32())))
    pq.write_table(broken, folder / "nonfinite.parquet")

    # Log-probs so far apart that every clamp matters.
    wild = steps
    for name, factor in (("old_log_probs", 40), ("infer_log_probs", 10)):
        rows = [[max(factor * x, -4e3) for x in row] for row in steps[name].to_pylist()]
        wild = replaced(wild, name, pa.array(rows, pa.list_(pa.float32())))
    pq.write_table(wild, folder / "wild.parquet")

    # A part of the reward that was not scored everywhere.
    parts = [
        None if row % 7 == 3 else x for row, x in enumerate(steps["reward_format"].to_pylist())
    ]
    incomplete = replaced(steps, "reward_format", pa.array(parts, pa.float32()))
    pq.write_table(incomplete, folder / "incomplete.parquet")

    failures = ["crash" if row % 5 == 2 else "" for row in range(arithmetic.num_rows)]
    attempts = [1 + row % 2 for row in range(arithmetic.num_rows)]
    failing = arithmetic.append_column("failure", pa.array(failures))
    failing = failing.append_column("run_attempt", pa.array(attempts))
    pq.write_table(failing, folder / "failing.parquet")

    # The same rows in another order and with other types.
    order = draw.permutation(arithmetic.num_rows)
    pq.write_table(arithmetic.take(order), folder / "shuffled.parquet", row_group_size=50)
    large = [
        pa.field(one.name, pa.large_list(pa.float64()))
        if one.type == pa.list_(pa.float32())
        else one
        for one in arithmetic.schema
    ]
    pq.write_table(arithmetic.cast(pa.schema(large)), folder / "large_lists.parquet")
    square = pa.table(
        {
            "prompt_id": pa.array([row // 4 for row in range(24)]),
            "step": pa.array([row // 12 for row in range(24)], pa.int16()),
            "reward": pa.array(draw.normal(size=24)),
            "mask": fixed(draw.integers(0, 2, (24, 6)).astype(bool)),
            "old_log_probs": fixed(-draw.random((24, 6))),
            "ref_log_probs": fixed(-draw.random((24, 6)).astype(np.float32)),
            "values": fixed(draw.normal(size=(24, 6)).astype(np.float16)),
        }
    )
    pq.write_table(square, folder / "fixed_lists.parquet", compression="zstd")

    # Names of other frameworks.
    names = {"reward": "score", "prompt_id": "uid", "response_mask": "loss_mask", "step": "epoch"}
    foreign = basic.rename_columns([names.get(name, name) for name in basic.column_names])
    pq.write_table(foreign, folder / "foreign.parquet")

    # Empty responses, lonely rows, equal rewards.
    keep = pa.array([0, 1, 2, 8, 9, 16, 24, 25])
    odd = replaced(basic, "reward", pa.array(draw.normal(size=basic.num_rows))).take(keep)
    lists = {
        one.name: [
            [] if row in (1, 4) else values for row, values in enumerate(odd[one.name].to_pylist())
        ]
        for one in odd.schema
        if pa.types.is_list(one.type)
    }
    for name, rows in lists.items():
        odd = replaced(odd, name, pa.array(rows, odd.schema.field(name).type))
    pq.write_table(odd, folder / "odd.parquet")

    # Several files, and folders for each step.
    parts = folder / "parts"
    hive = folder / "hive"
    parts.mkdir()
    for number in range(5):
        part = arithmetic.take(order[number::5])
        pq.write_table(part, parts / f"part-{number}.parquet", row_group_size=40)
    for step in range(4):
        (hive / f"step={step}").mkdir(parents=True)
        rows = steps.filter(pc.equal(steps["step"], step)).drop_columns(["step"])
        pq.write_table(rows, hive / f"step={step}" / "rows.parquet")


def turns(folder: Path) -> None:
    """Scores of turns, and a grader's ranks and hacks, as some estimators need them."""
    draw = np.random.default_rng(2)
    table = pq.read_table(folder / "agentic.parquet")
    rows = range(table.num_rows)
    for name, rest in (("turn_reward", 4), ("win_rate", 2)):
        numbers = [None if row % 9 == rest else draw.random() for row in rows]
        table = table.append_column(name, pa.array(numbers))
    table = table.append_column("hack", pa.array(draw.random(len(rows)) < 0.1))
    pq.write_table(table, folder / "turns.parquet")


def with_lists(
    table: pa.Table, draw: np.random.Generator, names: tuple[str, ...], low: float, high: float
) -> pa.Table:
    """The table with columns of random numbers, one for each token."""
    lengths = pc.list_value_length(table["response_mask"]).to_pylist()
    for name in names:
        rows = [draw.uniform(low, high, length).astype(np.float32) for length in lengths]
        table = table.append_column(name, pa.array(rows, pa.list_(pa.float32())))
    return table


def replaced(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The table with another column in the place of one."""
    return table.set_column(table.column_names.index(name), name, column)


def fixed(values: np.ndarray) -> pa.Array:
    """Rows of equal length as a column of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def dumps(folder: Path, top: Path) -> None:
    """Dumps as frameworks write them."""
    writers = next((top / "tests").rglob("format_writers.py"))
    sys.path.insert(0, str(writers.parent))
    try:
        import format_writers as tokens
        import format_writers_text as texts
    finally:
        sys.path.pop(0)
    made = tokens.made(groups=4, size=4, seed=3)
    for name in (
        "nemo_rl", "slime_rollout", "slime_train", "prime_rl_traces", "prime_rl_tokens",
        "roll_rollout", "roll_agentic",
    ):  # fmt: skip
        getattr(tokens, name)(folder / name, made)
    tokens.nemo_rl(folder / "nemo_dynamic", made, dynamic=True)
    rolled = texts.rollouts(seed=3)
    for name, file in (
        ("open_instruct", "run_rollouts_000000.jsonl"),
        ("roll_board", "data_20260101_000000_123.jsonl"),
        ("trl", "completions_00001.parquet"),
        ("ms_swift", "completions.jsonl"),
    ):
        (folder / name).mkdir(parents=True)
        getattr(texts, name)(folder / name / file, rolled)
    (folder / "verl").mkdir()
    for step in sorted({one.step for one in rolled}):
        rows = [one for one in rolled if one.step == step]
        texts.verl(folder / "verl" / f"{step}.jsonl", rows)
    generic(folder / "mine.jsonl", made)


def generic(path: Path, made: list) -> None:
    """Somebody's own JSON lines, with nested fields and padded lists."""
    longest = max(len(one.tokens) for one in made)

    def padded(values: list, fill: float) -> list:
        return [*values, *[fill] * (longest - len(values))]

    records = [
        {
            "task": {"id": one.group},
            "scores": {"total": one.reward, "length": len(one.tokens)},
            "response_mask": padded(one.mask, 0),
            "old_log_probs": padded(one.old, 0.0),
            "values": padded(one.values, 0.0),
            "finish_reason": "length" if one.truncated else "stop",
            "big": 2**80 + one.index,
        }
        for one in made
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")
