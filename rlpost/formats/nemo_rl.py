"""NeMo-RL: `train_data_step{N}.jsonl`, one sequence per line, padded to the longest."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from rlpost.errors import DataError
from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import FILE_STEP, same_tokens
from rlpost.formats.layout import as_vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_PEEKED = 16
_LISTS = {
    "response_mask": "token_loss_mask",
    "response_token_ids": "token_ids",
    "infer_log_probs": "generation_logprobs",
    "old_log_probs": "prev_logprobs",
    "ref_log_probs": "reference_policy_logprobs",
    "dumped_advantages": "advantages",
}


def _unwrapped(record: Record) -> Record:
    """Return the record without the batch of one that the writer adds to each field."""
    lists = {name: x for name in _LISTS.values() if isinstance(x := record.find(name), list) and x}
    wrapped = [name for name, x in lists.items() if isinstance(x[0], list)]
    if wrapped and len(wrapped) < len(lists):
        flat = next(name for name in lists if name not in wrapped)
        raise DataError(
            f"{record.where}: `{wrapped[0]}` is a list of lists, and `{flat}` is a flat list; all "
            "token lists must be flat, or all must be in a batch of one"
        )
    fields = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in record.fields.items()
    }
    return replace(record, fields=fields if wrapped else {**fields, **lists})


def _is_measured(record: Record) -> bool:
    values = record.find("prev_logprobs") or []
    return bool(as_vector(record.where, "prev_logprobs", values).any())


def _rows(records: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield the records, without log-probs of the training policy that were not computed.

    With `force_on_policy_ratio` NeMo-RL skips the forward pass for them and writes zeros. Usually
    the first record has another number, which proves that they were computed.
    """
    records = map(_unwrapped, records)
    head = [*islice(records, _PEEKED)]
    measured = any(map(_is_measured, head))
    for record in chain(head, records):
        if not measured and _is_measured(record):
            raise DataError(
                f"{record.where}: `prev_logprobs` has values here, but only zeros in the first "
                f"{_PEEKED} records, which look like log-probs that were not computed"
            )
        yield (
            record if measured else replace(record, fields={**record.fields, "prev_logprobs": None})
        )


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
