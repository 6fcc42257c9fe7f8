"""`--to slime`: rollout samples for slime's --load-debug-rollout-data, and its advantage hook.

A file has the samples of one step: a dictionary with `rollout_id` and `samples`, each with the
fields of slime's Sample. Advantages and returns are in `train_metadata`, which slime passes to its
trainer; a function file beside the samples hands them over. Columns that a Sample has no field for
are in `metadata`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.formats.pickles import save
from rlpost.formats.targets.base import ExportTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rlpost.formats.targets.base import ExportColumns, Rows
    from rlpost.io.outputs import OutputFile


TOKENS = {"infer_log_probs": "rollout_log_probs", "teacher_log_probs": "teacher_log_probs"}
CREDIT = ("advantages", "returns")
HOOK = "rlpost_advantages.py"
"""The function for slime's advantage hook, beside its samples."""


def write(
    parts: Iterable[Rows], files: Sequence[OutputFile], held: ExportColumns, step: int
) -> list[str]:
    """Write the samples of a step, which are one object in the file."""
    groups, rollouts = dict[Any, int](), dict[Any, int]()
    samples = []
    for rows in parts:
        metadata = {name: rows.plain(name) for name in held.others}
        keys = {name: rows.keys(name) for name in ("group", "rollout_id") if name in rows}
        for row, fields in enumerate(_fields(rows)):
            sample = {
                "group_index": _code(groups, keys["group"][row]) if "group" in keys else None,
                "index": rows.before + int(rows.places[row]),
                **fields,
                "metadata": {name: _storable(values[row]) for name, values in metadata.items()},
            }
            if "rollout_id" in keys:
                sample["rollout_id"] = _code(rollouts, keys["rollout_id"][row])
            samples.append(sample)
    save({"rollout_id": step, "samples": samples}, files[0].path)
    return []


def _fields(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the fields of slime's Sample for each row."""
    masks, rewards = rows.masks(), rows.numbers_of("reward")
    lists = {name: rows.tokens(item) for item, name in TOKENS.items() if item in rows}
    credit = {name: rows.tokens(name) for name in CREDIT if name in rows}
    columns = zip(
        rows.lists("prompt_token_ids"),
        rows.tokens("response_token_ids"),
        rows.values("prompt"),
        rows.values("response"),
        rows.truncated(),
        rows.kept(),
        strict=True,
    )
    for row, (prompt, response, question, answer, cut, keep) in enumerate(columns):
        yield {
            "response_length": len(response),
            "prompt": question or "",
            "tokens": np.concatenate([prompt, response]).astype(np.int64).tolist(),
            "response": answer or "",
            "label": None,
            "reward": float(rewards[row]),
            "loss_mask": masks[row].astype(np.int64).tolist(),
            "weight_versions": [],
            "rollout_log_probs": None,
            "remove_sample": not keep,
            "teacher_log_probs": None,
            "status": "truncated" if cut else "completed",
            "train_metadata": {name: _storable(values[row]) for name, values in credit.items()}
            or None,
            **{name: values[row].tolist() for name, values in lists.items()},
        }


def _storable(value: Any) -> Any:
    """Return a value; an empty vector as a list, because its pickle calls `bytes`."""
    return [] if isinstance(value, np.ndarray) and not len(value) else value


def _code(codes: dict[Any, int], key: Any) -> int | None:
    """Return the number of a key: itself if it is an integer, else that of its first appearance."""
    return key if key is None or isinstance(key, int) else codes.setdefault(key, len(codes))


HOOK_TEXT = '''"""The advantages that rlpost exported, for slime's --custom-advantage-function-path.

    PYTHONPATH=FOLDER python train.py ... --debug-train-only
        --load-debug-rollout-data 'FOLDER/{rollout_id}.pt'
        --custom-advantage-function-path rlpost_advantages.advantages

FOLDER is the directory of this file. Leave --normalize-advantages out: slime would whiten the
advantages once more.
"""

import torch


def advantages(args, rollout_data):
    """Put the exported advantages and returns of each sample into rollout_data."""
    columns = {"advantages": [], "returns": []}
    samples = zip(rollout_data["metadata"], rollout_data["kl"], strict=True)
    for i, (stored, like) in enumerate(samples):
        length = int(rollout_data["response_lengths"][i])
        for name, tensors in columns.items():
            values = torch.tensor(stored.get(name, stored["advantages"]))
            if len(values) != length:
                raise ValueError(f"sample {i}: {len(values)} {name}, {length} response tokens")
            if len(like) != length:  # context parallelism: this rank has a part of the tokens
                values = part_of(args, rollout_data, i, values)
            tensors.append(values.to(like))
    rollout_data.update(columns)


def part_of(args, rollout_data, i, values):
    """Return the tokens of a sample that this rank of a context-parallel group has."""
    from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

    sizes = rollout_data.get("max_seq_lens")
    total, length = rollout_data["total_lengths"][i], rollout_data["response_lengths"][i]
    size = None if sizes is None else sizes[i]
    return slice_log_prob_with_cp(values, total, length, args.qkv_format, size)
'''


TARGET = ExportTarget(
    name="slime",
    trains=True,
    title="slime rollout samples, and a function for its advantage hook",
    layout="steps",
    suffix=".pt",
    fields={
        "prompt_token_ids": "tokens",
        "response_token_ids": "tokens, response_length",
        "mask": "loss_mask",
        "sample_mask": "remove_sample",
        "reward": "reward",
        "group": "group_index",
        "rollout_id": "rollout_id",
        "truncated": "status",
        **TOKENS,
        **{name: f"train_metadata.{name}" for name in CREDIT},
        "prompt": "prompt",
        "response": "response",
        "batch": "name of the file",
    },
    needs={
        **dict.fromkeys(
            ("prompt_token_ids", "response_token_ids"),
            "a Sample has the tokens of prompt and response",
        ),
        "reward": "slime normalises rewards before its advantage hook runs",
    },
    others="metadata",
    source="slime/utils/types.py Sample, slime/observability/rollout_data_utils.py "
    "load_debug_rollout_data, slime/backends/megatron_utils/loss.py (2026)",
    write=write,
    use="--load-debug-rollout-data '{out}/{{rollout_id}}.pt'",
    use_beside=" --custom-advantage-function-path rlpost_advantages.advantages, "
    "with {out} on PYTHONPATH",
    beside=lambda held: {f"/{HOOK}": HOOK_TEXT} if "advantages" in held.columns else {},
)
