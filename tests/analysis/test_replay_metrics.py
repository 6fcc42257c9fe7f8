"""Replay of logged metrics: plain loops write a log, and the search finds how it was computed."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest

from rlpost.analysis.replay.metric_replay import replay_metrics

FLOATS = pa.list_(pa.float32())


def dump(steps=3, groups=8, size=4, seed=0, *, drift=0.25, longest=40, observations=True):
    """Whole steps with log-probs of four policies, masks, and an advantage for each response."""
    rng = np.random.default_rng(seed)
    count = steps * groups * size
    columns = {name: [] for name in ("log_probs", "old_log_probs", "ref_log_probs", "advantages")}
    columns |= {"infer_log_probs": [], "response_mask": [], "entropy": []}
    for _ in range(count):
        n = int(rng.integers(3, longest))
        old = -rng.exponential(0.7, n)
        columns["old_log_probs"].append(old)
        columns["log_probs"].append(old + drift * rng.standard_normal(n))
        columns["infer_log_probs"].append(old + 0.05 * rng.standard_normal(n))
        columns["ref_log_probs"].append(old + 0.3 * rng.standard_normal(n))
        mask = rng.random(n) < 0.85 if observations else np.ones(n, bool)
        mask[0] = True
        columns["response_mask"].append(mask)
        columns["advantages"].append(np.full(n, rng.normal()) * mask)
        columns["entropy"].append(rng.exponential(1.0, n))
    lists = {name: pa.array([row.astype(np.float32) for row in rows], FLOATS)
             for name, rows in columns.items() if name != "response_mask"}  # fmt: skip
    return pa.table(
        {
            "step": np.repeat(np.arange(1, steps + 1), groups * size),
            "prompt_id": [f"p{i // size}" for i in range(count)],
            "reward": pa.array(rng.integers(0, 3, count), pa.float32()),
            "response_mask": pa.array(
                [row.astype(np.uint8) for row in columns["response_mask"]], pa.list_(pa.uint8())
            ),
            **lists,
        }
    )


def rows_of(table, step):
    """The responses of a step, as dicts of float64 arrays of policy tokens."""
    names = ("log_probs", "old_log_probs", "ref_log_probs", "infer_log_probs", "advantages")
    found = []
    for row in table.to_pylist():
        if row["step"] == step:
            mask = np.array(row["response_mask"], bool)
            own = {name: np.array(row[name])[mask] for name in (*names, "entropy")}
            found.append(own | {"reward": row["reward"], "all": len(mask)})
    return found


def ppo(row, low, high, dual=math.inf, old="old_log_probs"):
    """The loss of each token, and what is clipped below, above and by the dual clip."""
    ratio, advantage = np.exp(row["log_probs"] - row[old]), row["advantages"]
    loss = np.maximum(-advantage * ratio, -advantage * np.clip(ratio, 1 - low, 1 + high))
    below, above = (ratio < 1 - low) & (advantage < 0), (ratio > 1 + high) & (advantage > 0)
    capped = (advantage < 0) & (loss > -advantage * dual)
    return np.where(capped, -advantage * dual, loss), below, above, capped


def mean(rows, how, values, length=None):
    """Aggregate numbers of tokens over some responses."""
    sums = [float(np.sum(x)) for x in values]
    if how == "token-mean":
        return sum(sums) / sum(len(x) for x in values)
    if how == "seq-mean-token-mean":
        return sum(float(np.mean(x)) for x in values) / len(rows)
    if how == "seq-mean-token-sum":
        return sum(sums) / len(rows)
    assert how == "seq-mean-token-sum-norm"
    return sum(sums) / len(rows) / length


def blocks(rows, ranks=1, micro=None, strided=False, updates=1):
    """The micro-batches of a step, by rank and update."""
    found = []
    for rank in range(ranks):
        own = rows[rank::ranks] if strided else rows[
            rank * len(rows) // ranks : (rank + 1) * len(rows) // ranks
        ]  # fmt: skip
        for update in range(updates):
            part = own[update * len(own) // updates : (update + 1) * len(own) // updates]
            size = micro or len(part)
            found += [part[i : i + size] for i in range(0, len(part), size)]
    return found


def metrics_of(rows, how, low, high, dual=math.inf, old="old_log_probs", **split):
    """What a trainer would log of a step."""
    found = {"pg_loss": [], "pg_clipfrac": [], "ppo_kl": [], "pg_clipfrac_lower": []}
    for part in blocks(rows, **split):
        losses = [ppo(row, low, high, dual, old) for row in part]
        found["pg_loss"].append(mean(part, how, [one[0] for one in losses]))
        clipped = [(one[1] | one[2]) * 1.0 for one in losses]
        found["pg_clipfrac"].append(mean(part, "token-mean", clipped))
        found["pg_clipfrac_lower"].append(
            mean(part, "token-mean", [one[3] * 1.0 for one in losses])
        )
        kl = [row[old] - row["log_probs"] for row in part]
        found["ppo_kl"].append(mean(part, "token-mean", kl))
    return {f"actor/{name}": float(np.mean(values)) for name, values in found.items()}


def log_of(table, path, **options):
    """Write JSON lines as verl's file logger does."""
    steps = sorted({*table.column("step").to_pylist()})
    lines = []
    for step in steps:
        data = metrics_of(rows_of(table, step), **options) | {"perf/mfu": 0.4}
        data["critic/rewards/mean"] = float(
            np.mean([row["reward"] for row in rows_of(table, step)])
        )
        lines.append(json.dumps({"step": step, "data": data}))
    path.write_text("\n".join(lines) + "\n")
    return path


