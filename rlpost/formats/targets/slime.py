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
    from collections.abc import Iterable, Sequence

    from rlpost.formats.targets.base import Held, Rows
    from rlpost.io.outputs import OutputFile


TOKENS = {"infer_log_probs": "rollout_log_probs", "teacher_log_probs": "teacher_log_probs"}
CREDIT = ("advantages", "returns")


def write(parts: Iterable[Rows], files: Sequence[OutputFile], held: Held, step: int) -> list[str]:
    """Write the samples of a step, which are one object in the file."""
    codes: dict[str, dict[Any, int]] = {"group_index": {}, "rollout_id": {}}
    samples = []
    for rows in parts:
        columns = _sample_fields(rows)
        metadata = rows.objects(held.others)
        for row in range(len(rows)):
            sample = {name: values[row] for name, values in columns.items()}
            for name in codes.keys() & sample.keys():
                sample[name] = _code(codes[name], sample[name])
            sample["metadata"] = {name: _storable(x[row]) for name, x in metadata.items()}
            samples.append(sample)
    save({"rollout_id": step, "samples": samples}, files[0].path)
    return []


def _sample_fields(rows: Rows) -> dict[str, list[Any]]:
    """Return the values of each field of slime's Sample."""
    prompts, responses = rows["prompt_token_ids"], rows["response_token_ids"]
    credit = {name: rows[name] for name in CREDIT if name in rows}
    absent = [None] * len(rows)
    tokens = [np.concatenate(ids) for ids in zip(prompts, responses, strict=True)]
    return {
        "group_index": rows["group"],
        "index": (rows.before + rows.places).tolist(),
        "response_length": [*map(len, responses)],
        "prompt": [text or "" for text in rows["prompt"]],
        "tokens": [ids.astype(np.int64).tolist() for ids in tokens],
        "response": [text or "" for text in rows["response"]],
        "label": absent,
        "reward": rows["reward"],
        "loss_mask": [mask.astype(np.int64).tolist() for mask in rows["mask"]],
        "weight_versions": [[] for _ in absent],
        "remove_sample": (~rows.kept()).tolist(),
        "status": ["truncated" if cut else "completed" for cut in rows["truncated"]],
        "train_metadata": [
            {name: _storable(values[row]) for name, values in credit.items()} or None
            for row in range(len(rows))
        ],
        **{
            name: [values.tolist() for values in rows[item]] if item in rows else absent
            for item, name in TOKENS.items()
        },
        **({"rollout_id": rows["rollout"]} if "rollout" in rows else {}),
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
    files=("{out}/{step}.pt",),
    fields={
        "prompt_token_ids": "tokens",
        "response_token_ids": "tokens, response_length",
        "mask": "loss_mask",
        "sample_mask": "remove_sample",
        "reward": "reward",
        "group": "group_index",
        "rollout": "rollout_id",
        "truncated": "status",
        **TOKENS,
        **{name: f"train_metadata.{name}" for name in CREDIT},
        "prompt": "prompt",
        "response": "response",
        "batch": "name of the file",
    },
    needs=("prompt_token_ids", "response_token_ids", "reward"),
    others="metadata",
    source="slime/utils/types.py Sample, slime/observability/rollout_data_utils.py "
    "load_debug_rollout_data, slime/backends/megatron_utils/loss.py (2026)",
    write=write,
    use="--load-debug-rollout-data '{out}/{{rollout_id}}.pt'",
    hook=(
        "rlpost_advantages.py",
        HOOK_TEXT,
        " --custom-advantage-function-path rlpost_advantages.advantages, with {out} on PYTHONPATH",
    ),
)
