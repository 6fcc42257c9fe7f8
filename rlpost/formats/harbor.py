"""Harbor: trials (`result.json` with the trajectories beside it), and ATIF trajectories alone.

A trial is one rollout of its task. The ids and log-probs of its calls are in the result's rollout
details, or else in the steps of its trajectories.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.base import Format, Version
from rlpost.formats.calls import FIELDS, TYPES, ModelCall, call_rows, seconds_of
from rlpost.formats.containers import FOLDER, JSON
from rlpost.formats.containers.json_text import json_records
from rlpost.formats.keys import text_key
from rlpost.formats.reading import check_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record, Row

_TRIAL = {"trial_name", "task_name", "agent_info", "config"}
_BUDGET = {
    "AgentTimeoutError", "ContextWindowExceededError", "OutputTokenExceededError",
    "ContextLengthExceededError", "OutputLengthExceededError",
}  # fmt: skip
"""Exceptions at a limit of the agent: the response is truncated, and its reward is valid."""
_JOB = re.compile(r"step_(-?\d+)")
_VALID = {*_BUDGET, "AgentSafetyRefusalError", "ContentPolicyViolationError"}


def _is_harbor(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a trial's result, or of a trajectory."""
    atif = str(fields.get("schema_version")).startswith("ATIF-v") and "steps" in fields
    return atif or fields.keys() >= _TRIAL


def trial_of(trajectory: Path) -> Path | None:
    """Return the `result.json` of the trial that a trajectory is part of; None of another file."""
    folder = trajectory.parent
    if folder.name != "agent" or trajectory.name == "result.json":
        return None
    top = folder.parents[2] if folder.parents[1].name == "steps" else folder.parent
    return top / "result.json" if (top / "result.json").is_file() else None


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    for record in records:
        trial, trajectories = _parts(record)
        agents = [agent for trajectory in trajectories for agent in _with_subagents(trajectory)]
        steps = [call for agent in agents for call in _step_calls(agent)]
        detailed = [] if trial is None else [*_detailed_calls(trial, steps, options)]
        yield from call_rows(record, _facts(trial, agents, options), detailed or steps)


def _parts(record: Record) -> tuple[Record | None, list[Record]]:
    """Return the trial and its trajectories, of which a record is one."""
    file = Path(record.file)
    if "schema_version" in record:
        result = trial_of(file)
        return next(json_records(result)) if result else None, [record]
    folders = ("agent", "steps/*/agent")
    files = sorted(x for name in folders for x in file.parent.glob(f"{name}/trajectory*.json"))
    return record, [next(json_records(trajectory)) for trajectory in files]


def _with_subagents(trajectory: Record) -> Iterator[Record]:
    """Yield a trajectory of a known version, and those that it contains."""
    check_version(trajectory, FORMAT)
    yield trajectory
    if trajectory.has("subagent_trajectories"):
        for agent in trajectory.rows("subagent_trajectories"):
            yield from _with_subagents(agent)


def _step_calls(trajectory: Record) -> Iterator[ModelCall]:
    """Yield the calls of a trajectory's agent, except copies of those of another trajectory."""
    role = trajectory.nested("agent").fields.get("name")
    for step in trajectory.rows("steps"):
        find = step.find
        if (
            find("source") == "agent"
            and find("llm_call_count") != 0
            and not find("is_copied_context")
        ):
            values = {"response": _text(find("message")), "agent_role": role,
                      "response_length": find("metrics.completion_tokens")}  # fmt: skip
            names = ("prompt_token_ids", "completion_token_ids", "logprobs")
            prompt, sampled, log_probs = (find(f"metrics.{name}") for name in names)
            yield ModelCall(step.where, prompt, sampled, log_probs, values=values)


def _text(message: Any) -> str:
    """Return the text of a message, which may have parts of other kinds."""
    parts = message if isinstance(message, list) else [{"text": message}]
    return "".join(part.get("text") or "" for part in parts)


def _detailed_calls(
    trial: Record, steps: list[ModelCall], options: ReadOptions
) -> Iterator[ModelCall]:
    """Yield the calls in the rollout details, with the texts of steps that sampled the same.

    The last call of each step of a trial of several steps has the step's reward.
    """
    texts = {_key(call): call.values for call in steps if call.sampled}
    single = trial.has("agent_result")
    several = trial.rows("step_results") if trial.has("step_results") else ()
    for part in [trial] if single else several:
        details = part.rows("agent_result.rollout_details") if part.find("agent_result") else ()
        calls = [replace(call, values={**texts.get(_key(call), {})})
                 for detail in details for call in _calls_of(detail)]  # fmt: skip
        if calls and not single:
            calls[-1].values["turn_reward"] = _reward(part, options)
        yield from calls


def _calls_of(detail: Record) -> Iterator[ModelCall]:
    sampled = detail.find("completion_token_ids") or []
    prompts = detail.find("prompt_token_ids") or [None] * len(sampled)
    log_probs = detail.find("logprobs") or [None] * len(sampled)
    if not len(sampled) == len(prompts) == len(log_probs):
        raise detail.error("logprobs", log_probs, f"a list of {len(sampled)} calls")
    for lists in zip(prompts, sampled, log_probs, strict=True):
        yield ModelCall(detail.where, *lists)


