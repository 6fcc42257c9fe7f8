"""One pass over the files: which columns are read, the table of responses, totals of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.analysis.inspect import alignment, tokens
from rlpost.analysis.inspect import columns as decode
from rlpost.analysis.inspect.advantages import advantage_rows
from rlpost.analysis.inspect.statistics import GrowingHistogram, TokenTotals
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
# Columns that identify a response, to find copies: a text, else tokens.
TEXTS = (
    "response", "completion", "output", "responses", "output_response", "response_text",
    "completions", "response_tokens", "response_ids", "completion_ids", "output_tokens",
    "output_ids",
)  # fmt: skip
# Columns of prompts, as text or as tokens: responses of one group share them.
PROMPTS = (
    "prompt", "prompt_text", "input_prompt", "question", "query", "problem", "instruction",
    "prompts", "input", "prompt_tokens", "prompt_ids", "prompt_token_ids", "input_tokens",
)  # fmt: skip
# Columns of dialogues with a row per turn: the prompt of a later turn contains the earlier turns.
TURNS = (
    "turn", "turn_id", "turn_index", "turn_idx", "traj_id", "trajectory_id", "rollout_id",
    "episode_id", "traj_uid",
)  # fmt: skip


@dataclass(frozen=True)
class ColumnSelection:
    """The columns that are read, by purpose."""

    columns: ColumnMap
    lists: str | None
    """The role, or else the column, whose lists have the length of a response."""
    tokens: tuple[str, ...]
    """Roles with a number per token."""
    text: str | None
    """The column by which copies are found."""
    unusable: dict[str, tuple[str, str]]
    """Roles whose column has an unsuitable type, with column and type; not in `columns`."""
    prompt: str | None = None
    """The column of prompts, text or tokens; None also if rows are turns of dialogues."""
    advantages: str | None = None
    """The column of advantages, a list or a number per row."""
    kept: str | None = None
    """The sample mask, 0 for responses that are left out; read with advantages."""

    @property
    def lists_column(self) -> str | None:
        """The column whose lists have the length of a response."""
        return None if self.lists is None else self.columns.columns.get(self.lists, self.lists)

    @property
    def copies_role(self) -> str | None:
        """The role by which copies are found if there is no text."""
        roles = (role for role in ("infer_log_probs", "old_log_probs") if role in self.tokens)
        return None if self.text else next(roles, None)

    @property
    def names(self) -> list[str]:
        """Every column that is read, once."""
        rows = [role for role in (*KEYS, "reward", "truncated") if role in self.columns]
        served = [self.columns.column(role) for role in (*rows, *self.tokens)]
        others = (self.lists_column, self.text, self.prompt, self.advantages, self.kept)
        return list(dict.fromkeys(x for x in (*served, *others) if x))


def select_columns(source: Source, columns: ColumnMap, *, with_tokens: bool) -> ColumnSelection:
    """Select columns; without tokens, the mask or another list is read for its lengths."""
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
    roles = tuple(role for role in TOKEN_ROLES if role in columns)
    texts = _texts_or_lists(source, TEXTS)
    ids = next((name for name in texts if all(map(is_list, _types(source, name)))), None)
    lists = "mask" if "mask" in columns else next(iter(roles), ids)
    if not with_tokens:
        return ColumnSelection(columns, lists, (), None, unusable)
    advantages = _advantages(source, columns)
    return ColumnSelection(
        columns,
        lists,
        roles,
        next(iter(texts), None),
        unusable,
        prompt=_prompt(source, columns),
        advantages=advantages,
        kept=_kept(source, columns) if advantages else None,
    )


def _texts_or_lists(source: Source, names: Sequence[str]) -> list[str]:
    """Return the columns that exist and are texts or lists of numbers."""
    return [
        name
        for name in names
        if name in source.columns and all(map(_is_text_or_list, _types(source, name)))
    ]


def _prompt(source: Source, columns: ColumnMap) -> str | None:
    """Return the column of prompts: not the group key itself, and none if rows are turns."""
    group = columns.columns.get("group")
    if any(name in source.columns for name in TURNS if name != group):
        return None
    return next((name for name in _texts_or_lists(source, PROMPTS) if name != group), None)


def _advantages(source: Source, columns: ColumnMap) -> str | None:
    """Return the column of advantages if it has numbers or lists of numbers."""
    name = columns.columns.get("advantages")
    if name is None or not all(
        is_number(kind) or _is_numbers(kind) for kind in _types(source, name)
    ):
        return None
    return name


def _kept(source: Source, columns: ColumnMap) -> str | None:
    """Return the column of the sample mask if it has numbers."""
    name = columns.columns.get("sample_mask")
    return name if name and all(map(is_number, _types(source, name))) else None


def _types(source: Source, column: str) -> Iterator[pa.DataType]:
    """Yield the type of a column in each file that has it; a hive partition has none."""
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
    """Return whether these are lists of numbers; empty lists may have no type."""
    return is_list(kind) and (is_number(kind.value_type) or pa.types.is_null(kind.value_type))


def _is_text_or_list(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_numbers(kind)


def _usable(meaning: Kind, kind: pa.DataType) -> bool:
    """Return whether a column of this type fits a kind of role; an empty column fits any."""
    if pa.types.is_null(kind):
        return True
    if meaning == "tokens":
        return _is_numbers(kind)
    if meaning == "number":
        return is_number(kind) or _is_numbers(kind)
    return is_number(kind) or _is_text(kind)


CHUNK_TOKENS = 1 << 19  # half as many cost more calls, twice as many do not fit the cache
AHEAD = 6  # chunks that are read in advance


@dataclass(frozen=True)
class Reading:
    """The result of the pass.

    `rows` has a row per response: `file`, `row` (in its file), the keys, `reward`, `truncated`,
    `length` (all tokens), `tokens` (policy tokens), flags and means of its tokens, `copy` and
    `prompt` (hashes, 0 for no prompt), and by role the `entries` of its list.
    """

    selection: ColumnSelection
    rows: pl.DataFrame
    totals: TokenTotals = field(default_factory=TokenTotals)
    advantages: GrowingHistogram = field(default_factory=GrowingHistogram)


def read(source: Source, selection: ColumnSelection) -> Reading:
    """Read the input once, in chunks, on a thread of its own.

    Raises:
        DataError: a column has a type that its role can't have.
        ReadWriteError: reading failed.
    """
    reading = Reading(selection, pl.DataFrame())
    names = selection.names or source.columns[:1]
    chunks = source.read(names, CHUNK_TOKENS, selection.lists_column or names[0])
    with np.errstate(invalid="ignore", over="ignore"):  # numbers that are not finite are counted
        parts = [_rows(chunk, source, reading) for chunk in Prefetcher(chunks, AHEAD)]
    parts = parts or [_rows(_empty_chunk(source, names), source, reading)]
    keys = [role for role in KEYS if role in selection.columns]
    series = {name: _concatenated([rows[name] for rows in parts]) for name in keys}
    others = [name for name in parts[0] if name not in series]
    arrays = {name: np.concatenate([rows[name] for rows in parts]) for name in others}
    return replace(reading, rows=_with_copies(pl.DataFrame({**series, **arrays}), selection))


def _with_copies(rows: pl.DataFrame, selection: ColumnSelection) -> pl.DataFrame:
    """Without a column of texts or tokens, identify responses by the mean of their log-probs."""
    if selection.copies_role is None or "copy" in rows:
        return rows
    mean = pl.col(f"mean:{selection.copies_role}")
    return rows.with_columns(copy=pl.when(mean.is_finite()).then(pl.struct(mean, "tokens").hash()))


def _empty_chunk(source: Source, names: Sequence[str]) -> RowChunk:
    """Return a chunk without rows, for an input without rows."""
    schema = source.schemas[0]
    fields = [schema.field(name) if name in schema.names else (name, pa.string()) for name in names]
    return RowChunk(0, 0, 0, pa.RecordBatch.from_pylist([], pa.schema(fields)))


def _concatenated(parts: list[pl.Series]) -> pl.Series:
    """Return the keys of all chunks; as strings if their types differ between files."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.cast(pl.String) for part in parts]
    return pl.concat(parts)


