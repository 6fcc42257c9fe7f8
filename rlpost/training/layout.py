"""The tensors of a batch: padded, or packed into one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlpost.kernels.segments import offsets_of

if TYPE_CHECKING:
    from rlpost.training.reading import BatchRows


PROMPT, RESPONSE = "prompt_token_ids", "response_token_ids"
_DTYPES: dict[str, Any] = {"mask": np.bool_, PROMPT: np.int64, RESPONSE: np.int64}


def _dtype(name: str) -> Any:
    return _DTYPES.get(name, np.float32)


def _lengths(batch: BatchRows, name: str) -> NDArray[np.int64]:
    """Return the number of values of each row, [B]."""
    return np.array([len(values) for values in batch.lists[name]], np.int64)


def padded(batch: BatchRows) -> dict[str, Any]:
    """Return the tensors of a batch of B responses, padded to the longest of T tokens.

    Columns of tokens are [B, T] float32, `mask` is [B, T] bool, `lengths` [B] int64. With ids of
    prompts, these are padded on the left to P tokens: `prompt_token_ids` [B, P], and `input_ids`,
    `attention_mask` (bool) and `position_ids` are [B, P + T].
    """
    if not batch.lists:
        return {}
    lengths, arrays = _lengths(batch, "mask"), dict[str, NDArray[Any]]()
    longest = int(lengths.max())
    for name, rows in batch.lists.items():
        if name != PROMPT:
            arrays[name] = np.zeros((len(lengths), longest), _dtype(name))
            for row, values in zip(arrays[name], rows, strict=True):
                row[: len(values)] = values
    if {PROMPT, RESPONSE} <= batch.lists.keys():
        sizes = _lengths(batch, PROMPT)[:, None]
        width = int(sizes.max())
        ids = np.zeros((len(sizes), width), np.int64)
        for row, values in zip(ids, batch.lists[PROMPT], strict=True):
            row[width - len(values) :] = values
        places = np.arange(width + longest) - (width - sizes)
        attention = (places >= 0) & (places < sizes + lengths[:, None])
        arrays |= {
            PROMPT: ids,
            "input_ids": np.concatenate([ids, arrays[RESPONSE]], axis=1),
            "attention_mask": attention,
            "position_ids": np.where(attention, places, 0),
        }
    return _tensors({"lengths": lengths, **arrays})


def packed(batch: BatchRows) -> dict[str, Any]:
    """Return the tensors of a batch as one sequence of T tokens.

    Columns of tokens are [T] float32, `mask` [T] bool, `position_ids` [T] int64, `cu_seqlens`
    [B + 1] int32. With ids, `input_ids` is [T]. With ids of prompts, each response is preceded by
    its prompt, where columns are 0 and the mask is false.
    """
    if not batch.lists:
        return {}
    lengths, before = _lengths(batch, "mask"), None
    if {PROMPT, RESPONSE} <= batch.lists.keys():
        before = _lengths(batch, PROMPT)
    sizes = lengths if before is None else lengths + before
    bounds = offsets_of(sizes)
    positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes)
    arrays = {
        "input_ids" if name == RESPONSE else name: np.concatenate(
            rows, dtype=_dtype(name), casting="unsafe"
        )
        for name, rows in batch.lists.items()
        if name != PROMPT
    }
    if before is not None:
        inside = positions >= np.repeat(before, sizes)
        for name, values in arrays.items():
            arrays[name] = np.zeros(bounds[-1], values.dtype)
            arrays[name][inside] = values
        arrays["input_ids"][~inside] = np.concatenate(batch.lists[PROMPT])
    more = {"position_ids": positions, "cu_seqlens": bounds.astype(np.int32)}
    return _tensors({"lengths": lengths, **arrays, **more})


def of_rows(batch: BatchRows) -> dict[str, Any]:
    """Return the columns of responses, [B] float32, int64 or bool, and the others as lists."""
    return _tensors(batch.rows) | batch.others


def _tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: torch.from_numpy(values) for name, values in arrays.items()}
