"""One pass over the files: a table of responses, and tallies of their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.inspect import columns as decode
from rlpost.inspect import layout, tokens
from rlpost.inspect.advantages import advantage_rows
from rlpost.inspect.lags import probe_steps
from rlpost.inspect.tally import Tally
from rlpost.inspect.tokens import Block
from rlpost.inspect.wanted import KEYS
from rlpost.parallel import Ahead
from rlpost.parquet.bridge import is_true
from rlpost.parquet.pieces import Piece
from rlpost.parquet.ragged import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.inspect.columns import Lists
    from rlpost.inspect.model import Label
    from rlpost.inspect.wanted import Wanted
    from rlpost.parquet.source import Source

CHUNK_TOKENS = 1 << 19  # half of them make more calls, twice as many leave the cache
AHEAD = 6  # pieces that the reader may have ready


@dataclass(frozen=True)
class Reading:
    """What one pass gave.

    `rows` has a row per response: `file`, `row` (in its file), the keys, `reward`, `truncated`,
    `length` (all tokens), `tokens` (the policy's), flags and means of its tokens, `copy` and
    `prompt` (hashes, 0 for no prompt), and by role the `entries` of its list.
    """

    wanted: Wanted
    rows: pl.DataFrame
    tally: Tally


def read(source: Source, wanted: Wanted) -> Reading:
    """Read the input once, in pieces, a thread ahead.

    Raises:
        DataError: a column has a type that its role can't have.
        ReadWriteError: reading failed.
    """
    tally = Tally()
    names = wanted.names or source.columns[:1]
    pieces = source.read(names, CHUNK_TOKENS, wanted.lists_column or names[0])
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted
        made = [_rows(piece, source, wanted, tally) for piece in Ahead(pieces, AHEAD)]
    made = made or [_rows(_nothing(source, names), source, wanted, tally)]
    keys = [role for role in KEYS if role in wanted.columns]
    series = {name: _joined([rows[name] for rows in made]) for name in keys}
    others = [name for name in made[0] if name not in series]
    arrays = {name: np.concatenate([rows[name] for rows in made]) for name in others}
    return Reading(wanted, _with_copies(pl.DataFrame({**series, **arrays}), wanted), tally)


def _with_copies(rows: pl.DataFrame, wanted: Wanted) -> pl.DataFrame:
    """Where no text or tokens tell copies, equal log-probs do: their number and mean."""
    if wanted.copies_role is None or "copy" in rows:
        return rows
    mean = pl.col(f"mean:{wanted.copies_role}")
    return rows.with_columns(copy=pl.when(mean.is_finite()).then(pl.struct(mean, "tokens").hash()))


def _nothing(source: Source, names: Sequence[str]) -> Piece:
    """A piece without rows, for an input without any."""
    schema = source.schemas[0]
    fields = [schema.field(name) if name in schema.names else (name, pa.string()) for name in names]
    return Piece(0, 0, 0, pa.RecordBatch.from_pylist([], pa.schema(fields)))


def _joined(parts: list[pl.Series]) -> pl.Series:
    """Keys of all pieces; strings where files differ in their type."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.cast(pl.String) for part in parts]
    return pl.concat(parts)


def _rows(piece: Piece, source: Source, wanted: Wanted, tally: Tally) -> dict[str, Any]:
    """What is kept of each response of a piece."""
    table, count = piece.table, piece.table.num_rows
    path = str(source.files[piece.file].path)

    def column(role: str) -> tuple[Any, Place]:
        name = wanted.columns.columns.get(role, role)
        return table.column(name), Place(path, piece.first_row, name)

    rows: dict[str, Any] = {
        "file": np.full(count, piece.file, np.int32),
        "row": np.arange(piece.first_row, piece.first_row + count),
    }
    rows |= {role: decode.keys_of(*column(role)) for role in KEYS if role in wanted.columns}
    if "reward" in wanted.columns:
        rows["reward"] = decode.numbers_of(*column("reward"))
    if "truncated" in wanted.columns:
        rows["truncated"] = decode.truncated_of(*column("truncated"))
    lists: dict[str, Lists] = {}
    if wanted.lists is not None:
        lists = {
            role: decode.lists_of(*column(role))
            for role in dict.fromkeys((wanted.lists, *wanted.tokens))
        }
        steps = rows.get("batch")
        rows |= _tokens(lists, wanted, tally, None if steps is None else steps.to_list())
    if wanted.text is not None:
        rows["copy"] = decode.fingerprints_of(*column(wanted.text))
        if wanted.lists is None:
            rows["characters"] = decode.characters_of(column(wanted.text)[0])
    if wanted.prompt is not None:
        array, place = column(wanted.prompt)
        hashes = decode.fingerprints_of(array, place)
        rows["prompt"] = np.where(is_true(array.is_valid()), hashes, 0)
    if wanted.advantages is not None:
        kept = None if wanted.kept is None else decode.numbers_of(*column(wanted.kept)) != 0
        rows |= advantage_rows(*column(wanted.advantages), lists.get("mask"), kept)
    return rows


def _tokens(
    lists: dict[str, Lists], wanted: Wanted, tally: Tally, steps: Sequence[Label | None] | None
) -> dict[str, NDArray[Any]]:
    """What is kept of each response's tokens; the tally gets the rest."""
    assert wanted.lists is not None
    lengths = lists[wanted.lists].lengths
    rows: dict[str, NDArray[Any]] = {"length": lengths}
    unequal = {role: lists[role].lengths != lengths for role in wanted.tokens}
    rows |= {f"unequal:{role}": found for role, found in unequal.items()}
    rows |= {f"entries:{role}": _entries(lists[role]) for role in wanted.tokens}
    mask: NDArray[np.bool_] | None = None
    if wanted.lists == "mask":
        mask, rows["not_binary"] = _mask(lists["mask"])
    own = lists[wanted.lists].offsets
    rows |= layout.mask_rows(Block(own, mask, {}))
    # A column that most rows disagree with is left out; of the others, the rows that agree count.
    fitting = [role for role, found in unequal.items() if 2 * found.sum() <= len(lengths)]
    good = ~np.any([unequal[role] for role in fitting] or [np.zeros(len(lengths), bool)], axis=0)
    values = {role: lists[role].values for role in fitting}
    block = Block(own, mask, values)
    if not good.all():
        block = _chosen(good, own, mask, {role: lists[role] for role in fitting})
    found = {**tokens.measure(block, tally), **layout.end_rows(block)}
    layout.probe(block, tally)
    if steps is not None:
        probe_steps(block, [step for step, fits in zip(steps, good, strict=True) if fits], tally)
    for role in wanted.tokens:
        rows |= {name: _spread(found.get(name), good) for name in _names(role)}
    for name in ("kl", "k3", "compared"):
        if name in found or _expects(name, wanted.tokens):
            rows[name] = _spread(found.get(name), good, np.float64)
    return rows


def _entries(lists: Lists) -> NDArray[np.int32]:
    """How many values each row has, -1 where there is no list, [n]."""
    entries = lists.lengths.astype(np.int32)
    if lists.nulls is not None:
        entries[lists.nulls] = -1
    return entries


def _names(role: str) -> list[str]:
    ends = [f"{end}:{role}" for end in layout.ENDS] if role in tokens.LOG_PROBS else []
    return [f"mean:{role}", f"nonfinite:{role}", *ends]


def _expects(name: str, roles: Sequence[str]) -> bool:
    other = "ref_log_probs" if name == "kl" else "infer_log_probs"
    return {"old_log_probs", other} <= {*roles}


def _spread(values: NDArray[Any] | None, good: NDArray[np.bool_], kind: Any = None) -> NDArray[Any]:
    """Numbers of some rows among all: NaN for the others."""
    wide = np.full(len(good), np.nan, kind or np.float32)
    if values is not None:
        wide[good] = values
    return wide


def _mask(lists: Lists) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_]]:
    """The mask, None where all is 1; and rows that have something else than 0 and 1."""
    values, rows = lists.values, len(lists.lengths)
    one = values == 1
    if one.all():
        return None, np.zeros(rows, np.bool_)
    wrong = ~one & (values != 0)
    if not wrong.any():
        return one, np.zeros(rows, np.bool_)
    return one | wrong, decode.segment_sums(wrong.astype(np.int64), lists.offsets) > 0


def _chosen(
    good: NDArray[np.bool_],
    own: NDArray[np.int64],
    mask: NDArray[np.bool_] | None,
    lists: Mapping[str, Lists],
) -> Block:
    """The block of some rows."""
    offsets = np.concatenate([[0], np.diff(own)[good].cumsum()])
    values = {role: one.values[np.repeat(good, one.lengths)] for role, one in lists.items()}
    kept = None if mask is None else mask[np.repeat(good, np.diff(own))]
    return Block(offsets, kept, values)