def _rows(chunk: RowChunk, source: Source, reading: Reading) -> dict[str, Any]:
    """Return numbers per response of a chunk; the reading gets totals."""
    selection = reading.selection
    table, count = chunk.table, chunk.table.num_rows
    path = str(source.files[chunk.file].path)

    def column(role: str) -> tuple[Any, CellLocation]:
        name = selection.columns.columns.get(role, role)
        return table.column(name), CellLocation(path, chunk.first_row, name)

    rows: dict[str, Any] = {
        "file": np.full(count, chunk.file, np.int32),
        "row": np.arange(chunk.first_row, chunk.first_row + count),
    }
    rows |= {role: decode.keys_of(*column(role)) for role in KEYS if role in selection.columns}
    if "reward" in selection.columns:
        rows["reward"] = decode.numbers_of(*column("reward"))
    if "truncated" in selection.columns:
        rows["truncated"] = decode.truncated_of(*column("truncated"))
    lists: dict[str, Lists] = {}
    if selection.lists is not None:
        lists = {
            role: decode.lists_of(*column(role))
            for role in dict.fromkeys((selection.lists, *selection.tokens))
        }
        steps = rows.get("batch")
        rows |= _tokens(lists, reading, None if steps is None else steps.to_list())
    if selection.text is not None:
        rows["copy"] = decode.fingerprints_of(*column(selection.text))
        if selection.lists is None:
            rows["characters"] = decode.characters_of(column(selection.text)[0])
    if selection.prompt is not None:
        array, location = column(selection.prompt)
        hashes = decode.fingerprints_of(array, location)
        rows["prompt"] = np.where(is_true(array.is_valid()), hashes, 0)
    if selection.advantages is not None:
        kept = None
        if selection.kept is not None:
            kept = decode.numbers_of(*column(selection.kept)) != 0
            reading.totals.add("left_out", count - np.count_nonzero(kept))
        rows |= advantage_rows(
            *column(selection.advantages), lists.get("mask"), kept, reading.advantages
        )
    return rows


