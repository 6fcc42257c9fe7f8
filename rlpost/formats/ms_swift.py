"""ms-swift: the `completions.jsonl` of `log_completions`.

A line is an object of columns; with Ray, it is one response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.containers import JSON
from rlpost.formats.fields import SAME_TEXT, sum_rewards, transposed
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_STEPS = ("step", "gen_step")


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


def _responses(lines: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield the responses of each line: one with Ray, else a column for each field."""
    for line in lines:
        alone = isinstance(line.fields.get("completion"), str)
        yield from (line,) if alone else transposed(line, "completion")


def _reward(record: Record) -> float | None:
    """Return the sum of the reward functions: the columns from completion to advantages."""
    if "reward" in record:
        return sum_rewards(record, ["reward"])
    if "advantages" not in record:
        return None
    record.get("completion")
    names = [*record.fields]
    first, last = names.index("completion") + 1, names.index("advantages")
    if first >= last:
        raise DataError(f"{record.where}: no reward column between `completion` and `advantages`")
    return sum_rewards(record, names[first:last])


FORMAT = Format(
    name="ms-swift",
    title="ms-swift completions.jsonl of log_completions",
    source="ms-swift 3.2 to 4.6.0, grpo_trainer.py and gkd_trainer.py (also those of Megatron and "
    "Ray), JsonlWriter",
    containers=(JSON,),
    sniff=_sniff,
    fields={
        "step": "step | gen_step", "prompt": "prompt | messages", "prompt_id": SAME_TEXT,
        "reward": Field("reward | completion to advantages", _reward),
        "response": "completion", "dumped_advantage": "advantages",
    },
    lacks={"reward": "GKD, a distillation, has none"},
    note="Without `reward`, it is the unweighted sum of the reward functions, whose weights are "
    "not dumped; --map reward=NAME selects one function.",
    rows=_responses,
    reads=frozenset({"image"}),
    integers=False,
)  # fmt: skip
