"""Reader of single responses: it decodes only the row groups and columns that they need."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.responses import columns as lists
from rlpost.analysis.responses.columns import WRITTEN, is_text, text_of, vocabulary_of
from rlpost.errors import ReadWriteError
from rlpost.io.arrow import is_list, is_true
from rlpost.io.parquet.checks import check_utf8
from rlpost.io.parquet.reader import ParquetReader
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.io.keys import KeyColumn, Label


_CHUNK_BYTES = 32 << 20  # of a row group that are decoded at a time
_MOST_CACHED = 4  # chunks
_CLAMP = 40.0  # as `rlpost advantages` clamps the log-ratio


@dataclass(frozen=True)
class Response:
    """One response of a rollout file, for display."""

    row: int
    """Counted from 0 over all inputs."""
    path: str
    file_row: int
    """Counted from 0 in its file."""
    step: Label
    prompt_id: Label
    reward: float
    length: int | None
    """Number of policy tokens; None if no column has it."""
    prompt: str
    text: str
    """The response, or all messages; empty if the file has no text."""
    token_texts: list[str]
    """[t] the text of each token, or its id; a dot if the file has neither."""
    has_texts: bool
    """Whether `token_texts` are texts and not ids."""
    mask: NDArray[np.bool_]
    """[t] whether the token is a policy token."""
    tokens: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """[t] each: token columns by name, without those of another length."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The other columns, with one value each."""
    means: dict[str, float] = field(default_factory=dict)
    """`logprob`, `kl`, `advantage`: means over policy tokens, if their columns were read."""
    token_measures: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """[t] each: the values of these measures per token."""
    ids: NDArray[np.float64] | None = None
    """[t] token ids, of an input with rollouts."""
    prompt_ids: NDArray[np.float64] | None = None
    shared: NDArray[np.bool_] | None = None
    """[t] the policy tokens that an earlier row of the rollout has, too; see `rollout_view`."""
    nulls: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """[t] each: by measure, the tokens whose value is null in the file, and NaN here."""


@dataclass(frozen=True)
class DecodedColumns:
    """The columns that a reader decodes."""

    token_columns: tuple[str, ...]
    texts: tuple[str, ...]
    fields: tuple[str, ...]


