"""NeMo-RL: `train_data_step{N}.jsonl`, one sequence per line, padded to the longest."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.keys import SAME_TOKENS, GroupBlocks, prompt_key
from rlpost.formats.layout import as_mask, as_vector, check_length, padded, response_start
from rlpost.formats.records import Record, Row
from rlpost.io.input_paths import step_key_of as read_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.layout import Lists


_PEEKED = 16
_LISTS = {
    "generation_logprobs": "infer_log_probs",
    "prev_logprobs": "old_log_probs",
    "reference_policy_logprobs": "ref_log_probs",
    "advantages": "dumped_advantages",
}
_NEEDED = ("input_lengths", "token_loss_mask", "generation_logprobs")


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    head, measured = _peeked(records)
    path = head[0].file if head else Path()
    step, blocks = read_step(path), GroupBlocks(options, str(path))
    for record in chain(head, records):
        row = _row(record, step, options, measured=measured)
        if options.group_size is not None:
            row.values["prompt_id"] = blocks.next()
        yield row
    blocks.close()


def _peeked(source: Iterator[Record]) -> tuple[list[Record], bool]:
    """Return the first records, and whether the training policy's log-probs were computed.

    With `force_on_policy_ratio` NeMo-RL skips the forward pass for them and writes zeros. Usually
    the first record has another number, which proves that they were computed.
    """
    head: list[Record] = []
    for record in islice(source, _PEEKED):
        head.append(record)
        value = record.fields.get("prev_logprobs")
        if value is not None and as_vector(record.where, "prev_logprobs", value).any():
            return head, True
    return head, False


def _unwrapped(record: Record) -> Iterator[Record]:
    """Yield each field without the batch of one that the writer adds."""
    tokens = {
        name: value
        for name in (*_LISTS, "token_loss_mask", "token_ids")
        if isinstance(value := record.fields.get(name), list) and value
    }
    wrapped = [name for name, value in tokens.items() if isinstance(value[0], list)]
    if wrapped and len(wrapped) < len(tokens):
        flat = next(name for name in tokens if name not in wrapped)
        raise DataError(
            f"{record.where}: `{wrapped[0]}` is a list of lists, and `{flat}` is a flat list; all "
            "token lists must be flat, or all must be in a batch of one"
        )
    fields = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in record.fields.items()
    }
    yield Record(record.where, fields if wrapped else {**fields, **tokens}, record.file)


def _row(record: Record, step: int | None, options: ReadOptions, *, measured: bool) -> Row:
    where = record.where
    for name in _NEEDED:
        record.get(name)
    mask = as_mask(where, "token_loss_mask", record.get("token_loss_mask"))
    length = record.integer("input_lengths")
    lists = {
        column: as_vector(where, name, record.get(name))
        for name, column in _LISTS.items()
        if record.has(name)
    }
    if "old_log_probs" in lists and not measured and lists.pop("old_log_probs").any():
        raise DataError(
            f"{where}: `prev_logprobs` has values here, but only zeros in the first {_PEEKED} "
            "records, which look like log-probs that were not computed"
        )
    cut = padded(where, mask, lists, length)
    row = Row(record, {**_scalars(record, step, options), **cut, **_ids(record, mask, length)})
    row.values["prompt_length"] = min(response_start(mask), length)
    row.values["response_length"] = len(cut["response_mask"])
    tokens = row.values.get("prompt_token_ids")
    row.values["prompt_id"] = None if tokens is None else prompt_key(tokens)
    return row


def _scalars(record: Record, step: int | None, options: ReadOptions) -> dict[str, Any]:
    # With dynamic sampling `rewards` is the vector before the filter and does not match the rows.
    reward = "filtered_rewards" if record.has("filtered_rewards") else "rewards"
    options.stats.sources["reward"] = reward
    agent = record.fields.get("agent_ref")
    content = record.fields.get("content")
    return {
        "step": step,
        "sample_id": record.fields.get("idx"),
        "domain": agent.get("name") if isinstance(agent, dict) else agent,
        "reward": record.number(reward),
        "dumped_sample_mask": record.fields.get("sample_loss_mask"),
        "content": "\n".join(map(str, content)) if isinstance(content, list) else content,
    }


def _ids(record: Record, mask: Any, length: int) -> Lists:
    if not record.has("token_ids"):
        return {}
    ids = as_vector(record.where, "token_ids", record.get("token_ids"))
    check_length(record.where, "token_ids", ids, len(mask), "token_loss_mask")
    start = min(response_start(mask), length)
    return {"prompt_token_ids": ids[:start], "response_token_ids": ids[start:length]}


FORMAT = Format(
    name="nemo-rl",
    title="NeMo-RL train_data_step{N}.jsonl",
    containers=(JSON,),
    roles=("group", "reward", "mask", "old_log_probs", "infer_log_probs", "batch", "domain"),
    missing_roles={
        "group": "NeMo-RL writes no prompt id, and this dump has no token_ids; set --group-size",
        "log_probs": "NeMo-RL dumps log-probs from before the update only",
        "old_log_probs": "prev_logprobs is all zeros: with force_on_policy_ratio it is not "
        "computed",
        "ref_log_probs": "NeMo-RL does not dump the reference policy's log-probs",
        "values": "NeMo-RL does not dump the critic's values",
        "batch": "the step is read from the file name (train_data_step{N}), and this name has none",
    },
    sniff=has("token_loss_mask", "generation_logprobs", "input_lengths"),
    rows=_rows,
    split=_unwrapped,
    options=("map", "group_size"),
    source="nemo_rl/utils/logger.py log_batched_dict_as_jsonl, algorithms/grpo.py (2026)",
    fields={
        **{column: name for name, column in _LISTS.items()},
        "prompt_id": f"token_ids ({SAME_TOKENS})", "response_mask": "token_loss_mask",
        "step": "the file name", "domain": "agent_ref",
    },
    note="NeMo-RL dumps no log-probs after the update. For the ratio of the trainer to the rollout "
    "engine, which a loss without old log-probs clips, run: rlpost loss OUT "
    "--map log_probs=old_log_probs --map old_log_probs=infer_log_probs.",
    role_notes={
        "group": "A group is the responses of one step with the same prompt tokens; --group-size N "
        "makes blocks of N records instead."
    },
)  # fmt: skip
