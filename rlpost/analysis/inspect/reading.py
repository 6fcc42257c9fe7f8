"""One pass over the files: a table of responses, and tallies of their tokens.

Which columns `inspect` reads, and what for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.analysis.inspect import columns as decode
from rlpost.analysis.inspect import layout, tokens
from rlpost.analysis.inspect.advantages import advantage_rows
from rlpost.analysis.inspect.layout import probe_steps
from rlpost.analysis.inspect.statistics import TokenTotals
from rlpost.analysis.inspect.tokens import ROLES as TOKEN_ROLES
from rlpost.analysis.inspect.tokens import Block
from rlpost.io.arrow import CellLocation, is_list, is_number, is_true
from rlpost.io.parquet.source import RowChunk
from rlpost.io.threads import Prefetcher
from rlpost.recipe.roles import ColumnMap, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import Lists
    from rlpost.analysis.inspect.model import Label
    from rlpost.io.parquet.source import Source
    from rlpost.recipe.roles import Kind


KEYS = ("group", "batch", "domain")
ROWS = (*KEYS, "reward", "truncated")
# What responses are told apart by, to find copies: a text, else tokens.
TEXTS = (
    "response", "completion", "output", "responses", "output_response", "response_text",
    "completions", "response_tokens", "response_ids", "completion_ids", "output_tokens",
    "output_ids",
)  # fmt: skip
# What is asked, as text or as tokens: rows of one group share it.
PROMPTS = (
    "prompt", "prompt_text", "input_prompt", "question", "query", "problem", "instruction",
    "prompts", "input", "prompt_tokens", "prompt_ids", "prompt_token_ids", "input_tokens",
)  # fmt: skip
# Columns of dialogues dumped turn by turn: the prompt of a later turn holds what was said before.
TURNS = (
    "turn", "turn_id", "turn_index", "turn_idx", "traj_id", "trajectory_id", "rollout_id",
    "episode_id", "traj_uid",
)  # fmt: skip


@dataclass(frozen=True)
class ColumnSelection:
    """Which columns are read, and what for."""

    columns: ColumnMap
    lists: str | None
    """The role, or else the column, whose lists tell how long a response is."""
    tokens: tuple[str, ...]
    """Roles of token numbers."""
    text: str | None
    """The column that copies are told by."""
    unusable: dict[str, tuple[str, str]]
    """Roles whose column is of a type that they can't have, with both; not in `columns`."""
    prompt: str | None = None
    """The column of prompts, text or tokens; None also where rows are turns of dialogues."""
    advantages: str | None = None
    """The column of advantages, a list or a number per row."""
    kept: str | None = None
    """The column that is 0 for responses that sample masks dropped; read with advantages."""

    @property
    def lists_column(self) -> str | None:
        """The column whose lists tell how long a response is."""
        return None if self.lists is None else self.columns.columns.get(self.lists, self.lists)

    @property
    def copies_role(self) -> str | None:
        """The role that tells copies where no text does."""
        found = (role for role in ("infer_log_probs", "old_log_probs") if role in self.tokens)
        return None if self.text else next(found, None)

    @property
    def names(self) -> list[str]:
        """Every column, once."""
        rows = [role for role in (*KEYS, "reward", "truncated") if role in self.columns]
        served = [self.columns.column(role) for role in (*rows, *self.tokens)]
        others = (self.lists_column, self.text, self.prompt, self.advantages, self.kept)
        return list(dict.fromkeys(x for x in (*served, *others) if x))


def wanted_of(source: Source, columns: ColumnMap, *, with_tokens: bool) -> ColumnSelection:
    """Choose what to read; without tokens the mask, or another list, is read for its lengths."""
    unusable = {
        role: (columns.column(role), str(kind))
        for role in (*ROWS, "mask", *TOKEN_ROLES)
        if role in columns
        for kind in _types(source, columns.column(role))
        if not _usable(kind_of(role), kind)
    }
    columns = ColumnMap(
        {role: column for role, column in columns.columns.items() if role not in unusable},
        columns.how,
    )
    there = tuple(role for role in TOKEN_ROLES if role in columns)
    telling = _telling(source, TEXTS)
    ids = next((name for name in telling if all(map(is_list, _types(source, name)))), None)
    lists = "mask" if "mask" in columns else next(iter(there), ids)
    if not with_tokens:
        return ColumnSelection(columns, lists, (), None, unusable)
    advantages = _advantages(source, columns)
    return ColumnSelection(
        columns,
        lists,
        there,
        next(iter(telling), None),
        unusable,
        prompt=_prompt(source, columns),
        advantages=advantages,
        kept=_kept(source, columns) if advantages else None,
    )


def _telling(source: Source, names: Sequence[str]) -> list[str]:
    """Those of some columns that are there, and are texts or lists of numbers."""
    return [
        name
        for name in names
        if name in source.columns and all(map(_is_telling, _types(source, name)))
    ]