CASES = [
    ({"how": "token-mean", "low": 0.2, "high": 0.2}, {"--pg-clip 0.2", "--aggregation token-mean"}),
    ({"how": "token-mean", "low": 0.2, "high": 0.28}, {"--pg-clip-high 0.28"}),
    (
        {"how": "seq-mean-token-mean", "low": 0.1, "high": 0.1, "micro": 8},
        {"--pg-clip 0.1", "--aggregation seq-mean-token-mean", "--micro-batch 8"},
    ),
    (
        {"how": "token-mean", "low": 0.2, "high": 0.2, "micro": 4, "ranks": 4, "strided": True},
        {"--micro-batch 4", "--ranks 4"},
    ),
    ({"how": "token-mean", "low": 0.2, "high": 0.2, "ranks": 2}, {"--micro-batch 16"}),  # a tie
    (
        {"how": "seq-mean-token-sum", "low": 0.3, "high": 0.3, "dual": 2.0, "micro": 2},
        {"--pg-clip 0.3", "--dual-clip 2", "--aggregation seq-mean-token-sum", "--micro-batch 2"},
    ),
    ({"how": "token-mean", "low": 0.15, "high": 0.4}, {"--pg-clip-low 0.15", "--pg-clip-high 0.4"}),
    (
        {"how": "token-mean", "low": 0.2, "high": 0.2, "old": "infer_log_probs"},
        {"--behaviour infer", "--pg-clip 0.2"},
    ),
    (
        {"how": "seq-mean-token-mean", "low": 0.2, "high": 0.272, "micro": 4, "ranks": 2},
        {"--pg-clip-high 0.272", "--micro-batch 4"},
    ),
]


@pytest.mark.parametrize(("options", "expected"), CASES)
def test_search_finds_loss_and_split(options, expected, tmp_path):
    table = dump()
    log = log_of(table, tmp_path / "log.jsonl", **options)
    found = replay_metrics(table, log)
    text = " ".join(found["description"]["options"])
    assert found["reproduced"], found["findings"]
    assert all(part in text for part in expected), text
    assert found["unknown_keys"] == ["perf/mfu"]
