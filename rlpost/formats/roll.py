"""ROLL: the logging board (`save_logging_board_dir`) and `rollout_dump_data.step_{N}.jsonl`.

The board's lists are cut at the response's first token but keep the right padding; its token
rewards are not cut at all, and stand under `values` as well. The rollout dump is one object of
columns a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_tokens, number_of
from rlpost.formats.keys import SAME_TEXT, step_key_of, text_key
from rlpost.formats.layout import mask_of, numbers, response_lists
from rlpost.formats.logging_board import tokens_of, unpadded
from rlpost.formats.records import Record, first_fields, parsed, records
from rlpost.formats.rows import Row, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions


_BOARD_FIELDS = {
    "new_response_mask",
    "logprobs",
    "ref_logprobs",
    "response_tokens",
    "reward",
    "step",
}


_BOARD_LISTS = {
    "old_log_probs": "logprobs",
    "ref_log_probs": "ref_logprobs",
    "entropy": "old_log_probs2_entropy",
    "log_probs2": "log_probs2",
}


_BOARD_TYPES = {
    "log_probs2": pa.list_(pa.float32()),
    "response_tokens": pa.list_(pa.string()),
    "dumped_token_rewards": pa.list_(pa.float32()),
}


_TEXTS = {"domain": "domain", "responses": "response", "tag": "tag", "source": "source",
          "ground_truth": "ground_truth", "exp_name": "exp_name"}  # fmt: skip


_AGENTIC = {"prompt_id": "env_info.task_name", "reward": "reward_info.episode_reward"}


def sniff_board(path: Path) -> bool:
    """Whether the first record has the fields that only this writer writes together."""
    return first_fields(path).keys() >= _BOARD_FIELDS


def read_board(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The dump as canonical columns; a DataError names the record that does not fit."""
    return batches(_board_rows(path, options), options, _BOARD_TYPES)


def _board_rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    for record in records(path):
        prompt, lists = record.text("prompt"), _board_lists(record)
        length = len(lists["response_mask"])
        values: dict[str, Any] = {
            "step": record.whole("step"),
            "prompt_id": text_key(unpadded(prompt)),
            "reward": record.number("reward"),
            "response_length": length,
            "prompt": prompt,
            "response": record.text("response"),
            "response_tokens": tokens_of(record, length),
            **lists,
        }
        yield apply_map(Row(record.where, values), record, options.map)


def _board_lists(record: Record) -> dict[str, NDArray[Any]]:
    """The record's lists without their padding, which begins behind the last mask 1."""
    mask = mask_of(record.where, "new_response_mask", record.get("new_response_mask"))
    lists = {
        column: numbers(record.where, field, record.get(field))
        for column, field in _BOARD_LISTS.items()
        if field in record
    }
    lists["dumped_token_rewards"] = _token_rewards(record, len(mask))
    return response_lists("padded", record.where, mask, lists)


def _token_rewards(record: Record, length: int) -> NDArray[Any]:
    """The last `length` entries: the lists end together, and these begin with the prompt.

    Raises:
        DataError: there are fewer.
    """
    rewards = numbers(record.where, "token_rewards", record.get("token_rewards"))
    if len(rewards) < length:
        raise DataError(
            f"{record.where}: `token_rewards` has {len(rewards)} entries and `new_response_mask` "
            f"{length}; it covers the prompt as well and can't be shorter"
        )
    return rewards[len(rewards) - length :]


def sniff_rollout(path: Path) -> bool:
    """Whether the first line has columns, of the RLVR or of the agentic pipeline."""
    fields = first_fields(path)
    names = fields.keys()
    known = {"responses", "scores", "global_step"} <= names or {
        "trajectory_data", "global_step"} <= names  # fmt: skip
    return known and isinstance(fields["global_step"], list)


