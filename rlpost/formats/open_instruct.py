"""open-instruct: the rollout shards of `--save_traces`, and the trainer's log-probs beside them.

The trainer writes packs of sequences, `{run}_trainer_logprobs_step{step}[_rank{rank}].jsonl`. The
rollouts of the run get their masks and log-probs from there; a pack read alone has no rewards.
"""

from __future__ import annotations

import json
import math
import re
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.formats.base import Field, Format, Version
from rlpost.formats.containers import JSON
from rlpost.formats.containers.json_text import json_records
from rlpost.formats.fields import field_rows
from rlpost.formats.keys import SAME_TOKENS, prompt_key
from rlpost.formats.reading import check_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record, Row


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
    for row in field_rows(FORMAT, records, options):
        if "sample_idx" in row.record:  # of rollouts
            trained.add_to(row)
        yield row
    if trained.left_out:
        rows = counted(trained.left_out, "response")
        options.stats.warnings.append(
            f"no log-probs of the trainer for {rows}: no pack has the same tokens; their "
            "old_log_probs are NaN, their masks 1 and their dumped_sample_mask 0"
        )


class _Trained:
    """The sequences of the packs of one step, by the sample that they are of."""

    def __init__(self) -> None:
        self.left_out = 0
        self._step: tuple[Path, int] | None = None
        self._sequences: dict[int, Record] | None = None

    def add_to(self, row: Row) -> None:
        """Add the mask and the trainer's log-probs to a row, if its run has packs of its step."""
        step = (Path(row.record.file), row.record.integer("step"))
        if step != self._step:
            self._step, self._sequences = step, _step_sequences(*step)
        if self._sequences is None:
            return
        sequence = self._sequences.get(row.record.integer("sample_idx"))
        ids = row.values["response_token_ids"]
        if sequence is not None and sequence.array("response_tokens") == ids:
            lists = {"response_mask": sequence.array("response_mask"), "dumped_sample_mask": 1.0,
                     "old_log_probs": sequence.array("trainer_logprobs")}  # fmt: skip
        else:
            self.left_out += 1
            lists = {"response_mask": [True] * len(ids), "dumped_sample_mask": 0.0,
                     "old_log_probs": [math.nan] * len(ids)}  # fmt: skip
        row.values |= lists


def _step_sequences(shard: Path, step: int) -> dict[int, Record] | None:
    """Return the sequence of each sample in the packs of a step; None if the run has no packs."""
    if not any(packs_of(shard)):
        return None
    return {
        sequence.integer("rollout_sample_idx"): sequence
        for file in sorted(packs_of(shard, f"{step:06d}[_.]"))
        for pack in json_records(file)
        for sequence in _sequences(pack)
    }


def _sequences(pack: Record) -> Iterator[Record]:
    """Yield the sequences of a pack: `[B, T]` ids, and lists `[B, T - 1]` of the tokens after them.

    A record of rollouts is one sequence.

    Raises:
        DataError: the pack is of another version, or a part of one (sequence parallelism).
    """
    if "trainer_logprobs" not in pack:
        yield pack
        return
    check_version(pack, FORMAT)
    if pack.integer("sp_size") != 1:
        needed = "1: under sequence parallelism, a file has parts of sequences"
        raise pack.error("sp_size", pack.integer("sp_size"), needed)
    width, ids = pack.array("trainer_logprobs_shape")[1], pack.array("input_token_ids")
    lists = {"response_mask": "response_mask", "trainer_logprobs": "trainer_logprobs",
             "logprobs": "vllm_logprobs"}  # fmt: skip
    for i, place in enumerate(pack.array("prompt_boundaries")):
        begin, prompt, end = (place[x] for x in ("sequence_start", "prompt_end", "sequence_end"))
        row, first = place["row"], begin and begin + 1  # the first of a row is in `ids` alone
        of_ids = ids[row * (width + 1) : (row + 1) * (width + 1)]
        cut = slice(row * width + prompt, row * width + end)
        fields = {
            "step": pack.get("step"),
            "rollout_sample_idx": place.get("rollout_sample_idx"),
            "prompt_tokens": of_ids[first : prompt + 1],
            "response_tokens": of_ids[prompt + 1 : end + 1],
            **{name: pack.array(source)[cut] for name, source in lists.items() if pack.has(source)},
        }
        yield pack.part(f"sequence {i}", fields)


def _is_open_instruct(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a rollout, or of a pack of the trainer."""
    return fields.keys() >= _NEEDED or fields.keys() >= _PACK


def _group(record: Record) -> str:
    """Return the prompt, which is numbered anew at every step; of a pack, a key of its tokens."""
    if "prompt_idx" in record:
        return f"{record.integer('step')}/{record.integer('prompt_idx')}"
    return prompt_key(np.asarray(record.array("prompt_tokens")))


def _sample(record: Record) -> str:
    name = "sample_idx" if "sample_idx" in record else "rollout_sample_idx"
    return f"{record.integer('step')}/{record.integer(name)}"


def _mask(record: Record) -> list[int] | None:
    """Return a mask; without one, of all tokens, unless the engine's log-probs have the length."""
    tokens = record.array("response_tokens")
    if record.has("response_mask") or record.has("logprobs"):
        return record.fields.get("response_mask")
    return [1] * len(tokens)


def _domain(record: Record) -> str | None:
    """Return the name of the data set; some versions write a list of names."""
    names = record.find("dataset")
    return ",".join(map(str, names)) if isinstance(names, list) else names


def _called(record: Record) -> bool | None:
    called = record.find("request_info.tool_calleds")
    return None if called is None else bool(called)


def _json(name: str) -> Field:
    return Field(name, lambda record: json.dumps(record.fields.get(name), ensure_ascii=False)
                 if "sample_idx" in record else None)  # fmt: skip


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
        "step": "step", "prompt_id": Field("step/prompt_idx", _group),
        "sample_id": Field("step/sample_idx", _sample), "domain": Field("dataset", _domain),
        "reward": "reward", "finish_reason": "finish_reason", "dumped_advantage": "advantage",
        "prompt_token_ids": "prompt_tokens", "response_token_ids": "response_tokens",
        "infer_log_probs": "logprobs", "old_log_probs": "trainer_logprobs",
        "response_mask": Field("response_mask of the trainer", _mask),
        "tool_called": Field("request_info.tool_calleds", _called),
        "ground_truth": _json("ground_truth"), "request_info": _json("request_info"),
    },
    split=_sequences,
    own=frozenset({"sample_idx", "rollout_sample_idx", "prompt_idx", "dataset", "request_info",
                   "ground_truth", "response_mask"}),
    keeps=False,
    note="Without the trainer's log-probs beside the rollouts, tool output counts as policy tokens "
    f"(tool_called). Packs alone have no rewards, and groups of {SAME_TOKENS}.",
)  # fmt: skip
