"""A generated agentic run, with its truth: forks, sub-agents, compaction, failures, restarts.

    python -m tests.support.agentic_run FOLDER

writes `run.parquet`, and `truth.parquet` with a row for each of its rows, in the same order.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("turns", "fork", "sub_agent", "compaction")
REASONS = ("browser crash", "sandbox timeout", "judge error")
"""A crash comes before the first token, a time-out after some turns, a judge fails after all."""
VOCABULARY = 32_000
EPS = 1e-6

_SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        "run_attempt": pa.int64(),
        "prompt_id": pa.string(),
        "sample_idx": pa.int64(),
        "rollout_id": pa.string(),
        "turn": pa.int64(),
        "branch": pa.string(),
        "agent_role": pa.string(),
        "host": pa.string(),
        "policy_version": pa.int64(),
        "failure": pa.string(),
        "finish_reason": pa.string(),
        "reward": pa.float64(),
        "turn_reward": pa.float64(),
        "prompt_token_ids": pa.list_(pa.int32()),
        "response_token_ids": pa.list_(pa.int32()),
        "response_mask": pa.list_(pa.int8()),
        "old_log_probs": pa.list_(pa.float32()),
        "infer_log_probs": pa.list_(pa.float32()),
        "values": pa.list_(pa.float32()),
        "next_value": pa.float64(),
    }
)
_TRUTH = pa.schema(
    {
        "kind": pa.string(),
        "failed": pa.bool_(),
        "superseded": pa.bool_(),
        "duplicate": pa.bool_(),
        "shared": pa.int64(),
        "reward": pa.float64(),
        "right": pa.float64(),
        "naive": pa.float64(),
    }
)


@dataclass(frozen=True)
class AgenticRun:
    """The rows of a run, and what is true of each.

    `truth` has, for each row, the `kind` of its rollout; whether the rollout `failed`; whether the
    row is `superseded` by a later attempt of its step, or a `duplicate` of an earlier row; the
    policy tokens that an earlier row of its rollout has too (`shared`); the rollout's `reward`; the
    GRPO advantage of rollouts that neither failed nor are superseded (`right`, 0 for the others);
    and that of rows that each count as a response (`naive`).
    """

    table: pa.Table
    truth: pa.Table
    missing: dict[tuple[int, str], int] = field(default_factory=dict)
    """By (step, prompt), the rollouts that an asynchronous trainer dropped."""

    def write(self, folder: Path) -> Path:
        """Write `run.parquet` and `truth.parquet`; return the first."""
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.truth, folder / "truth.parquet")
        pq.write_table(self.table, folder / "run.parquet", row_group_size=500)
        return folder / "run.parquet"

    def counts(self) -> dict[str, int]:
        """Return how many rows and rollouts there are of each kind."""
        rows = self.table.select(["rollout_id"]).to_pylist()
        truth = self.truth.to_pylist()
        found: dict[str, int] = {
            "rows": len(rows),
            "rollouts": len({r["rollout_id"] for r in rows}),
        }
        for name in ("failed", "superseded", "duplicate"):
            ids = {row["rollout_id"] for row, one in zip(rows, truth, strict=True) if one[name]}
            found |= {f"{name} rows": sum(one[name] for one in truth), f"{name} rollouts": len(ids)}
        return found


@dataclass
class _Run:
    rng: np.random.Generator
    reward_on: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    truth: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[tuple[int, str], int] = field(default_factory=dict)

    def tokens(self, low: int, high: int) -> list[int]:
        return self.rng.integers(100, VOCABULARY, int(self.rng.integers(low, high))).tolist()


def agentic_run(
    seed: int = 0,
    *,
    steps: int = 4,
    prompts: int = 16,
    samples: int = 8,
    failing: float = 0.2,
    restart: int | None = 2,
    dropped: float = 0.1,
    duplicates: int = 6,
    reward_on: str = "all",
) -> AgenticRun:
    """Return a run.

    Args:
        seed: of all random numbers.
        steps: training steps.
        prompts: prompts of a step.
        samples: rollouts of a prompt.
        failing: share of rollouts that fail. Most of those of one step fail on one host.
        restart: the first attempt wrote this step, and half of the next one, before the second
            attempt began with this step; None: there is one attempt.
        dropped: share of prompts that lack one to three rollouts.
        duplicates: rows that are written twice.
        reward_on: `all` rows of a rollout have its reward, or its `last` turn alone.
    """
    run = _Run(np.random.default_rng(seed), reward_on)
    ease = run.rng.uniform(0.15, 0.85, (steps, prompts))
    for step in range(steps if restart is None else restart):
        _write_step(run, step, 1, ease[step], samples, failing, dropped)
    if restart is not None:
        _write_step(run, restart, 1, ease[restart], samples, failing, dropped)
        if restart + 1 < steps:
            half = ease[restart + 1][: prompts // 2]
            _write_step(run, restart + 1, 1, half, samples, failing, dropped)
        for step in range(restart, steps):
            _write_step(run, step, 2, ease[step], samples, failing, dropped)
    for at in sorted(run.rng.choice(len(run.rows), duplicates, replace=False).tolist()):
        run.rows.append(dict(run.rows[at]))
        run.truth.append({**run.truth[at], "duplicate": True})
    _mark_superseded(run)
    _add_right(run)
    _add_naive(run)
    return AgenticRun(
        pa.Table.from_pylist(run.rows, _SCHEMA),
        pa.Table.from_pylist(run.truth, _TRUTH),
        run.missing,
    )


def _write_step(
    run: _Run,
    step: int,
    attempt: int,
    ease: Any,
    samples: int,
    failing: float,
    dropped: float,
) -> None:
    """Write the rollouts of a step, prompt by prompt."""
    burst = step % 3 == 1  # host-3 is broken in these steps
    for number, chance in enumerate(ease):
        prompt = f"task-{step}-{number}"
        count = samples
        if run.rng.random() < dropped:
            count -= int(run.rng.integers(1, 4))
            run.missing[step, prompt] = samples - count
        context = run.tokens(20, 60)
        for sample in range(count):
            host = f"host-{int(run.rng.integers(0, 4))}"
            rate = failing * (0.5 if not burst else 2.5 if host == "host-3" else 0.5)
            reason = ""
            if run.rng.random() < min(1.0, rate * 1.25):
                reason = REASONS[0] if burst else REASONS[int(run.rng.integers(0, len(REASONS)))]
            keys = {
                "step": step,
                "run_attempt": attempt,
                "prompt_id": prompt,
                "sample_idx": sample,
                "rollout_id": f"{step}-{number}-{sample}-{int(run.rng.integers(1 << 40)):010x}",
                "host": host,
            }
            reward = 0.0 if reason else float(run.rng.random() < chance)
            _write_rollout(run, keys, context, reward, reason)


def _write_rollout(
    run: _Run, keys: dict[str, Any], context: list[int], reward: float, reason: str
) -> None:
    kind = KINDS[int(run.rng.integers(0, len(KINDS)))]
    turns = [_turn(run, "main", "0") for _ in range(int(run.rng.integers(2, 7)))]
    if reason == REASONS[0]:
        kind, turns = "turns", [{**turns[0], "own": []}]
    elif reason == REASONS[1]:
        turns = turns[:2]
    rows = _segments(run, kind, context, turns)
    last = max(row["turn"] for row in rows)
    for place, row in enumerate(rows):
        ends = row["turn"] == last and row["agent_role"] == "main"
        failed = bool(reason) and ends and place == len(rows) - 1
        has_reward = run.reward_on == "all" or ends
        length = len(row["response_token_ids"])
        surprise = run.rng.exponential(0.4, length) + 1e-4
        gap = run.rng.exponential(0.004, length)
        run.rows.append(
            {
                **keys,
                **{name: row[name] for name in ("turn", "branch", "agent_role")},
                "policy_version": 10 * keys["step"] + keys["run_attempt"],
                "failure": reason if failed else None,
                "finish_reason": "length" if run.rng.random() < 0.02 else "stop",
                "reward": reward if has_reward else None,
                "turn_reward": reward if ends else 0.0,
                **{name: row[name] for name in _LISTS},
                "old_log_probs": (-surprise).astype(np.float32),
                "infer_log_probs": (-surprise - gap).astype(np.float32),
                "values": run.rng.uniform(0, 1, length).astype(np.float32),
                "next_value": float(run.rng.uniform(0, 1)),
            }
        )
        run.truth.append(
            {
                "kind": kind,
                "failed": bool(reason),
                "superseded": False,
                "duplicate": False,
                "shared": row["shared"],
                "reward": reward,
            }
        )


_LISTS = ("prompt_token_ids", "response_token_ids", "response_mask")


def _turn(run: _Run, role: str, branch: str) -> dict[str, Any]:
    return {
        "agent_role": role,
        "branch": branch,
        "own": run.tokens(8, 40),
        "observation": run.tokens(4, 20),
    }


def _segments(
    run: _Run, kind: str, context: list[int], turns: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of a rollout: a row has the tokens of its turn, a fork also those before."""
    rows: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        if kind == "compaction" and number and number == len(turns) // 2:
            context = [*context[:20], *run.tokens(10, 20)]  # a summary of the turns before
        rows.append(_row(turn, number, context, turn["own"]))
        context = [*context, *turn["own"], *turn["observation"]]
    if kind == "sub_agent":
        for call in range(int(run.rng.integers(1, 4))):
            sub = _turn(run, "search", f"search-{call}")
            at = int(run.rng.integers(0, len(turns)))
            rows.append(_row(sub, at, run.tokens(10, 30), sub["own"]))
        rows.sort(key=lambda row: (row["turn"], row["agent_role"] == "main"))
    if kind == "fork" and len(rows) > 1:
        first, second = rows[0], turns[0]
        for branch in range(1, int(run.rng.integers(2, 5))):
            tail = run.tokens(8, 40)
            response = [*first["response_token_ids"], *second["observation"], *tail]
            mask = [
                *([1] * len(first["response_token_ids"])),
                *([0] * len(second["observation"])),
                *([1] * len(tail)),
            ]
            fork = {"agent_role": "main", "branch": str(branch)}
            rows.insert(
                -1,
                {
                    **_row(fork, 1, first["prompt_token_ids"], response),
                    "shared": len(first["response_token_ids"]),
                    "response_mask": mask,
                },
            )
    return rows


