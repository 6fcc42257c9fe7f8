"""TRL: the Parquet of completions of `log_completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.formats.base import Format, has
from rlpost.formats.containers import PARQUET
from rlpost.formats.fields import SAME_TEXT, messages, sum_rewards
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from rlpost.formats.records import Record


def _reward(record: Record) -> float | None:
    """Return the sum of the float columns except advantage: no mark says which are rewards."""
    floats = {name for name, x in record.fields.items() if isinstance(x, float)}
    return sum_rewards(record, floats - {"advantage"})


FORMAT = Format(
    name="trl",
    title="TRL completions_{step}.parquet of log_completions",
    source="TRL 0.25 to 1.16, trl/trainer/grpo_trainer.py, log",
    containers=(PARQUET,),
    sniff=has("step", "prompt", "completion", "advantage"),
    fields={
        "prompt_id": SAME_TEXT, "prompt": messages("prompt"), "step": "step",
        "response": messages("completion"), "dumped_advantage": "advantage",
        "reward": Field("all float columns", _reward),
    },
    lacks={"reward": "no column has floats besides step and advantage"},
    note="The reward is the unweighted sum of all float columns except advantage, because TRL does "
    "not dump which columns are rewards or their weights; --map reward=NAME selects one column, "
    "and --reward-components A,B with --component-weights of rlpost advantages weights several.",
)  # fmt: skip
