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
from rlpost.formats.fields import no_token_roles, read_number
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.layout import as_mask, as_vector, response_lists
from rlpost.formats.records import Row, parse_json
from rlpost.io.input_paths import step_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


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


_SPECIAL = re.compile(r"^(?:<[^<>\s]+>|\[PAD\])+")
_AGENTIC = {"prompt_id": "env_info.task_name", "reward": "reward_info.episode_reward"}


def _board_rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    for record in records:
        prompt, lists = record.text("prompt"), _board_lists(record)
        length = len(lists["response_mask"])
        values: dict[str, Any] = {
            "step": record.integer("step"),
            "prompt_id": text_key(_unpadded(prompt)),
            "reward": record.number("reward"),
            "response_length": length,
            "prompt": prompt,
            "response": record.text("response"),
            "response_tokens": _tokens_of(record, length),
            **lists,
        }
        yield Row(record, values)


def _unpadded(prompt: str) -> str:
    """Return a prompt's text without its leading special tokens, which include the left padding.

    The padding of a prompt differs from batch to batch, and its responses are still one group.
    """
    return _SPECIAL.sub("", prompt)


def _tokens_of(record: Record, length: int) -> list[str | None]:
    """Return the response's tokens as text, without any padding after them.

    Raises:
        DataError: there are fewer tokens than the `length` entries of the other lists.
    """
    tokens = record.array("response_tokens")
    if len(tokens) < length:
        raise DataError(
            f"{record.where}: `response_tokens` has {len(tokens)} entries and `logprobs` has "
            f"{length}; every log-prob needs its token"
        )
    return tokens[:length]


def _board_lists(record: Record) -> dict[str, NDArray[Any]]:
    """Return the record's lists without their padding, which begins after the last mask 1."""
    mask = as_mask(record.where, "new_response_mask", record.get("new_response_mask"))
    lists = {
        column: as_vector(record.where, field, record.get(field))
        for column, field in _BOARD_LISTS.items()
        if field in record
    }
    lists["dumped_token_rewards"] = _token_rewards(record, len(mask))
    return response_lists("padded", record.where, mask, lists)


def _token_rewards(record: Record, length: int) -> NDArray[Any]:
    """Return the last `length` token rewards; the list also covers the prompt.

    Raises:
        DataError: there are fewer.
    """
    rewards = as_vector(record.where, "token_rewards", record.get("token_rewards"))
    if len(rewards) < length:
        raise DataError(
            f"{record.where}: `token_rewards` has {len(rewards)} entries and `new_response_mask` "
            f"has {length}; token_rewards also covers the prompt and cannot be shorter"
        )
    return rewards[len(rewards) - length :]


def _is_rollout(fields: Mapping[str, Any]) -> bool:
    """Return whether a line has the columns of the RLVR or the agentic pipeline."""
    names = fields.keys()
    known = {"responses", "scores", "global_step"} <= names or {
        "trajectory_data", "global_step"} <= names  # fmt: skip
    return known and isinstance(fields["global_step"], list)


def _rollout_rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    for record in records:
        step, agentic = step_key_of(record.file), "trajectory_data" in record
        if agentic:
            options.stats.sources.update(_AGENTIC)
        yield _trajectory(record, step) if agentic else _response(record, step)


def _transposed(line: Record) -> Iterator[Record]:
    """Yield the columns of a line as one record per response.

    Raises:
        DataError: a field is not a list, or the lists differ in length.
    """
    lengths = {name: len(line.array(name)) for name in line.fields}
    if len({*lengths.values()}) > 1:
        text = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{line.where}: its columns differ in length ({text})")
    for i in range(max(lengths.values(), default=0)):
        yield line.part(f"response {i}", {name: column[i] for name, column in line.fields.items()})


def _step(record: Record, step: int | None) -> int | None:
    return record.integer("global_step") if record.has("global_step") else step


def _response(record: Record, step: int | None) -> Row:
    record.get("responses")
    prompt = record.fields.get("prompt")
    return Row(
        record,
        {
            "step": _step(record, step),
            "prompt_id": record.fields.get("id"),
            "reward": read_number(record, "scores"),
            "difficulty": _difficulty(record.fields.get("difficulty")),
            "prompt": prompt if isinstance(prompt, str) else None,
            **_texts(record),
        },
    )


def _texts(record: Record) -> dict[str, Any]:
    there = {column: record.fields.get(name) for name, column in _TEXTS.items()}
    return {name: value for name, value in there.items() if isinstance(value, str)}


def _difficulty(value: object) -> float | None:
    """Return a difficulty in [0, 1]; None for others, as ROLL writes any value of the data set."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def _trajectory(record: Record, step: int | None) -> Row:
    """Return a trajectory of the agentic pipeline, which is JSON in a string."""
    value = record.get("trajectory_data")
    if isinstance(value, str):
        value = parse_json(f"{record.where}, `trajectory_data`", value.encode())
    if not isinstance(value, dict):
        raise record.error("trajectory_data", value, "an object, or JSON of one")
    rewards, task = value.get("reward_info"), value.get("env_info")
    score = rewards.get("episode_reward") if isinstance(rewards, dict) else None
    messages = record.fields.get("messages")
    return Row(
        record,
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
    containers=(JSON,),
    roles=("group", "reward", "batch", "mask", "old_log_probs", "ref_log_probs"),
    missing_roles={
        "log_probs": "ROLL's logging board has log-probs from before the update only",
        "values": "ROLL's logging board stores token rewards under `values`, not critic values",
        "infer_log_probs": "ROLL's logging board has the trainer's log-probs only",
        "token_rewards": "ROLL's token_rewards already include the response's reward and the KL "
        "penalty, which rlpost adds itself; they are kept as dumped_token_rewards",
        "domain": "ROLL's logging board has one file per domain and step, without the domain's "
        "name",
    },
    sniff=has(*_BOARD_FIELDS),
    rows=_board_rows,
    by_record=True,
    types=_BOARD_TYPES,
    source="ROLL 2025-05 to 2026-08, roll/pipeline/rlvr/rlvr_pipeline.py, save_metrics",
    options=("map",),
    fields={
        **_BOARD_LISTS, "prompt_id": f"prompt ({SAME_TEXT})", "reward": "reward", "step": "step",
        "response_mask": "new_response_mask",
    },
    note="The reward is normalised and clipped by ROLL; the raw score is not dumped. Without a "
    "reference model, ROLL writes the policy's log-probs again as those of the reference.",
)  # fmt: skip


ROLLOUT = Format(
    name="roll-rollout",
    title="ROLL rollout_dump_data.step_{N}.jsonl",
    containers=(JSON,),
    roles=("group", "reward", "batch", "domain", "difficulty"),
    missing_roles={
        "group": "the dump has no column id (agentic pipeline: no env_info.task_name)",
        "reward": "the dump has no scores (agentic pipeline: no reward_info.episode_reward)",
        **no_token_roles("ROLL's rollout dump"),
    },
    sniff=_is_rollout,
    rows=_rollout_rows,
    by_record=True,
    split=_transposed,
    options=("map",),
    source="roll/pipeline/rlvr/utils.py dump_rollout_to_specific_path, agentic/utils.py (2026)",
    fields={"prompt_id": "id", "reward": "scores", "step": "global_step", "domain": "domain",
            "difficulty": "difficulty"},
    note="Each line contains a whole step, which is read into memory at once.",
)  # fmt: skip