def read_rollout(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The responses of one step; the line that holds them all is held whole."""
    return batches(_rollout_rows(path, options), options)


def _rollout_rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    step = step_key_of(path)
    for line in records(path):
        for record in _transposed(line):
            agentic = "trajectory_data" in record
            row = _trajectory(record, step) if agentic else _response(record, step)
            if agentic:
                options.told.sources.update(_AGENTIC)
            yield apply_map(row, record, options.map)


def _transposed(line: Record) -> Iterator[Record]:
    """Columns as records.

    Raises:
        DataError: a field is no list, or the lists differ in length.
    """
    lengths = {name: len(line.array(name)) for name in line.fields}
    if len({*lengths.values()}) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{line.where}: its columns differ in length ({told})")
    for place in range(max(lengths.values(), default=0)):
        yield Record(
            f"{line.where}, response {place}",
            {name: column[place] for name, column in line.fields.items()},
        )


def _step(record: Record, step: int | None) -> int | None:
    return record.whole("global_step") if record.has("global_step") else step


def _response(record: Record, step: int | None) -> Row:
    record.get("responses")
    prompt = record.fields.get("prompt")
    return Row(
        record.where,
        {
            "step": _step(record, step),
            "prompt_id": record.fields.get("id"),
            "reward": number_of(record, "scores"),
            "difficulty": _difficulty(record.fields.get("difficulty")),
            "prompt": prompt if isinstance(prompt, str) else None,
            **_texts(record),
        },
    )


def _texts(record: Record) -> dict[str, Any]:
    there = {column: record.fields.get(name) for name, column in _TEXTS.items()}
    return {name: value for name, value in there.items() if isinstance(value, str)}


def _difficulty(value: object) -> float | None:
    """A difficulty in [0, 1]; ROLL writes what the data set has, which may be a word."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def _trajectory(record: Record, step: int | None) -> Row:
    """A trajectory of the agentic pipeline, whose facts are JSON in a text."""
    value = record.get("trajectory_data")
    if isinstance(value, str):
        value = parsed(f"{record.where}, `trajectory_data`", value.encode())
    if not isinstance(value, dict):
        raise record.wrong("trajectory_data", value, "an object, or JSON of one")
    rewards, task = value.get("reward_info"), value.get("env_info")
    score = rewards.get("episode_reward") if isinstance(rewards, dict) else None
    messages = record.fields.get("messages")
    return Row(
        record.where,
        {
            "step": _step(record, step),
            "prompt_id": task.get("task_name") if isinstance(task, dict) else None,
            "sample_id": value.get("trajectory_id"),
            "reward": score if isinstance(score, (int, float)) else None,
            "messages": messages if isinstance(messages, str) else None,
            **_texts(record),
        },
    )


BOARD = Format(
    name="roll-board",
    title="ROLL logging board data_{time}.jsonl of save_logging_board_dir",
    suffixes=(".jsonl",),
    gives=("group", "reward", "batch", "mask", "old_log_probs", "ref_log_probs"),
    lacks={
        "log_probs": "ROLL's board has log-probs from before the update alone",
        "values": "ROLL's board has the token rewards under `values`, and not the critic's values",
        "infer_log_probs": "ROLL's board has the trainer's log-probs alone",
        "token_rewards": "ROLL's token_rewards already hold the response's reward and the KL "
        "penalty, which rlpost adds itself; they are kept as dumped_token_rewards",
        "domain": "ROLL's board has one file a domain and step, and does not name the domain",
    },
    sniff=sniff_board,
    read=read_board,
    source="ROLL 2025-05 to 2026-08, roll/pipeline/rlvr/rlvr_pipeline.py, save_metrics",
    takes=("map",),
    fields={
        **_BOARD_LISTS, "prompt_id": f"prompt ({SAME_TEXT})", "reward": "reward", "step": "step",
        "response_mask": "new_response_mask",
    },
    note="The reward is ROLL's normalised and clipped one; the raw score is not dumped. Without a "
    "reference model ROLL writes the policy's log-probs a second time, as the reference's.",
)  # fmt: skip


ROLLOUT = Format(
    name="roll-rollout",
    title="ROLL rollout_dump_data.step_{N}.jsonl",
    suffixes=(".jsonl",),
    gives=("group", "reward", "batch", "domain", "difficulty"),
    lacks={
        "group": "the dump has neither the column id nor, for agents, env_info.task_name",
        "reward": "the dump has no scores; the agentic pipeline's may lack "
        "reward_info.episode_reward",
        **no_tokens("ROLL's rollout dump"),
    },
    sniff=sniff_rollout,
    read=read_rollout,
    takes=("map",),
    source="roll/pipeline/rlvr/utils.py dump_rollout_to_specific_path, agentic/utils.py (2026)",
    fields={"prompt_id": "id", "reward": "scores", "step": "global_step", "domain": "domain",
            "difficulty": "difficulty"},
    note="Each line holds a whole step and is read whole.",
)  # fmt: skip
