"""open-instruct: the rollout shards of `--save_traces`, and the trainer's log-probs beside them.

The trainer writes packs of sequences, `{run}_trainer_logprobs_step{step}[_rank{rank}].jsonl`. The
rollouts of the run get their masks and log-probs from there; a pack read alone has no rewards.
"""

from __future__ import annotations

import json
import re
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.formats.base import Format, Version
from rlpost.formats.containers import JSON
from rlpost.formats.containers.json_text import json_records
from rlpost.formats.keys import SAME_TOKENS, prompt_key
from rlpost.formats.reading import check_version
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_NEEDED = {"step", "sample_idx", "prompt_idx", "response_tokens", "reward", "finish_reason",
           "advantage"}  # fmt: skip
_PACK = {"step", "trainer_logprobs", "response_mask", "input_token_ids", "prompt_boundaries"}
_TYPES = {"tool_called": pa.bool_(), "ground_truth": pa.string(), "request_info": pa.string()}
_PACKS = re.compile(r"(?P<run>.+)_trainer_logprobs_step\d+(_rank\d+)?\.jsonl.*")
_SHARD = re.compile(r"(?P<run>.+)_rollouts_\d+\.jsonl.*")


def rollouts_of(file: Path) -> Path | None:
    """Return the first shard of rollouts of a run, beside a file of its trainer; else None."""
    match = _PACKS.fullmatch(file.name)
    shards = file.parent.glob(f"{escape(match['run'])}_rollouts_*.jsonl*") if match else ()
    return min(shards, default=None)


def packs_of(shard: Path, step: str = "") -> Iterator[Path]:
    """Yield the files of the trainer of the run of a shard, of one step or all."""
    match = _SHARD.fullmatch(shard.name)
    if match is not None:
        yield from shard.parent.glob(f"{escape(match['run'])}_trainer_logprobs_step{step}*")


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    trained = _Trained()
    for record in records:
        if "trainer_logprobs" in record:
            for sequence in _sequences(record):
                yield Row(sequence, {**_trainer_lists(sequence), **_pack_keys(sequence)})
            continue
        row = Row(record, _rollout(record))
        trained.add_to(row)
        yield row
    if trained.left_out:
        rows = counted(trained.left_out, "response")
        options.stats.warnings.append(
            f"no log-probs of the trainer for {rows}: no pack has the same tokens; their "
            "old_log_probs are NaN, their masks 1 and their dumped_sample_mask 0"
        )


def _rollout(record: Record) -> dict[str, Any]:
    """Return the columns of a record of rollouts."""
    step, tokens = record.integer("step"), record.array("response_tokens")
    prompt = record.array("prompt_tokens")
    return {
        "step": step,
        # `prompt_idx` begins anew at every step.
        "prompt_id": f"{step}/{record.integer('prompt_idx')}",
        "sample_id": f"{step}/{record.integer('sample_idx')}",
        "domain": _domain(record),
        "reward": record.number("reward"),
        "finish_reason": record.text("finish_reason"),
        "prompt_length": len(prompt),
        "response_length": len(tokens),
        "dumped_advantage": record.number("advantage"),
        "prompt_token_ids": prompt,
        "response_token_ids": tokens,
        **_token_lists(record, len(tokens)),
        **_others(record),
    }


class _Trained:
    """The sequences of the packs of one step, by the sample that they are of."""

    def __init__(self) -> None:
        self.left_out = 0
        self._step: tuple[Path, int] | None = None
        self._sequences: dict[int, dict[str, Any]] | None = None

    def add_to(self, row: Row) -> None:
        """Add the mask and the trainer's log-probs to a row, if its run has packs of its step."""
        record = row.record
        step = (Path(record.file), record.integer("step"))
        if step != self._step:
            self._step, self._sequences = step, _step_sequences(*step)
        if self._sequences is None:
            return
        own = self._sequences.get(record.integer("sample_idx"))
        ids = row.values["response_token_ids"]
        if own is None or not np.array_equal(own["response_token_ids"], ids):
            self.left_out += 1
            own = {"old_log_probs": np.full(len(ids), np.nan, np.float32), "kept": 0.0,
                   "response_mask": np.ones(len(ids), np.uint8)}  # fmt: skip
        row.values |= {
            "response_mask": own["response_mask"],
            "old_log_probs": own["old_log_probs"],
            "dumped_sample_mask": own.get("kept", 1.0),
        }


def _step_sequences(shard: Path, step: int) -> dict[int, dict[str, Any]] | None:
    """Return the lists of each sample in the packs of a step; None if the run has no packs."""
    if not any(packs_of(shard)):
        return None
    return {
        sequence.integer("rollout_sample_idx"): {
            name: np.asarray(values) for name, values in _trainer_lists(sequence).items()
        }
        for file in sorted(packs_of(shard, f"{step:06d}[_.]"))
        for pack in json_records(file)
        for sequence in _sequences(pack)
    }


