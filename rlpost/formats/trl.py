"""TRL: the Parquet of completions of `log_completions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_token_roles, read_text, sum_rewards
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Record, parquet_columns
from rlpost.formats.rows import OtherFields, Row, record_batches
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions


_NEEDED = {"step", "prompt", "completion", "advantage"}
_ROWS = 4096


def sniff(path: Path) -> bool:
    """Return whether the columns are those that TRL writes."""
    return parquet_columns(path) >= _NEEDED


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the dump as canonical columns; a DataError names the bad record."""
    schema = Source([InputFile(path, Path(path.name))]).schemas[0]
    if not set(schema.names) >= _NEEDED:
        lacking = ", ".join(sorted(_NEEDED - set(schema.names)))
        raise DataError(f"{path}: no column {lacking}; TRL's completions always have it")
    rewards = _reward_columns(schema)
    if not rewards and "reward" not in options.map:
        raise DataError(
            f"{path}: no float column besides step and advantage, so no rewards; name a column "
            "with --map reward=COLUMN"
        )
    options.stats.sources["reward"] = " + ".join(rewards)
    skip = {*_NEEDED, *options.omitted_columns}
    others = OtherFields(
        {
            one.name: one.type
            for one in schema
            if one.name not in skip and not pa.types.is_null(one.type)
        }
    )
    rows = _rows(path, options, rewards, others)
    return others.add_missing_columns(record_batches(rows, options, others.column_types))


def _reward_columns(schema: pa.Schema) -> list[str]:
    """Return the float columns except advantage: the file does not mark which are rewards."""
    return [
        one.name for one in schema if pa.types.is_floating(one.type) and one.name not in _NEEDED
    ]


def _rows(
    path: Path, options: ReadOptions, rewards: list[str], others: OtherFields
) -> Iterator[Row]:
    source = Source([InputFile(path, Path(path.name))])
    for piece in source.read(source.columns, _ROWS, "step"):
        for place, fields in enumerate(piece.table.to_pylist()):
            record = Record(f"{path}, row {piece.first_row + place}", fields)
            yield _row(record, options, rewards, others)


def _row(record: Record, options: ReadOptions, rewards: list[str], others: OtherFields) -> Row:
    prompt = read_text(record, "prompt")
    values: dict[str, Any] = {
        "step": record.integer("step"),
        "prompt_id": text_key(prompt),
        "reward": sum_rewards(record.where, {name: record.fields[name] for name in rewards}),
        "prompt": prompt,
        "response": read_text(record, "completion"),
        "dumped_advantage": record.number("advantage"),
        **others.values(record.fields),
    }
    return apply_map(Row(record.where, values), record, options.map)


FORMAT = Format(
    name="trl",
    title="TRL completions_{step}.parquet of log_completions",
    suffixes=(".parquet",),
    roles=("group", "reward", "batch"),
    missing_roles=no_token_roles("TRL"),
    sniff=sniff,
    read=read,
    source="TRL 0.25 to 1.16, trl/trainer/grpo_trainer.py, log",
    options=("map",),
    fields={"prompt_id": f"prompt ({SAME_TEXT})", "step": "step"},
    role_notes={
        "reward": "The reward is the unweighted sum of all float columns except advantage, because "
        "TRL does not dump which columns are rewards or their weights; --map reward=NAME selects "
        "one column, and --reward-components A,B with --component-weights of rlpost advantages "
        "weights several.",
        "group": "A group is the responses of one step with the same prompt.",
    },
)
