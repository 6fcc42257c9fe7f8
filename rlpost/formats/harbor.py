"""Harbor: trials (`result.json` with the trajectories beside it), and ATIF trajectories alone.

A trial is one rollout of its task. The ids and log-probs of its calls are in the result's rollout
details, or else in the steps of its trajectories.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.calls import CALLS, TYPES, ModelCall, call_rows
from rlpost.formats.containers import FOLDER, JSON, json_records
from rlpost.formats.fields import FILE_STEP, content_key, joined_text
from rlpost.formats.reading import check_version
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record

_TRIAL = {"trial_name", "task_name", "agent_info", "config"}
_BUDGET = {
    "AgentTimeoutError", "ContextWindowExceededError", "OutputTokenExceededError",
    "ContextLengthExceededError", "OutputLengthExceededError",
}  # fmt: skip
"""Exceptions at a limit of the agent: the response is truncated, and its reward is valid."""
_VALID = {*_BUDGET, "AgentSafetyRefusalError", "ContentPolicyViolationError"}


def _is_harbor(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a trial's result, or of a trajectory."""
    atif = str(fields.get("schema_version")).startswith("ATIF-v") and "steps" in fields
    return atif or fields.keys() >= _TRIAL


def trial_of(trajectory: Path) -> Path | None:
    """Return the `result.json` of the trial that a trajectory is part of; None of another file."""
    result = trajectory.parent.parent / "result.json"
    is_part = trajectory.parent.name == "agent" and trajectory.name != "result.json"
    return result if is_part and result.is_file() else None


def _rows(records: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield the calls of trials, with the fields of the trial and its trajectories.

    A record may be a trial's result, or one of its trajectories.
    """
    for record in records:
        file = Path(record.file)
        if "schema_version" in record:
            result, trajectories = trial_of(file), [record]
            fields = next(json_records(result)).fields if result else {}
        else:
            files = sorted(file.parent.glob("agent/trajectory*.json"))
            fields, trajectories = record.fields, [next(json_records(x)) for x in files]
        agents = [agent for trajectory in trajectories for agent in _with_subagents(trajectory)]
        trial = replace(record, fields={**fields, "trajectories": agents})
        yield from call_rows(trial, _rollout(trial), _calls(trial, agents))


def _with_subagents(trajectory: Record) -> Iterator[Record]:
    """Yield a trajectory of a known version, and those that it contains."""
    check_version(trajectory, FORMAT)
    yield trajectory
    if trajectory.find("subagent_trajectories") is not None:
        for agent in trajectory.rows("subagent_trajectories"):
            yield from _with_subagents(agent)


def _calls(trial: Record, agents: list[Record]) -> list[ModelCall]:
    """Return the calls in the rollout details, with the texts of steps that sampled the same.

    Without details they are those of the steps.
    """
    steps = [call for agent in agents for call in _step_calls(agent)]
    texts = {(*call.sampled,): call.values for call in steps if call.sampled}
    details = trial.rows("agent_result.rollout_details") if trial.find("agent_result") else ()
    calls = [replace(call, values={**texts.get((*(call.sampled or ()),), {})})
             for detail in details for call in _detail_calls(detail)]  # fmt: skip
    return calls or steps


def _step_calls(trajectory: Record) -> Iterator[ModelCall]:
    """Yield the calls of a trajectory's agent, except copies of those of another trajectory."""
    role = trajectory.nested("agent").fields.get("name")
    for step in trajectory.rows("steps"):
        find = step.find
        copied = find("llm_call_count") == 0 or find("is_copied_context")
        if find("source") == "agent" and not copied:
            values = {"response": joined_text(find("message")), "agent_role": role,
                      "response_length": find("metrics.completion_tokens")}  # fmt: skip
            names = ("prompt_token_ids", "completion_token_ids", "logprobs")
            prompt, sampled, log_probs = (find(f"metrics.{name}") for name in names)
            yield ModelCall(step.where, prompt, sampled, log_probs, values=values)


def _detail_calls(detail: Record) -> Iterator[ModelCall]:
    sampled = detail.find("completion_token_ids") or []
    prompts = detail.find("prompt_token_ids") or [None] * len(sampled)
    log_probs = detail.find("logprobs") or [None] * len(sampled)
    if not len(sampled) == len(prompts) == len(log_probs):
        raise detail.error("logprobs", log_probs, f"a list of {len(sampled)} calls")
    for lists in zip(prompts, sampled, log_probs, strict=True):
        yield ModelCall(detail.where, *lists)


def _prompt(trial: Record) -> str | None:
    steps = [step for agent in trial.get("trajectories")[:1] for step in agent.get("steps")]
    return next((joined_text(x["message"]) for x in steps if x.get("source") == "user"), None)


def _reward(trial: Record) -> float | None:
    """Return the reward of a verifier's result: `reward`, or the only one; the map sets others.

    Raises:
        DataError: there are several, none of which is called `reward`.
    """
    rewards = trial.find("verifier_result.rewards") or {}
    name = "reward" if "reward" in rewards or not rewards else next(iter(rewards))
    if len(rewards) > 1 and name != "reward":
        tip = "one called `reward`, or --map reward=verifier_result.rewards.NAME,"
        raise trial.error("verifier_result.rewards", rewards, tip)
    return rewards.get(name)


def _rollout(trial: Record) -> str:
    agents = trial.get("trajectories")
    session = agents[0].find("session_id | trajectory_id") if agents else None
    return str(trial.find("id") or session or trial.where)


def _failure(trial: Record) -> str | None:
    kind = trial.find("exception_info.exception_type")
    return None if kind in _VALID else kind


def _length(trial: Record) -> int | None:
    return None if _failure(trial) else trial.find("agent_result.n_output_tokens")


FORMAT = Format(
    name="harbor",
    title="Harbor trials (result.json) and ATIF trajectories (trajectory.json)",
    containers=(JSON, FOLDER),
    members="*__*/result.json",
    lacks={
        "reward": "trajectories have no rewards; result.json of their trials has them",
        "domain": "the task has no source",
        "truncated": "trajectories do not contain why they ended; result.json does",
        **dict.fromkeys(("mask", "infer_log_probs"), "the agent recorded no token ids and "
                        "log-probs: set its option collect_rollout_details"),
        "failure": "", "agent_role": "",
        "batch": "Harbor has no training steps, and no folder is named step_N",
    },
    sniff=_is_harbor,
    rows=_rows,
    reads=frozenset({"trial_name", "config", "trajectories", "agent_execution"}),
    keeps=False,
    types=TYPES,
    version=("schema_version", tuple(f"ATIF-v1.{minor}" for minor in range(9))),
    part_of=trial_of,
    source="harbor 0.25.0 models/trial/result.py, models/trajectories; ATIF 1.0 to 1.8",
    fields={
        **CALLS, "agent_role": "agent_info.name", "domain": "source",
        "rollout_id": Field("id | the session", _rollout), "prompt": Field("steps", _prompt),
        "prompt_id": Field("task_name", lambda trial: trial.find("task_name")
                           or content_key(_prompt(trial) or "")),
        "reward": Field("verifier_result.rewards", _reward),
        "truncated": Field("exception_info", lambda trial: trial.find(
            "exception_info.exception_type") in _BUDGET if "trial_name" in trial else None),
        "failure": Field("exception_info, except time-outs, limits of tokens and refusals",
                         _failure),
        "error": "exception_info.exception_message", "step": FILE_STEP,
        "response_length": Field("agent_result.n_output_tokens", _length),
    },
    note="Each call of the model is a row, and a trial counts once; --unit row counts calls.",
)  # fmt: skip