class ResponseReader:
    """Reads rows of an indexed input and caches the last chunks. Thread-safe.

    Args:
        index: of the input.
        measures: of `logprob`, `kl` and `advantage`; their columns are read.
        every: read all token columns of roles and of rlpost, whatever the measures.
    """

    def __init__(self, index: Index, measures: Sequence[str] = (), *, every: bool = False) -> None:
        self.index = index
        self.measures = tuple(m for m in measures if index.columns_for(m))
        self.columns_read = _select_columns(index, self.measures, every=every)
        self.vocabulary = vocabulary_of(index.source.schemas[0])
        self._starts = [
            list(accumulate((f.row_group(g).num_rows for g in range(f.num_row_groups)), initial=0))
            for f in index.source.footers
        ]
        self._lock = Lock()
        self._cache: OrderedDict[tuple[int, int, int], pa.RecordBatch] = OrderedDict()

    def read(self, rows: Sequence[int]) -> list[Response]:
        """Return these rows, in this order; each row group is decoded once.

        Raises:
            ReadWriteError: the input is no longer readable.
        """
        with self._lock:
            return self._read([int(row) for row in rows])

    def _read(self, rows: Sequence[int]) -> list[Response]:
        positions = {row: self._position(row) for row in rows}
        responses: dict[int, Response] = {}
        for file, group in sorted({(file, group) for file, group, _ in positions.values()}):
            needed = {i: row for row, (f, g, i) in positions.items() if (f, g) == (file, group)}
            for first, chunk in self._chunks(file, group, sorted(needed)):
                for i in range(first, first + chunk.num_rows):
                    if i in needed:
                        responses[needed[i]] = self._response(needed[i], chunk, i - first)
        return [responses[row] for row in rows]

    def _position(self, row: int) -> tuple[int, int, int]:
        """Return the file and row group of a row, and its number within the group."""
        file, file_row = self.index.place(row)
        starts = self._starts[file]
        group = int(np.searchsorted(starts, file_row, side="right")) - 1
        return file, group, file_row - starts[group]

    def _chunks(
        self, file: int, group: int, rows: list[int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the chunks of a row group with these rows, and their first row."""
        size = self._rows_per_chunk(file, group)
        firsts = sorted({row - row % size for row in rows})
        missing = {first for first in firsts if (file, group, first) not in self._cache}
        for first in firsts:
            if first not in missing:
                self._cache.move_to_end((file, group, first))
                yield first, self._cache[file, group, first]
        if missing:
            for first, chunk in self._decode(file, group, size, max(missing)):
                if first in missing:
                    self._store((file, group, first), chunk)
                    yield first, chunk

    def _store(self, position: tuple[int, int, int], chunk: pa.RecordBatch) -> None:
        self._cache[position] = chunk
        while len(self._cache) > _MOST_CACHED:
            self._cache.popitem(last=False)

    def _rows_per_chunk(self, file: int, group: int) -> int:
        facts = self.index.source.footers[file].row_group(group)
        per_row = max(1, facts.total_byte_size // max(1, facts.num_rows))
        return max(1, _CHUNK_BYTES // int(per_row))

    def _decode(
        self, file: int, group: int, size: int, last: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        source, first = self.index.source, 0
        selection = self.columns_read
        names = (*selection.token_columns, *selection.texts, *selection.fields)
        columns = [name for name in names if name in source.schemas[file].names]
        try:
            with ParquetReader(source.files[file].path, source.footers[file]) as reader:
                for chunk in reader.batches(size, group, columns):
                    check_utf8(chunk)
                    yield first, chunk
                    first += chunk.num_rows
                    if first > last:
                        return
        except MemoryError:  # an ArrowException, too, but not about the data
            raise
        except (pa.ArrowException, OSError) as error:
            path, why = source.files[file].path, str(error).splitlines()[0]
            raise ReadWriteError(f"{path}: is no longer readable: {why}") from None

    def _response(self, row: int, chunk: pa.RecordBatch, i: int) -> Response:
        index, (file, _) = self.index, self.index.place(row)
        cells = {name: chunk.column(name).slice(i, 1) for name in chunk.schema.names}
        lists_of = {name: cells[name] for name in self.columns_read.token_columns if name in cells}
        values = {name: lists.flat(array)[1] for name, array in lists_of.items()}
        count = int(index.tokens[row]) or len(next(iter(values.values()), ()))
        mask_column = index.columns.columns.get("mask")
        tokens = {name: array for name, array in values.items() if len(array) == count}
        mask = tokens.pop(mask_column, np.ones(count)) > 0  # type: ignore[arg-type]
        texts = {name: text_of(cells[name][0].as_py()) for name in self.columns_read.texts}
        plain = {name: cells[name][0].as_py() for name in self.columns_read.fields if name in cells}
        plain |= dict(index.source.files[file].partitions)
        found = {name: self._measure(name, tokens, plain, count) for name in self.measures}
        colours = {name: value for name, value in found.items() if value is not None}
        means = {name: _mean(value, mask) for name, value in colours.items()}
        length: int | None = int(mask.sum())
        if not count and index.sized_by is None:  # the input has no tokens
            means |= {name: float(plain[self._columns(name)[0]]) for name in colours}
            length = None if np.isnan(index.length[row]) else int(index.length[row])
            colours = {}
        null_tokens = {
            name: is_true(array.flatten().is_null())
            for name, array in lists_of.items()
            if name in tokens
        }
        nulls = {
            name: np.any([null_tokens[column] for column in self._columns(name)], axis=0)
            for name in colours
            if null_tokens.keys() >= {*self._columns(name)}
        }
        token_texts, has_texts = self._token_texts(cells, values, count)
        text = "".join(token_texts) if has_texts else ""
        return Response(
            row=row,
            path=index.shown_path(file),
            file_row=index.shown_row(row),
            step=_label(index.step, row),
            prompt_id=_label(index.prompt, row),
            reward=float(index.reward[row]),
            length=length,
            prompt=texts.get(index.names.get("prompt", ""), ""),
            text=texts.get(index.names.get("response", ""), "")
            or texts.get(index.names.get("messages", ""), "")
            or text,
            token_texts=token_texts,
            has_texts=has_texts,
            mask=mask,
            tokens=tokens,
            fields=plain,
            means=means,
            token_measures=colours,
            nulls=nulls,
            ids=tokens.get(index.names.get("tokens", "")),
            prompt_ids=values.get(index.names.get("prompt_tokens", "")),
        )

    def _columns(self, measure: str) -> list[str]:
        """Return the columns of a measure, besides the mask."""
        mask = self.index.columns.columns.get("mask")
        return [name for name in self.index.columns_for(measure) if name != mask]

    def _measure(
        self,
        measure: str,
        tokens: dict[str, NDArray[np.float64]],
        fields: dict[str, Any],
        count: int,
    ) -> NDArray[np.float64] | None:
        """Return a measure per token, [t]; a number of the whole response is repeated."""
        columns = self._columns(measure)
        if len(columns) == 1 and isinstance(fields.get(columns[0]), int | float):
            return np.full(count, float(fields[columns[0]]))
        if not all(name in tokens for name in columns):
            return None
        if len(columns) == 1:
            return tokens[columns[0]]
        difference: NDArray[np.float64] = tokens[columns[0]] - tokens[columns[1]]
        return np.clip(difference, -_CLAMP, _CLAMP)

    def _token_texts(
        self, cells: dict[str, pa.Array], values: dict[str, Any], count: int
    ) -> tuple[list[str], bool]:
        """Return the last `count` tokens, as ids can include the prompt, and if they are texts."""
        name = self.index.names.get("tokens", "")
        vocabulary = self.vocabulary
        has_texts = bool(vocabulary)
        if name in values:
            ids = [int(one) for one in values[name][-count:]] if count else []
            texts = [vocabulary[i] if 0 <= i < len(vocabulary) else str(i) for i in ids]
        elif name in cells and is_list(cells[name].type):
            texts = [str(text) for text in cells[name][0].as_py() or []][-count:]
            has_texts = bool(texts)
        else:
            texts = []
        if len(texts) != count:
            return ["·"] * count, False
        return texts, has_texts


def _select_columns(index: Index, measures: Sequence[str], *, every: bool) -> DecodedColumns:
    """Return the columns to decode."""
    schema, names = index.source.schemas[0], index.names
    kinds = {name: schema.field(name).type for name in index.source.columns if name in schema.names}
    texts = [names[w] for w in ("prompt", "response", "messages") if names.get(w) in kinds]
    if "response" in names and "prompt" in names and len(texts) > 2:  # noqa: PLR2004
        texts.pop()  # the messages repeat them
    ids = [names["tokens"]] if names.get("tokens") in kinds else []
    if index.rollout is not None and names.get("prompt_tokens") in kinds:
        ids.append(names["prompt_tokens"])
    mask = [index.columns.column("mask")] if "mask" in index.columns else []
    needed = {column for measure in measures for column in index.columns_for(measure)}
    if every:
        roles = [role for role, facts in ROLES.items() if facts.kind == "tokens"]
        needed |= {index.columns.column(role) for role in roles if role in index.columns}
        needed |= {*WRITTEN}
    tokens = [
        name
        for name in dict.fromkeys([*ids, *mask, *(n for n in kinds if n in needed)])
        if name in kinds and lists.holds_numbers(kinds[name])
    ]
    text_lists = [name for name in ids if name not in tokens]
    used = {*texts, *tokens, *text_lists}
    fields = [
        name
        for name, kind in kinds.items()
        if name not in used and not pa.types.is_nested(kind) and not pa.types.is_binary(kind)
    ]
    return DecodedColumns(
        (*tokens,), tuple(t for t in texts if is_text(kinds[t])), (*fields, *text_lists)
    )


def _label(keys: KeyColumn | None, row: int) -> Label:
    return None if keys is None else keys.label(int(keys.codes[row]))


def _mean(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    return float(values[mask].mean()) if mask.any() else float("nan")
