"""The Tinker cookbook's capture: `capture/sample.jsonl` of a run, or its store `capture.sqlite`.

A record is one call of the model, with the run, iteration, group and trajectory that it is of.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.formats.base import Format
from rlpost.formats.calls import TYPES, CallPlaces, ModelCall, call_row
from rlpost.formats.containers import JSON, PARQUET, SQLITE, Contents
from rlpost.formats.keys import SAME_TOKENS, prompt_key
from rlpost.formats.records import Record, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Row

_KEPT = ("run_id", "run_attempt", "split", "purpose")
_SCOPE = (*_KEPT, "iteration", "group_idx", "traj_idx")
_LISTS = ("prompt_tokens", "sampled_tokens", "logprobs")
_LAST_NUMBER = re.compile(r"(\d+)$")


def _is_capture(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a captured call, or of the store's table."""
    return fields.keys() >= {"kind", "scope", "seq_id"} or fields.keys() >= {*_SCOPE, *_LISTS}


def _split(record: Record) -> Iterator[Record]:
    """Yield the rows of a record as the store has them; a failed call has no samples."""
    if "scope" not in record:
        texts = {name: record.fields.get(name) for name in (*_LISTS, "metadata")}
        lists = {name: parse_json(record.where, text.encode())  # of SQLite
                 for name, text in texts.items() if isinstance(text, str)}  # fmt: skip
        yield Record(record.where, {**record.fields, **lists}, record.file)
        return
    scope = record.nested("scope").fields
    for i, sample in enumerate(record.fields.get("samples") or ()):
        row = {name: scope.get(name) for name in _SCOPE}
        row |= {"sample_idx": i, "sampled_tokens": sample.get("tokens")}
        row |= {"logprobs": sample.get("logprobs"), "metadata": sample}
        row["policy_version"] = record.fields.get("model_path")
        yield record.part(f"sample {i}", {**record.fields, **row})


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    places: dict[str, CallPlaces] = defaultdict(CallPlaces)
    for record in records:
        get = record.fields.get
        trajectory = (*(get(name) for name in _SCOPE[:-1]), get("traj_idx"))
        if get("traj_idx") is None:  # calls that share nothing
            trajectory = (*trajectory, get("seq_id"), get("sample_idx"))
        prompt, group, policy = get("prompt_tokens"), get("group_idx"), get("policy_version")
        version = _LAST_NUMBER.search(policy or "")
        rollout = "/".join("-" if part is None else str(part) for part in trajectory)
        facts = {
            "step": get("iteration"),
            "prompt_id": prompt_key(np.asarray(prompt or [])) if group is None else group,
            "rollout_id": rollout,
            "policy_version": int(version[1]) if version else None,
            "policy": policy,
            "finish_reason": (get("metadata") or {}).get("stop_reason"),
            **{name: get(name) for name in _KEPT},
        }
        call = ModelCall(record.where, prompt, record.get("sampled_tokens"), get("logprobs"))
        yield call_row(record, facts, call, places[rollout])


_NONE = "the capture records calls of the sampler, no numbers of a trainer"

FORMAT = Format(
    name="tinker-capture",
    title="Tinker cookbook capture: sample.jsonl, capture.sqlite, its Arrow schema",
    containers=(JSON, SQLITE, PARQUET),
    contents=Contents(members="wire_rows"),
    roles=("group", "mask", "infer_log_probs", "batch", "truncated", "branch", "run_attempt"),
    missing_roles={
        "reward": "the capture has no rewards: join them by rollout_id",
        "infer_log_probs": "the sampler returned no log-probs",
        "batch": "the calls were captured without an iteration",
        "truncated": "the sampler returned no stop reason",
        "run_attempt": "the calls were captured without run_attempt",
        **dict.fromkeys(("log_probs", "old_log_probs", "ref_log_probs", "values"), _NONE),
    },
    sniff=_is_capture,
    split=_split,
    rows=_rows,
    types={
        **{name: kind for name, kind in TYPES.items() if name not in ("failure", "error")},
        **dict.fromkeys(("run_id", "split", "purpose", "policy"), pa.string()),
    },
    options=("map",),
    source="tinker_cookbook 0.6.1 capture/exporter.py, capture/store/schema.py",
    fields={
        "step": "iteration", "prompt_id": f"group_idx, else prompt_tokens ({SAME_TOKENS})",
        "rollout_id": "run_id, iteration, group_idx and traj_idx",
        "response_token_ids": "sampled_tokens", "response_mask": "sampled_tokens (all)",
        "infer_log_probs": "logprobs", "prompt_token_ids": "prompt_tokens",
        "truncated": "stop_reason", "policy_version": "the number at the end of model_path",
    },
    note="Each call is one response; calls that failed are left out.",
)  # fmt: skip
