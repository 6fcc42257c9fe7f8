"""Reading single responses: the row groups and columns that they need, and no others."""

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
from rlpost.io.arrow import is_list
from rlpost.io.parquet.checks import check_utf8
from rlpost.io.parquet.reader import ParquetReader
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index, Keys, Label


_PIECE_BYTES = 32 << 20  # of a row group that are decoded at a time
_KEPT_PIECES = 4
_CLAMP = 40.0  # as `rlpost advantages` clamps the log-ratio


@dataclass(frozen=True)
class Response:
    """One row of a rollout file, as it is looked at."""

    row: int
    """Counted from 0 over all inputs."""
    path: str
    file_row: int
    """Counted from 0 in its file."""
    step: Label
    prompt_id: Label
    reward: float
    length: int
    """Tokens that the policy produced."""
    prompt: str
    text: str
    """The response, or all messages; empty where the file has no text."""
    pieces: list[str]
    """[t] the text of each token, or its id; a dot where the file has neither."""
    words: bool
    """The pieces are texts."""
    mask: NDArray[np.bool_]
    """[t] the policy produced the token."""
    tokens: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """[t] each: token columns by name, those whose lists have another length left out."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The row's other columns of one value each."""
    measured: dict[str, float] = field(default_factory=dict)
    """`logprob`, `kl`, `advantage`: means over policy tokens, as far as columns were read."""
    colours: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """[t] each, by the same names."""


@dataclass(frozen=True)
class Selection:
    """Which columns a reader decodes."""

    token_columns: tuple[str, ...]
    texts: tuple[str, ...]
    fields: tuple[str, ...]


