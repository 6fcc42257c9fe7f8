"""Making an index: keys, rewards and masks of an input, streamed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.browse import lists
from rlpost.browse.columns import is_text, named
from rlpost.browse.index import Index, Keys, list_column, stream, type_of
from rlpost.parquet.inputs import find_inputs
from rlpost.parquet.ragged import Place, is_list, is_number, numbers, truncated
from rlpost.parquet.source import Source
from rlpost.schema import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.parquet.pieces import Piece
    from rlpost.progress import Reporter
    from rlpost.schema import ColumnMap


def build(
    inputs: Sequence[str], columns_map: Mapping[str, str], reporter: Reporter | None = None
) -> Index:
    """Index an input, reading keys, rewards and masks alone.

    Raises:
        UsageError, DataError: a role in `columns_map` is unknown, its column is not there, or
            is not of numbers where these are needed.
        ReadWriteError: an input can't be read.
    """
    source = Source(find_inputs(inputs))
    columns = resolve(source.columns, columns_map, source.name)
    names = named(source.columns)
    prompt = columns.columns.get("group", names.get("prompt"))
    if prompt is not None and not _is_key(source, prompt):
        prompt = None
    sized_by = list_column(source, columns, names)
    roles = [role for role in ("reward", "batch", "domain", "truncated") if role in columns]
    read = {columns.column(role) for role in roles} | {prompt, sized_by} - {None}
    first = [*sorted(str(name) for name in read)] or source.columns[:1]
    table = _Table(source, columns, prompt, sized_by)
    for piece in stream(source, first, sized_by, reporter, "index"):
        table.add(piece)
    return table.finish(names)


def _is_key(source: Source, name: str) -> bool:
    kind = type_of(source, name)
    plain = is_text(kind) and not is_list(kind) and not pa.types.is_struct(kind)
    return bool(plain or is_number(kind))


class _Table:
    """Takes piece after piece, and makes an Index of them."""

    def __init__(
        self, source: Source, columns: ColumnMap, prompt: str | None, sized_by: str | None
    ) -> None:
        self.source = source
        self.columns = columns
        self.keys = {
            "step": columns.columns.get("batch"),
            "prompt": prompt,
            "domain": columns.columns.get("domain"),
        }
        self.sized_by = sized_by
        self.parts: dict[str, list[Any]] = {}

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        table, count = piece.table, piece.table.num_rows
        for name, column in self.keys.items():
            if column is not None:
                self._keep(name, _coded(table.column(column)))
        self._keep("reward", self._row_numbers(piece, "reward", numbers, np.nan))
        if "truncated" in self.columns:
            self._keep("truncated", self._row_numbers(piece, "truncated", truncated, np.nan))
        tokens = length = np.zeros(count, dtype=np.int64)
        if self.sized_by is not None:
            array = table.column(self.sized_by)
            tokens = length = lists.list_lengths(array)
            if self.columns.columns.get("mask") == self.sized_by and lists.holds_numbers(
                array.type
            ):
                offsets, mask = lists.flat(array)
                length = lists.row_sums((mask > 0).astype(np.float64), offsets).astype(np.int64)
        self._keep("tokens", tokens)
        self._keep("length", length)

    def _keep(self, name: str, part: Any) -> None:
        self.parts.setdefault(name, []).append(part)

    def _row_numbers(
        self, piece: Piece, role: str, of: Callable[[pa.Array, Place], Any], missing: float
    ) -> Any:
        if role not in self.columns:
            return np.full(piece.table.num_rows, missing)
        column = self.columns.column(role)
        place = Place(str(self.source.files[piece.file].path), piece.first_row, column)
        array = piece.table.column(column)
        if is_list(array.type) and array.null_count:
            return lists.row_sums(*reversed(lists.flat(array)))  # type: ignore[arg-type]
        return of(array, place)

    def finish(self, names: dict[str, str]) -> Index:
        """The index of all pieces."""
        joined = {
            name: np.concatenate(self.parts.get(name, [np.zeros(0)]))
            for name in ("reward", "tokens", "length")
        }
        cut = self.parts.get("truncated")
        keys = {name: _joined(self.parts.get(name)) for name in self.keys}
        step, prompt = keys["step"], keys["prompt"]
        count = len(joined["reward"])
        rank = np.zeros(count, dtype=np.int64) if step is None else _ranks(step)[step.codes]
        own = np.arange(count) if prompt is None else prompt.codes
        pairs = rank * (int(own.max()) + 1 if count else 1) + own
        group = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        return Index(
            source=self.source,
            columns=self.columns,
            names=names,
            reward=joined["reward"],
            tokens=joined["tokens"].astype(np.int64),
            length=joined["length"].astype(np.int64),
            step=step,
            prompt=prompt,
            domain=keys["domain"],
            truncated=None if cut is None else np.concatenate(cut).astype(np.bool_),
            step_rank=rank,
            group=group,
        )


def _coded(array: pa.Array) -> pa.Array:
    """A key column as codes with a dictionary, so that names are held once."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    plain = pa.int64() if pa.types.is_integer(array.type) else pa.string()
    return array.cast(plain).dictionary_encode(null_encoding="encode")


def _joined(parts: list[pa.Array] | None) -> Keys | None:
    if not parts:
        return None
    if len({part.type for part in parts}) > 1:  # one file's ids are numbers, another's strings
        parts = [
            pa.DictionaryArray.from_arrays(part.indices, part.dictionary.cast(pa.string()))
            for part in parts
        ]
    whole = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    array = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    codes = array.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Keys(codes, array.dictionary)


def _ranks(keys: Keys) -> NDArray[np.int64]:
    """The place of each label: numbers by size, names in the order of the input."""
    labels = keys.labels.to_pylist()
    try:
        order = sorted(range(len(labels)), key=lambda code: int(labels[code]))
    except (TypeError, ValueError):
        order = list(range(len(labels)))
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels))
    return ranks
