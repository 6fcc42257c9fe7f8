"""One pass over the files, chunk by chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.analysis.inspect import alignment, tokens
from rlpost.analysis.inspect import columns as decode
from rlpost.analysis.inspect.advantages import advantage_rows
from rlpost.analysis.inspect.columns import Block
from rlpost.analysis.inspect.critic import critic_names, critic_rows
from rlpost.analysis.inspect.entropy import entropy_names, entropy_rows, policy_role
from rlpost.analysis.inspect.selection import KEYS, LOG_PROBS, ColumnSelection, PassResult
from rlpost.analysis.segments import segment_sums
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.io.arrow import CellLocation, is_list, is_true
from rlpost.io.finish_reasons import truncations
from rlpost.io.memory_limit import KeptMemory
from rlpost.io.parquet.source import RowChunk
from rlpost.io.system import keep_freed_memory
from rlpost.io.threads import Prefetcher
from rlpost.kernels.rewards import component_sum
from rlpost.pipeline.data import ATTEMPT, FAILURE
from rlpost.pipeline.failures import failure_reasons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import ListColumn
    from rlpost.analysis.inspect.statistics import TokenTotals
    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import Source
    from rlpost.kernels.moments import Mask


CHUNK_TOKENS = 1 << 19  # half as many cost more calls, twice as many do not fit the cache
AHEAD = 6  # chunks that are read in advance


class ChunkUser(Protocol):
    """Computes something else from the chunks of the same pass."""

    read: list[str]
    """The columns that it needs."""

    def add(self, chunk: RowChunk) -> None:
        """Add the next chunk."""


def read(
    source: Source,
    selection: ColumnSelection,
    beside: Sequence[ChunkUser] = (),
    reporter: Reporter | None = None,
    counted: Mask | None = None,
) -> PassResult:
    """Read the input once, in chunks, on a thread of its own.

    Args:
        source: the input.
        selection: the columns of the statistics.
        beside: get each chunk after the statistics.
        reporter: gets the progress.
        counted: [N] the rows whose tokens statistics of policies count; None: all.

    Raises:
        DataError: a column has a type that its role can't have, or there are no columns.
        ReadWriteError: reading failed.
    """
    if not source.columns:
        raise DataError(f"{source.name}: there are no columns, so there is nothing to read")
    keep_freed_memory()
    files = [str(file.path) for file in source.files]
    reading = PassResult(selection, pl.DataFrame(), files=files, counted=counted)
    names = selection.names or source.columns[:1]
    every = list(dict.fromkeys([*names, *(name for one in beside for name in one.read)]))
    chunks = source.read(every, CHUNK_TOKENS, selection.lists_column or names[0])
    reporter = reporter or SilentReporter()
    reporter.start("statistics", source.rows)
    parts: list[dict[str, Any]] = []
    kept = KeptMemory(f"{source.name}: the keys of all responses")
    for chunk in Prefetcher(chunks, AHEAD):
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted
            parts.append(_rows(chunk, source, reading))
        kept.add(sum(parts[-1][name].estimated_size() for name in KEYS if name in parts[-1]))
        for one in beside:
            one.add(chunk)
        reporter.advance(chunk.table.num_rows)
    parts = parts or [_rows(_empty_chunk(source, names), source, reading)]
    keys = [name for name, values in parts[0].items() if isinstance(values, pl.Series)]
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


def _rows(chunk: RowChunk, source: Source, reading: PassResult) -> dict[str, Any]:
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
    rows |= _keys_and_numbers(column, selection)
    lists: dict[str, ListColumn] = {}
    if selection.lists is not None:
        lists = {
            role: decode.lists_of(*column(role))
            for role in dict.fromkeys((selection.lists, *selection.tokens))
        }
        rows |= _labels_of_tokens(column, selection, lists)
        rows |= _tokens(lists, reading, rows)
    if selection.lengths is not None:
        rows["tokens"] = decode.numbers_of(*column(selection.lengths))
    if selection.text is not None:
        rows["copy"] = decode.fingerprints_of(*column(selection.text))
        if selection.lengths_column is None:
            rows["characters"] = decode.characters_of(column(selection.text)[0])
    if selection.prompt is not None:
        array, location = column(selection.prompt)
        hashes = decode.fingerprints_of(array, location)
        rows["prompt"] = np.where(is_true(array.is_valid()), hashes, 0)
    kept = None
    if selection.kept is not None:
        kept = decode.numbers_of(*column(selection.kept)) != 0
        rows["kept"] = kept
        reading.totals.add("left_out", count - np.count_nonzero(kept))
    if selection.advantages is not None:
        rows |= advantage_rows(
            *column(selection.advantages), lists.get("mask"), kept, reading.advantages
        )
    return rows


def _keys_and_numbers(
    column: Callable[[str], tuple[Any, CellLocation]], selection: ColumnSelection
) -> dict[str, Any]:
    """Return keys, turns, rewards and truncation of responses, [n] each."""
    rows: dict[str, Any] = {
        role: decode.keys_of(*column(role)) for role in KEYS if role in selection.columns
    }
    if selection.rollout is not None:
        rows["rollout"] = decode.keys_of(*column(selection.rollout))
    if selection.turn is not None:
        rows["turn"] = decode.numbers_of(*column(selection.turn))
    rows |= {role: decode.keys_of(*column(name)) for role, name in selection.places.items()}
    if selection.sample is not None:
        rows["sample"] = decode.numbers_of(*column(selection.sample))
    if FAILURE in selection.columns:
        rows["failure"] = pl.Series(pl.from_arrow(failure_reasons(*column(FAILURE))))
    if ATTEMPT in selection.columns:
        rows["attempt"] = decode.numbers_of(*column(ATTEMPT))
    if selection.components:
        columns = {name: decode.numbers_of(*column(name)) for name in selection.components}
        rows |= {f"component:{name}": values for name, values in columns.items()}
        values, weights = np.stack([*columns.values()], axis=1), [*selection.components.values()]
        lacking = np.isnan(values).any(1)
        rows["reward"] = np.where(lacking, np.nan, component_sum(values, np.array(weights)))
        nulls = [is_true(column(name)[0].is_null()) for name in selection.components]
        rows["reward_null"] = np.any(nulls, axis=0)
    elif "reward" in selection.columns:
        rows["reward"] = decode.numbers_of(*column("reward"))
        rows["reward_null"] = is_true(column("reward")[0].is_null())
    if "truncated" in selection.columns:
        rows["truncated"], unknown = truncations(*column("truncated"))
        rows["unknown_reason"] = pl.Series(pl.from_arrow(unknown))
    return rows


def _labels_of_tokens(
    column: Callable[[str], tuple[Any, CellLocation]],
    selection: ColumnSelection,
    lists: dict[str, ListColumn],
) -> dict[str, Any]:
    """Return what explains a mismatch of responses, [n] each; `lists` gets that of tokens."""
    rows: dict[str, Any] = {
        f"machine:{name}": decode.keys_of(*column(name)) for name in selection.machines
    }
    if selection.entropy is not None:
        lists["entropy"] = decode.lists_of(*column(selection.entropy))
    if selection.advantages is not None and selection.critic_and_entropy:
        array, location = column(selection.advantages)
        if is_list(array.type):
            lists["advantages"] = decode.lists_of(array, location)
    if selection.version is not None:
        array, location = column(selection.version)
        if is_list(array.type):
            lists["version"] = decode.lists_of(array, location)
        else:
            rows["version"] = decode.numbers_of(array, location)
    return rows


def _tokens(
    lists: dict[str, ListColumn], reading: PassResult, others: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Return numbers per response of its tokens; the reading gets totals.

    Args:
        lists: by role.
        reading: the pass.
        others: numbers and keys of the responses, [n] each.
    """
    selection, totals = reading.selection, reading.totals
    assert selection.lists is not None
    lengths = lists[selection.lists].lengths
    own_nulls = lists[selection.lists].nulls
    rows: dict[str, NDArray[Any]] = {
        "length": lengths,
        "null_list": np.zeros(len(lengths), np.bool_) if own_nulls is None else own_nulls,
    }
    unequal = {role: lists[role].lengths != lengths for role in selection.tokens}
    rows |= {f"unequal:{role}": flags for role, flags in unequal.items()}
    rows |= {f"entries:{role}": _entries(lists[role]) for role in selection.tokens}
    mask: NDArray[np.bool_] | None = None
    if selection.lists == "mask":
        mask, rows["not_binary"] = _mask(lists["mask"], totals)
    own = lists[selection.lists].offsets
    rows |= alignment.mask_rows(Block(own, mask, {}))
    # A column whose lengths differ in most rows is left out; so are rows with unequal lengths.
    fitting = [role for role, flags in unequal.items() if 2 * flags.sum() <= len(lengths)]
    good = ~np.any([unequal[role] for role in fitting] or [np.zeros(len(lengths), bool)], axis=0)
    values = {role: lists[role].values for role in fitting}
    nulls = {role: flags for role in fitting if (flags := lists[role].null_values) is not None}
    block = Block(own, mask, values, nulls)
    if not good.all():
        block = _block_of(good, own, mask, {role: lists[role] for role in fitting})
    policy = block.policy()
    numbers = {**tokens.add_columns(policy, totals), **alignment.end_rows(block)}
    alignment.add_shifts(block, totals)
    if "batch" in others:
        alignment.add_step_shifts(block, others["batch"].filter(pl.Series(good)), totals)
    for role in selection.tokens:
        rows |= {name: _to_all_rows(numbers.get(name), good) for name in _names(role)}
    # Columns are checked in all rows; statistics of policies are of those that count.
    counts = good
    if reading.counted is not None:
        first = reading.sample.rows
        counts = good & reading.counted[first : first + len(lengths)]
    if not np.array_equal(counts, good):
        block = _block_of(counts, own, mask, {role: lists[role] for role in fitting})
        policy = block.policy()
    return rows | _policy_rows(block, policy, counts, lists, reading, others)


