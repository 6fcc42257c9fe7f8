"""`--to harbor`: a folder per trial, with `result.json` and its trajectory in ATIF 1.8.

A trial is one rollout. Each run of policy tokens is one call of the model, whose prompt is all that
comes before it. The calls are in the rollout details of the result, in the order of turns, and are
the steps of the trajectory; the steps of other agents are those of its sub-agents.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
import numpy as np

from rlpost.formats.targets.base import ExportTarget

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.errors import DataError
    from rlpost.formats.targets.base import ExportColumns
    from rlpost.formats.targets.rows import Rows

Json = dict[str, Any]
VERSION = "ATIF-v1.8"
_NO_TIME = "1970-01-01T00:00:00Z"
_UNKNOWN = "unknown"
_AT_LIMIT = "OutputLengthExceededError"
_PLAIN = ("turn", "branch", "prompt", "response", "agent_role", "failure", "error", "domain")


class TrialSink:
    """Collects the rows of a rollout, and writes its trial."""

    def __init__(self, files: Sequence[Path], held: ExportColumns, step: int) -> None:
        del held
        self._folder, self._number = files[0], step
        self._rows: list[Json] = []
        self._key: list[Any] = []

    def add(self, rows: Rows) -> None:
        """Collect the calls of each row.

        Raises:
            DataError: a log-prob of a policy token is not finite, or rewards differ.
        """
        plain = {name: rows.values(name) for name in _PLAIN}
        prompts = rows.values("prompt_token_ids")
        ids, masks = rows.tokens("response_token_ids"), rows.masks()
        log_probs = rows.where("infer_log_probs", masks) if "infer_log_probs" in rows else None
        truncated = rows.truncated()
        rewards = rows.numbers_of("reward").tolist() if "reward" in rows else [None] * len(rows)
        for row, prompt in enumerate(prompts):
            own = None if log_probs is None else log_probs[row]
            calls = [*_calls([*(() if prompt is None else prompt)], ids[row], masks[row], own)]
            values = {name: column[row] for name, column in plain.items()}
            values |= {"calls": calls, "truncated": truncated[row], "reward": rewards[row]}
            if self._rows and not _equal(values["reward"], self._rows[0]["reward"]):
                raise _differs(rows, row, self._rows[0]["reward"])
            self._rows.append(values)
        keys = [rows.keys(name)[0] if name in rows else None for name in ("group", "rollout")]
        self._key = self._key or keys

    def finish(self) -> list[str]:
        """Write the trial."""
        rows = self._rows
        if all(one["turn"] is not None for one in rows):
            rows = sorted(rows, key=lambda one: float(one["turn"]))
        trajectory = _trajectory(self._folder.name, rows)
        files = {"result.json": _result(self._folder.name, self._number, self._key, rows)}
        if trajectory is not None:
            files["agent/trajectory.json"] = trajectory
        for name, content in files.items():
            path = self._folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
        return []


def _equal(one: float | None, other: float | None) -> bool:
    return bool(np.array_equal(np.float64(one or 0), np.float64(other or 0), equal_nan=True))


def _differs(rows: Rows, row: int, reward: float | None) -> DataError:
    return rows.error(
        row,
        f"`{rows.columns['reward']}` is {rows.values('reward')[row]}, and another row of its "
        f"rollout has {reward}; a trial has one reward: --map reward=COLUMN names that of the "
        "rollout, --map rollout=none makes each row a trial",
    )


def _calls(
    prompt: list[Any],
    ids: NDArray[Any],
    mask: NDArray[np.bool_],
    log_probs: NDArray[np.float32] | None,
) -> Iterator[Json]:
    """Yield the ids of prompt and answer, and the log-probs, of each run of policy tokens."""
    before = [int(one) for one in prompt]
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)).tolist()
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        call = {
            "prompt_token_ids": before + ids[:begin].tolist(),
            "completion_token_ids": ids[begin:end].tolist(),
        }
        if log_probs is not None:
            call["logprobs"] = log_probs[begin:end].tolist()
        yield call


def _details(rows: Sequence[Json]) -> list[Json]:
    """Return the rollout details: one for successive rows of a branch, with a list of calls."""
    details = []
    for _, own in groupby(rows, key=lambda one: one["branch"]):
        calls = [call for one in own for call in one["calls"]]
        if calls:
            details.append({name: [call[name] for call in calls] for name in calls[0]})
    return details


def _result(name: str, number: int, key: Sequence[Any], rows: Sequence[Json]) -> Json:
    group, rollout = (None if one is None else str(one) for one in key)
    task = _UNKNOWN if group is None else group
    reward = rows[0]["reward"]
    rewards = None if reward is None or not np.isfinite(reward) else {"reward": reward}
    return {
        "id": str(_uuid(rollout or f"{number}")),
        "task_name": task,
        "trial_name": name,
        "trial_uri": name,
        "task_id": {"path": task},
        "source": rows[0]["domain"],
        "task_checksum": "",
        "config": {"task": {"path": task}, "trial_name": name},
        "agent_info": {"name": rows[0]["agent_role"] or _UNKNOWN, "version": _UNKNOWN},
        "agent_result": {"rollout_details": details} if (details := _details(rows)) else None,
        "verifier_result": rewards and {"rewards": rewards},
        "exception_info": _exception(rows),
    }


def _uuid(rollout: str) -> UUID:
    """Return an id as it is if it is a UUID, else one of its text."""
    try:
        return UUID(rollout)
    except ValueError:
        return uuid5(NAMESPACE_OID, rollout)


def _exception(rows: Sequence[Json]) -> Json | None:
    """Return what ended the rollout: a failure, or the length limit of its last response."""
    failed = next((one for one in rows if one["failure"]), None)
    if failed is None and not rows[-1]["truncated"]:
        return None
    kind = _AT_LIMIT if failed is None else failed["failure"]
    text = (failed or rows[-1])["error"]
    return {
        "exception_type": kind if isinstance(kind, str) else "Exception",
        "exception_message": text if isinstance(text, str) else "",
        "exception_traceback": "",
        "occurred_at": _NO_TIME,
    }


def _trajectory(name: str, rows: Sequence[Json]) -> Json | None:
    """Return the trajectory of the first agent, with those of others; None without any step."""
    agents: dict[str, list[Json]] = {}
    for one in rows:
        agents.setdefault(str(one["agent_role"] or _UNKNOWN), []).append(one)
    (first, own), *others = agents.items()
    steps = _steps(own, rows[0]["prompt"])
    if not steps:
        return None
    found = {"schema_version": VERSION, "session_id": name, "agent": _agent(first), "steps": steps}
    inner = [
        {"schema_version": VERSION, "trajectory_id": f"{name}/{role}", "agent": _agent(role),
         "steps": steps}
        for role, own in others if (steps := _steps(own, None))
    ]  # fmt: skip
    return {**found, "subagent_trajectories": inner} if inner else found


def _agent(role: str) -> Json:
    return {"name": role, "version": _UNKNOWN}


def _steps(rows: Sequence[Json], prompt: str | None) -> list[Json]:
    """Return the prompt's step, if any, and one for each call; the first of a row has its text."""
    steps: list[Json] = [] if prompt is None else [{"source": "user", "message": prompt}]
    for one in rows:
        texts = [one["response"] or "", *[""] * len(one["calls"])]
        steps += [
            {"source": "agent", "message": text, "metrics": call, "llm_call_count": 1}
            for text, call in zip(texts, one["calls"], strict=False)
        ]
    return [{"step_id": i + 1, **step} for i, step in enumerate(steps)]


