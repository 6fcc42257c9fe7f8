"""The tensors of a batch: padded, or packed into one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rlpost.training.reading import Piece


PROMPT, RESPONSE = "prompt_token_ids", "response_token_ids"
_DTYPES: dict[str, Any] = {"mask": np.bool_, PROMPT: np.int64, RESPONSE: np.int64}


class _Spans:
    """Where the lists of a batch are: of each row, the slice, and begin and end in its values."""

    def __init__(self, pieces: Sequence[Piece], name: str, count: int) -> None:
        self.slices = [piece.data.lists for piece in pieces]
        bounds = np.empty((count, 3), np.int64)
        for number, piece in enumerate(pieces):
            offsets = piece.data.lists[name].offsets
            bounds[piece.into, 0] = number
            bounds[piece.into, 1] = offsets[piece.places]
            bounds[piece.into, 2] = offsets[piece.places + 1]
        self.lengths = bounds[:, 2] - bounds[:, 1]
        self._rows: list[list[int]] = bounds.tolist()
        joins = (bounds[1:, 0] == bounds[:-1, 0]) & (bounds[1:, 1] == bounds[:-1, 2])
        first = np.flatnonzero(np.concatenate([[True], ~joins])) if count else np.zeros(0, int)
        last = np.append(first[1:], count)[: len(first)] - 1
        runs = np.column_stack([bounds[first, 0], bounds[first, 1], bounds[last, 2]])
        self._runs: list[list[int]] = runs.tolist()

    def rows(self, name: str) -> list[NDArray[Any]]:
        """Return the values of each row, in order, without a copy."""
        values = [lists[name].values for lists in self.slices]
        return [values[number][begin:end] for number, begin, end in self._rows]

    def joined(self, name: str) -> NDArray[Any]:
        """Return the values of all rows, in order, as one new array."""
        values = [lists[name].values for lists in self.slices]
        parts = [values[number][begin:end] for number, begin, end in self._runs]
        return np.concatenate(parts).astype(_DTYPES.get(name, np.float32), copy=False)


def padded(pieces: Sequence[Piece], count: int) -> dict[str, Any]:
    """Return the tensors of a batch of B responses, padded to the longest of T tokens.

    Columns of tokens are [B, T] float32, `mask` is [B, T] bool, `lengths` [B] int64. With ids of
    prompts, these are padded on the left to P tokens: `prompt_token_ids` [B, P], and `input_ids`,
    `attention_mask` (bool) and `position_ids` are [B, P + T].
    """
    names = list(pieces[0].data.lists)
    if not names:
        return {}
    spans = _Spans(pieces, "mask", count)
    longest = int(spans.lengths.max(initial=0))
    out: dict[str, Any] = {"lengths": torch.from_numpy(spans.lengths)}
    for name in names:
        if name != PROMPT:
            values: NDArray[Any] = np.zeros((count, longest), _DTYPES.get(name, np.float32))
            for row, own in zip(values, spans.rows(name), strict=True):
                row[: len(own)] = own
            out[name] = torch.from_numpy(values)
    if {PROMPT, RESPONSE} <= {*names}:
        out |= _with_prompts(_Spans(pieces, PROMPT, count), spans, out[RESPONSE])
    return out


def _with_prompts(prompts: _Spans, spans: _Spans, responses: Tensor) -> dict[str, Tensor]:
    """Return ids, mask and positions of prompts, padded on the left, and responses."""
    sizes, count = prompts.lengths, len(prompts.lengths)
    width, total = int(sizes.max(initial=0)), int(responses.shape[1])
    ids = np.zeros((count, width), np.int64)
    for row, own in zip(ids, prompts.rows(PROMPT), strict=True):
        row[width - len(own) :] = own
    place = np.arange(width + total) - (width - sizes)[:, None]
    attention = (place >= 0) & (place < (sizes + spans.lengths)[:, None])
    prompt_ids = torch.from_numpy(ids)
    return {
        PROMPT: prompt_ids,
        "input_ids": torch.cat([prompt_ids, responses], dim=1),
        "attention_mask": torch.from_numpy(attention),
        "position_ids": torch.from_numpy(np.where(attention, place, 0)),
    }


def packed(pieces: Sequence[Piece], count: int) -> dict[str, Any]:
    """Return the tensors of a batch as one sequence of T tokens.

    Columns of tokens are [T] float32, `mask` [T] bool, `position_ids` [T] int64, `cu_seqlens`
    [B + 1] int32. With ids, `input_ids` is [T]. With ids of prompts, each response is preceded by
    its prompt, where columns are 0 and the mask is false.
    """
    names = list(pieces[0].data.lists)
    if not names:
        return {}
    spans = _Spans(pieces, "mask", count)
    both = {PROMPT, RESPONSE} <= {*names}
    prompts = _Spans(pieces, PROMPT, count) if both else None
    sizes = spans.lengths if prompts is None else spans.lengths + prompts.lengths
    bounds = np.concatenate([[0], sizes.cumsum()])
    positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes)
    out: dict[str, Any] = {"lengths": torch.from_numpy(spans.lengths)}
    inside = slice(None) if prompts is None else positions >= np.repeat(prompts.lengths, sizes)
    for name in names:
        if name != PROMPT:
            values = spans.joined(name)
            if prompts is not None:
                values, own = np.zeros(bounds[-1], values.dtype), values
                values[inside] = own
            out["input_ids" if name == RESPONSE else name] = torch.from_numpy(values)
    if prompts is not None:
        ids = out["input_ids"].numpy()
        ids[~np.asarray(inside)] = prompts.joined(PROMPT)
    out["position_ids"] = torch.from_numpy(positions)
    out["cu_seqlens"] = torch.from_numpy(bounds.astype(np.int32))
    return out


def of_rows(pieces: Sequence[Piece], count: int) -> dict[str, Any]:
    """Return the columns of responses, [B] float32, int64 or bool, and the others as lists."""
    out: dict[str, Any] = {}
    for name in pieces[0].data.rows:
        values = np.empty(count, np.result_type(*(piece.data.rows[name] for piece in pieces)))
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
