"""prime-rl: `token_exports/step_{N}/rank_{R}.jsonl`, sequences as the trainer saw them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.formats.base import Format
from rlpost.formats.fields import SAME_TOKENS, apply_map, prompt_key
from rlpost.formats.layout import mask_of, numbers, padded, response_start
from rlpost.formats.message_graph import OWN_RATIO
from rlpost.formats.records import first_fields, records
from rlpost.formats.rows import Row, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_LISTS = {
    "token_ids": "response_token_ids",
    "inference_logprobs": "infer_log_probs",
    "trainer_logprobs": "old_log_probs",
    "entropy": "entropy",
    "advantages": "dumped_advantages",
}


def sniff(path: Path) -> bool:
    """Whether the first record has the fields of a token export."""
    needed = {"export_sequence_idx", "trainer_logprobs", "inference_logprobs", "loss_mask"}
    return needed <= first_fields(path).keys()


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The sequences of one rank, from the first trained token on."""
    rows = (apply_map(_row(record), record, options.map) for record in records(path))
    return batches(rows, options)


def _row(record: Record) -> Row:
    where = record.where
    mask = mask_of(where, "loss_mask", record.get("loss_mask"))
    lists = {column: numbers(where, name, record.get(name)) for name, column in _LISTS.items()}
    cut = padded(where, mask, lists, len(mask))
    start = response_start(mask)
    prompt = lists["response_token_ids"][:start]
    parts = ("step", "rank", "export_sequence_idx")
    return Row(
        where,
        {
            "step": record.whole("step"),
            "prompt_id": prompt_key(prompt),
            "sample_id": ":".join(str(record.whole(part)) for part in parts),
            "domain": record.fields.get("env_name"),
            "prompt_length": start,
            "response_length": len(cut["response_mask"]),
            "prompt_token_ids": prompt,
            **cut,
        },
    )


FORMAT = Format(
    name="prime-rl-tokens",
    title="prime-rl token_exports/step_{N}/rank_{R}.jsonl",
    suffixes=(".jsonl",),
    gives=("group", "mask", "old_log_probs", "infer_log_probs", "batch", "domain"),
    lacks={
        "reward": "token exports have no rewards; those are in traces.jsonl",
        "log_probs": OWN_RATIO,
        "ref_log_probs": "token exports have no reference policy's log-probs",
        "values": "prime-rl has no critic",
    },
    sniff=sniff,
    read=read,
    takes=("map",),
    source="prime_rl trainer/rl token export, schema_version 1 (2026)",
    fields={
        **{column: name for name, column in _LISTS.items()},
        "prompt_id": f"token_ids ({SAME_TOKENS})", "response_mask": "loss_mask", "step": "step",
        "domain": "env_name",
    },
    role_notes={"group": "Groups are the sequences with the same prompt tokens in a step."},
)  # fmt: skip
