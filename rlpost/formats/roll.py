"""ROLL: the logging board (`save_logging_board_dir`) and `rollout_dump_data.step_{N}.jsonl`.

The board's lists begin at the response's first token and keep the right padding. Its token rewards
also cover the prompt, and are stored a second time under `values`. The rollout dump has one object
of columns per line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import transposed
from rlpost.formats.keys import GROUP_OF_TEXT, text_key
from rlpost.formats.records import Field, parse_json
from rlpost.io.input_paths import step_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.records import Record


_SPECIAL = re.compile(r"^(?:<[^<>\s]+>|\[PAD\])+")
"""The leading special tokens of a prompt, which include the left padding of its batch."""


def _same_prompt(record: Record) -> str:
    return text_key(_SPECIAL.sub("", record.text("prompt")))


def _token_rewards(record: Record) -> list[Any]:
    """Return the token rewards of the response; the list also covers the prompt.

    Raises:
        DataError: there are fewer.
    """
    rewards, length = record.array("token_rewards"), len(record.array("new_response_mask"))
    if len(rewards) < length:
        raise DataError(
            f"{record.where}: `token_rewards` has {len(rewards)} entries and `new_response_mask` "
            f"has {length}; token_rewards also covers the prompt and cannot be shorter"
        )
    return rewards[len(rewards) - length :]


def _is_rollout(fields: Mapping[str, Any]) -> bool:
    """Return whether a line has the columns of the RLVR or the agentic pipeline."""
    known = fields.keys() >= {"responses", "scores"} or "trajectory_data" in fields
    return known and isinstance(fields.get("global_step"), list)


def _responses(line: Record) -> Iterator[Record]:
    """Yield the responses of a line; a trajectory of the agentic pipeline is JSON in a string."""
    for record in transposed(line, next(iter(line.fields), "")):
        value = record.fields.get("trajectory_data")
        if isinstance(value, str):
            value = parse_json(f"{record.where}, `trajectory_data`", value.encode())
        if "trajectory_data" in record and not isinstance(value, dict):
            raise record.error("trajectory_data", value, "an object, or JSON of one")
        yield record.part("", {**record.fields, "trajectory_data": value}) if value else record


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
        "dumped_token_rewards": Field("token_rewards", _token_rewards),
    },
    lacks={
        "values": "ROLL's logging board stores token rewards under `values`, not critic values",
        "token_rewards": "ROLL's token_rewards already include the response's reward and the KL "
        "penalty, which rlpost adds itself; they are kept as dumped_token_rewards",
        "domain": "ROLL's logging board has one file per domain and step, without the domain's "
        "name",
        "entropy": "",
    },
    note="The reward is normalised and clipped by ROLL; the raw score is not dumped. Without a "
    "reference model, ROLL writes the policy's log-probs again as those of the reference.",
    types={"dumped_token_rewards": pa.list_(pa.float32())},
    layout="padded",
    reads=frozenset({"values"}),
    keeps=False,
)  # fmt: skip


ROLLOUT = Format(
    name="roll-rollout",
    title="ROLL rollout_dump_data.step_{N}.jsonl",
    source="roll/pipeline/rlvr/utils.py dump_rollout_to_specific_path, agentic/utils.py (2026)",
    containers=(JSON,),
    sniff=_is_rollout,
    fields={
        "step": Field("global_step", lambda record: record.integer("global_step")
                      if record.has("global_step") else step_key_of(record.file)),
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
    split=_responses,
)  # fmt: skip