def _tokens(
    lists: dict[str, Lists], reading: Reading, steps: Sequence[Label | None] | None
) -> dict[str, NDArray[Any]]:
    """Return numbers per response of its tokens; the reading gets totals."""
    selection, totals = reading.selection, reading.totals
    assert selection.lists is not None
    lengths = lists[selection.lists].lengths
    rows: dict[str, NDArray[Any]] = {"length": lengths}
    unequal = {role: lists[role].lengths != lengths for role in selection.tokens}
    rows |= {f"unequal:{role}": flags for role, flags in unequal.items()}
    rows |= {f"entries:{role}": _entries(lists[role]) for role in selection.tokens}
    mask: NDArray[np.bool_] | None = None
    if selection.lists == "mask":
        mask, rows["not_binary"] = _mask(lists["mask"])
    own = lists[selection.lists].offsets
    rows |= alignment.mask_rows(Block(own, mask, {}))
    # A column whose lengths differ in most rows is left out; so are rows with unequal lengths.
    fitting = [role for role, flags in unequal.items() if 2 * flags.sum() <= len(lengths)]
    good = ~np.any([unequal[role] for role in fitting] or [np.zeros(len(lengths), bool)], axis=0)
    values = {role: lists[role].values for role in fitting}
    block = Block(own, mask, values)
    if not good.all():
        block = _block_of(good, own, mask, {role: lists[role] for role in fitting})
    numbers = {**tokens.add_tokens(block, totals), **alignment.end_rows(block)}
    alignment.add_shifts(block, totals)
    if steps is not None:
        own_steps = [step for step, fits in zip(steps, good, strict=True) if fits]
        alignment.add_step_shifts(block, own_steps, totals)
    for role in selection.tokens:
        rows |= {name: _to_all_rows(numbers.get(name), good) for name in _names(role)}
    for name in ("kl", "k3", "compared"):
        if name in numbers or _has_both(name, selection.tokens):
            rows[name] = _to_all_rows(numbers.get(name), good, np.float64)
    return rows


def _entries(lists: Lists) -> NDArray[np.int32]:
    """Return the number of values of each row, -1 without a list, [n]."""
    entries = lists.lengths.astype(np.int32)
    if lists.nulls is not None:
        entries[lists.nulls] = -1
    return entries


def _names(role: str) -> list[str]:
    ends = [f"{end}:{role}" for end in alignment.ENDS] if role in tokens.LOG_PROBS else []
    return [f"mean:{role}", f"nonfinite:{role}", *ends]


def _has_both(name: str, roles: Sequence[str]) -> bool:
    other = "ref_log_probs" if name == "kl" else "infer_log_probs"
    return {"old_log_probs", other} <= {*roles}


def _to_all_rows(
    values: NDArray[Any] | None, good: NDArray[np.bool_], kind: Any = None
) -> NDArray[Any]:
    """Return the numbers of the good rows among all rows; NaN for the others."""
    wide = np.full(len(good), np.nan, kind or np.float32)
    if values is not None:
        wide[good] = values
    return wide


def _mask(lists: Lists) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_]]:
    """Return the mask, None if it is 1 everywhere, and the rows with values other than 0 and 1."""
    values, rows = lists.values, len(lists.lengths)
    one = values == 1
    if one.all():
        return None, np.zeros(rows, np.bool_)
    wrong = ~one & (values != 0)
    if not wrong.any():
        return one, np.zeros(rows, np.bool_)
    return one | wrong, decode.segment_sums(wrong.astype(np.int64), lists.offsets) > 0


def _block_of(
    good: NDArray[np.bool_],
    own: NDArray[np.int64],
    mask: NDArray[np.bool_] | None,
    lists: Mapping[str, Lists],
) -> Block:
    """Return the block of the good rows."""
    offsets = np.concatenate([[0], np.diff(own)[good].cumsum()])
    values = {role: one.values[np.repeat(good, one.lengths)] for role, one in lists.items()}
    kept = None if mask is None else mask[np.repeat(good, np.diff(own))]
    return Block(offsets, kept, values)
