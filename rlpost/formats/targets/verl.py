"""`--to verl`: a DataProto, written by verl itself, as `DataProto.load_from_disk` reads it.

Prompts are padded on the left and responses on the right, to the longest of the file. What verl has
a name for has that name; other columns keep theirs: lists with one number per response token are
tensors, all others are in `non_tensor_batch`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.formats.targets.base import ExportTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rlpost.formats.targets.base import Held, Rows
    from rlpost.io.outputs import OutputFile

TENSORS = {
    "old_log_probs": "old_log_probs",
    "ref_log_probs": "ref_log_prob",
    "infer_log_probs": "rollout_log_probs",
    "values": "values",
    "advantages": "advantages",
    "returns": "returns",
    "entropy": "entropys",
    "is_weight": "rollout_is_weights",
}
_OWN = (
    "prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask",
    "token_level_scores", "token_level_rewards", "uid", "data_source", *TENSORS.values(),
)  # fmt: skip
_KEYS = {"group": "uid", "domain": "data_source"}


def write(parts: Iterable[Rows], files: Sequence[OutputFile], held: Held, step: int) -> list[str]:
    """Write the rows of a step as tensors of one width, and others as objects, by verl itself."""
    from verl import DataProto  # type: ignore[import-not-found]  # noqa: PLC0415 - optional

    lists, plain = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
    for rows in parts:
        for name, values in _vectors(rows).items():
            lists[name] += values
        for item, name in _KEYS.items():
            if item in rows:
                plain[name] += map(str, rows[item])
        for name, values in rows.objects(held.others).items():
            plain[name] += values
    for name in held.others:
        if _aligned(plain[name], lists["responses"]):
            lists[name] = plain.pop(name)
    others = {name: np.empty(len(values), object) for name, values in plain.items()}
    for name, values in plain.items():
        others[name][:] = values
    proto = DataProto.from_dict(
        tensors=_tensors(lists), non_tensors=others, meta_info={"global_steps": step}
    )
    proto.save_to_disk(files[0].path)
    return []


def _vectors(rows: Rows) -> dict[str, list[NDArray[Any]]]:
    """Return verl's vectors of each row; a reward stands at the last token."""
    responses = rows["response_token_ids"]
    floats = {name: rows[item] for item, name in TENSORS.items() if item in rows}
    if "reward" in rows:
        scores = [np.zeros(len(ids), np.float32) for ids in responses]
        for score, reward in zip(scores, rows["reward"], strict=True):
            score[-1:] = reward
        floats["token_level_scores"] = floats["token_level_rewards"] = scores
        if "token_rewards" in rows:
            floats["token_level_rewards"] = rows["token_rewards"]
    return {
        "prompts": rows["prompt_token_ids"],
        "responses": responses,
        "response_mask": [mask.astype(np.int64) for mask in rows.trained()],
        **{name: [x.astype(np.float32) for x in values] for name, values in floats.items()},
    }


def _aligned(values: list[Any], responses: list[NDArray[Any]]) -> bool:
    """Return whether all values are vectors with an entry per response token."""
    pairs = zip(values, responses, strict=True)
    return all(
        isinstance(numbers, np.ndarray) and len(numbers) == len(ids) for numbers, ids in pairs
    )


def _tensors(lists: dict[str, list[NDArray[Any]]]) -> dict[str, Tensor]:
    """Return the padded tensors, [B, P] of prompts, [B, T] of responses, [B, P + T] of both."""
    import torch  # noqa: PLC0415 - takes a second, and other targets do not need it

    out = {name: _padded(values, left=name == "prompts") for name, values in lists.items()}
    out |= {name: out[name].long() for name in ("prompts", "responses")}
    before, after = (
        torch.tensor([[len(ids)] for ids in lists[name]]) for name in ("prompts", "responses")
    )
    out["input_ids"] = torch.cat([out["prompts"], out["responses"]], dim=1)
    place = torch.arange(out["input_ids"].shape[1])[None, :] - (out["prompts"].shape[1] - before)
    out["attention_mask"] = ((place >= 0) & (place < before + after)).long()
    last = (before + after - 1).clamp(min=0)
    out["position_ids"] = place.clamp(min=0).minimum(last)  # as verl's own, constant in padding
    return out


def _padded(values: list[NDArray[Any]], *, left: bool) -> Tensor:
    """Return vectors as a tensor [B, width], with 0 behind them or before them."""
    import torch  # noqa: PLC0415

    width = max(map(len, values), default=0)
    out = np.zeros((len(values), width), np.result_type(*values) if values else np.float32)
    for row, numbers in zip(out, values, strict=True):
        row[width - len(numbers) if left else 0 :][: len(numbers)] = numbers
    return torch.from_numpy(out)


TARGET = ExportTarget(
    name="verl",
    trains=True,
    title="verl DataProto, padded",
    files=("{out}/{step}.pkl",),
    fields={
        "prompt_token_ids": "prompts, input_ids",
        "response_token_ids": "responses, input_ids",
        "mask": "response_mask",
        "sample_mask": "response_mask",
        **TENSORS,
        "reward": "token_level_scores (on the last token)",
        "token_rewards": "token_level_rewards (else token_level_scores)",
        **_KEYS,
        "batch": "meta_info.global_steps",
    },
    needs=("prompt_token_ids", "response_token_ids"),
    others="batch if they have one number per response token, else non_tensor_batch",
    source="verl 0.9.1, verl/protocol.py DataProto",
    write=write,
    use="verl.DataProto.load_from_disk('{out}/STEP.pkl')",
    note="response_mask is 0 for responses that the sample mask leaves out.",
    library="verl",
    reserved=_OWN,
)
