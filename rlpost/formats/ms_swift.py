"""ms-swift: the `completions.jsonl` of `log_completions`.

A line is an object of columns; with Ray, it is one response.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.containers import JSON
from rlpost.formats.fields import no_token_roles, sum_rewards
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_STEPS = ("step", "gen_step")
_TEXTS = ("prompt", "messages", "completion")
_OWN = frozenset({*_STEPS, *_TEXTS, "advantages", "reward", "image"})


def _sniff(fields: Mapping[str, Any]) -> bool:
    if isinstance(fields.get("completion"), str):
        return fields.keys() >= {"gen_step", "prompt"}
    if fields.keys() == {"step", "prompt", "completion"} and isinstance(fields["prompt"], list):
        return True  # of distillation, which has no rewards
    return (
        any(name in fields for name in _STEPS)
        and any(isinstance(fields.get(name), list) for name in ("prompt", "messages"))
        and isinstance(fields.get("completion"), list)
        and ("advantages" in fields or "reward" in fields)
    )


def _responses(line: Record) -> Iterator[Record]:
    """Yield the columns of a line as one record per response.

    Raises:
        DataError: a field of a line is not a list, or its length differs from `completion`.
    """
    if isinstance(line.fields.get("completion"), str):
        yield line
        return
    length = len(line.array("completion"))
    for name in line.fields:
        if len(line.array(name)) != length:
            raise DataError(
                f"{line.where}: `{name}` has {len(line.array(name))} entries and `completion` "
                f"has {length}; every field of a line needs one entry per response"
            )
    for i in range(length):
        columns = {name: column[i] for name, column in line.fields.items()}
        yield line.part(f"response {i}", columns)


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    for record in records:
        prompt = _prompt(record)
        step = next((name for name in _STEPS if name in record), _STEPS[0])
        values: dict[str, Any] = {
            "step": record.integer(step),  # text in one trainer, a number in another
            "prompt_id": text_key(prompt),
            "reward": _reward(record, options),
            "prompt": prompt,
            "response": record.text("completion"),
            "dumped_advantage": record.number("advantages") if "advantages" in record else None,
        }
        yield Row(record, values)


def _prompt(record: Record) -> str:
    """Return the prompt's text, or its list of messages as JSON."""
    value = record.get("prompt" if "prompt" in record else "messages")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _reward(record: Record, options: ReadOptions) -> float | None:
    """Return the sum of the reward functions: the columns from completion to advantages."""
    if "reward" not in record and "advantages" not in record:
        return None
    if "reward" in record:
        options.stats.sources["reward"] = "reward"
        return record.number("reward")
    names = [*record.fields]
    record.get("completion")
    record.get("advantages")
    first, last = names.index("completion") + 1, names.index("advantages")
    if first >= last:
        raise DataError(f"{record.where}: no reward column between `completion` and `advantages`")
    options.stats.sources["reward"] = " + ".join(names[first:last])
    return sum_rewards(record.where, {name: record.fields[name] for name in names[first:last]})


FORMAT = Format(
    name="ms-swift",
    title="ms-swift completions.jsonl of log_completions",
    containers=(JSON,),
    roles=("group", "reward", "batch"),
    missing_roles={
        "reward": "GKD, a distillation, has none",
        **no_token_roles("ms-swift"),
    },
    sniff=_sniff,
    rows=_rows,
    by_record=True,
    split=_responses,
    own=_OWN,
    integers=False,
    source="ms-swift 3.2 to 4.6.0, grpo_trainer.py and gkd_trainer.py (also those of Megatron and "
    "Ray), JsonlWriter",
    options=("map",),
    fields={"prompt_id": f"prompt ({SAME_TEXT})"},
    role_notes={
        "reward": "Without `reward`, it is the unweighted sum of the reward functions, whose "
        "weights are not dumped; --map reward=NAME selects one function.",
        "group": "A group is the responses of one step with the same prompt.",
    },
)
