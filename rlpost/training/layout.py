"""The tensors of a batch: padded, or packed into one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rlpost.training.reading import Piece


_DTYPES = {"mask": np.bool_, "response_ids": np.int64, "prompt_ids": np.int64}


def padded(pieces: Sequence[Piece], count: int) -> dict[str, Any]:
    """Return the tensors of a batch of B responses, padded to the longest of T tokens.

    Columns of tokens are [B, T] float32, `mask` is [B, T] bool, `lengths` [B] int64. With ids of
    prompts, these are padded on the left to P tokens: `prompt_ids` [B, P], and `input_ids`,
    `attention_mask` (bool) and `position_ids` are [B, P + T].
    """
    lists = _names(pieces)
    if not lists:
        return {}
    lengths = _lengths(pieces, "mask", count)
    longest = int(lengths.max(initial=0))
    out: dict[str, Any] = {"lengths": torch.from_numpy(lengths)}
    for name in lists:
        if name != "prompt_ids":
            values: NDArray[Any] = np.zeros((count, longest), _DTYPES.get(name, np.float32))
            for row, own in _rows(pieces, name):
                values[row, : len(own)] = own
            out[name] = torch.from_numpy(values)
    if {"prompt_ids", "response_ids"} <= {*lists}:
        out |= _with_prompts(pieces, count, lengths, out["response_ids"])
    return out


def _with_prompts(
    pieces: Sequence[Piece], count: int, lengths: NDArray[np.int64], response_ids: Tensor
) -> dict[str, Tensor]:
    """Return ids, mask and positions of prompts, padded on the left, and responses."""
    sizes = _lengths(pieces, "prompt_ids", count)
    width, total = int(sizes.max(initial=0)), int(response_ids.shape[1])
    prompts = np.zeros((count, width), np.int64)
    for row, own in _rows(pieces, "prompt_ids"):
        prompts[row, width - len(own) :] = own
    place = np.arange(width + total) - (width - sizes)[:, None]
    attention = (place >= 0) & (place < (sizes + lengths)[:, None])
    prompt_ids = torch.from_numpy(prompts)
    return {
        "prompt_ids": prompt_ids,
        "input_ids": torch.cat([prompt_ids, response_ids], dim=1),
        "attention_mask": torch.from_numpy(attention),
        "position_ids": torch.from_numpy(np.where(attention, place, 0)),
    }


def packed(pieces: Sequence[Piece], count: int) -> dict[str, Any]:
    """Return the tensors of a batch as one sequence of T tokens.

    Columns of tokens are [T] float32, `mask` [T] bool, `position_ids` [T] int64, `cu_seqlens`
    [B + 1] int32. With ids, `input_ids` is [T]. With ids of prompts, each response is preceded by
    its prompt, where columns are 0 and the mask is false.
    """
    lists = _names(pieces)
    if not lists:
        return {}
    lengths, both = _lengths(pieces, "mask", count), {"prompt_ids", "response_ids"} <= {*lists}
    sizes = _lengths(pieces, "prompt_ids", count) if both else np.zeros_like(lengths)
    bounds = np.concatenate([[0], (sizes + lengths).cumsum()])
    starts = (bounds[:-1] + sizes).tolist()
    out: dict[str, Any] = {"lengths": torch.from_numpy(lengths)}
    for name in lists:
        if name in ("prompt_ids", "response_ids"):
            continue
        dtype = _DTYPES.get(name, np.float32)
        out[name] = torch.from_numpy(_flat(pieces, name, starts, int(bounds[-1]), dtype, gaps=both))
    if "response_ids" in lists:
        ids = _flat(pieces, "response_ids", starts, int(bounds[-1]), np.int64, gaps=both)
        for row, own in _rows(pieces, "prompt_ids") if both else ():
            ids[bounds[row] : bounds[row] + len(own)] = own
        out["input_ids"] = torch.from_numpy(ids)
    positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes + lengths)
    out["position_ids"] = torch.from_numpy(positions)
    out["cu_seqlens"] = torch.from_numpy(bounds.astype(np.int32))
    return out


def _flat(
    pieces: Sequence[Piece],
    name: str,
    starts: Sequence[int],
    total: int,
    dtype: Any,
    *,
    gaps: bool,
) -> NDArray[Any]:
    values = np.zeros(total, dtype) if gaps else np.empty(total, dtype)
    for row, own in _rows(pieces, name):
        start = starts[row]
        values[start : start + len(own)] = own
    return values


def of_rows(pieces: Sequence[Piece], count: int) -> dict[str, Any]:
    """Return the columns of responses, [B] float32, and the others as lists."""
    out: dict[str, Any] = {}
    for name in pieces[0].data.rows:
        values = np.empty(count, np.float32)
        for piece in pieces:
            values[piece.into] = piece.data.rows[name][piece.places]
        out[name] = torch.from_numpy(values)
    for name in pieces[0].data.others:
        items: list[Any] = [None] * count
        for piece in pieces:
            column = piece.data.others[name]
            for place, into in zip(piece.places.tolist(), piece.into.tolist(), strict=True):
                items[into] = column[place].as_py()
        out[name] = items
    return out


def _names(pieces: Sequence[Piece]) -> list[str]:
    return list(pieces[0].data.lists)


def _lengths(pieces: Sequence[Piece], name: str, count: int) -> NDArray[np.int64]:
    lengths = np.zeros(count, np.int64)
    for piece in pieces:
        offsets = piece.data.lists[name].offsets
        lengths[piece.into] = offsets[piece.places + 1] - offsets[piece.places]
    return lengths


def _rows(pieces: Sequence[Piece], name: str) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the position in the batch and the values of each row of a list column."""
    for piece in pieces:
        one = piece.data.lists[name]
        begins, ends = one.offsets[piece.places].tolist(), one.offsets[piece.places + 1].tolist()
        for into, begin, end in zip(piece.into.tolist(), begins, ends, strict=True):
            yield into, one.values[begin:end]
