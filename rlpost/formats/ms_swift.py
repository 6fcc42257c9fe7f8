"""ms-swift: the `completions.jsonl` of `log_completions`, one object of columns a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_tokens, summed
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Record, first_fields, records
from rlpost.formats.rows import Extras, Row, batches, extras_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


_STEPS = ("step", "gen_step")
_TEXTS = ("prompt", "messages", "completion")
_OWN = (*_STEPS, *_TEXTS, "advantages", "reward", "image")


def sniff(path: Path) -> bool:
    """Whether the first record has the fields that only this writer writes together."""
    fields = first_fields(path)
    return (
        any(name in fields for name in _STEPS)
        and any(isinstance(fields.get(name), list) for name in ("prompt", "messages"))
        and isinstance(fields.get("completion"), list)
        and ("advantages" in fields or "reward" in fields)
    )


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The dump as canonical columns; a DataError names the record that does not fit."""
    extras = extras_of(
        (record.fields for record in _responses(path)), {*_OWN, *options.left_out}, integers=False
    )
    return extras.kept_in(batches(_rows(path, options, extras), options, extras.column_types))


def _responses(path: Path) -> Iterator[Record]:
    """Each line's columns as one record a response.

    Raises:
        DataError: a field of a line is no list, or is of another length than `completion`.
    """
    for line in records(path):
        length = len(line.array("completion"))
        for name in line.fields:
            if len(line.array(name)) != length:
                raise DataError(
                    f"{line.where}: `{name}` has {len(line.array(name))} entries and `completion` "
                    f"{length}; a line holds columns, which need one entry per response each"
                )
        for place in range(length):
            where = f"{line.where}, response {place}"
            yield Record(where, {name: column[place] for name, column in line.fields.items()})


def _rows(path: Path, options: ReadOptions, extras: Extras) -> Iterator[Row]:
    for record in _responses(path):
        prompt = _prompt(record)
        step = next((name for name in _STEPS if name in record), _STEPS[0])
        values: dict[str, Any] = {
            "step": record.whole(step),  # text in one trainer, a number in another
            "prompt_id": text_key(prompt),
            "reward": _reward(record, options),
            "prompt": prompt,
            "response": record.text("completion"),
            "dumped_advantage": record.number("advantages") if "advantages" in record else None,
            **extras.values(record.fields),
        }
        yield apply_map(Row(record.where, values), record, options.map)


def _prompt(record: Record) -> str:
    """The prompt's text; a list of messages as JSON."""
    value = record.get("prompt" if "prompt" in record else "messages")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _reward(record: Record, options: ReadOptions) -> float | None:
    """The sum of the reward functions, whose columns stand between completion and advantages."""
    if "reward" in record:
        options.told.sources["reward"] = "reward"
        return record.number("reward")
    names = [*record.fields]
    record.get("completion")
    record.get("advantages")
    first, last = names.index("completion") + 1, names.index("advantages")
    if first >= last:
        raise DataError(
            f"{record.where}: no reward function's column between `completion` and `advantages`"
        )
    options.told.sources["reward"] = " + ".join(names[first:last])
    return summed(record.where, {name: record.fields[name] for name in names[first:last]})


FORMAT = Format(
    name="ms-swift",
    title="ms-swift completions.jsonl of log_completions",
    suffixes=(".jsonl",),
    gives=("group", "reward", "batch"),
    lacks=no_tokens("ms-swift"),
    sniff=sniff,
    read=read,
    source="ms-swift 3.2 to 4.0, grpo_trainer.py (also the Megatron one), jsonl_writer.append",
    takes=("map",),
    fields={"prompt_id": f"prompt ({SAME_TEXT})"},
    role_notes={
        "reward": "The reward is the plain sum of the reward functions, whose weights are not "
        "dumped; --map reward=NAME takes one.",
        "group": "A group is the rows of one step with the same prompt.",
    },
)
