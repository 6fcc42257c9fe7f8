"""TRL: the Parquet of completions of `log_completions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format, has
from rlpost.formats.containers import PARQUET
from rlpost.formats.fields import no_token_roles, read_text, sum_rewards
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Row
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_NEEDED = frozenset({"step", "prompt", "completion", "advantage"})


def _rewards(record: Record, options: ReadOptions) -> list[str]:
    """Return the float columns except advantage: the file does not mark which are rewards.

    Raises:
        DataError: there is none, or a column that TRL always writes is missing.
    """
    path = Path(record.file)
    if lacking := ", ".join(sorted(_NEEDED - record.fields.keys())):
        raise DataError(f"{path}: no column {lacking}; TRL's completions always have it")
    schema = Source([InputFile(path, Path(path.name))]).schemas[0]
    floats = (field.name for field in schema if pa.types.is_floating(field.type))
    rewards = [name for name in floats if name not in _NEEDED]
    if not rewards and "reward" not in options.map:
        raise DataError(
            f"{path}: no float column besides step and advantage, so no rewards; name a column "
            "with --map reward=COLUMN"
        )
    options.stats.sources["reward"] = " + ".join(rewards)
    return rewards


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    rewards: list[str] = []
    for number, record in enumerate(records):
        rewards = rewards if number else _rewards(record, options)
        prompt = read_text(record, "prompt")
        values = {
            "step": record.integer("step"),
            "prompt_id": text_key(prompt),
            "reward": sum_rewards(record.where, {name: record.fields[name] for name in rewards}),
            "prompt": prompt,
            "response": read_text(record, "completion"),
            "dumped_advantage": record.number("advantage"),
        }
        yield Row(record, values)


FORMAT = Format(
    name="trl",
    title="TRL completions_{step}.parquet of log_completions",
    source="TRL 0.25 to 1.16, trl/trainer/grpo_trainer.py, log",
    containers=(PARQUET,),
    sniff=has(*_NEEDED),
    fields={
        "prompt_id": f"prompt ({SAME_TEXT})", "step": "step", "reward": "all float columns",
        "prompt": "prompt", "response": "completion", "dumped_advantage": "advantage",
    },
    missing_roles=no_token_roles("TRL"),
    note="The reward is the unweighted sum of all float columns except advantage, because TRL does "
    "not dump which columns are rewards or their weights; --map reward=NAME selects one column, "
    "and --reward-components A,B with --component-weights of rlpost advantages weights several.",
    rows=_rows,
    own=_NEEDED,
)  # fmt: skip
