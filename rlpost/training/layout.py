"""The tensors of a batch: padded, or packed into one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlpost.kernels.segments import offsets_of
from rlpost.training.columns import PROMPT, RESPONSE

if TYPE_CHECKING:
    from rlpost.training.reading import LoadedRows, RaggedColumn


_DTYPES: dict[str, Any] = {"mask": np.bool_, PROMPT: np.int64, RESPONSE: np.int64}


def _values(name: str, column: RaggedColumn) -> NDArray[Any]:
    return column.values.astype(_DTYPES.get(name, np.float32), copy=False)


def padded(batch: LoadedRows) -> dict[str, Any]:
    """Return the tensors of a batch of B responses, padded to the longest of T tokens.

    Columns of tokens are [B, T] float32, `mask` is [B, T] bool, `lengths` [B] int64. With ids of
    prompts, these are padded on the left to P tokens: `prompt_token_ids` [B, P], and `input_ids`,
    `attention_mask` (bool) and `position_ids` are [B, P + T].
    """
    if not batch.lists:
        return {}
    lengths, arrays = batch.lists["mask"].lengths, dict[str, NDArray[Any]]()
    longest = int(lengths.max())
    inside = np.arange(longest) < lengths[:, None]
    for name, column in batch.lists.items():
        if name != PROMPT:
            values = _values(name, column)
            arrays[name] = np.zeros(inside.shape, values.dtype)
            arrays[name][inside] = values
    if {PROMPT, RESPONSE} <= batch.lists.keys():
        sizes = batch.lists[PROMPT].lengths[:, None]
        width = int(sizes.max())
        ids = np.zeros((len(sizes), width), np.int64)
        ids[np.arange(width) >= width - sizes] = batch.lists[PROMPT].values
        places = np.arange(width + longest) - (width - sizes)
        attention = (places >= 0) & (places < sizes + lengths[:, None])
        arrays |= {
            PROMPT: ids,
            "input_ids": np.concatenate([ids, arrays[RESPONSE]], axis=1),
            "attention_mask": attention,
            "position_ids": np.where(attention, places, 0),
        }
    return _tensors({"lengths": lengths, **arrays})


def packed(batch: LoadedRows) -> dict[str, Any]:
    """Return the tensors of a batch as one sequence of T tokens.

    Columns of tokens are [T] float32, `mask` [T] bool, `position_ids` [T] int64, `cu_seqlens`
    [B + 1] int32. With ids, `input_ids` is [T]. With ids of prompts, each response is preceded by
    its prompt, where columns are 0 and the mask is false.
    """
    if not batch.lists:
        return {}
    lengths, before = batch.lists["mask"].lengths, None
    if {PROMPT, RESPONSE} <= batch.lists.keys():
        before = batch.lists[PROMPT].lengths
    sizes = lengths if before is None else lengths + before
    bounds = offsets_of(sizes)
    positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes)
    arrays = {
        "input_ids" if name == RESPONSE else name: _values(name, column)
        for name, column in batch.lists.items()
        if name != PROMPT
    }
    if before is not None:
        inside = positions >= np.repeat(before, sizes)
        for name, values in arrays.items():
            arrays[name] = np.zeros(bounds[-1], values.dtype)
            arrays[name][inside] = values
        arrays["input_ids"][~inside] = batch.lists[PROMPT].values
    more = {"position_ids": positions, "cu_seqlens": bounds.astype(np.int32)}
    return _tensors({"lengths": lengths, **arrays, **more})


def of_rows(batch: LoadedRows) -> dict[str, Any]:
    """Return the columns of responses, [B] float32, int64 or bool, and the others as lists."""
    return _tensors(batch.rows) | {name: x.to_pylist() for name, x in batch.others.items()}


def _tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: torch.from_numpy(values) for name, values in arrays.items()}