def _policy_rows(
    block: Block, policy: Block, counts: Mask, lists: Mapping[str, ListColumn],
    reading: PassResult, others: Mapping[str, Any],
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return divergences, and sums for critic and entropy, per response; the reading gets totals.

    Args:
        block: of the rows that count.
        policy: its policy tokens.
        counts: [n] which rows these are; the others get NaN.
        lists: of all rows, by role.
        reading: the pass.
        others: numbers and keys of the responses, [n] each.
    """
    selection, totals = reading.selection, reading.totals
    assert selection.lists is not None
    offsets, values = lists[selection.lists].offsets, block.values
    divergences = tokens.add_policies(policy, totals)
    extra: dict[str, NDArray[Any]] = {
        name: _values_like(lists[name], offsets, counts)
        for name in ("entropy", "version", "advantages")
        if name in lists
    }
    if {"old_log_probs", "infer_log_probs"} <= values.keys():
        of_sample = {name: x for name, x in extra.items() if name != "advantages"}
        reading.sample.add(block, reading.sample.rows + np.flatnonzero(counts), of_sample)
    reading.sample.rows += len(counts)
    exact: dict[str, NDArray[np.float64]] = {}
    of_critic, of_entropy = critic_names(selection), entropy_names(selection)
    if of_critic and "values" in values and "reward" in others:
        exact |= critic_rows(block, others["reward"][counts], totals, reading.critic)
    if of_entropy and ("entropy" in extra or policy_role(selection.tokens) in values):
        exact |= entropy_rows(selection, block, extra, totals, reading.entropies)
    both = [x for x in ("kl", "k3", "compared") if _has_both(x, selection.tokens)]
    numbers = {name: divergences.get(name) for name in both}
    numbers |= {name: exact.get(name) for name in (*of_critic, *of_entropy)}
    return {name: _to_all_rows(column, counts, np.float64) for name, column in numbers.items()}


def _values_like(
    lists: ListColumn, own: NDArray[np.int64], good: NDArray[np.bool_]
) -> NDArray[Any]:
    """Return the values of these rows; NaN in rows whose list has another length."""
    lengths = np.diff(own)
    fits = lists.lengths == lengths
    if fits.all():
        return lists.values if good.all() else lists.values[np.repeat(good, lengths)]
    wide = np.full(int(own[-1]), np.nan)
    wide[np.repeat(fits, lengths)] = lists.values[np.repeat(fits, lists.lengths)]
    return wide[np.repeat(good, lengths)]


def _entries(lists: ListColumn) -> NDArray[np.int32]:
    """Return the number of values of each row, -1 without a list, [n]."""
    entries = lists.lengths.astype(np.int32)
    if lists.nulls is not None:
        entries[lists.nulls] = -1
    return entries


def _names(role: str) -> list[str]:
    ends = [f"{end}:{role}" for end in alignment.ENDS] if role in LOG_PROBS else []
    return [f"mean:{role}", f"nonfinite:{role}", f"positive:{role}", *ends]


def _has_both(name: str, roles: Sequence[str]) -> bool:
    other = "ref_log_probs" if name == "kl" else "infer_log_probs"
    return {"old_log_probs", other} <= {*roles}


def _to_all_rows(
    values: NDArray[Any] | None, good: NDArray[np.bool_], kind: Any = None
) -> NDArray[Any]:
    """Return the numbers of these rows among all rows; NaN for the others."""
    wide = np.full(len(good), np.nan, kind or np.float32)
    if values is not None:
        wide[good] = values
    return wide


def _mask(
    lists: ListColumn, totals: TokenTotals
) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_]]:
    """Return the mask, None if it is 1 everywhere, and the rows with values other than 0 and 1."""
    values, rows = lists.values, len(lists.lengths)
    one = values == 1
    if one.all():
        return None, np.zeros(rows, np.bool_)
    wrong = ~one & (values != 0)
    if not wrong.any():
        return one, np.zeros(rows, np.bool_)
    others = values[wrong & np.isfinite(values)]
    if len(others):
        totals.span("mask.other", others.min(), others.max())
    return one | wrong, segment_sums(wrong.astype(np.int64), lists.offsets) > 0


def _block_of(
    good: NDArray[np.bool_],
    own: NDArray[np.int64],
    mask: NDArray[np.bool_] | None,
    lists: Mapping[str, ListColumn],
) -> Block:
    """Return the block of these rows."""
    offsets = np.concatenate([[0], np.diff(own)[good].cumsum()])
    values = {role: one.values[np.repeat(good, one.lengths)] for role, one in lists.items()}
    kept = None if mask is None else mask[np.repeat(good, np.diff(own))]
    nulls = {
        role: one.null_values[np.repeat(good, one.lengths)]
        for role, one in lists.items()
        if one.null_values is not None
    }
    return Block(offsets, kept, values, nulls)