TARGET = ExportTarget(
    name="harbor",
    title="Harbor trials, with trajectories in ATIF 1.8",
    layout="trials",
    suffix="",
    fields={
        "prompt_token_ids": "prompt_token_ids",
        "response_token_ids": "completion_token_ids",
        "mask": "calls",
        "infer_log_probs": "logprobs",
        "rollout": "id",
        "turn": "order of calls",
        "branch": "order of rollout_details",
        "group": "task_name",
        "batch": "name of the job (step_N)",
        "domain": "source",
        "reward": "verifier_result.rewards",
        "truncated": "exception_info",
        "failure": "exception_info",
        "error": "exception_info",
        "agent_role": "agent",
        "prompt": "message of the first step",
        "response": "message of a step",
    },
    needs={
        "prompt_token_ids": "a call has the ids of its prompt",
        "response_token_ids": "a call has the ids of its answer",
    },
    source="harbor 0.25.0, models/trial/result.py, models/trajectories (ATIF 1.8)",
    open=TrialSink,
    use="harbor view, with the folder of {out}; rlpost convert {out} back.parquet",
    note="Each run of policy tokens is one call, so rows with observation tokens become several; "
    "observation tokens behind the last one are in no call. An id that is no UUID becomes one.",
    limits="Every rollout is a folder of two files. Times, versions and checksums, which Harbor's "
    "results need, are empty.",
)