def _key(call: ModelCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(call.prompt or ()), tuple(call.sampled or ())


def _reward(part: Record, options: ReadOptions) -> float | None:
    """Return the reward of a verifier's result: `reward`, or the only one; the map sets others.

    Raises:
        DataError: there are several, none of which is called `reward`.
    """
    rewards = part.find("verifier_result.rewards") or {}
    name = "reward" if "reward" in rewards or not rewards else next(iter(rewards))
    if "reward" in options.map:
        return None
    if len(rewards) > 1 and name != "reward":
        tip = "one called `reward`, or --map reward=verifier_result.rewards.NAME,"
        raise part.error("verifier_result.rewards", rewards, tip)
    return rewards.get(name)


def _facts(trial: Record | None, agents: list[Record], options: ReadOptions) -> dict[str, Any]:
    """Return what is equal in all calls of a trial, or of a trajectory alone."""
    steps = agents[0].array("steps") if agents else ()
    asked = next((_text(x["message"]) for x in steps if x.get("source") == "user"), None)
    if trial is None:
        get = agents[0].fields.get
        rollout = get("session_id") or get("trajectory_id") or agents[0].where
        return {"prompt": asked, "rollout_id": rollout, "prompt_id": text_key(asked or "")}
    parts = [trial.fields, *(trial.fields.get("step_results") or ())]
    errors = [part["exception_info"] for part in parts if part.get("exception_info")]
    kinds, reward = [error["exception_type"] for error in errors], _reward(trial, options)
    truncated = not _BUDGET.isdisjoint(kinds)
    failure = next((kind for kind in kinds if kind not in _VALID), None)
    if truncated and reward is not None:
        options.stats.counts["trial", "with a reward ended at a limit: truncated, no failure"] += 1
    job = _JOB.fullmatch(Path(trial.file).absolute().parents[1].name)
    counted = None if agents or failure else trial.find("agent_result.n_output_tokens")
    return {
        "prompt": asked,
        "step": int(job[1]) if job else None,
        "rollout_id": trial.get("id"),
        "prompt_id": trial.get("task_name"),
        "domain": trial.fields.get("source"),
        "agent_role": trial.nested("agent_info").fields.get("name"),
        "reward": reward,
        "truncated": truncated,
        "failure": failure,
        "response_length": counted,
        "error": errors[0].get("exception_message") if errors else None,
        "seconds": seconds_of(trial, "agent_execution.started_at", "agent_execution.finished_at"),
    }


FORMAT = Format(
    name="harbor",
    title="Harbor trials (result.json) and ATIF trajectories (trajectory.json)",
    containers=(JSON, FOLDER),
    members="*__*/result.json",
    missing_roles={
        "reward": "trajectories have no rewards; result.json of their trials has them",
        "domain": "the task has no source",
        "truncated": "trajectories do not contain why they ended; result.json does",
        "mask": "the agent recorded no token ids: set its option collect_rollout_details",
        "infer_log_probs": "the agent recorded no log-probs: set its option "
        "collect_rollout_details",
        "log_probs": "Harbor has no trainer",
        "old_log_probs": "Harbor has no trainer",
        "ref_log_probs": "Harbor has no trainer",
        "values": "Harbor has no critic",
        "failure": "", "turn_reward": "",
        "batch": "Harbor has no training steps, and the folder of the job is not named step_N",
    },
    sniff=_is_harbor,
    rows=_rows,
    reads=frozenset({
        "trial_name", "task_name", "agent_info", "config", "schema_version", "steps", "id",
        "source", "agent", "session_id", "trajectory_id", "subagent_trajectories", "agent_result",
        "step_results", "verifier_result", "exception_info", "agent_execution",
    }),
    keeps=False,
    types={**TYPES, "turn_reward": pa.float64(), "seconds": pa.float64()},
    version=Version("schema_version", tuple(f"ATIF-v1.{minor}" for minor in range(9))),
    part_of=trial_of,
    source="harbor 0.25.0 models/trial/result.py, models/trajectories; ATIF 1.0 to 1.8",
    fields={
        **FIELDS,
        "rollout_id": "id, or the session", "agent_role": "agent_info.name, or agent.name",
        "prompt_id": "task_name", "reward": "verifier_result.rewards", "domain": "source",
        "response_mask": "rollout_details (all sampled tokens)", "truncated": "exception_info",
        "response_token_ids": "rollout_details.completion_token_ids, or metrics of steps",
        "prompt_token_ids": "rollout_details.prompt_token_ids, or metrics of steps",
        "infer_log_probs": "rollout_details.logprobs, or metrics of steps",
        "failure": "exception_info, except time-outs, limits of tokens and refusals",
        "turn_reward": "step_results.verifier_result.rewards", "step": "the job's folder, step_N",
    },
    note="Each call of the model is a row, and a trial counts once; --unit row counts calls.",
)  # fmt: skip
