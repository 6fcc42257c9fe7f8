"""terminal-bench 1: `results.json` of a run, or of each of its trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.calls import FAILURES
from rlpost.formats.containers import JSON
from rlpost.formats.fields import one_of
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlpost.formats.records import Record

_TRIAL = {"trial_name", "task_id", "is_resolved", "failure_mode"}
_LIMITS = {"agent_timeout", "context_length_exceeded", "output_length_exceeded"}
_NONE = {None, "none", "unset"}


def _is_results(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a trial, or of a run."""
    return fields.keys() >= _TRIAL or fields.keys() >= {"results", "n_resolved", "accuracy"}


def run_of(trial: Path) -> Path | None:
    """Return the results of the run that a trial is part of; None if there are none."""
    folders = trial.parents[2:3] if trial.name == "results.json" else ()
    return next((x / trial.name for x in folders if (x / trial.name).is_file()), None)


def _failure(trial: Record) -> str | None:
    """Return why a trial has no result; a limit of the agent is none if it was scored."""
    mode = trial.find("failure_mode")
    scored = trial.find("is_resolved") is not None
    return None if scored and mode in {*_NONE, *_LIMITS} else mode or "no result"


FORMAT = Format(
    name="terminal-bench",
    title="terminal-bench 1 results.json of a run or a trial",
    source="terminal-bench harness/models.py BenchmarkResults, TrialResults, FailureMode (2025)",
    containers=(JSON,),
    sniff=_is_results,
    fields={
        "prompt_id": "task_id", "sample_id": "trial_name", "reward": "is_resolved",
        "prompt": "instruction", "failure": Field("failure_mode", _failure),
        "truncated": one_of("failure_mode", _LIMITS),
        "response_length": Field("total_output_tokens", lambda trial: trial.find(
            "total_output_tokens") or None),
    },
    lacks={"failure": "", "response_length": "the agent counted no tokens"},
    at="results",
    part_of=run_of,
    types={"failure": FAILURES["failure"]},
)  # fmt: skip
