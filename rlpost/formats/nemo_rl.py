"""NeMo-RL: `train_data_step{N}.jsonl`, one sequence per line, padded to the longest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import FILE_STEP, same_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_LISTS = {
    "response_mask": "token_loss_mask",
    "response_token_ids": "token_ids",
    "infer_log_probs": "generation_logprobs",
    "old_log_probs": "prev_logprobs",
    "ref_log_probs": "reference_policy_logprobs",
    "dumped_advantages": "advantages",
}


def _rows(records: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield the records without the batch of one that the writer adds to each field.

    With `force_on_policy_ratio` NeMo-RL skips the forward pass for log-probs of the training policy
    and writes zeros: these were not computed.
    """
    for record in records:
        fields = {**record.fields}
        if any(_is_wrapped(fields.get(name)) for name in _LISTS.values()):
            fields = {name: x[0] if isinstance(x, list) and len(x) == 1 else x
                      for name, x in fields.items()}  # fmt: skip
        previous = fields.get("prev_logprobs")
        if isinstance(previous, list) and not any(previous):
            fields["prev_logprobs"] = None
        yield replace(record, fields=fields)


def _is_wrapped(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


FORMAT = Format(
    name="nemo-rl",
    title="NeMo-RL train_data_step{N}.jsonl",
    source="nemo_rl/utils/logger.py log_batched_dict_as_jsonl, algorithms/grpo.py (2026)",
    containers=(JSON,),
    sniff=has("token_loss_mask", "generation_logprobs", "input_lengths"),
    fields={
        # With dynamic sampling `rewards` is the vector before the filter and fits no rows.
        **_LISTS, "reward": "filtered_rewards | rewards", "sequence_length": "input_lengths",
        "prompt_id": same_tokens("token_ids"), "step": FILE_STEP, "sample_id": "idx",
        "domain": "agent_ref.name | agent_ref", "dumped_sample_mask": "sample_loss_mask",
        "content": "content",
    },
    lacks={
        "group": "NeMo-RL writes no prompt id, and this dump has no token_ids; set --group-size",
        "old_log_probs": "prev_logprobs is all zeros: with force_on_policy_ratio it is not "
        "computed",
        "ref_log_probs": "NeMo-RL does not dump the reference policy's log-probs",
        "batch": "the step is read from the file name (train_data_step{N}), and this name has none",
        "domain": "",
    },
    note="NeMo-RL dumps no log-probs after the update. For the ratio of the trainer to the rollout "
    "engine, which a loss without old log-probs clips, run: rlpost loss OUT "
    "--map log_probs=old_log_probs --map old_log_probs=infer_log_probs.",
    layout="padded",
    rows=_rows,
    keeps=False,
)  # fmt: skip