def _sequences(pack: Record) -> Iterator[Record]:
    """Yield the sequences of a pack: `[B, T]` ids, and lists `[B, T - 1]` of the tokens after them.

    Raises:
        DataError: the pack is of another version, or a part of one (sequence parallelism).
    """
    check_version(pack, FORMAT)
    if pack.integer("sp_size") != 1:
        needed = "1: under sequence parallelism, a file has parts of sequences"
        raise pack.error("sp_size", pack.integer("sp_size"), needed)
    width = pack.array("trainer_logprobs_shape")[1]
    ids = pack.array("input_token_ids")
    for i, place in enumerate(pack.array("prompt_boundaries")):
        begin, prompt, end = (
            place[f"{x}"] for x in ("sequence_start", "prompt_end", "sequence_end")
        )
        row, first = place["row"], begin and begin + 1  # the first of a row is in `ids` alone
        of_ids = slice(row * (width + 1), (row + 1) * (width + 1))
        cut = slice(row * width + prompt, row * width + end)
        fields = {
            "step": pack.get("step"),
            "rollout_sample_idx": place.get("rollout_sample_idx"),
            "prompt_tokens": ids[of_ids][first : prompt + 1],
            "response_tokens": ids[of_ids][prompt + 1 : end + 1],
            **{name: pack.array(name)[cut] for name in ("response_mask", "trainer_logprobs")},
        }
        if pack.has("vllm_logprobs"):
            fields["vllm_logprobs"] = pack.array("vllm_logprobs")[cut]
        yield pack.part(f"sequence {i}", fields)


def _trainer_lists(sequence: Record) -> dict[str, Any]:
    return {
        "response_token_ids": sequence.array("response_tokens"),
        "response_mask": sequence.array("response_mask"),
        "old_log_probs": sequence.array("trainer_logprobs"),
    }


def _pack_keys(sequence: Record) -> dict[str, Any]:
    """Return the columns of a sequence that is read without the rollouts."""
    step, prompt = sequence.integer("step"), sequence.array("prompt_tokens")
    return {
        "step": step,
        "prompt_id": prompt_key(np.asarray(prompt)),
        "sample_id": f"{step}/{sequence.integer('rollout_sample_idx')}",
        "prompt_length": len(prompt),
        "prompt_token_ids": prompt,
        "response_length": len(sequence.array("response_tokens")),
        "infer_log_probs": sequence.fields.get("vllm_logprobs"),
    }


def _is_open_instruct(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a rollout, or of a pack of the trainer."""
    return fields.keys() >= _NEEDED or fields.keys() >= _PACK


def _token_lists(record: Record, length: int) -> dict[str, Any]:
    """Return the engine's log-probs, or, if they are not saved, a mask of the same length."""
    if record.has("logprobs"):
        return {"infer_log_probs": record.array("logprobs")}
    return {"response_mask": np.ones(length, np.uint8)}


def _domain(record: Record) -> str | None:
    """Return the name of the data set; some versions write a list of names."""
    if not record.has("dataset"):
        return None
    if isinstance(record.get("dataset"), list):
        return ",".join(str(name) for name in record.array("dataset"))
    return record.text("dataset")


def _others(record: Record) -> dict[str, Any]:
    info = record.nested("request_info") if record.has("request_info") else None
    called = info.fields.get("tool_calleds") if info else None
    return {
        "tool_called": None if called is None else bool(called),
        "ground_truth": json.dumps(record.fields.get("ground_truth"), ensure_ascii=False),
        "request_info": json.dumps(record.fields.get("request_info"), ensure_ascii=False),
    }


FORMAT = Format(
    name="open-instruct",
    title="open-instruct {run}_rollouts_{shard}.jsonl of save_traces, with trainer_logprobs",
    containers=(JSON,),
    missing_roles={
        "reward": "the trainer's packs have none, and no rollouts are beside them",
        "domain": "the trainer's packs have none, and no rollouts are beside them",
        "truncated": "the trainer's packs have none, and no rollouts are beside them",
        "mask": "rollouts do not have which tokens are tool output, and no trainer_logprobs are "
        "beside them, so every token counts as a policy token (tool_called marks responses that "
        "used a tool)",
        "infer_log_probs": "logprobs is null: the run did not request them from the rollout engine",
        "log_probs": "open-instruct saves the log-probs before the update only",
        "old_log_probs": "no {run}_trainer_logprobs_step{step}.jsonl is beside the rollouts",
        "ref_log_probs": "open-instruct saves the rollout engine's log-probs only",
        "values": "open-instruct trains without a critic",
    },
    sniff=_is_open_instruct,
    rows=_rows,
    version=Version("logprob_token_offset", (1,)),
    part_of=rollouts_of,
    types=_TYPES,
    source="open-instruct, open_instruct/rl_utils.py, RolloutRecord (2025-12 to 2026-08), and "
    "_save_trainer_logprobs (commit ccb36c5, 2026-06)",
    fields={
        "prompt_id": "step/prompt_idx", "reward": "reward", "step": "step", "domain": "dataset",
        "finish_reason": "finish_reason", "infer_log_probs": "logprobs, or vllm_logprobs",
        "old_log_probs": "trainer_logprobs", "response_mask": "response_mask of the trainer",
    },
    note="Without the trainer's log-probs beside the rollouts, tool output counts as policy tokens "
    f"(tool_called). Packs alone have no rewards, and groups of {SAME_TOKENS}.",
)  # fmt: skip
