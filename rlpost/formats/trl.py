"""TRL: the Parquet of completions of `log_completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.formats.base import Field, Format, has
from rlpost.formats.containers import PARQUET
from rlpost.formats.fields import no_token_roles, read_text, sum_rewards
from rlpost.formats.keys import SAME_TEXT, text_key

if TYPE_CHECKING:
    from rlpost.formats.records import Record


_NEEDED = frozenset({"step", "prompt", "completion", "advantage"})


def _reward(record: Record) -> float | None:
    """Return the sum of the float columns except advantage: no mark says which are rewards."""
    floats = {name: x for name, x in record.fields.items() if isinstance(x, float)}
    return sum_rewards(record.where, {name: floats[name] for name in floats.keys() - _NEEDED})


FORMAT = Format(
    name="trl",
    title="TRL completions_{step}.parquet of log_completions",
    source="TRL 0.25 to 1.16, trl/trainer/grpo_trainer.py, log",
    containers=(PARQUET,),
    sniff=has(*_NEEDED),
    fields={
        "prompt_id": Field(f"prompt ({SAME_TEXT})", lambda record: text_key(
            read_text(record, "prompt"))),
        "prompt": Field("prompt", lambda record: read_text(record, "prompt")), "step": "step",
        "response": Field("completion", lambda record: read_text(record, "completion")),
        "reward": Field("all float columns", _reward), "dumped_advantage": "advantage",
    },
    missing_roles={
        **no_token_roles("TRL"), "reward": "no column has floats besides step and advantage",
    },
    note="The reward is the unweighted sum of all float columns except advantage, because TRL does "
    "not dump which columns are rewards or their weights; --map reward=NAME selects one column, "
    "and --reward-components A,B with --component-weights of rlpost advantages weights several.",
    reads=_NEEDED,
)  # fmt: skip