def _prompt(source: Source, columns: ColumnMap) -> str | None:
    """The column that groups are checked against: not the key itself, and of first turns."""
    group = columns.columns.get("group")
    if any(name in source.columns for name in TURNS if name != group):
        return None
    return next((name for name in _telling(source, PROMPTS) if name != group), None)


def _advantages(source: Source, columns: ColumnMap) -> str | None:
    """The column of advantages, where it holds numbers or lists of them."""
    name = columns.columns.get("advantages")
    if name is None or not all(
        is_number(kind) or _is_numbers(kind) for kind in _types(source, name)
    ):
        return None
    return name


def _kept(source: Source, columns: ColumnMap) -> str | None:
    """The column of the sample mask, where it holds numbers."""
    name = columns.columns.get("sample_mask")
    return name if name and all(map(is_number, _types(source, name))) else None


def _types(source: Source, column: str) -> Iterator[pa.DataType]:
    """The types of a column; a hive partition has none."""
    for schema in source.schemas:
        if column in schema.names:
            yield schema.field(column).type


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_numbers(kind: pa.DataType) -> bool:
    """Lists of numbers; those of a column of empty lists may have no type."""
    return is_list(kind) and (is_number(kind.value_type) or pa.types.is_null(kind.value_type))


def _is_telling(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_numbers(kind)


def _usable(meaning: Kind, kind: pa.DataType) -> bool:
    """Whether a column of this type can have the meaning; an empty one can have any."""
    if pa.types.is_null(kind):
        return True
    if meaning == "tokens":
        return _is_numbers(kind)
    if meaning == "number":
        return is_number(kind) or _is_numbers(kind)
    return is_number(kind) or _is_text(kind)


CHUNK_TOKENS = 1 << 19  # half of them make more calls, twice as many leave the cache
AHEAD = 6  # pieces that the reader may have ready


@dataclass(frozen=True)
class Reading:
    """What one pass gave.

    `rows` has a row per response: `file`, `row` (in its file), the keys, `reward`, `truncated`,
    `length` (all tokens), `tokens` (the policy's), flags and means of its tokens, `copy` and
    `prompt` (hashes, 0 for no prompt), and by role the `entries` of its list.
    """

    wanted: ColumnSelection
    rows: pl.DataFrame
    tally: TokenTotals


def read(source: Source, wanted: ColumnSelection) -> Reading:
    """Read the input once, in pieces, a thread ahead.

    Raises:
        DataError: a column has a type that its role can't have.
        ReadWriteError: reading failed.
    """
    tally = TokenTotals()
    names = wanted.names or source.columns[:1]
    pieces = source.read(names, CHUNK_TOKENS, wanted.lists_column or names[0])
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted
        made = [_rows(piece, source, wanted, tally) for piece in Prefetcher(pieces, AHEAD)]
    made = made or [_rows(_nothing(source, names), source, wanted, tally)]
    keys = [role for role in KEYS if role in wanted.columns]
    series = {name: _joined([rows[name] for rows in made]) for name in keys}
    others = [name for name in made[0] if name not in series]
    arrays = {name: np.concatenate([rows[name] for rows in made]) for name in others}
    return Reading(wanted, _with_copies(pl.DataFrame({**series, **arrays}), wanted), tally)


def _with_copies(rows: pl.DataFrame, wanted: ColumnSelection) -> pl.DataFrame:
    """Where no text or tokens tell copies, equal log-probs do: their number and mean."""
    if wanted.copies_role is None or "copy" in rows:
        return rows
    mean = pl.col(f"mean:{wanted.copies_role}")
    return rows.with_columns(copy=pl.when(mean.is_finite()).then(pl.struct(mean, "tokens").hash()))


def _nothing(source: Source, names: Sequence[str]) -> RowChunk:
    """A piece without rows, for an input without any."""
    schema = source.schemas[0]
    fields = [schema.field(name) if name in schema.names else (name, pa.string()) for name in names]
    return RowChunk(0, 0, 0, pa.RecordBatch.from_pylist([], pa.schema(fields)))


def _joined(parts: list[pl.Series]) -> pl.Series:
    """Keys of all pieces; strings where files differ in their type."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.cast(pl.String) for part in parts]
    return pl.concat(parts)


def _rows(
    piece: RowChunk, source: Source, wanted: ColumnSelection, tally: TokenTotals
) -> dict[str, Any]:
    """What is kept of each response of a piece."""
    table, count = piece.table, piece.table.num_rows
    path = str(source.files[piece.file].path)

    def column(role: str) -> tuple[Any, CellLocation]:
        name = wanted.columns.columns.get(role, role)
        return table.column(name), CellLocation(path, piece.first_row, name)

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
    lists: dict[str, Lists],
    wanted: ColumnSelection,
    tally: TokenTotals,
    steps: Sequence[Label | None] | None,
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
