"""ROLL: the logging board (`save_logging_board_dir`) and `rollout_dump_data.step_{N}.jsonl`.

The board's lists begin at the response's first token and keep the right padding. Its token rewards
are stored a second time under `values`. The rollout dump has one object of columns per line.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import GROUP_OF_TEXT, content_key, transposed
from rlpost.formats.records import Field, parse_json
from rlpost.io.input_paths import step_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_SPECIAL = re.compile(r"^(?:<[^<>\s]+>|\[PAD\])+")
"""The leading special tokens of a prompt, which include the left padding of its batch."""


def _same_prompt(record: Record) -> str:
    return content_key(_SPECIAL.sub("", record.typed("prompt", str)))


def _is_rollout(fields: Mapping[str, Any]) -> bool:
    """Return whether a line has the columns of the RLVR or the agentic pipeline."""
    known = fields.keys() >= {"responses", "scores"} or "trajectory_data" in fields
    return known and isinstance(fields.get("global_step"), list)


def _responses(lines: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield the responses of lines; a trajectory of the agentic pipeline is JSON in a string."""
    for record in chain.from_iterable(transposed(x, next(iter(x.fields), "")) for x in lines):
        value = record.find("trajectory_data")
        if isinstance(value, str):
            value = parse_json(f"{record.where}, `trajectory_data`", value.encode())
        if value is None:
            yield record
        elif isinstance(value, dict):
            yield replace(record, fields={**record.fields, "trajectory_data": value})
        else:
            raise record.error("trajectory_data", value, "an object, or JSON of one")


def _difficulty(record: Record) -> float | None:
    """Return a difficulty in [0, 1]; None for others, as ROLL writes any value of the data set."""
    try:
        number = float(str(record.fields.get("difficulty")))
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


BOARD = Format(
    name="roll-board",
    title="ROLL logging board data_{time}.jsonl of save_logging_board_dir",
    source="ROLL 2025-05 to 2026-08, roll/pipeline/rlvr/rlvr_pipeline.py, save_metrics",
    containers=(JSON,),
    sniff=has("new_response_mask", "logprobs", "ref_logprobs", "response_tokens", "reward", "step"),
    fields={
        "step": "step", "prompt_id": Field(f"prompt ({GROUP_OF_TEXT})", _same_prompt),
        "reward": "reward", "prompt": "prompt", "response": "response",
        "response_mask": "new_response_mask", "old_log_probs": "logprobs",
        "ref_log_probs": "ref_logprobs", "entropy": "old_log_probs2_entropy",
    },
    lacks={
        "values": "ROLL's logging board stores token rewards under `values`, not critic values",
        "token_rewards": "ROLL's token_rewards already include the response's reward and the KL "
        "penalty, which rlpost adds itself",
        "domain": "ROLL's logging board has one file per domain and step, without the domain's "
        "name",
        "entropy": "",
    },
    note="The reward is normalised and clipped by ROLL; the raw score is not dumped. Without a "
    "reference model, ROLL writes the policy's log-probs again as those of the reference.",
    layout="padded",
    reads=frozenset({"values", "token_rewards"}),
    keeps=False,
)  # fmt: skip


ROLLOUT = Format(
    name="roll-rollout",
    title="ROLL rollout_dump_data.step_{N}.jsonl",
    source="roll/pipeline/rlvr/utils.py dump_rollout_to_specific_path, agentic/utils.py (2026)",
    containers=(JSON,),
    sniff=_is_rollout,
    fields={
        "step": Field("global_step", lambda record: step_key_of(record.file)
                      if record.get("global_step") is None else record.typed("global_step", int)),
        "prompt_id": "id | trajectory_data.env_info.task_name",
        "sample_id": "trajectory_data.trajectory_id",
        "reward": "trajectory_data.reward_info.episode_reward | scores",
        "difficulty": Field("difficulty", _difficulty), "domain": "domain",
        "prompt": "prompt", "response": "responses",
    },
    lacks={
        "group": "the dump has no column id (agentic pipeline: no env_info.task_name)",
        "domain": "", "difficulty": "",
    },
    note="Each line contains a whole step, which is read into memory at once.",
    rows=_responses,
)  # fmt: skip
