"""Columns of keys, such as prompt ids and steps, as integer codes and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.io.arrow import fill_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

Label = str | int | None


@dataclass(frozen=True)
class KeyColumn:
    """A column of keys: a code for each row, and the label of each code."""

    codes: NDArray[np.int64]
    """[N], from 0, in order of first appearance; that of null is the last."""
    labels: pa.Array
    """Of each code."""

    @classmethod
    def of(cls, chunks: Iterable[pa.Array]) -> KeyColumn:
        """Return the codes and labels of a column.

        Args:
            chunks: at least one; plain keys, or what `encode_keys` returned for them.
        """
        parts = [one if pa.types.is_dictionary(one.type) else encode_keys(one) for one in chunks]
        unified = pa.chunked_array(of_one_type(parts)).unify_dictionaries()
        labels = unified.chunk(0).dictionary
        codes = np.empty(len(unified), np.int64)
        first = 0
        for part in unified.chunks:
            codes[first : first + len(part)] = fill_nulls(part.indices, len(labels))
            first += len(part)
        if unified.null_count:
            labels = pa.concat_arrays([labels, pa.nulls(1, labels.type)])
        return cls(codes, labels)

    def label(self, code: int) -> Label:
        """Return the label of a code."""
        return self.labels[code].as_py()  # type: ignore[no-any-return]


def encode_keys(array: pa.Array) -> pa.DictionaryArray:
    """Return a chunk of plain keys with each distinct key stored once."""
    return array.dictionary_encode()


def of_one_type(chunks: Iterable[pa.Array]) -> list[pa.Array]:
    """Return chunks of keys; as texts if one file has numbers and another has texts."""
    parts = [*chunks]
    if len({part.type for part in parts}) == 1:
        return parts
    return [_as_texts(part) for part in parts]


def _as_texts(part: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(part.type):
        labels = part.dictionary.cast(pa.string())
        return pa.DictionaryArray.from_arrays(part.indices, labels)
    return part.cast(pa.string())


def step_order(labels: Sequence[Label]) -> list[int]:
    """Return the indices of step labels in step order.

    Labels that are all whole numbers are sorted as numbers; others keep the order of the input.
    """
    try:
        return sorted(range(len(labels)), key=lambda index: int(labels[index]))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a null, or a name
        return list(range(len(labels)))


def name_ranks(labels: Sequence[Label]) -> NDArray[np.int64]:
    """Return the place of each label in the order of numbers, then of other texts, [n].

    >>> name_ranks(["main", "10", "9"]).tolist()
    [2, 1, 0]
    """

    def key(index: int) -> tuple[bool, int, str]:
        text = str(labels[index])
        return not text.isdecimal(), int(text) if text.isdecimal() else 0, text

    ranks = np.empty(len(labels), np.int64)
    ranks[sorted(range(len(labels)), key=key)] = np.arange(len(labels))
    return ranks
