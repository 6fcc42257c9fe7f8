"""tau2-bench: the results of a run, `simulations` of `tasks`; and the trajectories of tau-bench."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.calls import FAILURES
from rlpost.formats.containers import JSON
from rlpost.formats.fields import one_of
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.formats.records import Record

_LIMITS = {"max_steps", "timeout", "context_window_exceeded"}
_FAILED = {"user_error", "infrastructure_error", "unexpected_error"}
"""Ends for which the agent is not to blame; those of its own errors have the reward 0."""


def _is_results(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a run, of a simulation, or of tau-bench."""
    known = ({"tasks", "simulations"}, {"task_id", "reward", "traj", "info", "trial"},
             {"id", "task_id", "termination_reason"})  # fmt: skip
    return any(fields.keys() >= names for names in known)


def _messages(simulation: Record) -> list[dict[str, Any]]:
    return [x for x in simulation.find("messages") or simulation.find("traj") or ()
            if x.get("role") == "assistant"]  # fmt: skip


def _text(simulation: Record) -> str:
    return json.dumps(_messages(simulation), ensure_ascii=False)


def _failure(simulation: Record) -> str | None:
    reason = simulation.find("termination_reason")
    return reason if reason in _FAILED else simulation.find("info.error") and "error"


def _length(simulation: Record) -> int | None:
    """Return the tokens of the agent's messages; None unless each has a usage."""
    usages = [message.get("usage") for message in _messages(simulation)]
    counts = [usage.get("completion_tokens") for usage in usages if usage]
    return sum(counts) if counts and None not in counts else None


FORMAT = Format(
    name="tau2",
    title="tau2-bench results.json, and tau-bench trajectories",
    source="tau2-bench data_model/simulation.py Results (commit a2c0247), tau-bench run.py",
    containers=(JSON,),
    sniff=_is_results,
    fields={
        "prompt_id": "task_id", "sample_id": "id", "domain": "info.environment_info.domain_name",
        "reward": "reward_info.reward | reward",
        "truncated": one_of("termination_reason", _LIMITS),
        "failure": Field("termination_reason | info.error", _failure),
        "error": "info.error", "messages": Field("messages | traj", _text),
        "response_length": Field("messages.usage.completion_tokens", _length),
    },
    lacks={
        "reward": "no simulation was evaluated", "domain": "tau-bench writes no domain",
        "failure": "", "response_length": "the messages have no usage",
    },
    at="simulations",
    reads=frozenset({"ticks"}),
    types=FAILURES,
)  # fmt: skip