class Reader:
    """Reads rows of an indexed input; the pieces read last are kept. Any thread may read.

    Args:
        index: of the input.
        measures: `logprob`, `kl`, `advantage`: the columns that these need are read.
        every: read all token columns that have a meaning, whatever the measures.
    """

    def __init__(self, index: Index, measures: Sequence[str] = (), *, every: bool = False) -> None:
        self.index = index
        self.measures = tuple(m for m in measures if index.columns_for(m))
        self.selection = _selection(index, self.measures, every=every)
        self.words = vocabulary_of(index.source.schemas[0])
        self._starts = [
            list(accumulate((f.row_group(g).num_rows for g in range(f.num_row_groups)), initial=0))
            for f in index.source.footers
        ]
        self._lock = Lock()
        self._kept: OrderedDict[tuple[int, int, int], pa.RecordBatch] = OrderedDict()

    def read(self, rows: Sequence[int]) -> list[Response]:
        """These rows, in this order; each row group is gone through once.

        Raises:
            ReadWriteError: the input can no longer be read.
        """
        with self._lock:
            return self._read([int(row) for row in rows])

    def _read(self, rows: Sequence[int]) -> list[Response]:
        places = {row: self._place(row) for row in rows}
        found: dict[int, Response] = {}
        for file, group in sorted({(file, group) for file, group, _ in places.values()}):
            wanted = {at: row for row, (f, g, at) in places.items() if (f, g) == (file, group)}
            for first, piece in self._pieces(file, group, sorted(wanted)):
                for at in range(first, first + piece.num_rows):
                    if at in wanted:
                        found[wanted[at]] = self._response(wanted[at], piece, at - first)
        return [found[row] for row in rows]

    def _place(self, row: int) -> tuple[int, int, int]:
        """The file and row group of a row, and its number within the group."""
        file, at = self.index.place(row)
        starts = self._starts[file]
        group = int(np.searchsorted(starts, at, side="right")) - 1
        return file, group, at - starts[group]

    def _pieces(
        self, file: int, group: int, wanted: list[int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The pieces of a row group that hold the wanted rows, with their first row."""
        size = self._rows_per_piece(file, group)
        firsts = sorted({at - at % size for at in wanted})
        missing = {first for first in firsts if (file, group, first) not in self._kept}
        for first in firsts:
            if first not in missing:
                self._kept.move_to_end((file, group, first))
                yield first, self._kept[file, group, first]
        if missing:
            for first, piece in self._decoded(file, group, size, max(missing)):
                if first in missing:
                    self._keep((file, group, first), piece)
                    yield first, piece

    def _keep(self, place: tuple[int, int, int], piece: pa.RecordBatch) -> None:
        self._kept[place] = piece
        while len(self._kept) > _KEPT_PIECES:
            self._kept.popitem(last=False)

    def _rows_per_piece(self, file: int, group: int) -> int:
        facts = self.index.source.footers[file].row_group(group)
        per_row = max(1, facts.total_byte_size // max(1, facts.num_rows))
        return max(1, _PIECE_BYTES // int(per_row))

    def _decoded(
        self, file: int, group: int, size: int, last: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        source, first = self.index.source, 0
        chosen = self.selection
        wanted = (*chosen.token_columns, *chosen.texts, *chosen.fields)
        columns = [name for name in wanted if name in source.schemas[file].names]
        try:
            with ParquetReader(source.files[file].path, source.footers[file]) as reader:
                for piece in reader.batches(size, group, columns):
                    check_utf8(piece)
                    yield first, piece
                    first += piece.num_rows
                    if first > last:
                        return
        except (pa.ArrowException, OSError) as error:
            path, why = source.files[file].path, str(error).splitlines()[0]
            raise ReadWriteError(f"{path}: cannot be read any more: {why}") from None

    def _response(self, row: int, piece: pa.RecordBatch, at: int) -> Response:
        index, (file, file_row) = self.index, self.index.place(row)
        cells = {name: piece.column(name).slice(at, 1) for name in piece.schema.names}
        lists_of = {name: cells[name] for name in self.selection.token_columns if name in cells}
        values = {name: lists.flat(array)[1] for name, array in lists_of.items()}
        count = int(index.tokens[row]) or len(next(iter(values.values()), ()))
        mask_column = index.columns.columns.get("mask")
        tokens = {name: array for name, array in values.items() if len(array) == count}
        mask = tokens.pop(mask_column, np.ones(count)) > 0  # type: ignore[arg-type]
        texts = {name: text_of(cells[name][0].as_py()) for name in self.selection.texts}
        plain = {name: cells[name][0].as_py() for name in self.selection.fields if name in cells}
        plain |= dict(index.source.files[file].partitions)
        found = {name: self._colour(name, tokens, plain, count) for name in self.measures}
        colours = {name: value for name, value in found.items() if value is not None}
        pieces, words = self._texts_of_tokens(cells, values, count)
        text = "".join(pieces) if words else ""
        return Response(
            row=row,
            path=str(index.source.files[file].path),
            file_row=file_row,
            step=_label(index.step, row),
            prompt_id=_label(index.prompt, row),
            reward=float(index.reward[row]),
            length=int(mask.sum()),
            prompt=texts.get(index.names.get("prompt", ""), ""),
            text=texts.get(index.names.get("response", ""), "")
            or texts.get(index.names.get("messages", ""), "")
            or text,
            pieces=pieces,
            words=words,
            mask=mask,
            tokens=tokens,
            fields=plain,
            measured={name: _mean(value, mask) for name, value in colours.items()},
            colours=colours,
        )

    def _colour(
        self,
        measure: str,
        tokens: dict[str, NDArray[np.float64]],
        fields: dict[str, Any],
        count: int,
    ) -> NDArray[np.float64] | None:
        """What a measure is the mean of, [t]; a number of the whole response is spread."""
        mask = self.index.columns.columns.get("mask")
        columns = [name for name in self.index.columns_for(measure) if name != mask]
        if len(columns) == 1 and isinstance(fields.get(columns[0]), int | float):
            return np.full(count, float(fields[columns[0]]))
        if not all(name in tokens for name in columns):
            return None
        if len(columns) == 1:
            return tokens[columns[0]]
        difference: NDArray[np.float64] = tokens[columns[0]] - tokens[columns[1]]
        return np.clip(difference, -_CLAMP, _CLAMP)

    def _texts_of_tokens(
        self, cells: dict[str, pa.Array], values: dict[str, Any], count: int
    ) -> tuple[list[str], bool]:
        """The last `count` tokens, as ids may cover the prompt, too; whether they are texts."""
        name = self.index.names.get("tokens", "")
        words = self.words
        if name in values:
            ids = [int(one) for one in values[name][-count:]] if count else []
            found = [words[i] if 0 <= i < len(words) else str(i) for i in ids]
        elif name in cells and is_list(cells[name].type):
            found = [str(piece) for piece in cells[name][0].as_py() or []][-count:]
            words = found
        else:
            found = []
        if len(found) != count:
            return ["·"] * count, False
        return found, bool(words)


def _selection(index: Index, measures: Sequence[str], *, every: bool) -> Selection:
    """The columns to decode."""
    schema, names = index.source.schemas[0], index.names
    kinds = {name: schema.field(name).type for name in index.source.columns if name in schema.names}
    texts = [names[w] for w in ("prompt", "response", "messages") if names.get(w) in kinds]
    if "response" in names and "prompt" in names and len(texts) > 2:  # noqa: PLR2004
        texts.pop()  # the messages say the same again
    ids = [names["tokens"]] if names.get("tokens") in kinds else []
    mask = [index.columns.column("mask")] if "mask" in index.columns else []
    wanted = {column for measure in measures for column in index.columns_for(measure)}
    if every:
        roles = [role for role, facts in ROLES.items() if facts.kind == "tokens"]
        wanted |= {index.columns.column(role) for role in roles if role in index.columns}
        wanted |= {*WRITTEN}
    tokens = [
        name
        for name in dict.fromkeys([*ids, *mask, *(n for n in kinds if n in wanted)])
        if name in kinds and lists.holds_numbers(kinds[name])
    ]
    word_lists = [name for name in ids if name not in tokens]
    taken = {*texts, *tokens, *word_lists}
    fields = [
        name
        for name, kind in kinds.items()
        if name not in taken and not pa.types.is_nested(kind) and not pa.types.is_binary(kind)
    ]
    return Selection(
        (*tokens,), tuple(t for t in texts if is_text(kinds[t])), (*fields, *word_lists)
    )


def _label(keys: Keys | None, row: int) -> Label:
    return None if keys is None else keys.label(int(keys.codes[row]))


def _mean(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    return float(values[mask].mean()) if mask.any() else float("nan")
