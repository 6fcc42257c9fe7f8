"""TRL: the completions Parquet of `log_completions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_tokens, summed
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Record, columns_in
from rlpost.formats.rows import Extras, Row, batches
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions


_NEEDED = {"step", "prompt", "completion", "advantage"}
_ROWS = 4096


def sniff(path: Path) -> bool:
    """Whether the columns are those that TRL writes."""
    return columns_in(path) >= _NEEDED


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The dump as canonical columns; a DataError names the record that does not fit."""
    schema = Source([InputFile(path, Path(path.name))]).schemas[0]
    if not set(schema.names) >= _NEEDED:
        lacking = ", ".join(sorted(_NEEDED - set(schema.names)))
        raise DataError(f"{path}: no column {lacking}; TRL's completions have it")
    rewards = _reward_columns(schema)
    if not rewards and "reward" not in options.map:
        raise DataError(
            f"{path}: no column of floats besides step and advantage, so no reward function's "
            "values; --map reward=COLUMN names another one"
        )
    options.told.sources["reward"] = " + ".join(rewards)
    skip = {*_NEEDED, *options.left_out}
    extras = Extras(
        {
            one.name: one.type
            for one in schema
            if one.name not in skip and not pa.types.is_null(one.type)
        }
    )
    rows = _rows(path, options, rewards, extras)
    return extras.kept_in(batches(rows, options, extras.column_types))


def _reward_columns(schema: pa.Schema) -> list[str]:
    """The floats between completion and advantage: the file does not say which are rewards."""
    return [
        one.name for one in schema if pa.types.is_floating(one.type) and one.name not in _NEEDED
    ]


def _rows(path: Path, options: ReadOptions, rewards: list[str], extras: Extras) -> Iterator[Row]:
    source = Source([InputFile(path, Path(path.name))])
    for piece in source.read(source.columns, _ROWS, "step"):
        for place, fields in enumerate(piece.table.to_pylist()):
            record = Record(f"{path}, row {piece.first_row + place}", fields)
            yield _row(record, options, rewards, extras)


def _row(record: Record, options: ReadOptions, rewards: list[str], extras: Extras) -> Row:
    prompt = record.text("prompt")
    values: dict[str, Any] = {
        "step": record.whole("step"),
        "prompt_id": text_key(prompt),
        "reward": summed(record.where, {name: record.fields[name] for name in rewards}),
        "prompt": prompt,
        "response": record.text("completion"),
        "dumped_advantage": record.number("advantage"),
        **extras.values(record.fields),
    }
    return apply_map(Row(record.where, values), record, options.map)


FORMAT = Format(
    name="trl",
    title="TRL completions_{step}.parquet of log_completions",
    suffixes=(".parquet",),
    gives=("group", "reward", "batch"),
    lacks=no_tokens("TRL"),
    sniff=sniff,
    read=read,
    source="TRL 0.25 to 1.0, trl/trainer/grpo_trainer.py, log",
    takes=("map",),
    fields={"prompt_id": f"prompt ({SAME_TEXT})", "step": "step"},
    role_notes={
        "reward": "The reward is the plain sum of all columns of floats but advantage: TRL does "
        "not dump which are rewards, nor their weights; --map reward=NAME takes one.",
        "group": "A group is the rows of one step with the same prompt.",
    },
)
