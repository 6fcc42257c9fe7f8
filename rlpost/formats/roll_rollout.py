"""ROLL: `rollout_dump_data.step_{N}.jsonl`, one object of columns a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_tokens, number_of
from rlpost.formats.fields import step_key_of as step_of
from rlpost.formats.records import Record, first_fields, parsed, records
from rlpost.formats.rows import Row, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


_TEXTS = {"domain": "domain", "responses": "response", "tag": "tag", "source": "source",
          "ground_truth": "ground_truth", "exp_name": "exp_name"}  # fmt: skip
_AGENTIC = {"prompt_id": "env_info.task_name", "reward": "reward_info.episode_reward"}


def sniff(path: Path) -> bool:
    """Whether the first line has columns, of the RLVR or of the agentic pipeline."""
    fields = first_fields(path)
    names = fields.keys()
    known = {"responses", "scores", "global_step"} <= names or {
        "trajectory_data", "global_step"} <= names  # fmt: skip
    return known and isinstance(fields["global_step"], list)


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The responses of one step; the line that holds them all is held whole."""
    return batches(_rows(path, options), options)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    step = step_of(path)
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


FORMAT = Format(
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
    sniff=sniff,
    read=read,
    takes=("map",),
    source="roll/pipeline/rlvr/utils.py dump_rollout_to_specific_path, agentic/utils.py (2026)",
    fields={"prompt_id": "id", "reward": "scores", "step": "global_step", "domain": "domain",
            "difficulty": "difficulty"},
    note="Each line holds a whole step and is read whole.",
)  # fmt: skip