def _row(
    turn: dict[str, Any], number: int, context: list[int], response: list[int]
) -> dict[str, Any]:
    return {
        "turn": number,
        "branch": turn["branch"],
        "agent_role": turn["agent_role"],
        "prompt_token_ids": [*context],
        "response_token_ids": [*response],
        "response_mask": [1] * len(response),
        "shared": 0,
    }


def _mark_superseded(run: _Run) -> None:
    newest: dict[int, int] = {}
    for row in run.rows:
        newest[row["step"]] = max(newest.get(row["step"], 0), row["run_attempt"])
    for row, truth in zip(run.rows, run.truth, strict=True):
        truth["superseded"] = row["run_attempt"] < newest[row["step"]]


def _add_right(run: _Run) -> None:
    """Add the advantage of rollouts that are answers, each of which counts once in its group."""
    groups: dict[tuple[int, str], dict[str, float]] = {}
    for row, truth in zip(run.rows, run.truth, strict=True):
        if not (truth["failed"] or truth["superseded"]):
            group = groups.setdefault((row["step"], row["prompt_id"]), {})
            group[row["rollout_id"]] = truth["reward"]
    for row, truth in zip(run.rows, run.truth, strict=True):
        if truth["failed"] or truth["superseded"]:
            truth["right"] = 0.0
        else:
            rewards = [*groups[row["step"], row["prompt_id"]].values()]
            truth["right"] = _advantage(truth["reward"], rewards)


def _add_naive(run: _Run) -> None:
    """Add the advantage of rows that each count as a response, whatever they are."""
    groups: dict[tuple[int, str], list[float]] = {}
    for row, truth in zip(run.rows, run.truth, strict=True):
        groups.setdefault((row["step"], row["prompt_id"]), []).append(truth["reward"])
    for row, truth in zip(run.rows, run.truth, strict=True):
        truth["naive"] = _advantage(truth["reward"], groups[row["step"], row["prompt_id"]])


def _advantage(reward: float, rewards: list[float]) -> float:
    """Return (r - mean) / (std + ε) with Bessel's correction; 0 in a group of one."""
    if len(rewards) == 1:
        return 0.0
    mean = sum(rewards) / len(rewards)
    variance = sum((x - mean) ** 2 for x in rewards) / (len(rewards) - 1)
    return (reward - mean) / (variance**0.5 + EPS)


def main() -> None:
    """Write the default run to a folder, and print its counts."""
    run = agentic_run()
    lines = [str(run.write(Path(sys.argv[1])))]
    lines += [f"{name:20} {count:6,}" for name, count in run.counts().items()]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
