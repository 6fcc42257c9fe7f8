"""`--to verl`: a DataProto, written by verl itself, as `DataProto.load_from_disk` reads it.

Prompts are padded on the left and responses on the right, to the longest of the file. What verl has
a name for has that name; other columns keep theirs: lists with one number per response token are
tensors, all others are in `non_tensor_batch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.formats.targets.base import ExportTarget
from rlpost.io.arrow import is_tokens
from rlpost.optional import need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rlpost.formats.targets.base import ExportColumns
    from rlpost.formats.targets.rows import Rows
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


class ProtoSink:
    """Collects the vectors of a file, which become tensors of one width."""

    def __init__(self, files: Sequence[OutputFile], held: ExportColumns, step: int) -> None:
        self._file, self._step, self._held = files[0], step, held
        kinds = {one.name: one.type for one in held.schema}
        self._tokens = {
            name for name in held.others if is_tokens(kinds[name])
        }  # of the others: lists, until one has another length than its response
        self._lists: dict[str, list[NDArray[Any]]] = {}
        self._plain: dict[str, list[Any]] = {}

    def add(self, rows: Rows) -> None:
        """Collect the vectors of each row."""
        self._add_lists("prompts", rows.lists("prompt_token_ids"))
        responses = rows.tokens("response_token_ids")
        self._add_lists("responses", responses)
        self._add_lists("response_mask", [mask.astype(np.int64) for mask in rows.trained()])
        for item, name in TENSORS.items():
            if item in rows:
                self._add_lists(name, [own.astype(np.float32) for own in rows.tokens(item)])
        if "reward" in rows:
            scores = [_at_the_end(len(own), reward) for own, reward in
                      zip(responses, rows.numbers_of("reward"), strict=True)]  # fmt: skip
            self._add_lists("token_level_scores", scores)
            token_rewards = rows.tokens("token_rewards") if "token_rewards" in rows else scores
            rewards = [own.astype(np.float32) for own in token_rewards]
            self._add_lists("token_level_rewards", rewards)
        for item, name in (("group", "uid"), ("domain", "data_source")):
            if item in rows:
                self._plain.setdefault(name, []).extend(map(str, rows.keys(item)))
        for name in self._held.others:
            values = rows.plain(name)
            self._plain.setdefault(name, []).extend(values)
            if name in self._tokens and not _aligned(values, responses):
                self._tokens.discard(name)

    def _add_lists(self, name: str, values: list[NDArray[Any]]) -> None:
        self._lists.setdefault(name, []).extend(values)

    def finish(self) -> list[str]:
        """Build the tensors, and let verl write them."""
        from verl import DataProto  # type: ignore[import-not-found]  # noqa: PLC0415 - optional

        for name in self._tokens:
            self._lists[name] = self._plain.pop(name)
        tensors = _tensors(self._lists)
        others = {name: _objects(values) for name, values in self._plain.items()}
        proto = DataProto.from_dict(
            tensors=tensors, non_tensors=others, meta_info={"global_steps": self._step}
        )
        proto.save_to_disk(self._file.path)
        self._lists, self._plain = {}, {}
        return []


def _at_the_end(length: int, reward: float) -> NDArray[np.float32]:
    scores = np.zeros(length, np.float32)
    scores[length - 1 :] = reward
    return scores


def _aligned(values: list[Any], responses: list[NDArray[Any]]) -> bool:
    """Return whether all values are vectors with an entry per response token."""
    pairs = zip(values, responses, strict=True)
    return all(isinstance(own, np.ndarray) and len(own) == len(ids) for own, ids in pairs)


def _tensors(lists: dict[str, list[NDArray[Any]]]) -> dict[str, Tensor]:
    """Return the padded tensors, [B, P] of prompts, [B, T] of responses, [B, P + T] of both."""
    import torch  # noqa: PLC0415 - takes a second, and other targets do not need it

    prompts = lists.pop("prompts")
    width = max(map(len, prompts), default=0)
    total = max(map(len, lists["responses"]), default=0)
    prompt_ids = _padded(prompts, width, left=True).long()
    out = {"prompts": prompt_ids}
    out |= {name: _padded(values, total) for name, values in lists.items()}
    out["responses"] = out["responses"].long()
    lengths = (
        torch.tensor([[len(own)] for own in prompts]),
        torch.tensor([[len(own)] for own in lists["responses"]]),
    )
    place = torch.arange(width + total)[None, :] - (width - lengths[0])
    attention = (place >= 0) & (place < lengths[0] + lengths[1])
    out["input_ids"] = torch.cat([prompt_ids, out["responses"]], dim=1)
    out["attention_mask"] = attention.long()
    last = (lengths[0] + lengths[1] - 1).clamp(min=0)
    out["position_ids"] = place.clamp(min=0).minimum(last)  # as verl's own, constant in padding
    return out


def _padded(values: list[NDArray[Any]], width: int, *, left: bool = False) -> Tensor:
    """Return vectors as a tensor [B, width], with 0 behind them or before them."""
    import torch  # noqa: PLC0415

    kind = np.result_type(*values) if values else np.float32
    out = np.zeros((len(values), width), kind)
    for row, own in zip(out, values, strict=True):
        row[width - len(own) if left else 0 :][: len(own)] = own
    return torch.from_numpy(out)


def _objects(values: list[Any]) -> NDArray[np.object_]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def available() -> None:
    """Raise UnavailableError unless verl is installed."""
    need("--to verl, whose file verl itself writes,", "verl", "verl")


_IDS = "input_ids has the tokens of prompt and response"
TARGET = ExportTarget(
    name="verl",
    trains=True,
    title="verl DataProto, padded",
    layout="steps",
    suffix=".pkl",
    fields={
        "prompt_token_ids": "prompts, input_ids",
        "response_token_ids": "responses, input_ids",
        "mask": "response_mask",
        "sample_mask": "response_mask",
        **TENSORS,
        "reward": "token_level_scores (on the last token)",
        "token_rewards": "token_level_rewards (else token_level_scores)",
        "group": "uid",
        "domain": "data_source",
        "batch": "meta_info.global_steps",
    },
    needs={"prompt_token_ids": _IDS, "response_token_ids": _IDS},
    others="batch if they have one number per response token, else non_tensor_batch",
    source="verl 0.9.1, verl/protocol.py DataProto",
    open=ProtoSink,
    use="verl.DataProto.load_from_disk('{file}')",
    each="STEP.pkl",
    note="response_mask is 0 for responses that the sample mask leaves out.",
    limits="A step's rows are in memory at once.",
    available=available,
    reserved=_OWN,
)
